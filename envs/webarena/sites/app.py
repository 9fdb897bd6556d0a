"""The base of the sites: the Flask application, its database and session, log-in, forms and pages of a list."""

from __future__ import annotations

import importlib
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from sqlite3 import Row
from typing import Any

from flask import Blueprint, Flask, abort, flash, g, jsonify, redirect, render_template, request, session, url_for
from flask.sessions import SecureCookieSessionInterface
from flask.typing import ResponseReturnValue
from werkzeug.exceptions import HTTPException
from werkzeug.wrappers import Response

from rllm_gym.envs.webarena.sites.database import Database

DATABASE = "rllm_gym.database"  # where the server puts the episode's database, in the WSGI environment
PAGE_SIZE = 8  # a page of a list stays within the tokens that a small model reads
BATCH = 25  # rows that a list with a script begins with, and grows by
NUM_SUGGESTIONS = 6
MAX_CHARS = 10_000
_SECRET = secrets.token_hex(16)  # a server's cookies end with its process


class FormError(ValueError):
    """A user's entry is not accepted; the message is for the user."""


@dataclass(frozen=True)
class Site:
    """The part of a site that the base needs.

    Args:
        title: as pages show it.
        accounts: the table of its users, with `id` and `password`.
        login: that table's column with the name or address to log in with, and its label.
        user: whom the tasks are logged in as.
        blueprint: its pages.
    """

    title: str
    accounts: str
    login: tuple[str, str]
    user: str
    blueprint: Blueprint


def create_app(name: str) -> Flask:
    """Return the WSGI application of a site: "shopping", "reddit", "gitlab", "shopping_admin" or "map"."""
    site: Site = importlib.import_module(f"rllm_gym.envs.webarena.sites.{name}").SITE
    app = Flask(__name__)
    app.secret_key = _SECRET
    app.config["SITE"] = site
    app.config["SEND_FILE_MAX_AGE_DEFAULT"] = 3600
    app.jinja_env.trim_blocks = app.jinja_env.lstrip_blocks = True
    app.jinja_env.filters.update(money=money, of=of, stars=stars)
    app.jinja_env.globals.update(site=site)
    app.before_request(_open)
    app.after_request(_commit)
    app.teardown_request(_release)
    app.register_error_handler(HTTPException, _http_error)
    app.register_error_handler(Exception, _fail)
    app.add_url_rule("/login", "login", _login, methods=["GET", "POST"])
    app.add_url_rule("/logout", "logout", _logout, methods=["POST"])
    app.register_blueprint(site.blueprint)
    return app


def login_cookie(app: Flask) -> dict[str, str]:
    """Return the name and value of the cookie with which the site's own user is logged in."""
    serializer = SecureCookieSessionInterface().get_signing_serializer(app)
    assert serializer is not None  # there is a secret key
    return {
        "name": app.config["SESSION_COOKIE_NAME"],
        "value": str(serializer.dumps({"user": app.config["SITE"].user})),
    }


# What a request goes through.


def _open() -> None:
    if request.endpoint == "static":
        return
    database: Database = request.environ[DATABASE]
    database.lock.acquire()
    g.db = database
    site = _site()
    g.user = database.first(f"SELECT * FROM {site.accounts} WHERE {site.login[0]} = ?", session.get("user"))


def _commit(response: Response) -> Response:
    if "db" in g:
        g.db.commit()
    return response


def _release(error: BaseException | None) -> None:
    if "db" in g:
        g.db.rollback()  # nothing is left of a page that failed
        g.pop("db").lock.release()


def _http_error(error: HTTPException) -> ResponseReturnValue:
    if error.response is not None or error.code is None or error.code < 400:
        return error.get_response()
    return render_template("error.html", error=error), error.code


def _fail(error: Exception) -> ResponseReturnValue:
    if "db" in g:
        g.db.rollback()
        g.db.error = f"{request.method} {request.path}: {type(error).__name__}: {error}"
    return "Internal server error", 500


def _site() -> Site:
    from flask import current_app

    return current_app.config["SITE"]


# Log-in.


def _login() -> ResponseReturnValue:
    site = _site()
    if request.method == "POST":
        column = site.login[0]
        row = g.db.first(f"SELECT * FROM {site.accounts} WHERE {column} = ?", request.form.get("login", "").strip())
        if row is not None and row["password"] == request.form.get("password"):
            session["user"] = row[column]
            target = request.args.get("next", "")
            # Of this site only: "//host" and "/\host" would lead to another one.
            is_mine = target.startswith("/") and target[1:2] not in ("/", "\\")
            return redirect(target if is_mine else home())
        flash(f"Wrong {site.login[1].lower()} or password.", "error")
    return render_template("login.html", login_label=site.login[1])


def _logout() -> ResponseReturnValue:
    session.clear()
    flash("You are logged out.")
    return redirect(home())


def home() -> str:
    return url_for(f"{_site().blueprint.name}.home")


