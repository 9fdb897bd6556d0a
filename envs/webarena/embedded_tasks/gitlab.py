"""Tasks on the code host."""

from __future__ import annotations

import random
from collections.abc import Iterator
from sqlite3 import Row

from rllm_gym.envs.webarena.embedded_tasks.base import (
    Instance,
    Templates,
    address,
    answer,
    holds,
    pages,
    pick,
    reads,
)
from rllm_gym.envs.webarena.script import Step, choose, fill, follow, push, search, stop
from rllm_gym.envs.webarena.sites.database import Database
from rllm_gym.envs.webarena.sites.gitlab import SITE
from rllm_gym.envs.webarena.sites.gitlab.base import PROJECTS
from rllm_gym.envs.webarena.sites.gitlab.projects import ROLES
from rllm_gym.envs.webarena.sites.gitlab.work import ISSUES, LABELS, MERGE_REQUESTS

templates = Templates("gitlab")
URL = "__GITLAB__"


def _projects(db: Database, *, mine: bool | None = None) -> list[Row]:
    where = {None: "1", True: f"owner = '{SITE.user}'", False: f"owner != '{SITE.user}'"}[mine]
    return db.all(f"{PROJECTS} WHERE {where} ORDER BY id")


def _issues(db: Database, where: str) -> list[Row]:
    return db.all(f"{ISSUES} WHERE {where} ORDER BY id")


def _merge_requests(db: Database, where: str) -> list[Row]:
    return db.all(f"{MERGE_REQUESTS} WHERE {where} ORDER BY id")


def _at(row: Row) -> str:
    return f"{URL}/{row['owner']}/{row['path']}"


def _open(row: Row) -> list[Step]:
    return [search("Search projects", row["path"]), follow(f"{row['owner']}/{row['path']}")]


def _open_issue(row: Row) -> list[Step]:
    return [*_open(row), follow("Issues"), search("Search issues", row["title"]), follow(row["title"])]


_MINE = f"owner = '{SITE.user}' AND state = 'opened'"


@templates.add('Create an issue with the title "{{title}}" and the label {{label}} in the project {{project}}.')
def _new_issue(db: Database, rng: random.Random) -> Iterator[Instance]:
    titles = (
        "Typo on the first page",
        "Add a dark theme",
        "Freezes on start",
        "Explain the options",
        "Too slow",
        "Why so loud?",
    )
    for row, title in zip(pick(rng, _projects(db)), titles, strict=True):
        iid = db.value("SELECT max(iid) + 1 FROM issues WHERE project_id = ?", row["id"])
        label = rng.choice(LABELS)
        page = f"{_at(row)}/-/issues/{iid}"
        yield Instance(
            {"title": title, "label": label, "project": row["path"]},
            pages(reads(page, "h1", title), reads(page, "#label", label)),
            [
                *_open(row),
                follow("Issues"),
                follow("New issue"),
                fill("Title", title),
                choose(label),
                push("Create issue"),
            ],
        )


@templates.add('Close the issue "{{title}}" of my project {{project}}.')
def _close_issue(db: Database, rng: random.Random) -> Iterator[Instance]:
    for row in pick(rng, _issues(db, _MINE)):
        yield Instance(
            {"title": row["title"], "project": row["path"]},
            pages(reads(f"{_at(row)}/-/issues/{row['iid']}", "#state", "Closed")),
            [*_open_issue(row), push("Close issue")],
        )


@templates.add('Comment "{{text}}" on the issue "{{title}}" of the project {{project}}.')
def _comment(db: Database, rng: random.Random) -> Iterator[Instance]:
    texts = (
        "I see this, too.",
        "Fixed on my branch.",
        "Any news?",
        "Please close this.",
        "Which version?",
        "Duplicate.",
    )
    for row, text in zip(pick(rng, _issues(db, "state = 'opened'")), texts, strict=True):
        yield Instance(
            {"text": text, "title": row["title"], "project": row["path"]},
            pages(holds(f"{_at(row)}/-/issues/{row['iid']}", "#notes", f"{SITE.user} on", text)),
            [*_open_issue(row), fill("Comment", text), push("Post comment")],
        )


