"""The shop's data: products, customers, reviews, orders, coupons, pages and messages."""

from __future__ import annotations

import random
import re

from rllm_gym.envs.webarena.sites.database import Database
from rllm_gym.envs.webarena.sites.seed.common import PASSWORD, cycled, names, times

NUM_CUSTOMERS = 40
NUM_ORDERS = 160
NUM_OWN_ORDERS = 20  # of the customer whom the tasks are about

# Category -> (kind of product, lowest and highest price in dollars, what it is for).
CATALOGUE = {
    "Bathroom": [
        ("Bath Mat", 12, 40, "It dries within an hour and does not slip."),
        ("Shower Curtain", 15, 45, "Twelve rings are included."),
        ("Towel Set", 20, 70, "Two large and four small towels of heavy cotton."),
    ],
    "Bedroom": [
        ("Blanket", 25, 90, "Warm without being heavy; machine washable."),
        ("Pillow", 15, 60, "Filled with down, for those who sleep on their side."),
        ("Reading Lamp", 20, 80, "Dims in five steps and turns on its neck."),
    ],
    "Garden": [
        ("Garden Hose", 18, 65, "It does not kink and comes with a nozzle."),
        ("Plant Pot", 6, 35, "With a hole and a saucer; frost does not harm it."),
        ("Pruning Shears", 12, 48, "Blades of hardened steel, with a lock."),
    ],
    "Kitchen": [
        ("Chef Knife", 22, 120, "Forged in one piece, with a blade of 20 cm."),
        ("Cutting Board", 10, 55, "Gentle to knives, with a groove for juice."),
        ("Frying Pan", 18, 95, "Works on every kind of stove, induction as well."),
        ("Tea Kettle", 20, 75, "Boils a liter of water in three minutes."),
    ],
    "Office": [
        ("Desk Lamp", 24, 85, "Warm and cold light, with a clamp for the edge of a desk."),
        ("Notebook", 4, 22, "200 pages of dotted paper that lie flat."),
        ("Office Chair", 90, 320, "Carries 120 kg; back and arms can be set."),
    ],
    "Outdoor": [
        ("Camping Stove", 30, 110, "Burns gas from every common cartridge."),
        ("Hiking Backpack", 45, 180, "Holds 40 liters; a rain cover is included."),
        ("Water Bottle", 9, 38, "Keeps drinks cold for a day and hot for half of one."),
    ],
    "Toys": [
        ("Board Game", 18, 60, "For two to five players from the age of eight."),
        ("Building Blocks", 14, 75, "120 pieces of beech wood."),
        ("Puzzle", 8, 30, "1000 pieces; the finished picture is 70 cm wide."),
    ],
    "Workshop": [
        ("Cordless Drill", 55, 190, "With two batteries and a case."),
        ("Hammer", 9, 42, "A handle of hickory and a head of 500 g."),
        ("Toolbox", 16, 70, "Three drawers and a tray that can be taken out."),
    ],
}
BRANDS = ("Alder", "Birchwood", "Corvo", "Drift", "Elmhurst", "Fjord", "Granite", "Halden", "Ibis", "Juniper")
PRODUCTS_PER_KIND = 5
NUM_PRODUCTS = PRODUCTS_PER_KIND * sum(map(len, CATALOGUE.values()))
# (rating, summary, text)
OPINIONS = (
    (5, "Better than expected", "I would buy it again at once."),
    (5, "A pleasure every day", "My whole family wants one now."),
    (5, "Perfect", "Well made, quickly delivered, nothing to complain about."),
    (5, "Worth every cent", "It looks good and does what it should."),
    (4, "Good value", "Not the finest material, but fine for the price."),
    (4, "Does its job", "I use it twice a week and am content."),
    (4, "Nice color", "The color is a little darker than in the picture."),
    (3, "It is all right", "Neither good nor bad."),
    (3, "Smaller than I thought", "Please read the measures before you order."),
    (3, "Took two weeks", "The thing itself is fine, but the delivery was slow."),
    (2, "Smells of glue", "After a week in the open it is better."),
    (2, "Scratched on arrival", "The box was open when it came."),
    (1, "Broke after a month", "The support did not answer my messages."),
    (1, "Not as described", "I sent it back."),
)
CITIES = (("Ashford", "20417"), ("Bexley", "31188"), ("Clifton", "44025"), ("Dunmore", "52960"), ("Easton", "67731"))
STREETS = ("Mill Lane", "Station Road", "Oak Street", "Harbor View", "Church Hill", "Park Avenue")
COUPONS = (("SPRING10", 10, 1), ("GARDEN15", 15, 1), ("WELCOME5", 5, 1), ("WINTER20", 20, 0), ("STAFF30", 30, 0))
PAGES = (
    (
        "about-us",
        "About us",
        "Harbor Market began in 1987 as a stall beside the fish hall. Today 46 people work here.",
        1,
    ),
    (
        "shipping",
        "Shipping",
        "Standard shipping takes five days, express shipping two. Orders can be picked up in our "
        "store on Harbor View 12 after one day.",
        1,
    ),
    (
        "returns",
        "Returns",
        "Send back what you do not like within 30 days. We pay the way back for anything broken.",
        1,
    ),
    ("warranty", "Warranty", "Everything with a motor has a warranty of three years, everything else of two.", 1),
    ("careers", "Careers", "We are looking for a driver and for a clerk in the storehouse.", 0),
    ("winter-sale", "Winter sale", "Up to half off on blankets and kettles until the end of February.", 0),
)
MESSAGES = (
    ("Missing part", "The saucer of my plant pot was not in the box."),
    ("Invoice", "Please send me the invoice of my last order once more."),
    ("Opening hours", "Is the store on Harbor View open on Saturdays?"),
    ("Thank you", "The hose arrived within a day. Well done!"),
)
SHIPPING = (("Standard", 495), ("Express", 1495), ("Pick up in store", 0))


