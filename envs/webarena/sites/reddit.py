"""The forum: forums, posts, comments, votes, subscriptions, members."""

from __future__ import annotations

from sqlite3 import Row

from flask import Blueprint, abort, flash, g, redirect, render_template, request, url_for
from flask.typing import ResponseReturnValue

from rllm_gym.envs.webarena.sites.app import (
    FormError,
    Site,
    found,
    like,
    login_required,
    paginate,
    show_growing,
    suggest,
    text,
)

pages = Blueprint("forum", __name__)
SITE = Site("Commonroom", "members", ("name", "User name"), "maple_finch", pages)

SORTS = {
    "new": ("New", "created DESC, id DESC"),
    "top": ("Top", "score DESC, id"),
    "comments": ("Most commented", "num_comments DESC, id"),
}
_POSTS = """
    SELECT * FROM (
        SELECT p.*, f.name AS forum, m.name AS author,
            p.base_score + coalesce((SELECT sum(value) FROM votes WHERE kind = 'post' AND target_id = p.id), 0)
                AS score,
            (SELECT count(*) FROM comments WHERE post_id = p.id) AS num_comments
        FROM posts p JOIN forums f ON f.id = p.forum_id JOIN members m ON m.id = p.member_id)"""
_COMMENTS = """
    SELECT * FROM (
        SELECT c.*, m.name AS author, p.title AS post_title,
            c.base_score + coalesce((SELECT sum(value) FROM votes WHERE kind = 'comment' AND target_id = c.id), 0)
                AS score,
            (SELECT value FROM votes WHERE kind = 'comment' AND target_id = c.id AND member_id = ?) AS my_vote
        FROM comments c JOIN members m ON m.id = c.member_id JOIN posts p ON p.id = c.post_id)"""


def _me() -> int:
    return g.user["id"] if g.user is not None else 0


def _order(default: str) -> str:
    return SORTS.get(request.args.get("sort", ""), SORTS[default])[1]


def _sort_options() -> list[tuple[str, str]]:
    return [(key, label) for key, (label, _) in SORTS.items()]


# Lists.


@pages.get("/")
def home() -> ResponseReturnValue:
    page = paginate(f"{_POSTS} ORDER BY {_order('new')}")
    return render_template("reddit/posts.html", title="All posts", page=page, sort_options=_sort_options())


@pages.get("/forums")
def forums() -> ResponseReturnValue:
    page = paginate("SELECT * FROM forums ORDER BY name", size=20)
    return render_template("reddit/forums.html", page=page)


@pages.get("/subscriptions")
@login_required
def subscriptions() -> ResponseReturnValue:
    sql = "SELECT * FROM forums WHERE id IN (SELECT forum_id FROM subscriptions WHERE member_id = ?) ORDER BY name"
    return render_template("reddit/forums.html", page=paginate(sql, _me(), size=20), is_mine=True)


@pages.get("/f/<name>")
def forum(name: str) -> ResponseReturnValue:
    row = _forum(name)
    page = paginate(f"{_POSTS} WHERE forum_id = ? ORDER BY {_order('new')}", row["id"])
    is_subscribed = g.db.first("SELECT 1 FROM subscriptions WHERE member_id = ? AND forum_id = ?", _me(), row["id"])
    return render_template(
        "reddit/posts.html",
        title=row["title"],
        forum=row,
        page=page,
        sort_options=_sort_options(),
        is_subscribed=is_subscribed,
    )


@pages.post("/f/<name>/<any(subscribe, unsubscribe):verb>")
@login_required
def subscribe(name: str, verb: str) -> ResponseReturnValue:
    row = _forum(name)
    statement = "INSERT OR IGNORE INTO subscriptions VALUES (?, ?)"
    if verb == "unsubscribe":
        statement = "DELETE FROM subscriptions WHERE member_id = ? AND forum_id = ?"
    g.db.run(statement, _me(), row["id"])
    flash(f"You are {'' if verb == 'subscribe' else 'no longer '}subscribed to {name}.")
    return redirect(url_for(".forum", name=name))


@pages.get("/search")
def search() -> ResponseReturnValue:
    words = request.args.get("q", "").strip()[:200]
    where = "title LIKE ? ESCAPE '\\' OR body LIKE ? ESCAPE '\\'"
    page = paginate(f"{_POSTS} WHERE {where} ORDER BY {_order('new')}", like(words), like(words))
    title = f'Search results for "{words}"'
    return render_template("reddit/posts.html", title=title, page=page, sort_options=_sort_options())


