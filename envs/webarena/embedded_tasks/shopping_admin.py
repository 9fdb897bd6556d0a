"""Tasks on the shop's content management."""

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
    value,
)
from rllm_gym.envs.webarena.script import Step, choose, fill, follow, push, search, stop
from rllm_gym.envs.webarena.sites.database import Database
from rllm_gym.envs.webarena.sites.seed.shop import NUM_PRODUCTS

templates = Templates("shopping_admin")
URL = "__SHOPPING_ADMIN__"


def _products(db: Database) -> list[Row]:
    """Return products of the first departments; a task keeps its number, and its product, as the shop grows."""
    return db.all(f"SELECT * FROM products WHERE is_enabled AND id <= {NUM_PRODUCTS} ORDER BY id")


def _orders(db: Database, where: str) -> list[Row]:
    return db.all(f"SELECT * FROM orders WHERE {where} ORDER BY id")


def _reviews(db: Database, where: str) -> list[Row]:
    sql = "SELECT r.*, p.name AS product FROM reviews r JOIN products p ON p.id = r.product_id"
    return db.all(f"{sql} WHERE {where} ORDER BY r.id")


def _open_product(row: Row) -> list[Step]:
    return [follow("Products"), search("Search products", row["name"]), follow(row["name"])]


def _open_order(row: Row) -> list[Step]:
    return [follow("Orders"), search("Number or customer", row["number"]), follow(f"Order {row['number']}")]


@templates.add("Change the price of the {{product}} to ${{price}}.")
def _price(db: Database, rng: random.Random) -> Iterator[Instance]:
    for row in pick(rng, _products(db)):
        price = f"{rng.randint(5, 150)}.{rng.choice(('00', '49', '95'))}"
        yield Instance(
            {"product": row["name"], "price": price},
            pages(value(f"{URL}/products/{row['id']}", "#price", price)),
            [*_open_product(row), fill("Price", price), push("Save")],
        )


@templates.add("We have {{quantity}} of the {{product}} in stock. Correct the quantity.")
def _stock(db: Database, rng: random.Random) -> Iterator[Instance]:
    for row in pick(rng, _products(db)):
        quantity = rng.randint(130, 300)
        yield Instance(
            {"quantity": quantity, "product": row["name"]},
            pages(value(f"{URL}/products/{row['id']}", "#quantity", quantity)),
            [*_open_product(row), fill("Quantity", str(quantity)), push("Save")],
        )


@templates.add("Disable the {{product}}.")
def _disable(db: Database, rng: random.Random) -> Iterator[Instance]:
    for row in pick(rng, _products(db)):
        page = f"{URL}/products/{row['id']}"
        yield Instance(
            {"product": row["name"]},
            pages(count(page, "[name=is_enabled]:checked", 0), value(page, "#name", row["name"])),
            [*_open_product(row), choose("Enable product", "checkbox"), push("Save")],
        )


@templates.add("Set the status of order {{number}} to {{status}}.")
def _order_status(db: Database, rng: random.Random) -> Iterator[Instance]:
    for row in pick(rng, _orders(db, "status IN ('Pending', 'Processing')")):
        status = rng.choice(("Shipped", "Complete", "Canceled"))
        yield Instance(
            {"number": row["number"], "status": status},
            pages(reads(f"{URL}/orders/{row['number']}", "#status", status)),
            [*_open_order(row), choose(status), push("Save")],
        )


@templates.add("How many orders has {{customer}} placed, without canceled ones? Answer with the number only.")
def _num_orders(db: Database, rng: random.Random) -> Iterator[Instance]:
    sql = """
        SELECT c.name, count(*) AS num FROM orders o JOIN customers c ON c.id = o.customer_id
        WHERE status != 'Canceled' GROUP BY c.id ORDER BY c.id"""
    for row in pick(rng, db.all(sql)):
        number = str(row["num"])
        steps = [follow("Customers"), search("Name, email or phone", row["name"]), stop(number)]
        yield Instance({"customer": row["name"]}, answer(exact=number), steps)


@templates.add("What is the email address of the customer with the phone number {{phone}}?")
def _email(db: Database, rng: random.Random) -> Iterator[Instance]:
    for row in pick(rng, db.all("SELECT * FROM customers ORDER BY id")):
        steps = [follow("Customers"), search("Name, email or phone", row["phone"]), stop(row["email"])]
        yield Instance({"phone": row["phone"]}, answer(row["email"]), steps)


@templates.add('Approve the pending review "{{title}}" of the {{product}}.')
def _approve(db: Database, rng: random.Random) -> Iterator[Instance]:
    for row in pick(rng, _reviews(db, "status = 'pending'")):
        shown = f"{row['title']} ({row['rating']} star{'s' if row['rating'] > 1 else ''}) on {row['product']}"
        query = row["product"].replace(" ", "+")
        yield Instance(
            {"title": row["title"], "product": row["product"]},
            pages(holds(f"{URL}/reviews?status=approved&q={query}", "#reviews", shown)),
            [
                follow("Reviews"),
                search("Product or nickname", row["product"]),
                push("Approve", after=f"Review by {row['nickname']}"),
            ],
        )


