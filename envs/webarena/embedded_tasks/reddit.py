"""Tasks on the forum."""

from __future__ import annotations

import random
from collections.abc import Iterator
from sqlite3 import Row

from rllm_gym.envs.webarena.embedded_tasks.base import (
    Instance,
    Templates,
    address,
    answer,
    count,
    holds,
    pages,
    pick,
    reads,
)
from rllm_gym.envs.webarena.script import Step, fill, follow, push, search, stop
from rllm_gym.envs.webarena.sites.database import Database
from rllm_gym.envs.webarena.sites.reddit import SITE
from rllm_gym.envs.webarena.sites.seed.forum import FORUMS

templates = Templates("reddit")
URL = "__REDDIT__"
LAST_PAGE = "?page=999"  # a page beyond the last one shows the last one
_FORUMS = f"SELECT * FROM forums WHERE id <= {len(FORUMS)}"

_POSTS = """
    SELECT p.*, f.name AS forum, m.name AS author, (SELECT count(*) FROM comments WHERE post_id = p.id) AS num_comments
    FROM posts p JOIN forums f ON f.id = p.forum_id JOIN members m ON m.id = p.member_id"""


def _posts(db: Database, where: str = "1") -> list[Row]:
    """Return the posts of the first forums whose title is the only one of its kind.

    A task keeps its number, and its post, as the other forums grow.
    """
    rows = db.all(f"{_POSTS} ORDER BY p.id")
    titles = [row["title"] for row in rows]
    chosen = {row["id"] for row in db.all(f"SELECT * FROM ({_POSTS}) WHERE forum_id <= {len(FORUMS)} AND ({where})")}
    return [row for row in rows if row["id"] in chosen and titles.count(row["title"]) == 1]


def _is_mine(is_mine: bool) -> str:
    return f"author {'=' if is_mine else '!='} '{SITE.user}'"


def _address(row: Row) -> str:
    return f"{URL}/f/{row['forum']}/{row['id']}"


def _open(row: Row) -> list[Step]:
    return [search("Search posts", row["title"]), follow(row["title"])]


def _forum(name: str) -> list[Step]:
    return [follow("Forums"), follow(name)]


def _forums(db: Database, *, subscribed: bool) -> list[Row]:
    has = "IN" if subscribed else "NOT IN"
    return db.all(f"{_FORUMS} AND id {has} (SELECT forum_id FROM subscriptions WHERE member_id = 1) ORDER BY id")


@templates.add('Post in the forum {{forum}}, with the title "{{title}}" and the text "{{text}}"')
def _submit(db: Database, rng: random.Random) -> Iterator[Instance]:
    posts = (
        ("astronomy", "Best month for Jupiter?", "I would like to see its moons."),
        ("baking", "My crust is too pale", "The oven is at 220 degrees."),
        ("books", "A book about lighthouses", "Fiction or not, I do not mind."),
        ("chess", "Is a draw so bad?", "My club thinks so."),
        ("linux", "Shell for beginners", "Which one should my son learn?"),
        ("running", "Shoes for wide feet", "Mine hurt after five miles."),
    )
    for forum, title, text in posts:
        yield Instance(
            {"forum": forum, "title": title, "text": text},
            pages(reads("last", "#post h1", title), reads("last", "#text", text), url=f"{URL}/f/{forum}/"),
            [*_forum(forum), follow("Submit a post"), fill("Title", title), fill("Text", text), push("Submit")],
        )


@templates.add('Upvote the post "{{title}}"')
def _upvote(db: Database, rng: random.Random) -> Iterator[Instance]:
    for row in pick(rng, _posts(db)):
        yield Instance(
            {"title": row["title"]},
            pages(reads(_address(row), "#post .chosen", "Upvote")),
            [*_open(row), push("Upvote")],
        )


@templates.add("Subscribe me to the forum {{forum}}.")
def _subscribe(db: Database, rng: random.Random) -> Iterator[Instance]:
    for row in pick(rng, _forums(db, subscribed=False)):
        yield Instance(
            {"forum": row["name"]},
            pages(holds(f"{URL}/subscriptions", "#forums", row["name"])),
            [*_forum(row["name"]), push("Subscribe")],
        )


@templates.add('Comment "{{text}}" on the post "{{title}}"')
def _comment(db: Database, rng: random.Random) -> Iterator[Instance]:
    texts = (
        "Well said!",
        "Where can I read more?",
        "I tried it: it works.",
        "Same here.",
        "Not for me.",
        "What a story.",
    )
    for row, text in zip(pick(rng, _posts(db)), texts, strict=True):
        yield Instance(
            {"text": text, "title": row["title"]},
            pages(holds(_address(row) + LAST_PAGE, "#comments", text)),
            [*_open(row), fill("Comment", text), push("Post comment")],
        )


@templates.add('How many comments does the post "{{title}}" have? Answer with the number only.')
def _num_comments(db: Database, rng: random.Random) -> Iterator[Instance]:
    for row in pick(rng, _posts(db, "num_comments > 0")):
        number = str(row["num_comments"])
        yield Instance({"title": row["title"]}, answer(exact=number), [*_open(row), stop(number)])


@templates.add('Who wrote the post "{{title}}"? Answer with the user name only.')
def _author(db: Database, rng: random.Random) -> Iterator[Instance]:
    for row in pick(rng, _posts(db, _is_mine(False))):
        yield Instance({"title": row["title"]}, answer(exact=row["author"]), [*_open(row), stop(row["author"])])


