"""Tasks on the shop."""

from __future__ import annotations

import random
from collections.abc import Iterator
from sqlite3 import Row

from rllm_gym.envs.webarena.embedded_tasks.base import (
    Instance,
    Templates,
    address,
    answer,
    holds,
    pages,
    pick,
    reads,
    value,
)
from rllm_gym.envs.webarena.script import Step, choose, fill, follow, push, search, stop
from rllm_gym.envs.webarena.sites.app import money
from rllm_gym.envs.webarena.sites.checkout import SHIPPING
from rllm_gym.envs.webarena.sites.database import Database
from rllm_gym.envs.webarena.sites.seed.common import PASSWORD
from rllm_gym.envs.webarena.sites.seed.shop import CATALOGUE, COUPONS, NUM_PRODUCTS
from rllm_gym.envs.webarena.sites.shopping import SITE

templates = Templates("shopping")
URL = "__SHOPPING__"


def _products(db: Database, where: str = "quantity >= 5") -> list[Row]:
    """Return products of the first departments; a task keeps its number, and its product, as the shop grows."""
    return db.all(f"SELECT * FROM products WHERE is_enabled AND id <= {NUM_PRODUCTS} AND {where} ORDER BY id")


def _orders(db: Database, where: str = "1") -> list[Row]:
    owner = "customer_id = (SELECT id FROM customers WHERE email = ?)"
    return db.all(f"SELECT * FROM orders WHERE {owner} AND {where} ORDER BY id", SITE.user)


def _open(name: str) -> list[Step]:
    return [search("Search products", name), follow(name)]


@templates.add("What does the {{product}} cost?")
def _price(db: Database, rng: random.Random) -> Iterator[Instance]:
    for row in pick(rng, _products(db)):
        price = money(row["price"])
        yield Instance({"product": row["name"]}, answer(price.strip("$")), [*_open(row["name"]), stop(price)])


@templates.add("How many products are there in the category {{category}}? Answer with the number only.")
def _category_size(db: Database, rng: random.Random) -> Iterator[Instance]:
    sql = f"""
        SELECT c.name, count(*) AS size FROM products p JOIN categories c ON c.id = category_id
        WHERE is_enabled AND p.id <= {NUM_PRODUCTS} GROUP BY c.id"""
    for row in pick(rng, db.all(sql)):
        yield Instance(
            {"category": row["name"]}, answer(exact=str(row["size"])), [follow(row["name"]), stop(str(row["size"]))]
        )


@templates.add("Open the page of the cheapest {{kind}}.")
def _cheapest(db: Database, rng: random.Random) -> Iterator[Instance]:
    kinds = [kind[0] for part in CATALOGUE.values() for kind in part]
    for kind in pick(rng, kinds):
        row = min(_products(db, f"name LIKE '% {kind}'"), key=lambda row: row["price"])
        steps = [search("Search products", kind), follow("Price: low to high"), follow(row["name"])]
        yield Instance({"kind": kind.lower()}, address(f"{URL}/product/{row['slug']}"), steps)


@templates.add("Put {{quantity}} of the {{product}} into my cart.")
def _into_cart(db: Database, rng: random.Random) -> Iterator[Instance]:
    for row, quantity in zip(pick(rng, _products(db)), (2, 3, 4, 5, 2, 3), strict=True):
        item = f'[aria-label="Quantity of {row["name"]}"]'
        yield Instance(
            {"quantity": quantity, "product": row["name"]},
            pages(value(f"{URL}/cart", item, quantity)),
            [*_open(row["name"]), fill("Quantity", str(quantity)), push("Add to cart")],
        )


@templates.add("Put the {{product}} on my wish list.")
def _wish(db: Database, rng: random.Random) -> Iterator[Instance]:
    for row in pick(rng, _products(db)):
        steps = [*_open(row["name"]), push("Add to wish list")]
        yield Instance({"product": row["name"]}, pages(holds(f"{URL}/wishlist", "#wishes", row["name"])), steps)


