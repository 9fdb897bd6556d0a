"""The code host's issues and merge requests."""

from __future__ import annotations

from sqlite3 import Row

from flask import abort, flash, g, redirect, request, url_for
from flask.typing import ResponseReturnValue

from rllm_gym.envs.webarena.sites.app import FormError, Page, choice, found, like, login_required, paginate, text
from rllm_gym.envs.webarena.sites.gitlab.base import find_project, me, named_developer, pages, show, writable

LABELS = ("bug", "feature", "documentation", "question", "performance")
LABEL_OPTIONS = [("", "none"), *((name, name) for name in LABELS)]
ISSUE_STATES = [("opened", "Open"), ("closed", "Closed"), ("all", "All")]
MERGE_STATES = [("opened", "Open"), ("merged", "Merged"), ("closed", "Closed"), ("all", "All")]
ISSUES = """
    SELECT * FROM (
        SELECT i.*, a.username AS author, b.username AS assignee, o.username AS owner, p.path AS path
        FROM issues i JOIN developers a ON a.id = i.author_id LEFT JOIN developers b ON b.id = i.assignee_id
        JOIN projects p ON p.id = i.project_id JOIN developers o ON o.id = p.owner_id)"""
MERGE_REQUESTS = """
    SELECT * FROM (
        SELECT m.*, a.username AS author, b.username AS reviewer, o.username AS owner, p.path AS path
        FROM merge_requests m JOIN developers a ON a.id = m.author_id LEFT JOIN developers b ON b.id = m.reviewer_id
        JOIN projects p ON p.id = m.project_id JOIN developers o ON o.id = p.owner_id)"""


# Issues.


@pages.get("/<owner>/<path>/-/issues")
def issues(owner: str, path: str) -> ResponseReturnValue:
    row = find_project(owner, path)
    args = request.args
    sql = f"""
        {ISSUES} WHERE project_id = ? AND ? IN (state, 'all') AND ? IN (label, '') AND title LIKE ? ESCAPE '\\'
        ORDER BY created DESC, iid DESC"""
    page = paginate(sql, row["id"], args.get("state", "opened"), args.get("label", ""), like(args.get("q", "")[:200]))
    return show("issues", row, page=page, states=ISSUE_STATES, labels=[("", "any"), *((name, name) for name in LABELS)])


@pages.route("/<owner>/<path>/-/issues/new", methods=["GET", "POST"])
@login_required
def new_issue(owner: str, path: str) -> ResponseReturnValue:
    row = find_project(owner, path)
    if request.method == "POST":
        try:
            title, body = text("title", "Title", max_chars=300), text("body", "Description", required=False)
            assignee_id = named_developer("assignee", "Assignee")
            label = choice("label", "Label", ["", *LABELS])
            iid = _next_iid("issues", row)
            g.db.insert(
                "issues",
                project_id=row["id"],
                iid=iid,
                title=title,
                body=body,
                author_id=me(),
                assignee_id=assignee_id,
                label=label,
                state="opened",
                created=g.db.now(),
            )
            return redirect(url_for(".issue", owner=owner, path=path, iid=iid))
        except FormError as e:
            flash(str(e), "error")
    return show("new_issue", row, options=LABEL_OPTIONS)


@pages.get("/<owner>/<path>/-/issues/<int(max=999999):iid>")
def issue(owner: str, path: str, iid: int) -> ResponseReturnValue:
    row = find_project(owner, path)
    found_issue = _issue(row, iid)
    return show("issue", row, issue=found_issue, page=_notes(row, "issue", iid))


@pages.post("/<owner>/<path>/-/issues/<int(max=999999):iid>/note")
@login_required
def note_issue(owner: str, path: str, iid: int) -> ResponseReturnValue:
    row = find_project(owner, path)
    _issue(row, iid)
    return _add_note(row, "issue", iid)


@pages.post("/<owner>/<path>/-/issues/<int(max=999999):iid>/<any(close, reopen):verb>")
@login_required
def set_issue_state(owner: str, path: str, iid: int, verb: str) -> ResponseReturnValue:
    row = find_project(owner, path)
    if _issue(row, iid)["author_id"] != me():
        writable(row)
    state = "closed" if verb == "close" else "opened"
    g.db.run("UPDATE issues SET state = ? WHERE project_id = ? AND iid = ?", state, row["id"], iid)
    return redirect(url_for(".issue", owner=owner, path=path, iid=iid))


@pages.route("/<owner>/<path>/-/issues/<int(max=999999):iid>/edit", methods=["GET", "POST"])
@login_required
def edit_issue(owner: str, path: str, iid: int) -> ResponseReturnValue:
    row = find_project(owner, path)
    old = _issue(row, iid)
    if old["author_id"] != me():
        writable(row)
    if request.method == "POST":
        try:
            g.db.run(
                "UPDATE issues SET title = ?, body = ?, assignee_id = ?, label = ? WHERE project_id = ? AND iid = ?",
                text("title", "Title", max_chars=300),
                text("body", "Description", required=False),
                named_developer("assignee", "Assignee"),
                choice("label", "Label", ["", *LABELS]),
                row["id"],
                iid,
            )
            flash("The issue is saved.")
            return redirect(url_for(".issue", owner=owner, path=path, iid=iid))
        except FormError as e:
            flash(str(e), "error")
    return show("new_issue", row, issue=old, options=LABEL_OPTIONS)