@templates.add("Open the post with the most points in the forum {{forum}}.")
def _top(db: Database, rng: random.Random) -> Iterator[Instance]:
    for forum in pick(rng, db.all(f"{_FORUMS} ORDER BY id")):
        row = max(_posts(db, f"forum_id = {forum['id']}"), key=lambda row: row["base_score"])
        yield Instance(
            {"forum": forum["name"]},
            address(_address(row)),
            [*_forum(forum["name"]), follow("Top"), follow(row["title"])],
        )


@templates.add('Change my biography to "{{text}}"')
def _biography(db: Database, rng: random.Random) -> Iterator[Instance]:
    texts = (
        "Owns two bicycles.",
        "Counts stars.",
        "Slow reader.",
        "Beginner at everything.",
        "Ask me about rye.",
        "Away.",
    )
    for text in texts:
        yield Instance(
            {"text": text},
            pages(reads(f"{URL}/user/{SITE.user}", "#bio", text)),
            [follow(SITE.user), follow("Edit profile"), fill("Biography", text), push("Save")],
        )


@templates.add('How many posts has the author of "{{title}}" written? Answer with the number only.')
def _num_posts(db: Database, rng: random.Random) -> Iterator[Instance]:
    for row in pick(rng, _posts(db, _is_mine(False))):
        number = str(db.value("SELECT count(*) FROM posts WHERE member_id = ?", row["member_id"]))
        yield Instance(
            {"title": row["title"]}, answer(exact=number), [*_open(row), follow(row["author"]), stop(number)]
        )


@templates.add("End my subscription to the forum {{forum}}.")
def _unsubscribe(db: Database, rng: random.Random) -> Iterator[Instance]:
    mine = _forums(db, subscribed=True)
    for row in mine:
        yield Instance(
            {"forum": row["name"]},
            pages(
                count(f"{URL}/subscriptions", f'#forums a[href$="/f/{row["name"]}"]', 0),
                count(f"{URL}/subscriptions", "#forums a", len(mine) - 1),
            ),
            [follow("Subscriptions"), follow(row["name"]), push("Unsubscribe")],
        )


@templates.add('Delete my post "{{title}}"')
def _delete(db: Database, rng: random.Random) -> Iterator[Instance]:
    for row in pick(rng, _posts(db, _is_mine(True))):
        yield Instance(
            {"title": row["title"]}, pages(reads(_address(row), "h1", "Not Found")), [*_open(row), push("Delete")]
        )


def _comments(db: Database) -> list[tuple[Row, Row]]:
    """Return (post, comment) where the author says which comment it is, and one more does not need a second page."""
    pairs = []
    for post in _posts(db, "num_comments BETWEEN 1 AND 5"):
        comments = db.all(
            "SELECT c.*, m.name AS author FROM comments c JOIN members m ON m.id = c.member_id WHERE post_id = ?",
            post["id"],
        )
        authors = [comment["author"] for comment in comments]
        pairs += [(post, comment) for comment in comments if authors.count(comment["author"]) == 1]
    return pairs


@templates.add('Downvote the comment by {{author}} on the post "{{title}}"', split="eval")
def _downvote_comment(db: Database, rng: random.Random) -> Iterator[Instance]:
    for post, comment in pick(rng, _comments(db)):
        yield Instance(
            {"author": comment["author"], "title": post["title"]},
            pages(reads(_address(post), f"#comment-{comment['id']} .chosen", "Downvote")),
            [*_open(post), push("Downvote", after=f"Comment by {comment['author']}")],
        )


@templates.add('Reply "{{text}}" to the comment by {{author}} on the post "{{title}}"', split="eval")
def _reply(db: Database, rng: random.Random) -> Iterator[Instance]:
    texts = ("I second that.", "Why?", "That is new to me.", "Fair point.", "Please explain.", "You made my day.")
    for (post, comment), text in zip(pick(rng, _comments(db)), texts, strict=True):
        link = Step("click", "link", "Reply", after=f"Comment by {comment['author']}", is_navigation=True)
        thread = comment["parent_id"] or comment["id"]
        num_replies = db.value("SELECT count(*) FROM comments WHERE parent_id = ?", thread)
        replies = f'#comments .reply[data-thread="{thread}"]'
        yield Instance(
            {"text": text, "author": comment["author"], "title": post["title"]},
            pages(holds(_address(post), "#comments", text), count(_address(post), replies, num_replies + 1)),
            [*_open(post), link, fill("Reply", text), push("Post reply")],
        )


@templates.add('Change the text of my post "{{title}}" to "{{text}}"', split="eval")
def _edit(db: Database, rng: random.Random) -> Iterator[Instance]:
    texts = (
        "Solved, thank you.",
        "Edit: I was wrong.",
        "Never mind.",
        "Still looking.",
        "See my next post.",
        "Closed.",
    )
    for row, text in zip(pick(rng, _posts(db, _is_mine(True))), texts, strict=True):
        yield Instance(
            {"title": row["title"], "text": text},
            pages(reads(_address(row), "#text", text)),
            [*_open(row), follow("Edit"), fill("Text", text), push("Save")],
        )


@templates.add("Open the post with the most comments in the forum {{forum}}.", split="eval")
def _most_comments(db: Database, rng: random.Random) -> Iterator[Instance]:
    for forum in pick(rng, db.all(f"{_FORUMS} ORDER BY id"), 10):
        ranked = sorted(_posts(db, f"forum_id = {forum['id']}"), key=lambda row: -row["num_comments"])
        if ranked[0]["num_comments"] > ranked[1]["num_comments"]:
            title = ranked[0]["title"]
            steps = [*_forum(forum["name"]), follow("Most commented"), follow(title)]
            yield Instance({"forum": forum["name"]}, address(_address(ranked[0])), steps)
