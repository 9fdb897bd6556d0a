"""The shop's later departments: products of eight more categories, their reviews, and what all products weigh."""

from __future__ import annotations

import random

from rllm_gym.envs.webarena.sites.database import Database
from rllm_gym.envs.webarena.sites.seed.common import times

PRODUCTS_PER_KIND = 5
# Category -> (kind of product, prices in dollars from and to, weights in grams from and to, what it is for).
# No kind or text holds a name of the first catalogue's, whose tasks search for those.
CATALOGUE = {
    "Bakeware": [
        ("Cake Tin", 8, 32, 300, 900, "The rim opens with a clasp, so that nothing breaks."),
        ("Mixing Bowl", 7, 28, 350, 1400, "A rubber foot keeps it where it stands."),
        ("Oven Glove", 5, 24, 90, 300, "Holds out against 250 degrees for half a minute."),
        ("Pie Dish", 9, 36, 600, 1600, "Stoneware that goes from the freezer into the oven."),
        ("Whisk", 4, 19, 60, 220, "Eleven wires, welded where they meet."),
    ],
    "Bicycles": [
        ("Bike Light", 12, 68, 40, 240, "Shines for nine hours and is charged in one."),
        ("Bike Lock", 18, 90, 700, 2600, "A chain of six millimeters with three keys."),
        ("Floor Pump", 20, 75, 1100, 2300, "Reads the pressure in bar and in psi."),
        ("Pannier Bag", 28, 120, 500, 1500, "Hooks onto every common rack and keeps rain out."),
        ("Saddle", 24, 110, 240, 620, "Shaped for long rides; the rails are of steel."),
    ],
    "Cleaning": [
        ("Broom", 8, 34, 500, 1200, "Bristles of horsehair on a stick of ash."),
        ("Bucket", 5, 22, 300, 900, "Twelve liters, with a lip to pour from."),
        ("Dustpan", 4, 18, 180, 500, "A soft edge leaves no line of dust behind."),
        ("Laundry Basket", 12, 48, 700, 1900, "Woven of willow, lined with washable linen."),
        ("Squeegee", 6, 26, 150, 480, "Pulls windows dry in one stroke."),
    ],
    "Fitness": [
        ("Dumbbell Pair", 15, 95, 2000, 12000, "Coated, so that floors and hands stay whole."),
        ("Foam Roller", 12, 45, 400, 1300, "Firm in the middle and softer outside."),
        ("Gym Bag", 20, 80, 450, 1100, "A pocket of its own for wet things."),
        ("Skipping Rope", 6, 29, 90, 420, "Its length is set without tools."),
        ("Yoga Mat", 14, 70, 800, 2600, "Natural rubber that grips when it is wet, too."),
    ],
    "Lighting": [
        ("Floor Light", 45, 190, 3200, 9000, "Stands on a foot of marble and swings over a sofa."),
        ("Lantern", 14, 60, 500, 1800, "For a candle or a bulb; glass on four sides."),
        ("Light Strip", 10, 55, 120, 450, "Three meters that can be cut where they must end."),
        ("Night Light", 7, 30, 60, 260, "Goes on at dusk and off at dawn."),
        ("Pendant", 35, 170, 900, 4200, "Hangs from a textile cord of two meters."),
    ],
    "Music": [
        ("Guitar Strap", 8, 48, 80, 320, "Leather ends with room for two buttons."),
        ("Harmonica", 16, 95, 70, 180, "Ten holes in the key of C."),
        ("Metronome", 18, 85, 120, 800, "Clicks and blinks from 30 to 250 beats."),
        ("Music Stand", 15, 70, 900, 3400, "Folds to the length of a forearm."),
        ("Ukulele", 38, 180, 420, 780, "A soprano of mahogany that stays in tune."),
    ],
    "Pets": [
        ("Cat Tree", 35, 160, 5200, 18000, "Sisal posts, two dens and a look-out."),
        ("Dog Bed", 22, 110, 900, 3900, "The cover comes off and can be boiled."),
        ("Dog Leash", 9, 42, 120, 420, "Two meters with a handle that does not cut."),
        ("Food Bowl", 6, 26, 200, 900, "Weighs enough to stay where it is."),
        ("Scratching Board", 8, 35, 600, 2100, "Cardboard on edge; both sides can be used."),
    ],
    "Travel": [
        ("Luggage Tag", 4, 18, 20, 90, "Shows a name only to those who open it."),
        ("Packing Cube", 7, 32, 60, 240, "A second zipper presses clothes flat."),
        ("Suitcase", 60, 290, 2400, 5200, "Four wheels, a shell that bends and does not break."),
        ("Toiletry Bag", 10, 45, 150, 520, "Hangs from a hook and opens like a book."),
        ("Travel Adapter", 12, 50, 90, 280, "Fits sockets in 150 countries; two USB ports."),
    ],
}  # fmt: skip
BRANDS = (
    "Larkspur", "Meridian", "Northgate", "Oakhurst", "Pinnacle", "Quillon", "Redfern", "Solstice", "Tamarack",
    "Umbra", "Vesper", "Westbrook",
)  # fmt: skip
COUNTRIES = ("Austria", "Brazil", "Canada", "Denmark", "Estonia", "France", "Ghana", "India", "Japan", "Portugal")
# A rating, and what those who give it say: a summary and a text are drawn apart.
SUMMARIES = {
    5: ("A good buy", "Just what I needed", "Thought through", "Five years and counting", "Would give it as a present"),
    4: ("Nearly perfect", "Solid work", "Glad I bought it", "Good, with one small flaw"),
    3: ("Middling", "Fine for now", "You get what you pay for"),
    2: ("Not for daily use", "I expected more", "Came with a dent"),
    1: ("Fell apart", "Sent back at once"),
}
TEXTS = {
    5: (
        "It has been through a winter and looks new.",
        "My brother borrowed it and did not want to return it.",
        "Somebody has thought about every detail of it.",
        "Arrived on a Tuesday, in use since Wednesday.",
    ),
    4: (
        "The label was hard to take off, everything else is fine.",
        "A little heavier than I expected, but it does the work.",
        "One more size would be good; this one fits almost.",
    ),
    3: ("It works, though I would not buy it twice.", "The pictures flatter it a bit.", "Useful once a month."),
    2: ("A seam came loose within weeks.", "It smells, and airing it helps only so much."),
    1: ("It broke on the first day.", "The wrong one was in the box, twice."),
}


