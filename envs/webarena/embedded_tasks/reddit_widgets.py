"""Tasks on the forum's pages with scripts: the archive of all posts, and the dialog for messages."""

from __future__ import annotations

import random
from collections.abc import Iterator
from sqlite3 import Row

from rllm_gym.envs.webarena.embedded_tasks.base import Instance, Templates, address, answer, holds, pages, pick
from rllm_gym.envs.webarena.embedded_tasks.reddit import URL
from rllm_gym.envs.webarena.script import Step, fill, follow, press, push, stop, suggested
from rllm_gym.envs.webarena.sites.database import Database
from rllm_gym.envs.webarena.sites.reddit import SITE, SORTS

templates = Templates("reddit")
RANKS = ("most", "second most", "third most", "fourth most", "fifth most", "sixth most")
FAR_DOWN = slice(25, 90)  # of the archive: beyond the rows that it begins with, and within a few screens


def _posts(db: Database, order: str) -> list[Row]:
    return db.all(f"""
        SELECT p.*, f.name AS forum, m.name AS author
        FROM posts p JOIN forums f ON f.id = p.forum_id JOIN members m ON m.id = p.member_id ORDER BY {order}""")


def _address(row: Row) -> str:
    return f"{URL}/f/{row['forum']}/{row['id']}"


def _write(name: str, text: str) -> list[Step]:
    return [
        follow("Messages"),
        press("New message"),
        *suggested("To", name),
        fill("Message", text),
        push("Send"),
    ]


def _sent(name: str, text: str) -> dict[str, object]:
    return holds(f"{URL}/messages", "#sent", f"To {name}: {text}")


@templates.add("Open the post with the {{rank}} views of all. The archive has them.")
def _most_views(db: Database, rng: random.Random) -> Iterator[Instance]:
    for rank, row in zip(RANKS, _posts(db, "views DESC"), strict=False):
        steps = [follow("Archive"), press("Sort by views"), follow(row["title"])]
        yield Instance({"rank": rank}, address(_address(row)), steps)


@templates.add('How many views has the post "{{title}}"? Answer with the number only.')
def _views(db: Database, rng: random.Random) -> Iterator[Instance]:
    for row in pick(rng, _posts(db, SORTS["new"][1])[FAR_DOWN]):
        views = str(row["views"])
        steps = [follow("Archive"), stop(views, seen=f"cell '{views}'")]
        yield Instance({"title": row["title"]}, answer(exact=views), steps)


@templates.add('Send {{member}} the message "{{text}}"')
def _message(db: Database, rng: random.Random) -> Iterator[Instance]:
    texts = (
        "Is the boat still for sale?",
        "Thank you for the recipe.",
        "See you on Sunday.",
        "Which lens was it?",
        "Your link is broken.",
        "Good luck tomorrow!",
    )
    members = pick(rng, db.all("SELECT * FROM members WHERE name != ? ORDER BY id", SITE.user))
    for row, text in zip(members, texts, strict=True):
        yield Instance(
            {"member": row["name"], "text": text}, pages(_sent(row["name"], text)), _write(row["name"], text)
        )


@templates.add('Send the author of the post with the {{rank}} views the message "{{text}}"', split="eval")
def _message_to_author(db: Database, rng: random.Random) -> Iterator[Instance]:
    texts = ("Well written.", "May I quote you?", "Do you give talks?", "I have a question.", "Bravo!", "Tell us more.")
    for rank, row, text in zip(RANKS, _posts(db, "views DESC"), texts, strict=False):
        if row["author"] != SITE.user:
            steps = [follow("Archive"), press("Sort by views"), *_write(row["author"], text)]
            yield Instance({"rank": rank, "text": text}, pages(_sent(row["author"], text)), steps)


@templates.add("Open the post of {{date}} in the forum {{forum}}. The archive has dates.", split="eval")
def _by_date(db: Database, rng: random.Random) -> Iterator[Instance]:
    rows = _posts(db, SORTS["new"][1])
    dates = [(row["created"][:10], row["forum"]) for row in rows]
    far_down = [row for row, date in list(zip(rows, dates, strict=True))[FAR_DOWN] if dates.count(date) == 1]
    for row in pick(rng, far_down):
        values = {"date": row["created"][:10], "forum": row["forum"]}
        yield Instance(values, address(_address(row)), [follow("Archive"), follow(row["title"])])
