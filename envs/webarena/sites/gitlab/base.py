"""The base of the code host's pages: the projects, and who may do what."""

from __future__ import annotations

from sqlite3 import Row
from typing import Any

from flask import Blueprint, abort, g, render_template

from rllm_gym.envs.webarena.sites.app import FormError, Site, found, text

pages = Blueprint("code", __name__)
SITE = Site("Forgeyard", "developers", ("username", "User name"), "ada_brook", pages)

PROJECTS = """
    SELECT * FROM (
        SELECT p.*, d.username AS owner, d.username || '/' || p.path AS full_path,
            p.base_stars + (SELECT count(*) FROM project_stars WHERE project_id = p.id) AS stars
        FROM projects p JOIN developers d ON d.id = p.owner_id)"""


def me() -> int:
    return g.user["id"] if g.user is not None else 0


def find_project(owner: str, path: str) -> Row:
    """Return the project of an address; a private one is there for its owner and members only."""
    row = found(g.db.first(f"{PROJECTS} WHERE owner = ? AND path = ?", owner, path))
    if row["is_private"] and not may_write(row):
        abort(404)
    return row


def may_write(project: Row) -> bool:
    sql = "SELECT 1 FROM project_members WHERE project_id = ? AND developer_id = ?"
    return project["owner_id"] == me() or g.db.first(sql, project["id"], me()) is not None


def writable(project: Row) -> Row:
    if not may_write(project):
        abort(403)
    return project


def named_developer(field: str, label: str) -> int | None:
    """Return the developer that a field of the form names; None where it is empty."""
    name = text(field, label, required=False, max_chars=100).removeprefix("@")
    if not name:
        return None
    developer_id = g.db.value("SELECT id FROM developers WHERE username = ?", name)
    if developer_id is None:
        raise FormError(f'{label}: there is no user "{name}".')
    return developer_id


def show(template: str, project: Row, **values: Any) -> str:
    return render_template(f"gitlab/{template}.html", project=project, may_write=may_write(project), **values)