def fill(database: Database, rng: random.Random) -> None:
    database.insert("admins", username="admin", password=PASSWORD)
    _fill_products(database, rng)
    _fill_customers(database, rng)
    _fill_reviews(database, rng)
    _fill_orders(database, rng)
    for code, percent, is_active in COUPONS:
        database.insert("coupons", code=code, percent=percent, is_active=is_active)
    for slug, title, body, is_published in PAGES:
        database.insert("pages", slug=slug, title=title, body=body, is_published=is_published)
    senders = database.all("SELECT name, email FROM customers WHERE id > 1 ORDER BY id LIMIT ?", len(MESSAGES))
    for (subject, body), sender, created in zip(MESSAGES, senders, times(rng, len(MESSAGES), 30), strict=True):
        database.insert(
            "messages", name=sender["name"], email=sender["email"], subject=subject, body=body, created=created
        )


def _fill_products(database: Database, rng: random.Random) -> None:
    for category, kinds in CATALOGUE.items():
        category_id = database.insert("categories", slug=category.lower(), name=category)
        for kind, low, high, description in kinds:
            for brand in rng.sample(BRANDS, PRODUCTS_PER_KIND):
                name = f"{brand} {kind}"
                # Different prices of a kind, so that "the cheapest" is one.
                price = low * 100 + rng.randrange((high - low) * 4) * 25 - 1 + 100
                while database.value("SELECT 1 FROM products WHERE name LIKE ? AND price = ?", f"% {kind}", price):
                    price += 25
                database.insert(
                    "products",
                    slug=re.sub(r"[^a-z0-9]+", "-", name.lower()),
                    name=name,
                    sku=f"{category[0]}{brand[0]}-{rng.randrange(1000, 9999)}-{kind[0]}{len(kind)}",
                    category_id=category_id,
                    price=price,
                    quantity=0 if rng.random() < 0.06 else rng.randint(3, 120),
                    description=f"{kind} by {brand}. {description}",
                    is_enabled=int(rng.random() > 0.05),
                )


def _fill_customers(database: Database, rng: random.Random) -> None:
    people = ["Nora Field", *names(rng, NUM_CUSTOMERS - 1)]
    for person, created in zip(people, times(rng, NUM_CUSTOMERS, 900), strict=True):
        city, postcode = rng.choice(CITIES)
        database.insert(
            "customers",
            email=f"{person.lower().replace(' ', '.')}@example.com",
            password=PASSWORD,
            name=person,
            phone=f"555-{rng.randrange(200, 999)}-{rng.randrange(1000, 9999)}",
            street=f"{rng.choice(STREETS)} {rng.randint(1, 90)}",
            city=city,
            postcode=postcode,
            newsletter=int(person != "Nora Field" and rng.random() < 0.5),
            created=created,
        )


def _fill_reviews(database: Database, rng: random.Random) -> None:
    products = [row["id"] for row in database.all("SELECT id FROM products ORDER BY id")]
    nicknames = [row["name"].split()[0] for row in database.all("SELECT name FROM customers WHERE id > 1 ORDER BY id")]
    reviewed = [product for product in products for _ in range(rng.choice((0, 1, 2, 3, 4, 7)))]
    rng.shuffle(reviewed)
    columns = ("product_id", "nickname", "rating", "title", "body", "status", "created")
    said: dict[int, set[str]] = {}  # a product's reviews differ in author and summary, which tasks name them by
    rows = []
    for product, created in zip(reviewed, times(rng, len(reviewed), 400), strict=True):
        rating, title, body = rng.choice([o for o in OPINIONS if o[1] not in said.setdefault(product, set())])
        nickname = rng.choice([n for n in nicknames if n not in said[product]])
        said[product] |= {title, nickname}
        rows.append((product, nickname, rating, title, body, "approved", created))
    # The latest ones wait for approval.
    rows[-14:] = [(*row[:5], "pending", row[6]) for row in rows[-14:]]
    database.insert_all("reviews", columns, rows)


def _fill_orders(database: Database, rng: random.Random) -> None:
    products = database.all("SELECT * FROM products ORDER BY id")
    customers = database.all("SELECT * FROM customers ORDER BY id")
    buyers = [0] * NUM_OWN_ORDERS + [rng.randrange(1, NUM_CUSTOMERS) for _ in range(NUM_ORDERS - NUM_OWN_ORDERS)]
    rng.shuffle(buyers)
    recent = set(range(NUM_ORDERS - 40, NUM_ORDERS))
    early = cycled(rng, ["Complete"] * 9 + ["Canceled"], NUM_ORDERS)
    late = cycled(rng, ["Pending", "Pending", "Processing", "Shipped", "Complete"], NUM_ORDERS)
    for i, (buyer, created) in enumerate(zip(buyers, times(rng, NUM_ORDERS, 420), strict=True)):
        customer = customers[buyer]
        items = [(product, rng.choice((1, 1, 1, 2, 3))) for product in rng.sample(products, rng.choice((1, 1, 2, 3)))]
        shipping, shipping_price = rng.choice(SHIPPING)
        order_id = database.insert(
            "orders",
            number=f"{i + 1:06}",
            customer_id=customer["id"],
            created=created,
            status=late[i] if i in recent else early[i],
            shipping=shipping,
            shipping_price=shipping_price,
            discount=0,
            total=sum(product["price"] * count for product, count in items) + shipping_price,
            street=customer["street"],
            city=customer["city"],
            postcode=customer["postcode"],
        )
        database.insert_all(
            "order_items",
            ("order_id", "product_id", "name", "price", "quantity"),
            [(order_id, product["id"], product["name"], product["price"], count) for product, count in items],
        )