@pages.get("/archive")
def archive() -> ResponseReturnValue:
    return show_growing("reddit/archive.html", "reddit/rows.html", f"{_POSTS} ORDER BY {SORTS['new'][1]}")


def _forum(name: str) -> Row:
    return found(g.db.first("SELECT * FROM forums WHERE name = ?", name))


# Posts and comments.


@pages.route("/f/<name>/submit", methods=["GET", "POST"])
@login_required
def submit(name: str) -> ResponseReturnValue:
    row = _forum(name)
    if request.method == "POST":
        try:
            post_id = g.db.insert(
                "posts",
                forum_id=row["id"],
                member_id=_me(),
                title=text("title", "Title", max_chars=300),
                body=text("body", "Text", required=False),
                base_score=1,
                created=g.db.now(),
            )
            return redirect(url_for(".post", name=name, post_id=post_id))
        except FormError as e:
            flash(str(e), "error")
    return render_template("reddit/submit.html", forum=row, post=None)


@pages.get("/f/<name>/<int:post_id>")
def post(name: str, post_id: int) -> ResponseReturnValue:
    row = _post(name, post_id)
    my_vote = g.db.value(
        "SELECT value FROM votes WHERE kind = 'post' AND target_id = ? AND member_id = ?", post_id, _me()
    )
    page = paginate(f"{_COMMENTS} WHERE post_id = ? ORDER BY coalesce(parent_id, id), id", _me(), post_id, size=6)
    return render_template("reddit/post.html", post=row, my_vote=my_vote, page=page)


@pages.route("/f/<name>/<int:post_id>/edit", methods=["GET", "POST"])
@login_required
def edit_post(name: str, post_id: int) -> ResponseReturnValue:
    row = _mine(_post(name, post_id))
    if request.method == "POST":
        try:
            title, body = text("title", "Title", max_chars=300), text("body", "Text", required=False)
            g.db.run("UPDATE posts SET title = ?, body = ? WHERE id = ?", title, body, post_id)
            flash("The post is saved.")
            return redirect(url_for(".post", name=name, post_id=post_id))
        except FormError as e:
            flash(str(e), "error")
    return render_template("reddit/submit.html", forum=_forum(name), post=row)


@pages.post("/f/<name>/<int:post_id>/delete")
@login_required
def delete_post(name: str, post_id: int) -> ResponseReturnValue:
    _mine(_post(name, post_id))
    g.db.run("DELETE FROM comments WHERE post_id = ?", post_id)
    g.db.run("DELETE FROM posts WHERE id = ?", post_id)
    flash("The post is deleted.")
    return redirect(url_for(".forum", name=name))


