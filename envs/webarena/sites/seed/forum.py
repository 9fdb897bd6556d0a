"""The forum's data: members, forums, posts and comments."""

from __future__ import annotations

import random

from rllm_gym.envs.webarena.sites.database import Database
from rllm_gym.envs.webarena.sites.seed.common import PASSWORD, cycled, skewed, times

NUM_MEMBERS = 36
POSTS_PER_FORUM = 14
NUM_OWN_POSTS = 10  # of the member whom the tasks are about

ADJECTIVES = "amber brisk calm dusty early fuzzy gentle hidden ivory jolly keen lucky mellow noble quiet rusty"
ANIMALS = "badger crane dormouse egret fox gecko heron ibex jay kestrel lynx marten newt otter puffin robin"

# Forum -> (title, description, subjects). A title joins a subject and an opening.
FORUMS = {
    "astronomy": (
        "Astronomy",
        "The sky, with and without a telescope.",
        "a first telescope|Saturn's rings|the meteor shower|a red filter|light pollution|the lunar eclipse|star maps",
    ),
    "baking": (
        "Baking",
        "Bread, cakes and everything else from the oven.",
        "sourdough|rye bread|a proofing basket|croissants|a sticky dough|oven steam|old yeast",
    ),
    "books": (
        "Books",
        "What we read and what we think of it.",
        "a long novel|short stories|translated poetry|audio books|a book club|used bookshops|unread books",
    ),
    "chess": (
        "Chess",
        "Openings, endings and what goes wrong between.",
        "the Sicilian|rook endings|chess clocks|a blitz habit|knight forks|opening books|a club night",
    ),
    "cycling": (
        "Cycling",
        "Road, gravel, cargo and commuting.",
        "a squeaking chain|winter tires|a cargo bike|the coast route|bike lights|a stolen bike|disc brakes",
    ),
    "films": (
        "Films",
        "New and old, loud and silent.",
        "silent films|a double feature|subtitles|film scores|a small cinema|long takes|the last remake",
    ),
    "gardening": (
        "Gardening",
        "Beds, balconies and compost.",
        "tomato seedlings|slugs|a rain barrel|compost heaps|an old apple tree|raised beds|balcony herbs",
    ),
    "linux": (
        "Linux",
        "Kernels, shells and desktops.",
        "a broken boot|shell aliases|tiling windows|an old laptop|backup scripts|font rendering|cron jobs",
    ),
    "photography": (
        "Photography",
        "Light, lenses and darkrooms.",
        "a fifty millimeter lens|expired film|night portraits|a heavy tripod|raw files|fog|a darkroom",
    ),
    "running": (
        "Running",
        "From the first mile to the hundredth.",
        "a first marathon|sore knees|hill repeats|trail shoes|running in rain|a pacing plan|rest days",
    ),
}
OPENINGS = (
    "What I learned about {}",
    "Need advice on {}",
    "Unpopular opinion on {}",
    "A short guide to {}",
    "Three mistakes with {}",
    "Does anyone else think about {}?",
    "My year with {}",
)
BODIES = (
    "I have tried this for a few months and want to hear how others do it.",
    "There is a lot of contradicting advice, so here is what worked for me.",
    "Please be kind, it is my first post here.",
    "I kept notes every week. The short version: patience helps.",
    "It cost me a whole weekend to find this out, so I am sharing it.",
    "",
)
REPLIES = (
    "I had exactly the same experience.",
    "Thank you, this is what I was looking for.",
    "I do not agree, but it is well written.",
    "Start small and change one thing at a time.",
    "My neighbor swears by it.",
    "Could you share a picture?",
    "That depends on how much time you have.",
    "This should be pinned.",
    "It did not work for me at all.",
    "Ask again in spring.",
    "I laughed, then I tried it.",
    "Good luck, and tell us how it went.",
)
BIOS = ("Reads more than writes.", "Here for the pictures.", "Asks too many questions.", "Likes long walks.", "")


def fill(database: Database, rng: random.Random) -> None:
    others = rng.sample(
        [f"{adjective}_{animal}" for adjective in ADJECTIVES.split() for animal in ANIMALS.split()], NUM_MEMBERS - 1
    )
    members = ["maple_finch", *others]
    for name, created in zip(members, times(rng, NUM_MEMBERS, 1500), strict=True):
        bio = "Bakes on Sundays." if name == "maple_finch" else rng.choice(BIOS)
        database.insert("members", name=name, password=PASSWORD, bio=bio, created=created)
    for name, (title, description, _) in FORUMS.items():
        database.insert("forums", name=name, title=title, description=description)
    for forum_id in (2, 7, 9):
        database.insert("subscriptions", member_id=1, forum_id=forum_id)
    _fill_posts(database, rng)
    _fill_comments(database, rng)


def _fill_posts(database: Database, rng: random.Random) -> None:
    titles = []
    for forum_id, (_, _, subjects) in enumerate(FORUMS.values(), 1):
        pairs = list(zip(cycled(rng, OPENINGS, POSTS_PER_FORUM), subjects.split("|") * 2, strict=True))
        titles += [(forum_id, opening.format(subject)) for opening, subject in dict.fromkeys(pairs)]
    rng.shuffle(titles)
    own = set(rng.sample(range(len(titles)), NUM_OWN_POSTS))
    scores = rng.sample(range(2, 4 * len(titles)), len(titles))  # all different, so that "the top post" is one
    for i, ((forum_id, title), created) in enumerate(zip(titles, times(rng, len(titles), 200), strict=True)):
        database.insert(
            "posts",
            forum_id=forum_id,
            member_id=1 if i in own else rng.randint(2, NUM_MEMBERS),
            title=title,
            body=rng.choice(BODIES),
            base_score=scores[i],
            created=created,
        )


def _fill_comments(database: Database, rng: random.Random) -> None:
    posts = database.all("SELECT id, created FROM posts ORDER BY id")
    for post in posts:
        previous: list[int] = []
        for reply in rng.sample(REPLIES, skewed(rng, 0, 10)):
            parent = rng.choice(previous) if previous and rng.random() < 0.3 else None
            comment_id = database.insert(
                "comments",
                post_id=post["id"],
                parent_id=parent,
                member_id=1 if rng.random() < 0.03 else rng.randint(2, NUM_MEMBERS),
                body=reply,
                base_score=rng.randint(-6, 40),
                created=post["created"],
            )
            if parent is None:
                previous.append(comment_id)
