"""The code host's projects: lists, files, commits, members."""

from __future__ import annotations

import hashlib

from flask import flash, g, redirect, render_template, request, url_for
from flask.typing import ResponseReturnValue

from rllm_gym.envs.webarena.sites.app import FormError, choice, found, like, login_required, paginate, text
from rllm_gym.envs.webarena.sites.gitlab.base import PROJECTS, find_project, me, named_developer, pages, show, writable
from rllm_gym.envs.webarena.sites.gitlab.work import ISSUES, MERGE_REQUESTS

ROLES = ("Guest", "Reporter", "Developer", "Maintainer")


# Projects.


@pages.get("/")
def home() -> ResponseReturnValue:
    if g.user is None:
        return redirect(url_for(".explore"))
    page = paginate(f"{PROJECTS} WHERE owner_id = ? ORDER BY path", me())
    return render_template("gitlab/projects.html", title="Your projects", page=page)


@pages.get("/explore")
def explore() -> ResponseReturnValue:
    words = request.args.get("q", "").strip()[:200]
    order = "stars DESC, path" if request.args.get("sort") == "stars" else "path"
    where = "is_private = 0 AND (full_path LIKE ? ESCAPE '\\' OR description LIKE ? ESCAPE '\\')"
    page = paginate(f"{PROJECTS} WHERE {where} ORDER BY {order}", like(words), like(words))
    title = f'Projects with "{words}"' if words else "All projects"
    return render_template("gitlab/projects.html", title=title, page=page, can_sort=True)


@pages.get("/starred")
@login_required
def starred() -> ResponseReturnValue:
    where = "id IN (SELECT project_id FROM project_stars WHERE developer_id = ?)"
    page = paginate(f"{PROJECTS} WHERE {where} ORDER BY path", me())
    return render_template("gitlab/projects.html", title="Starred projects", page=page)


@pages.get("/assigned")
@login_required
def assigned() -> ResponseReturnValue:
    page = paginate(f"{ISSUES} WHERE assignee_id = ? AND state = 'opened' ORDER BY created DESC, id", me())
    return render_template("gitlab/mine.html", title="Issues assigned to you", page=page, kind="issue")


@pages.get("/reviews")
@login_required
def reviews() -> ResponseReturnValue:
    page = paginate(f"{MERGE_REQUESTS} WHERE reviewer_id = ? AND state = 'opened' ORDER BY created DESC, id", me())
    return render_template("gitlab/mine.html", title="Merge requests for you to review", page=page, kind="merge")


@pages.route("/new", methods=["GET", "POST"])
@login_required
def new_project() -> ResponseReturnValue:
    if request.method == "POST":
        try:
            path = text("path", "Project name", max_chars=60)
            if not path.isascii() or not path.replace("-", "").replace("_", "").isalnum():
                raise FormError("Project name must consist of letters, digits, - and _.")
            if g.db.first("SELECT 1 FROM projects WHERE owner_id = ? AND path = ?", me(), path):
                raise FormError(f"You have a project {path} already.")
            project_id = g.db.insert(
                "projects",
                owner_id=me(),
                path=path,
                description=text("description", "Description", required=False, max_chars=300),
                language="",
                base_stars=0,
                is_private=int(choice("visibility", "Visibility", ["public", "private"]) == "private"),
            )
            g.db.insert("branches", project_id=project_id, name="main")
            flash("The project is created.")
            return redirect(url_for(".project", owner=g.user["username"], path=path))
        except FormError as e:
            flash(str(e), "error")
    return render_template("gitlab/new_project.html")


@pages.get("/<owner>")
def developer(owner: str) -> ResponseReturnValue:
    row = found(g.db.first("SELECT * FROM developers WHERE username = ?", owner))
    page = paginate(
        f"{PROJECTS} WHERE owner_id = ? AND (is_private = 0 OR owner_id = ?) ORDER BY path", row["id"], me()
    )
    return render_template("gitlab/developer.html", developer=row, page=page)


@pages.route("/profile", methods=["GET", "POST"])
@login_required
def profile() -> ResponseReturnValue:
    if request.method == "POST":
        try:
            status, bio = (text(name, name.capitalize(), required=False, max_chars=300) for name in ("status", "bio"))
            g.db.run("UPDATE developers SET status = ?, bio = ? WHERE id = ?", status, bio, me())
            flash("Your profile is saved.")
            return redirect(url_for(".developer", owner=g.user["username"]))
        except FormError as e:
            flash(str(e), "error")
    return render_template("gitlab/profile.html")