def _issue(project: Row, iid: int) -> Row:
    return found(g.db.first(f"{ISSUES} WHERE project_id = ? AND iid = ?", project["id"], iid))


# Merge requests.


@pages.get("/<owner>/<path>/-/merge_requests")
def merge_requests(owner: str, path: str) -> ResponseReturnValue:
    row = find_project(owner, path)
    sql = f"""
        {MERGE_REQUESTS} WHERE project_id = ? AND ? IN (state, 'all') AND title LIKE ? ESCAPE '\\'
        ORDER BY created DESC, iid DESC"""
    words = like(request.args.get("q", "")[:200])
    page = paginate(sql, row["id"], request.args.get("state", "opened"), words)
    return show("merge_requests", row, page=page, states=MERGE_STATES)


@pages.route("/<owner>/<path>/-/merge_requests/new", methods=["GET", "POST"])
@login_required
def new_merge_request(owner: str, path: str) -> ResponseReturnValue:
    row = writable(find_project(owner, path))
    branches = [
        branch["name"] for branch in g.db.all("SELECT name FROM branches WHERE project_id = ? ORDER BY name", row["id"])
    ]
    if request.method == "POST":
        try:
            title, body = text("title", "Title", max_chars=300), text("body", "Description", required=False)
            source, target = choice("source", "Source branch", branches), choice("target", "Target branch", branches)
            if source == target:
                raise FormError("Source and target branch must differ.")
            reviewer_id = named_developer("reviewer", "Reviewer")
            iid = _next_iid("merge_requests", row)
            g.db.insert(
                "merge_requests",
                project_id=row["id"],
                iid=iid,
                title=title,
                body=body,
                author_id=me(),
                reviewer_id=reviewer_id,
                source=source,
                target=target,
                state="opened",
                created=g.db.now(),
            )
            return redirect(url_for(".merge_request", owner=owner, path=path, iid=iid))
        except FormError as e:
            flash(str(e), "error")
    return show("new_merge_request", row, options=[(name, name) for name in branches])


@pages.get("/<owner>/<path>/-/merge_requests/<int(max=999999):iid>")
def merge_request(owner: str, path: str, iid: int) -> ResponseReturnValue:
    row = find_project(owner, path)
    return show("merge_request", row, merge=_merge_request(row, iid), page=_notes(row, "merge", iid))


@pages.post("/<owner>/<path>/-/merge_requests/<int(max=999999):iid>/note")
@login_required
def note_merge_request(owner: str, path: str, iid: int) -> ResponseReturnValue:
    row = find_project(owner, path)
    _merge_request(row, iid)
    return _add_note(row, "merge", iid)


@pages.post("/<owner>/<path>/-/merge_requests/<int(max=999999):iid>/<any(merge, close, reopen):verb>")
@login_required
def set_merge_request_state(owner: str, path: str, iid: int, verb: str) -> ResponseReturnValue:
    row = writable(find_project(owner, path))
    state = {"merge": "merged", "close": "closed", "reopen": "opened"}[verb]
    if _merge_request(row, iid)["state"] == "merged":
        abort(409)
    g.db.run("UPDATE merge_requests SET state = ? WHERE project_id = ? AND iid = ?", state, row["id"], iid)
    return redirect(url_for(".merge_request", owner=owner, path=path, iid=iid))


def _merge_request(project: Row, iid: int) -> Row:
    return found(g.db.first(f"{MERGE_REQUESTS} WHERE project_id = ? AND iid = ?", project["id"], iid))


# Both.


def _next_iid(table: str, project: Row) -> int:
    return g.db.value(f"SELECT coalesce(max(iid), 0) + 1 FROM {table} WHERE project_id = ?", project["id"])


def _notes(project: Row, kind: str, iid: int) -> Page:
    sql = """
        SELECT n.*, d.username AS author FROM notes n JOIN developers d ON d.id = n.author_id
        WHERE project_id = ? AND kind = ? AND iid = ? ORDER BY n.id"""
    return paginate(sql, project["id"], kind, iid, size=10)


def _add_note(project: Row, kind: str, iid: int) -> ResponseReturnValue:
    try:
        body = text("body", "Comment")
        g.db.insert(
            "notes", project_id=project["id"], kind=kind, iid=iid, author_id=me(), body=body, created=g.db.now()
        )
        flash("Your comment is posted.")
    except FormError as e:
        flash(str(e), "error")
    endpoint = ".issue" if kind == "issue" else ".merge_request"
    return redirect(url_for(endpoint, owner=project["owner"], path=project["path"], iid=iid))
