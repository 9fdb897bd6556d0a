"""The map's town: a bent grid of roads, 340 places of ten kinds at its corners, and a traveller's lists."""

from __future__ import annotations

import itertools
import math
import random

from rllm_gym.envs.webarena.sites.database import Database
from rllm_gym.envs.webarena.sites.seed.common import PASSWORD

SIDE, BLOCK_M = 9, 300
MISSING = 0.12  # of the roads between corners
KINDS = ("bakery", "bank", "bookshop", "cafe", "hotel", "library", "museum", "park", "pharmacy", "school")
FIRST = [
    "Amber",
    "Birch",
    "Cedar",
    "Copper",
    "Crown",
    "Dove",
    "Ember",
    "Falcon",
    "Garnet",
    "Harbor",
    "Hazel",
    "Ivy",
    "Juniper",
    "Kestrel",
    "Lantern",
    "Laurel",
    "Linden",
    "Lotus",
    "Maple",
    "Marble",
    "Meadow",
    "Mill",
    "Oak",
    "Olive",
    "Orchard",
    "Pearl",
    "Pine",
    "Quarry",
    "River",
    "Rowan",
    "Sable",
    "Silver",
    "Thistle",
    "Willow",
]
LISTS = ("Weekend", "Work", "Visitors")
ALONG = ["Alder", "Anchor", "Bridge", "Canal", "Chapel", "Depot", "Elm", "Ferry", "Garden"]
ACROSS = ["North", "Queen", "Rose", "Station", "Temple", "Union", "Vine", "Wharf", "Zenith"]


def fill(database: Database, rng: random.Random) -> None:
    corners = list(itertools.product(range(SIDE), repeat=2))
    database.insert_all(
        "junctions",
        ("id", "x", "y"),
        [
            (i + 1, x * BLOCK_M + rng.randint(-60, 60), y * BLOCK_M + rng.randint(-60, 60))
            for i, (x, y) in enumerate(corners)
        ],
    )
    places = {row["id"]: (row["x"], row["y"]) for row in database.all("SELECT * FROM junctions")}
    roads = []
    for x, y in corners:
        here = x * SIDE + y + 1
        for there, name, is_there in (
            (here + SIDE, f"{ALONG[y]} Road", x + 1 < SIDE),
            (here + 1, f"{ACROSS[x]} Street", y + 1 < SIDE),
        ):
            # The border stays, so that every corner can be reached.
            is_border = (x in (0, SIDE - 1) and there == here + 1) or (y in (0, SIDE - 1) and there == here + SIDE)
            if is_there and (is_border or rng.random() > MISSING):
                metres = round(math.dist(places[here], places[there]))
                roads.append((here, there, name, metres, 50 if name.endswith("Road") else 30))
    database.insert_all("roads", ("a", "b", "name", "metres", "kmh"), roads)
    streets: dict[int, str] = {}
    for a, b, name, _, _ in roads:
        streets.setdefault(a, name)
        streets.setdefault(b, name)
    rows = []
    for number, (first, kind) in enumerate(itertools.product(FIRST, KINDS)):
        name = f"{first} {kind.title()}"
        junction = rng.choice(list(streets))
        opening = rng.choice((7, 8, 9, 10))
        rows.append(
            (
                name.lower().replace(" ", "-"),
                name,
                kind,
                f"{rng.randint(1, 199)} {streets[junction]}",
                f"555-{1000 + 7 * number}",
                f"{opening:02}:00 to {opening + rng.choice((8, 10, 12)):02}:00",
                rng.randint(20, 50) / 10,
                junction,
            )
        )
    database.insert_all(
        "places",
        ("slug", "name", "kind", "street", "phone", "opens", "rating", "junction_id"),
        rng.sample(rows, len(rows)),
    )
    traveller = database.insert("travellers", name="robin_vale", password=PASSWORD)
    for name in LISTS:
        database.insert("place_lists", traveller_id=traveller, name=name)