@templates.add('Add a product "{{name}}" with the SKU {{sku}} for ${{price}} to the category {{category}}.')
def _new_product(db: Database, rng: random.Random) -> Iterator[Instance]:
    products = (
        ("Kestrel Bird Feeder", "G-7001", "17.50", "Garden"),
        ("Lumen Night Light", "B-7002", "9.95", "Bedroom"),
        ("Maple Rolling Pin", "K-7003", "14.00", "Kitchen"),
        ("Nimbus Umbrella", "O-7004", "23.90", "Outdoor"),
        ("Otter Bath Toy", "T-7005", "6.49", "Toys"),
        ("Pewter Paper Clip", "O-7006", "3.20", "Office"),
    )
    page = f"{URL}/products/{db.value('SELECT max(id) + 1 FROM products')}"
    for name, sku, price, category in products:
        category_id = db.value("SELECT id FROM categories WHERE name = ?", category)
        yield Instance(
            {"name": name, "sku": sku, "price": price, "category": category},
            pages(
                value(page, "#name", name),
                value(page, "#sku", sku),
                value(page, "#price", price),
                value(page, "[name=category]:checked", category_id),
            ),
            [
                follow("Products"),
                follow("Add product"),
                fill("Product name", name),
                fill("SKU", sku),
                fill("Price", price),
                choose(category),
                push("Save"),
            ],
        )


@templates.add("Create a coupon {{code}} for {{percent}} percent off.")
def _new_coupon(db: Database, rng: random.Random) -> Iterator[Instance]:
    for code, percent in (
        ("EASTER", 12),
        ("THANKYOU", 7),
        ("SUNNY", 18),
        ("FRIENDS", 25),
        ("MOVING", 9),
        ("ANCHOR", 14),
    ):
        yield Instance(
            {"code": code, "percent": percent},
            pages(holds(f"{URL}/coupons", f"#coupon-{code}", code, f"{percent} percent, active")),
            [follow("Coupons"), fill("Code", code), fill("Percent", str(percent)), push("Add coupon")],
        )


@templates.add("Show me all orders with the status {{status}}.")
def _orders_by_status(db: Database, rng: random.Random) -> Iterator[Instance]:
    for status in ("Pending", "Processing", "Shipped", "Complete", "Canceled"):
        yield Instance({"status": status}, address(f"{URL}/orders?status={status}"), [follow("Orders"), follow(status)])


@templates.add("How many products are {{state}}? Answer with the number only.")
def _num_products(db: Database, rng: random.Random) -> Iterator[Instance]:
    states = (
        ("enabled", "Enabled", "is_enabled"),
        ("disabled", "Disabled", "NOT is_enabled"),
        ("out of stock", "Out of stock", "quantity = 0"),
    )
    for state, link, where in states:
        number = str(db.value(f"SELECT count(*) FROM products WHERE {where}"))
        yield Instance({"state": state}, answer(exact=number), [follow("Products"), follow(link), stop(number)])


@templates.add("Change the phone number of the customer {{customer}} to {{phone}}.")
def _customer_phone(db: Database, rng: random.Random) -> Iterator[Instance]:
    for i, row in enumerate(pick(rng, db.all("SELECT * FROM customers ORDER BY id"))):
        phone = f"555-{rng.randrange(200, 999)}-020{i}"
        yield Instance(
            {"customer": row["name"], "phone": phone},
            pages(value(f"{URL}/customers/{row['id']}", "#phone", phone)),
            [
                follow("Customers"),
                search("Name, email or phone", row["name"]),
                follow(row["name"]),
                fill("Phone", phone),
                push("Save"),
            ],
        )


@templates.add('Add the comment "{{comment}}" to order {{number}}.', split="eval")
def _comment(db: Database, rng: random.Random) -> Iterator[Instance]:
    comments = (
        "Customer called",
        "Leave at the door",
        "Paid in cash",
        "Wrap as a gift",
        "Address checked",
        "Ask for a bell",
    )
    for row, comment in zip(pick(rng, _orders(db, "status != 'Canceled'")), comments, strict=True):
        yield Instance(
            {"comment": comment, "number": row["number"]},
            pages(holds(f"{URL}/orders/{row['number']}", "#comments", comment)),
            [*_open_order(row), fill("Comment", comment), push("Save")],
        )


@templates.add('Publish the page "{{title}}".', split="eval")
def _publish(db: Database, rng: random.Random) -> Iterator[Instance]:
    for row in db.all("SELECT * FROM pages WHERE NOT is_published ORDER BY title"):
        yield Instance(
            {"title": row["title"]},
            pages(value(f"{URL}/pages/{row['slug']}", "[name=is_published]:checked", 1)),
            [follow("Pages"), follow(row["title"]), choose("Publish page", "checkbox"), push("Save")],
        )


@templates.add('Change the content of the page "{{title}}" to "{{content}}"', split="eval")
def _rewrite(db: Database, rng: random.Random) -> Iterator[Instance]:
    contents = (
        "We are moving. Please come back in May.",
        "This page is being written anew.",
        "Ask us in the store.",
        "See our leaflet.",
    )
    for row, content in zip(db.all("SELECT * FROM pages WHERE is_published ORDER BY title"), contents, strict=True):
        yield Instance(
            {"title": row["title"], "content": content},
            pages(value(f"{URL}/pages/{row['slug']}", "#body", content)),
            [follow("Pages"), follow(row["title"]), fill("Content", content), push("Save")],
        )


@templates.add("Deactivate the coupon {{code}}.", split="eval")
def _deactivate(db: Database, rng: random.Random) -> Iterator[Instance]:
    for row in db.all("SELECT * FROM coupons WHERE is_active ORDER BY code"):
        code = row["code"]
        yield Instance(
            {"code": code},
            pages(holds(f"{URL}/coupons", f"#coupon-{code}", "not active")),
            [follow("Coupons"), push("Deactivate", after=code)],
        )