@templates.add(
    "How many open issues with the label {{label}} does the project {{project}} have? Answer with the number only."
)
def _num_issues(db: Database, rng: random.Random) -> Iterator[Instance]:
    for row in pick(rng, _projects(db)):
        label = rng.choice(LABELS)
        sql = "SELECT count(*) FROM issues WHERE project_id = ? AND label = ? AND state = 'opened'"
        number = str(db.value(sql, row["id"], label))
        steps = [*_open(row), follow("Issues"), follow(label), stop(number)]
        yield Instance({"label": label, "project": row["path"]}, answer(exact=number), steps)


@templates.add('Who is the issue "{{title}}" of the project {{project}} assigned to? Answer with the user name only.')
def _assignee(db: Database, rng: random.Random) -> Iterator[Instance]:
    for row in pick(rng, _issues(db, "state = 'opened' AND assignee IS NOT NULL")):
        steps = [*_open_issue(row), stop(row["assignee"])]
        yield Instance({"title": row["title"], "project": row["path"]}, answer(exact=row["assignee"]), steps)


@templates.add("Star the project {{project}}.")
def _star(db: Database, rng: random.Random) -> Iterator[Instance]:
    starred = {row["project_id"] for row in db.all("SELECT project_id FROM project_stars WHERE developer_id = 1")}
    for row in pick(rng, [row for row in _projects(db, mine=False) if row["id"] not in starred]):
        yield Instance(
            {"project": row["full_path"]},
            pages(holds(f"{URL}/starred", "main", row["full_path"])),
            [*_open(row), push("Star")],
        )


@templates.add('Merge the merge request "{{title}}" of my project {{project}}.')
def _merge(db: Database, rng: random.Random) -> Iterator[Instance]:
    for row in pick(rng, _merge_requests(db, _MINE)):
        yield Instance(
            {"title": row["title"], "project": row["path"]},
            pages(reads(f"{_at(row)}/-/merge_requests/{row['iid']}", "#state", "Merged")),
            [*_open(row), follow("Merge requests"), follow(row["title"]), push("Merge")],
        )


@templates.add("Invite {{user}} to my project {{project}} as {{role}}.")
def _invite(db: Database, rng: random.Random) -> Iterator[Instance]:
    for row, role in zip((_projects(db, mine=True) * 2)[:6], ROLES * 2, strict=False):
        members = {
            member[0] for member in db.all("SELECT developer_id FROM project_members WHERE project_id = ?", row["id"])
        }
        users = [
            user["username"]
            for user in db.all("SELECT * FROM developers WHERE id > 1 ORDER BY id")
            if user["id"] not in members
        ]
        user = rng.choice(users)
        item = f'#members li:has(a[href$="/{user}"])'
        yield Instance(
            {"user": user, "project": row["path"], "role": role},
            pages(holds(f"{_at(row)}/-/members", item, user, role)),
            [*_open(row), follow("Members"), fill("User name", user), choose(role), push("Invite member")],
        )


@templates.add('Create a {{visibility}} project {{name}} with the description "{{description}}"')
def _new_project(db: Database, rng: random.Random) -> Iterator[Instance]:
    projects = (
        ("public", "moon-phase", "Prints the phase of the moon."),
        ("private", "diary", "Notes for myself."),
        ("public", "bread-timer", "Rings when the dough is ready."),
        ("private", "budget", "Where the money goes."),
        ("public", "bird-log", "Lists the birds of a garden."),
        ("private", "drafts", "Nothing to see yet."),
    )
    for visibility, name, description in projects:
        page = f"{URL}/{SITE.user}/{name}"
        texts = (description, "private") if visibility == "private" else (description,)
        yield Instance(
            {"visibility": visibility, "name": name, "description": description},
            pages(reads(page, "h1", name), holds(page, "main", *texts)),
            [
                follow("New project"),
                fill("Project name", name),
                fill("Description", description),
                choose(visibility.capitalize()),
                push("Create project"),
            ],
        )


@templates.add("How many commits has {{user}} made to the project {{project}}? Answer with the number only.")
def _num_commits(db: Database, rng: random.Random) -> Iterator[Instance]:
    sql = """
        SELECT p.*, d.username, count(*) AS num FROM commits c JOIN developers d ON d.id = c.author_id
        JOIN (SELECT p.id, p.path, o.username AS owner FROM projects p JOIN developers o ON o.id = p.owner_id) p
        ON p.id = c.project_id GROUP BY p.id, d.id ORDER BY p.id, d.id"""
    for row in pick(rng, db.all(sql)):
        number = str(row["num"])
        steps = [*_open(row), follow("Commits"), search("Author", row["username"]), stop(number)]
        yield Instance({"user": row["username"], "project": row["path"]}, answer(exact=number), steps)