@pages.post("/f/<name>/<int:post_id>/comment")
@login_required
def comment(name: str, post_id: int) -> ResponseReturnValue:
    row = _post(name, post_id)
    try:
        g.db.insert(
            "comments",
            post_id=row["id"],
            member_id=_me(),
            body=text("body", "Comment"),
            base_score=1,
            created=g.db.now(),
        )
        flash("Your comment is posted.")
    except FormError as e:
        flash(str(e), "error")
    # The page that shows it: the last one, where there are several.
    return redirect(url_for(".post", name=name, post_id=post_id, page=-(-_num_comments(post_id) // 6) or 1))


@pages.route("/f/<name>/<int:post_id>/comment/<int:comment_id>/reply", methods=["GET", "POST"])
@login_required
def reply(name: str, post_id: int, comment_id: int) -> ResponseReturnValue:
    row, parent = _post(name, post_id), _comment(post_id, comment_id)
    if request.method == "POST":
        try:
            g.db.insert(
                "comments",
                post_id=post_id,
                parent_id=parent["parent_id"] or comment_id,
                member_id=_me(),
                body=text("body", "Reply"),
                base_score=1,
                created=g.db.now(),
            )
            flash("Your reply is posted.")
            return redirect(url_for(".post", name=name, post_id=post_id))
        except FormError as e:
            flash(str(e), "error")
    return render_template("reddit/reply.html", post=row, comment=parent)


@pages.post("/f/<name>/<int:post_id>/comment/<int:comment_id>/delete")
@login_required
def delete_comment(name: str, post_id: int, comment_id: int) -> ResponseReturnValue:
    _post(name, post_id)
    _mine(_comment(post_id, comment_id))
    g.db.run("DELETE FROM comments WHERE id = ? OR parent_id = ?", comment_id, comment_id)
    flash("The comment is deleted.")
    return redirect(url_for(".post", name=name, post_id=post_id))


@pages.post("/f/<name>/<int:post_id>/<any(up, down):direction>", defaults={"comment_id": None})
@pages.post("/f/<name>/<int:post_id>/comment/<int:comment_id>/<any(up, down):direction>")
@login_required
def vote(name: str, post_id: int, comment_id: int | None, direction: str) -> ResponseReturnValue:
    """Vote; the same vote again takes it back."""
    _post(name, post_id)
    target = ("post", post_id) if comment_id is None else ("comment", _comment(post_id, comment_id)["id"])
    value = 1 if direction == "up" else -1
    had = g.db.value("SELECT value FROM votes WHERE member_id = ? AND kind = ? AND target_id = ?", _me(), *target)
    g.db.run("DELETE FROM votes WHERE member_id = ? AND kind = ? AND target_id = ?", _me(), *target)
    if had != value:
        g.db.insert("votes", member_id=_me(), kind=target[0], target_id=target[1], value=value)
    return redirect(url_for(".post", name=name, post_id=post_id))


def _post(name: str, post_id: int) -> Row:
    return found(g.db.first(f"{_POSTS} WHERE forum = ? AND id = ?", name, _small(post_id)))


def _comment(post_id: int, comment_id: int) -> Row:
    return found(g.db.first(f"{_COMMENTS} WHERE post_id = ? AND id = ?", _me(), post_id, _small(comment_id)))


def _num_comments(post_id: int) -> int:
    return g.db.value("SELECT count(*) FROM comments WHERE post_id = ?", post_id)


def _mine(row: Row) -> Row:
    if row["member_id"] != _me():
        abort(403)
    return row


def _small(number: int) -> int:
    """Return a number of an address; a page not found where it is larger than SQLite's."""
    if number >= 1 << 62:
        abort(404)
    return number


# Members.


@pages.get("/user/<name>")
def member(name: str) -> ResponseReturnValue:
    row = found(g.db.first("SELECT * FROM members WHERE name = ?", name))
    page = paginate(f"{_POSTS} WHERE member_id = ? ORDER BY {SORTS['new'][1]}", row["id"])
    return render_template("reddit/member.html", member=row, page=page)


@pages.get("/user/<name>/comments")
def member_comments(name: str) -> ResponseReturnValue:
    row = found(g.db.first("SELECT * FROM members WHERE name = ?", name))
    sql = f"""
        SELECT c.*, f.name AS forum FROM ({_COMMENTS}) c JOIN posts p ON p.id = c.post_id
        JOIN forums f ON f.id = p.forum_id WHERE c.member_id = ? ORDER BY c.created DESC, c.id DESC"""
    return render_template("reddit/member_comments.html", member=row, page=paginate(sql, _me(), row["id"]))


@pages.get("/api/suggest")
def suggestions() -> ResponseReturnValue:
    return suggest("(SELECT id AS slug, name FROM members)")


@pages.route("/messages", methods=["GET", "POST"])
@login_required
def messages() -> ResponseReturnValue:
    """Write to a member, and list what was written."""
    if request.method == "POST":
        try:
            recipient = g.db.first("SELECT * FROM members WHERE id = ?", request.form.get("recipient"))
            if recipient is None:
                raise FormError("Please choose a member from the suggestions.")
            body = text("body", "Message", max_chars=500)
            g.db.insert("letters", sender_id=_me(), recipient_id=recipient["id"], body=body, created=g.db.now())
            flash(f"Your message to {recipient['name']} is sent.")
            return redirect(url_for(".messages"))
        except FormError as e:
            flash(str(e), "error")
    sql = """
        SELECT l.*, m.name AS recipient FROM letters l JOIN members m ON m.id = l.recipient_id
        WHERE sender_id = ? ORDER BY l.id DESC"""
    return render_template("reddit/messages.html", page=paginate(sql, _me()))


@pages.route("/profile", methods=["GET", "POST"])
@login_required
def profile() -> ResponseReturnValue:
    if request.method == "POST":
        try:
            g.db.run(
                "UPDATE members SET bio = ? WHERE id = ?",
                text("bio", "Biography", required=False, max_chars=500),
                _me(),
            )
            flash("Your profile is saved.")
            return redirect(url_for(".member", name=g.user["name"]))
        except FormError as e:
            flash(str(e), "error")
    return render_template("reddit/profile.html")
