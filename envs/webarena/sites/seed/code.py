"""The code host's data: developers, projects, files, commits, issues and merge requests."""

from __future__ import annotations

import hashlib
import random

from rllm_gym.envs.webarena.sites.database import Database
from rllm_gym.envs.webarena.sites.seed.common import PASSWORD, cycled, names, skewed, times

NUM_DEVELOPERS = 20
OWNER = "ada_brook"
# Path -> (owner's number, description, language). The first five are of the developer whom the tasks are about.
PROJECTS = {
    "tide-tables": (1, "Predicts tides from harmonic constants.", "Python"),
    "paper-lantern": (1, "A static site generator for small newspapers.", "Go"),
    "seedbank": (1, "Keeps track of seeds and when to sow them.", "Python"),
    "quiet-mail": (1, "A mail filter that learns what can wait.", "Rust"),
    "trailmark": (1, "Draws hiking maps for the printer.", "TypeScript"),
    "bellows": (2, "Backups that breathe: small, often, checked.", "Rust"),
    "chalkboard": (3, "Shared drawing for classrooms.", "TypeScript"),
    "copper-kettle": (4, "A home automation hub without a cloud.", "Python"),
    "ferryman": (5, "Moves databases between versions.", "Go"),
    "glasswork": (6, "A toolkit for accessible widgets.", "TypeScript"),
    "inkwell": (7, "A text editor for long documents.", "Rust"),
    "lamplight": (8, "Alerts that tell you what to do.", "Go"),
    "orchard": (9, "Schedules batch jobs on spare machines.", "Python"),
    "pocket-atlas": (10, "Offline maps for phones.", "Kotlin"),
    "sandglass": (11, "Profiles programs while they run.", "C"),
    "wren": (12, "A tiny language for configuration files.", "C"),
}
TITLES = {
    "bug": "Crash when {}|Wrong result when {}|Nothing happens when {}",
    "feature": "Warn when {}|Ask before continuing when {}",
    "documentation": "Document what happens when {}",
    "question": "Is it intended that an error is shown when {}?",
    "performance": "Slow when {}",
}
CIRCUMSTANCES = (
    "the input is empty",
    "the disk is full",
    "two users save at once",
    "the clock changes",
    "a name has an accent",
    "the network is down",
    "the file is read-only",
    "a path has spaces",
    "the window is resized",
    "a date is in a leap year",
    "the cache is cold",
    "the log is rotated",
)
BODIES = (
    "It happens every time on version 2.3.",
    "Seen twice this week. I attach no log, since there is none.",
    "Steps: start it, wait a minute, try again.",
    "Not urgent, but it surprises new users.",
)
WORK = (
    ("Speed up start", "faster-start"),
    ("Replace the parser", "new-parser"),
    ("Fix typos in the read me", "typos"),
    ("Add dark colors", "dark-colors"),
    ("Drop old Python versions", "drop-old-versions"),
    ("Retry failed downloads", "retry"),
    ("Cache results on disk", "disk-cache"),
    ("Translate messages to French", "french"),
)
NOTES = (
    "Looks good to me.",
    "Could you add a test?",
    "I can reproduce this.",
    "Please rebase on main.",
    "Thanks for the report!",
    "Is there a workaround?",
    "I will look into it on Friday.",
)
COMMITS = (
    "Fix a typo",
    "Update dependencies",
    "Add a test for empty input",
    "Simplify the main loop",
    "Handle a missing file",
    "Rename a confusing option",
    "Speed up the slow path",
    "Remove dead code",
    "Explain the file format",
    "Check arguments early",
)
LICENSES = ("MIT", "Apache-2.0", "GPL-3.0", "BSD-3-Clause")


def fill(database: Database, rng: random.Random) -> None:
    people = ["Ada Brook", *names(rng, NUM_DEVELOPERS - 1)]
    usernames = [name.lower().replace(" ", "_") for name in people]
    for username, name in zip(usernames, people, strict=True):
        bio = "Writes small tools." if username == OWNER else ""
        database.insert("developers", username=username, password=PASSWORD, name=name, bio=bio, status="")
    stars = rng.sample(range(3, 900), len(PROJECTS))
    for (path, (owner_id, description, language)), count in zip(PROJECTS.items(), stars, strict=True):
        project_id = database.insert(
            "projects", owner_id=owner_id, path=path, description=description, language=language, base_stars=count
        )
        _fill_project(database, rng, project_id, path, description, language, owner_id)
    for path in ("bellows", "wren"):
        project_id = database.value("SELECT id FROM projects WHERE path = ?", path)
        database.insert("project_stars", developer_id=1, project_id=project_id)