@templates.add("Show me {{list}}.")
def _lists(db: Database, rng: random.Random) -> Iterator[Instance]:
    lists = (
        ("the issues that are assigned to me", "/assigned", "My issues"),
        ("the merge requests that I should review", "/reviews", "My reviews"),
        ("the projects that I have starred", "/starred", "Starred"),
    )
    for name, path, link in lists:
        yield Instance({"list": name}, address(f"{URL}{path}"), [follow(link)])


@templates.add('Add a file {{file}} with the content "{{content}}" to my project {{project}}.')
def _new_file(db: Database, rng: random.Random) -> Iterator[Instance]:
    files = (
        ("NOTICE", "Made with care."),
        ("docs/faq.md", "Ask by mail."),
        ("AUTHORS", "Ada Brook"),
        ("docs/style.md", "Short lines."),
        ("TODO.md", "Write tests."),
        ("SECURITY.md", "Report in private."),
    )
    for (file, content), row in zip(files, (_projects(db, mine=True) * 2)[:6], strict=True):
        yield Instance(
            {"file": file, "content": content, "project": row["path"]},
            pages(reads(f"{_at(row)}/-/blob/main/{file}", "#file", content)),
            [
                *_open(row),
                follow("New file"),
                fill("File name", file),
                fill("Content", content),
                fill("Commit message", f"Add {file}"),
                push("Commit changes"),
            ],
        )


@templates.add('Assign the issue "{{title}}" of my project {{project}} to {{user}}.', split="eval")
def _assign(db: Database, rng: random.Random) -> Iterator[Instance]:
    users = [row["username"] for row in db.all("SELECT username FROM developers ORDER BY id")]
    for row in pick(rng, _issues(db, _MINE)):
        user = rng.choice([user for user in users if user != row["assignee"]])
        yield Instance(
            {"title": row["title"], "project": row["path"], "user": user},
            pages(reads(f"{_at(row)}/-/issues/{row['iid']}", "#assignee", user)),
            [*_open_issue(row), follow("Edit"), fill("Assignee", user), push("Save")],
        )


@templates.add(
    'Open a merge request "{{title}}" from the branch {{branch}} into release in my project {{project}}.', split="eval"
)
def _new_merge_request(db: Database, rng: random.Random) -> Iterator[Instance]:
    titles = ("Backport this", "For the next release", "Ship it", "One more thing", "Small fix", "Before we forget")
    for row, title in zip((_projects(db, mine=True) * 2)[:6], titles, strict=True):
        iid = db.value("SELECT max(iid) + 1 FROM merge_requests WHERE project_id = ?", row["id"])
        sql = "SELECT name FROM branches WHERE project_id = ? AND name NOT IN ('main', 'release') ORDER BY name"
        branch = rng.choice(db.all(sql, row["id"]))["name"]
        page = f"{_at(row)}/-/merge_requests/{iid}"
        target = Step("click", "radio", "release", after="Target branch")
        yield Instance(
            {"title": title, "branch": branch, "project": row["path"]},
            pages(reads(page, "h1", title), reads(page, "#branches", f"{branch} into release")),
            [
                *_open(row),
                follow("Merge requests"),
                follow("New merge request"),
                fill("Title", title),
                choose(branch),
                target,
                push("Create merge request"),
            ],
        )


@templates.add("Under which license is the project {{project}}? Answer with its short name only.", split="eval")
def _license(db: Database, rng: random.Random) -> Iterator[Instance]:
    for row in pick(rng, _projects(db)):
        text = db.value("SELECT content FROM files WHERE project_id = ? AND path = 'LICENSE'", row["id"])
        name = text.partition(" ")[0]
        steps = [*_open(row), follow("LICENSE"), stop(name)]
        yield Instance({"project": row["path"]}, answer(exact=name), steps)


@templates.add('Set my status to "{{status}}"', split="eval")
def _set_status(db: Database, rng: random.Random) -> Iterator[Instance]:
    for status in ("On holiday", "Reviewing", "Back on Monday", "In a meeting", "Testing the release", "Out for lunch"):
        yield Instance(
            {"status": status},
            pages(reads(f"{URL}/{SITE.user}", "#status", status)),
            [follow(SITE.user), follow("Edit profile"), fill("Status", status), push("Save")],
        )