def login_required(view: Callable[..., ResponseReturnValue]) -> Callable[..., ResponseReturnValue]:
    """Send visitors to the log-in page, and from there back to the page they asked for."""

    @wraps(view)
    def guarded(**kwargs: Any) -> ResponseReturnValue:
        if g.user is None:
            flash("Please log in first.", "error")
            return redirect(url_for("login", next=request.path if request.method == "GET" else None))
        return view(**kwargs)

    return guarded


# Forms.


def text(name: str, label: str, *, required: bool = True, max_chars: int = MAX_CHARS) -> str:
    """Return a field of the form that was sent, without the white space around it."""
    value = request.form.get(name, "").replace("\r\n", "\n").strip()
    if required and not value:
        raise FormError(f"{label} must not be empty.")
    if len(value) > max_chars:
        raise FormError(f"{label} must not be longer than {max_chars} characters.")
    return value


def number(name: str, label: str, low: int, high: int) -> int:
    return whole(request.form.get(name, ""), label, low, high)


def whole(value: str, label: str, low: int, high: int) -> int:
    """Return the number that was entered."""
    value = value.strip()
    if not (value.isascii() and value.isdigit()) or len(value) > 12 or not low <= int(value) <= high:
        raise FormError(f"{label} must be a whole number from {low} to {high}.")
    return int(value)


def cents(name: str, label: str) -> int:
    """Return a price in cents."""
    value = request.form.get(name, "").strip().removeprefix("$")
    whole, _, fraction = value.partition(".")
    digits = whole + fraction.ljust(2, "0")
    if not whole or not (digits.isascii() and digits.isdigit()) or len(fraction) > 2 or len(whole) > 6:
        raise FormError(f"{label} must be an amount like 19.99.")
    return int(digits)


def choice(name: str, label: str, options: Mapping[str, str] | list[str] | tuple[str, ...]) -> str:
    value = request.form.get(name, "")
    if value not in options:
        raise FormError(f"Please choose: {label}.")
    return value


def found(row: Row | None) -> Row:
    """Return a row that the address names; a page not found where there is none."""
    if row is None:
        abort(404)
    return row


# Lists and texts.


@dataclass(frozen=True)
class Page:
    """One page of a list."""

    rows: list[Row]
    number: int
    num_pages: int
    total: int


def paginate(sql: str, *args: Any, size: int = PAGE_SIZE) -> Page:
    """Return the page of a query's rows that the address asks for with `page`."""
    total = g.db.value(f"SELECT count(*) FROM ({sql})", *args)
    num_pages = max(1, -(-total // size))
    asked = request.args.get("page", "1")
    page = min(int(asked), num_pages) if asked.isascii() and asked.isdigit() and len(asked) < 9 else 1
    page = max(page, 1)
    return Page(g.db.all(f"{sql} LIMIT {size} OFFSET {(page - 1) * size}", *args), page, num_pages, total)


def show_growing(template: str, rows_template: str, sql: str, *args: Any, **values: Any) -> str:
    """Return a list's page with its first rows; with `offset` in the address the rows from there on, for its script.

    `all` in the address gives the rest of them, which a list needs to be sorted or filtered.
    """
    asked = request.args.get("offset", "0")
    offset = int(asked) if asked.isascii() and asked.isdigit() and len(asked) < 9 else 0
    rows = g.db.all(f"{sql} LIMIT {-1 if 'all' in request.args else BATCH} OFFSET {offset}", *args)
    if "offset" in request.args:
        return render_template(rows_template, rows=rows)
    total = g.db.value(f"SELECT count(*) FROM ({sql})", *args)
    return render_template(template, rows=rows, rows_template=rows_template, total=total, **values)


def suggest(table: str) -> ResponseReturnValue:
    """Answer a field's script with the `slug` and `name` of those that begin with what was typed, then that hold it.

    Args:
        table: of names, or a query in brackets.
    """
    words = request.args.get("q", "").strip()[:200]
    rows = []
    if len(words) >= 2:
        rows = g.db.all(
            f"SELECT slug, name FROM {table} WHERE name LIKE ? ESCAPE '\\' "
            "ORDER BY name NOT LIKE ? ESCAPE '\\', name LIMIT ?",
            like(words),
            like(words)[1:],
            NUM_SUGGESTIONS,
        )
    return jsonify([dict(row) for row in rows])


def like(words: str) -> str:
    """Return a pattern for SQL's LIKE ... ESCAPE '\\' that finds `words` anywhere."""
    escaped = words.strip().replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    return f"%{escaped}%"


def money(value: int) -> str:
    return f"${value // 100:,}.{value % 100:02}"


def of(number: int, noun: str) -> str:
    """Return "1 comment", "2 comments"."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def stars(rating: float) -> str:
    return f"{rating:.1f}".removesuffix(".0") + (" star" if rating == 1 else " stars")