@pages.get("/<owner>/<path>")
def project(owner: str, path: str) -> ResponseReturnValue:
    row = find_project(owner, path)
    files = g.db.all("SELECT path FROM files WHERE project_id = ? ORDER BY path", row["id"])
    readme = g.db.value("SELECT content FROM files WHERE project_id = ? AND path = 'README.md'", row["id"])
    is_starred = g.db.first("SELECT 1 FROM project_stars WHERE project_id = ? AND developer_id = ?", row["id"], me())
    return show("project", row, files=files, readme=readme, is_starred=is_starred)


@pages.post("/<owner>/<path>/<any(star, unstar):verb>")
@login_required
def star(owner: str, path: str, verb: str) -> ResponseReturnValue:
    row = find_project(owner, path)
    statement = "INSERT OR IGNORE INTO project_stars (project_id, developer_id) VALUES (?, ?)"
    if verb == "unstar":
        statement = "DELETE FROM project_stars WHERE project_id = ? AND developer_id = ?"
    g.db.run(statement, row["id"], me())
    return redirect(url_for(".project", owner=owner, path=path))


# Files and commits.


@pages.get("/<owner>/<path>/-/blob/main/<path:file>")
def file(owner: str, path: str, file: str) -> ResponseReturnValue:
    row = find_project(owner, path)
    content = found(g.db.first("SELECT * FROM files WHERE project_id = ? AND path = ?", row["id"], file))
    return show("file", row, file=content)


@pages.route("/<owner>/<path>/-/edit", methods=["GET", "POST"])
@login_required
def edit_file(owner: str, path: str) -> ResponseReturnValue:
    """Change the file that `file` in the address names, or make a new one."""
    row = writable(find_project(owner, path))
    old = g.db.first("SELECT * FROM files WHERE project_id = ? AND path = ?", row["id"], request.args.get("file", ""))
    if request.method == "POST":
        try:
            name = old["path"] if old else text("name", "File name", max_chars=100).strip("/")
            if not name or not all(part.strip(".") for part in name.split("/")):
                raise FormError("File name must be a path like docs/notes.md.")
            content, message = (
                text("content", "Content", required=False),
                text("message", "Commit message", max_chars=200),
            )
            g.db.run("INSERT OR REPLACE INTO files VALUES (?, ?, ?)", row["id"], name, content)
            created = g.db.now()
            sha = hashlib.sha1(f"{row['id']} {message} {created}".encode("utf-8", "replace")).hexdigest()[:8]
            g.db.insert("commits", project_id=row["id"], sha=sha, title=message, author_id=me(), created=created)
            flash("The change is committed.")
            return redirect(url_for(".file", owner=owner, path=path, file=name))
        except FormError as e:
            flash(str(e), "error")
    return show("edit_file", row, file=old)


@pages.get("/<owner>/<path>/-/commits")
def commits(owner: str, path: str) -> ResponseReturnValue:
    row = find_project(owner, path)
    author = request.args.get("author", "").strip()
    sql = """
        SELECT c.*, d.username AS author FROM commits c JOIN developers d ON d.id = c.author_id
        WHERE project_id = ? AND (? = '' OR d.username = ?) ORDER BY c.created DESC, c.id DESC"""
    return show("commits", row, page=paginate(sql, row["id"], author, author))


# Members.


@pages.route("/<owner>/<path>/-/members", methods=["GET", "POST"])
def members(owner: str, path: str) -> ResponseReturnValue:
    row = find_project(owner, path)
    if request.method == "POST":
        writable(row)
        try:
            developer_id = named_developer("username", "User name")
            if developer_id is None:
                raise FormError("User name must not be empty.")
            role = choice("role", "Role", ROLES)
            g.db.run("INSERT OR REPLACE INTO project_members VALUES (?, ?, ?)", row["id"], developer_id, role)
            flash("The member is invited.")
            return redirect(url_for(".members", owner=owner, path=path))
        except FormError as e:
            flash(str(e), "error")
    sql = """
        SELECT d.username, d.name, m.role FROM project_members m JOIN developers d ON d.id = m.developer_id
        WHERE project_id = ? ORDER BY d.username"""
    return show("members", row, page=paginate(sql, row["id"], size=12), options=[(role, role) for role in ROLES])


@pages.post("/<owner>/<path>/-/members/<username>/remove")
@login_required
def remove_member(owner: str, path: str, username: str) -> ResponseReturnValue:
    row = writable(find_project(owner, path))
    developer_id = g.db.value("SELECT id FROM developers WHERE username = ?", username)
    g.db.run("DELETE FROM project_members WHERE project_id = ? AND developer_id = ?", row["id"], developer_id)
    flash(f"{username} is removed.")
    return redirect(url_for(".members", owner=owner, path=path))
