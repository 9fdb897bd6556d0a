"""Tasks on the shop's pages with scripts: the list of all products with its dialog, and the quick order."""

from __future__ import annotations

import random
from collections.abc import Iterator
from sqlite3 import Row

from rllm_gym.envs.webarena.embedded_tasks.base import (
    NUM_INSTANCES,
    Instance,
    Templates,
    address,
    answer,
    holds,
    pages,
    pick,
    value,
)
from rllm_gym.envs.webarena.embedded_tasks.shopping import URL
from rllm_gym.envs.webarena.script import Step, choose, fill, follow, press, push, stop, suggested
from rllm_gym.envs.webarena.sites.app import money
from rllm_gym.envs.webarena.sites.checkout import SHIPPING
from rllm_gym.envs.webarena.sites.database import Database

templates = Templates("shopping")


def _products(db: Database) -> list[Row]:
    return db.all("SELECT * FROM products WHERE is_enabled AND quantity >= 5 ORDER BY id")


def _in_cart(row: Row, quantity: int) -> dict[str, object]:
    return value(f"{URL}/cart", f'[aria-label="Quantity of {row["name"]}"]', quantity)


def _filtered(words: str) -> list[Step]:
    return [follow("All products"), fill("Filter", words)]


def _by_weight(db: Database, rng: random.Random, order: str) -> Iterator[tuple[str, Row]]:
    """Yield categories with the first of their products."""
    for category in pick(rng, db.all("SELECT * FROM categories ORDER BY id")):
        sql = f"SELECT * FROM products WHERE is_enabled AND category_id = ? ORDER BY weight_g {order}"
        yield category["name"], db.all(sql, category["id"])[0]


@templates.add(
    "Open the page of the heaviest product in the category {{category}}. The list of all products has weights."
)
def _heaviest(db: Database, rng: random.Random) -> Iterator[Instance]:
    for category, row in _by_weight(db, rng, "DESC"):
        steps = [*_filtered(category), press("Sort by weight"), follow(row["name"])]
        yield Instance({"category": category}, address(f"{URL}/product/{row['slug']}"), steps)


@templates.add("In which country is the {{product}} made? Answer with the country only.")
def _origin(db: Database, rng: random.Random) -> Iterator[Instance]:
    for row in pick(rng, _products(db)):
        steps = [*_filtered(row["name"]), press("Details", after=row["name"])]
        yield Instance(
            {"product": row["name"]},
            answer(exact=row["origin"]),
            [*steps, stop(row["origin"], seen=f"Made in {row['origin']}")],
        )


@templates.add("Put {{quantity}} of the lightest product in the category {{category}} into my cart.")
def _lightest(db: Database, rng: random.Random) -> Iterator[Instance]:
    for quantity, (category, row) in enumerate(_by_weight(db, rng, "ASC"), 2):
        steps = [*_filtered(category), press("Sort by weight"), press("Sort by weight")]
        steps += [press("Details", after=row["name"]), fill("Quantity", str(quantity)), push("Add to cart")]
        yield Instance({"quantity": quantity, "category": category}, pages(_in_cart(row, quantity)), steps)


def _quick_order(rows: list[Row], quantities: list[int]) -> list[Step]:
    steps = [follow("Quick order")]
    for number, (row, quantity) in enumerate(zip(rows, quantities, strict=True), 1):
        steps += [press("Add a line")] if number > 1 else []
        steps += suggested(f"Product {number}", row["name"])
        steps += [fill(f"Quantity {number}", str(quantity))] if quantity > 1 else []
    return [*steps, push("Put into cart")]


@templates.add("Put {{first_quantity}} of the {{first}} and {{second_quantity}} of the {{second}} into my cart.")
def _two_into_cart(db: Database, rng: random.Random) -> Iterator[Instance]:
    for _ in range(NUM_INSTANCES):
        rows, quantities = rng.sample(_products(db), 2), [rng.randint(2, 5), rng.randint(2, 5)]
        values = dict(zip(("first", "second"), (row["name"] for row in rows), strict=True))
        values |= dict(zip(("first_quantity", "second_quantity"), quantities, strict=True))
        checks = [_in_cart(row, quantity) for row, quantity in zip(rows, quantities, strict=True)]
        yield Instance(values, pages(*checks), _quick_order(rows, quantities))


@templates.add("Buy one {{first}}, one {{second}} and one {{third}} with {{method}} shipping.", split="eval")
def _buy_three(db: Database, rng: random.Random) -> Iterator[Instance]:
    order = f"{URL}/orders/{db.value('SELECT max(id) FROM orders') + 1:06}"
    for method in ("express", "pickup", "standard") * 2:
        rows = rng.sample(_products(db), 3)
        label, price = SHIPPING[method]
        values = dict(zip(("first", "second", "third"), (row["name"] for row in rows), strict=True))
        yield Instance(
            values | {"method": label.lower()},
            pages(holds(order, "#items", *(f"1 x {row['name']}" for row in rows)), holds(order, "#shipping", label)),
            [
                *_quick_order(rows, [1, 1, 1]),
                follow("Check out"),
                choose(f"{label} ({money(price)})"),
                push("Place order"),
            ],
        )


@templates.add("Which product weighs {{weight}} g? Answer with its name only.", split="eval")
def _by_its_weight(db: Database, rng: random.Random) -> Iterator[Instance]:
    rows = _products(db)
    weights = [f"{row['weight_g']} g" for row in rows]
    for row in pick(rng, [row for row in rows if sum(w.endswith(f"{row['weight_g']} g") for w in weights) == 1]):
        name, weight = row["name"], row["weight_g"]
        steps = [*_filtered(f"{weight} g"), stop(name, seen=f"cell '{weight} g'")]
        yield Instance({"weight": weight}, answer(exact=name), steps)