def _fill_project(
    database: Database, rng: random.Random, project_id: int, path: str, description: str, language: str, owner_id: int
) -> None:
    others = [number for number in range(1 if owner_id != 1 else 2, NUM_DEVELOPERS + 1) if number != owner_id]
    team = rng.sample([number for number in others if number != 1], 4)
    roles = ("Maintainer", "Developer", "Developer", "Reporter")
    database.insert_all(
        "project_members",
        ("project_id", "developer_id", "role"),
        [(project_id, *pair) for pair in zip(team, roles, strict=True)],
    )
    version = f"{rng.randint(0, 4)}.{rng.randint(0, 9)}.{rng.randint(0, 9)}"
    readme = f"# {path}\n\n{description}\n\nWritten in {language}. The latest version is {version}.\n"
    files = {
        "README.md": readme,
        "LICENSE": f"{rng.choice(LICENSES)} License\n",
        "CHANGELOG.md": f"# Changes\n\n## {version}\n- {rng.choice(COMMITS)}\n",
        "docs/install.md": f"Run the installer of {path} and restart the shell.\n",
    }
    database.insert_all("files", ("project_id", "path", "content"), [(project_id, *item) for item in files.items()])
    _fill_commits(database, rng, project_id, [owner_id, *team])
    _fill_issues(database, rng, project_id, [owner_id, *team], others)
    _fill_merge_requests(database, rng, project_id, [owner_id, *team])


def _fill_commits(database: Database, rng: random.Random, project_id: int, team: list[int]) -> None:
    columns = ("project_id", "sha", "title", "author_id", "created")
    count = rng.randint(10, 22)
    rows = []
    for i, (title, created) in enumerate(zip(cycled(rng, COMMITS, count), times(rng, count, 300), strict=True)):
        sha = hashlib.sha1(f"{project_id} {i} {title}".encode()).hexdigest()[:8]
        rows.append((project_id, sha, title, rng.choice(team), created))
    database.insert_all("commits", columns, rows)


def _fill_issues(database: Database, rng: random.Random, project_id: int, team: list[int], others: list[int]) -> None:
    count = rng.randint(9, 12)
    circumstances = rng.sample(CIRCUMSTANCES, count)  # every issue of a project has its own
    for iid, (circumstance, created) in enumerate(zip(circumstances, times(rng, count, 250), strict=True), 1):
        label = rng.choice(list(TITLES))
        database.insert(
            "issues",
            project_id=project_id,
            iid=iid,
            title=rng.choice(TITLES[label].split("|")).format(circumstance),
            body=rng.choice(BODIES),
            author_id=rng.choice(others),
            assignee_id=rng.choice([*team, 1, None]),
            label=label,
            state="closed" if rng.random() < 0.3 else "opened",
            created=created,
        )
        _fill_notes(database, rng, project_id, "issue", iid, team, created)


def _fill_merge_requests(database: Database, rng: random.Random, project_id: int, team: list[int]) -> None:
    count = rng.randint(4, 6)
    work = rng.sample(WORK, count)
    branches = ["main", *(branch for _, branch in work), "release"]
    database.insert_all("branches", ("project_id", "name"), [(project_id, name) for name in branches])
    states = ["opened", "opened", *(rng.choice(("opened", "merged", "closed")) for _ in range(count - 2))]
    rng.shuffle(states)
    rows = zip(work, states, times(rng, count, 120), strict=True)
    for iid, ((title, branch), state, created) in enumerate(rows, 1):
        author, reviewer = rng.sample(team, 2)
        database.insert(
            "merge_requests",
            project_id=project_id,
            iid=iid,
            title=title,
            body=rng.choice(BODIES) if rng.random() < 0.2 else f"This branch does it: {branch}.",
            author_id=author,
            reviewer_id=1 if rng.random() < 0.2 and author != 1 else reviewer,
            source=branch,
            target="main",
            state=state,
            created=created,
        )
        _fill_notes(database, rng, project_id, "merge", iid, team, created)


def _fill_notes(
    database: Database, rng: random.Random, project_id: int, kind: str, iid: int, team: list[int], created: str
) -> None:
    columns = ("project_id", "kind", "iid", "author_id", "body", "created")
    bodies = rng.sample(NOTES, skewed(rng, 0, 5))
    database.insert_all("notes", columns, [(project_id, kind, iid, rng.choice(team), body, created) for body in bodies])