@templates.add("What is the status of my order {{number}}? Answer with the status only.")
def _status(db: Database, rng: random.Random) -> Iterator[Instance]:
    for row in pick(rng, _orders(db)):
        steps = [follow("My orders"), follow(f"Order {row['number']}"), stop(row["status"])]
        yield Instance({"number": row["number"]}, answer(exact=row["status"]), steps)


@templates.add("What was the total of the order that I placed on {{date}}?")
def _total(db: Database, rng: random.Random) -> Iterator[Instance]:
    rows = _orders(db)
    dates = [row["created"][:10] for row in rows]
    for row in pick(rng, [row for row in rows if dates.count(row["created"][:10]) == 1]):
        total = money(row["total"])
        steps = [follow("My orders"), follow(f"Order {row['number']}"), stop(total)]
        yield Instance({"date": row["created"][:10]}, answer(total.strip("$")), steps)


@templates.add("Cancel my order {{number}}.")
def _cancel(db: Database, rng: random.Random) -> Iterator[Instance]:
    for row in pick(rng, _orders(db, "status = 'Pending'")):
        number = row["number"]
        yield Instance(
            {"number": number},
            pages(reads(f"{URL}/orders/{number}", "#status", "Canceled")),
            [follow("My orders"), follow(f"Order {number}"), push("Cancel order")],
        )


@templates.add('Review the {{product}} with {{stars}}, as Nora, with the summary "{{summary}}" and the text "{{text}}"')
def _review(db: Database, rng: random.Random) -> Iterator[Instance]:
    opinions = (
        ("5 stars", "Love it", "My kitchen needed this."),
        ("4 stars", "Solid", "Only the packing could be better."),
        ("3 stars", "Hm", "Not sure yet."),
        ("2 stars", "Wobbly", "It does not stand straight."),
        ("1 star", "Do not buy", "It fell apart."),
        ("5 stars", "Great gift", "My sister was happy."),
    )
    for row, (stars, summary, text) in zip(pick(rng, _products(db)), opinions, strict=True):
        yield Instance(
            {"product": row["name"], "stars": stars, "summary": summary, "text": text},
            pages(holds(f"{URL}/product/{row['slug']}", "#reviews", f"{summary} ({stars}) by Nora", text)),
            [
                *_open(row["name"]),
                follow("Write a review"),
                choose(stars),
                fill("Nickname", "Nora"),
                fill("Summary", summary),
                fill("Review", text),
                push("Submit review"),
            ],
        )


@templates.add("I have moved. Change my address to {{street}}, {{postcode}} {{city}}.")
def _move(db: Database, rng: random.Random) -> Iterator[Instance]:
    places = (
        ("Linden Way 4", "20418", "Ashford"),
        ("Canal Street 77", "31190", "Bexley"),
        ("North Gate 12", "44100", "Clifton"),
        ("Rose Court 9", "52001", "Dunmore"),
        ("Bridge Road 31", "67700", "Easton"),
        ("Willow Walk 2", "70111", "Foxley"),
    )
    for street, postcode, city in places:
        account = f"{URL}/account"
        yield Instance(
            {"street": street, "postcode": postcode, "city": city},
            pages(
                value(account, "#street", street), value(account, "#city", city), value(account, "#postcode", postcode)
            ),
            [
                follow("My account"),
                fill("Street", street),
                fill("City", city),
                fill("Postcode", postcode),
                push("Save"),
            ],
        )


def _next_order(db: Database) -> str:
    return f"{URL}/orders/{db.value('SELECT max(id) FROM orders') + 1:06}"


@templates.add("Buy one {{product}} with {{method}} shipping to my usual address.")
def _buy(db: Database, rng: random.Random) -> Iterator[Instance]:
    for row, method in zip(pick(rng, _products(db)), ("express", "pickup", "standard") * 2, strict=True):
        label, price = SHIPPING[method]
        order = _next_order(db)
        yield Instance(
            {"product": row["name"], "method": label.lower()},
            pages(holds(order, "#items", f"1 x {row['name']}"), holds(order, "#shipping", label)),
            [
                *_open(row["name"]),
                push("Add to cart"),
                follow("Check out"),
                choose(f"{label} ({money(price)})"),
                push("Place order"),
            ],
        )


