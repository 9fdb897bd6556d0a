"""The forum's older half: ten more forums, their members, posts and comments, and how often all posts were read."""

from __future__ import annotations

import random
from datetime import timedelta

from rllm_gym.envs.webarena.sites.database import START, Database
from rllm_gym.envs.webarena.sites.seed.common import PASSWORD, skewed

NUM_MEMBERS = 30
POSTS_PER_FORUM = 19
FIRST_DAY, LAST_DAY = 1100, 210  # before the start; the posts of the first forums are newer

ADJECTIVES = "bold clever crimson drowsy eager faded golden humble idle modest nimble patient proud silver tidy"
THINGS = "anchor beacon candle comet ferry harp kettle lantern maple pebble quill raven saddle teapot violin"

# Forum -> (title, description, subjects). A title joins a subject and an opening.
FORUMS = {
    "birds": (
        "Birds",
        "At the feeder, in the reeds and overhead.",
        "a feeder in winter|swifts|the owl behind our house|cheap binoculars|bird calls|a nest box|herons in town",
    ),
    "cooking": (
        "Cooking",
        "What is on the stove tonight.",
        "a cast iron pan|lentils|fish soup|dull knives|cooking for one|leftover rice|pickled lemons",
    ),
    "electronics": (
        "Electronics",
        "Soldering, measuring and letting the smoke out.",
        "a first oscilloscope|dead batteries|a humming amplifier|cold solder|old radios|a bench supply|loose wires",
    ),
    "hiking": (
        "Hiking",
        "Paths, huts and blisters.",
        "the ridge trail|a light tent|blisters|huts in October|paper maps|walking alone|a wet sleeping bag",
    ),
    "history": (
        "History",
        "From clay tablets to the day before yesterday.",
        "village archives|the salt road|old ledgers|a family tree|lost railways|medieval bread|town walls",
    ),
    "knitting": (
        "Knitting",
        "Two needles, or five, or one round one.",
        "a first sock|wool allergies|cable patterns|dropped stitches|a jumper for a child|dyeing yarn|circular needles",
    ),
    "languages": (
        "Languages",
        "Learning them, forgetting them, mixing them up.",
        "verb tables|learning at fifty|flash cards|a tandem partner|dialects|reading aloud|the third language",
    ),
    "sailing": (
        "Sailing",
        "Wind, knots and borrowed boats.",
        "a leaking hull|night watches|the harbor fees|seasickness|a torn sail|anchoring|tide books",
    ),
    "trains": (
        "Trains",
        "Timetables, models and the view from the window.",
        "the night train|a model layout|seat reservations|branch lines|steam days|station clocks|a missed connection",
    ),
    "woodworking": (
        "Woodworking",
        "Shavings, joints and fingers kept.",
        "a dovetail joint|sharpening stones|a wobbly bench|walnut oil|hand planes|cheap chisels|a box with a lid",
    ),
}
OPENINGS = (
    "How do you deal with {}?",
    "Notes on {}",
    "Everything I got wrong about {}",
    "In praise of {}",
    "Is it too late for {}?",
    "A question about {}",
    "Things nobody told me about {}",
    "My first week with {}",
    "Looking back at {}",
    "Small victories with {}",
)
# A post joins a beginning and an end.
BEGINNINGS = (
    "My father showed me how, and I have forgotten most of it.",
    "I read three books about it and came away with four opinions.",
    "This began as a bet between neighbors.",
    "We moved last year, and since then I have room for it.",
    "I have put this off for longer than I like to say.",
    "There is a club in the next town, but it meets on Mondays.",
    "After two attempts that went badly I want to ask before the third.",
)
ENDS = (
    "Where would you start?",
    "What would you do with little money and a free weekend?",
    "I will report in a month.",
    "Corrections are welcome.",
    "If you know a good source, please name it.",
    "It may be obvious to you; it was not to me.",
    "",
)
REPLIES = (
    "Take your time, the first one is never good.",
    "I would borrow before I bought.",
    "The second link in the wiki answers half of this.",
    "My grandmother did it exactly so.",
    "Please post again when it is done.",
    "You describe my last weekend.",
    "There is a cheaper way, but it takes longer.",
    "Write down what you change, else you never know.",
    "I gave up twice and am glad that I came back.",
    "Not in this weather.",
    "A picture would help us to help you.",
    "Ask at the library; ours lends tools.",
    "It is the small steps, as always.",
    "This made my evening.",
    "I think that you worry too much about it.",
    "Two of us here tried, and both would do it again.",
)
BIOS = ("Retired and busy.", "Learns by breaking things.", "Answers at night.", "Has been here from the start.", "")


def fill(database: Database, rng: random.Random) -> None:
    people = [f"{adjective}_{thing}" for adjective in ADJECTIVES.split() for thing in THINGS.split()]
    members = [
        database.insert("members", name=name, password=PASSWORD, bio=rng.choice(BIOS), created=_ago(rng, 1900, 1200))
        for name in rng.sample(people, NUM_MEMBERS)
    ]
    posts = []
    for name, (title, description, subjects) in FORUMS.items():
        forum_id = database.insert("forums", name=name, title=title, description=description)
        titles = [opening.format(subject) for opening in OPENINGS for subject in subjects.split("|")]
        posts += [(forum_id, each) for each in rng.sample(titles, POSTS_PER_FORUM)]
    created = sorted(_ago(rng, FIRST_DAY, LAST_DAY) for _ in posts)
    for when, (forum_id, title) in zip(created, rng.sample(posts, len(posts)), strict=True):
        post_id = database.insert(
            "posts",
            forum_id=forum_id,
            member_id=rng.choice(members),
            title=title,
            body=f"{rng.choice(BEGINNINGS)} {rng.choice(ENDS)}".strip(),
            base_score=skewed(rng, 1, 500),
            created=when,
        )
        _fill_comments(database, rng, post_id, members, when)
    _count_views(database, rng)


def _fill_comments(database: Database, rng: random.Random, post_id: int, members: list[int], created: str) -> None:
    first: int | None = None
    for reply in rng.sample(REPLIES, skewed(rng, 0, 12)):
        comment_id = database.insert(
            "comments",
            post_id=post_id,
            parent_id=first if first and rng.random() < 0.3 else None,
            member_id=rng.choice(members),
            body=reply,
            base_score=rng.randint(-5, 30),
            created=created,
        )
        first = first or comment_id


def _count_views(database: Database, rng: random.Random) -> None:
    """Give all posts, those of the first forums, too, different numbers of views."""
    rows = database.all("SELECT id FROM posts ORDER BY id")
    for row, views in zip(rows, rng.sample(range(400, 9000), len(rows)), strict=True):
        database.run("UPDATE posts SET views = ? WHERE id = ?", views, row["id"])


def _ago(rng: random.Random, first_day: int, last_day: int) -> str:
    minutes = rng.randint(last_day * 24 * 60, first_day * 24 * 60)
    return (START - timedelta(minutes=minutes)).strftime("%Y-%m-%d %H:%M")