def fill(database: Database, rng: random.Random) -> None:
    number = 4000
    for category, kinds in CATALOGUE.items():
        category_id = database.insert("categories", slug=category.lower(), name=category)
        for kind, low, high, lightest, heaviest, description in kinds:
            prices = rng.sample(range(low * 4, high * 4), PRODUCTS_PER_KIND)  # quarters of a dollar
            for brand, quarters in zip(rng.sample(BRANDS, PRODUCTS_PER_KIND), prices, strict=True):
                name, number = f"{brand} {kind}", number + rng.randint(1, 9)
                database.insert(
                    "products",
                    slug=name.lower().replace(" ", "-"),
                    name=name,
                    sku=f"{category[:2].upper()}-{number}",
                    category_id=category_id,
                    price=quarters * 25 + 24,
                    quantity=0 if rng.random() < 0.05 else rng.randint(4, 140),
                    description=f"{kind} by {brand}. {description}",
                    is_enabled=int(rng.random() > 0.03),
                    weight_g=rng.randint(lightest, heaviest),
                )
    _fill_reviews(database, rng)
    _complete(database, rng)


def _fill_reviews(database: Database, rng: random.Random) -> None:
    products = [row["id"] for row in database.all("SELECT id FROM products WHERE weight_g NOT NULL ORDER BY id")]
    nicknames = [row["name"].split()[0] for row in database.all("SELECT name FROM customers WHERE id > 1 ORDER BY id")]
    reviewed = [product for product in products for _ in range(rng.choice((0, 1, 1, 2, 3, 5)))]
    rng.shuffle(reviewed)
    rows, seen = [], set()
    for product, created in zip(reviewed, times(rng, len(reviewed), 300), strict=True):
        # None has five stars from all: the home page's best stay those of the first catalogue.
        rating = rng.choice((5, 5, 4, 4, 3, 2) if product in seen else (4, 4, 4, 3, 3, 2, 1))
        seen.add(product)
        title, body = rng.choice(SUMMARIES[rating]), rng.choice(TEXTS[rating])
        rows.append((product, rng.choice(nicknames), rating, title, body, "approved", created))
    columns = ("product_id", "nickname", "rating", "title", "body", "status", "created")
    database.insert_all("reviews", columns, rows)


def _complete(database: Database, rng: random.Random) -> None:
    """Give all products, the first ones, too, a country, and a weight of their own."""
    taken = set()
    for row in database.all("SELECT id, weight_g FROM products ORDER BY id"):
        weight = row["weight_g"] or rng.randint(150, 6000)
        while weight in taken:
            weight += 1
        taken.add(weight)
        database.run(
            "UPDATE products SET weight_g = ?, origin = ? WHERE id = ?", weight, rng.choice(COUNTRIES), row["id"]
        )