@templates.add(
    'Fill in the contact form: the subject is "{{subject}}", the message is "{{message}}". Do not send it yet.'
)
def _contact(db: Database, rng: random.Random) -> Iterator[Instance]:
    messages = (
        ("Wrong color", "I ordered green and got blue."),
        ("Gift wrapping", "Can you wrap my next order as a gift?"),
        ("Late delivery", "My parcel is a week late."),
        ("Spare parts", "Do you sell spare handles?"),
        ("Newsletter", "I get every newsletter twice."),
        ("Praise", "Your driver was very kind."),
    )
    for subject, message in messages:
        yield Instance(
            {"subject": subject, "message": message},
            pages(value("last", "#subject", subject), value("last", "#body", message), url=f"{URL}/contact"),
            [follow("Contact us"), fill("Subject", subject), fill("Message", message)],
        )


@templates.add("Log in as {{email}} with the password {{password}} and open the list of my orders.", is_logged_in=False)
def _log_in(db: Database, rng: random.Random) -> Iterator[Instance]:
    for row in pick(rng, db.all("SELECT email FROM customers ORDER BY id")):
        yield Instance(
            {"email": row["email"], "password": PASSWORD},
            pages(holds("last", ".bar", "My account"), url=f"{URL}/orders"),
            [
                follow("Log in"),
                fill("Email", row["email"]),
                fill("Password", PASSWORD),
                push("Log in"),
                follow("My orders"),
            ],
        )


@templates.add("Who gave the {{product}} {{stars}} in a review? Answer with the nickname only.", split="eval")
def _reviewer(db: Database, rng: random.Random) -> Iterator[Instance]:
    sql = f"""
        SELECT p.name, r.rating, r.nickname, count(*) AS num FROM reviews r JOIN products p ON p.id = r.product_id
        WHERE status = 'approved' AND is_enabled AND p.id <= {NUM_PRODUCTS}
        GROUP BY p.id, r.rating HAVING num = 1 ORDER BY p.id, r.rating"""
    for row in pick(rng, db.all(sql)):
        stars = f"{row['rating']} star{'s' if row['rating'] > 1 else ''}"
        steps = [*_open(row["name"]), stop(row["nickname"], seen=f"by {row['nickname']} on")]
        yield Instance({"product": row["name"], "stars": stars}, answer(exact=row["nickname"]), steps)


@templates.add("Set my phone number to {{phone}} and subscribe me to the newsletter.", split="eval")
def _phone(db: Database, rng: random.Random) -> Iterator[Instance]:
    for i in range(6):
        phone = f"555-{rng.randrange(200, 999)}-010{i}"
        account = f"{URL}/account"
        yield Instance(
            {"phone": phone},
            pages(value(account, "#phone", phone), value(account, "[name=newsletter]:checked", 1)),
            [follow("My account"), fill("Phone", phone), choose("Send me the newsletter", "checkbox"), push("Save")],
        )


@templates.add("Order one {{product}} for me, using the coupon {{coupon}}.", split="eval")
def _coupon(db: Database, rng: random.Random) -> Iterator[Instance]:
    coupons = [(code, percent) for code, percent, is_active in COUPONS if is_active]
    for row, (code, percent) in zip(pick(rng, _products(db)), coupons * 2, strict=True):
        order, discount = _next_order(db), money(row["price"] * percent // 100)
        yield Instance(
            {"product": row["name"], "coupon": code},
            pages(holds(order, "#items", f"1 x {row['name']}"), holds(order, "#shipping", f"Discount: {discount}")),
            [*_open(row["name"]), push("Add to cart"), follow("Check out"), fill("Coupon", code), push("Place order")],
        )


@templates.add('Show me the page "{{title}}" of the shop.', split="eval")
def _read_page(db: Database, rng: random.Random) -> Iterator[Instance]:
    for row in db.all("SELECT * FROM pages WHERE is_published ORDER BY title"):
        yield Instance({"title": row["title"]}, address(f"{URL}/page/{row['slug']}"), [follow(row["title"])])
