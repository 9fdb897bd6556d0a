"""The price of an order of the shop: the cart's items, shipping and a coupon."""

from __future__ import annotations

from sqlite3 import Row

from flask import flash, g

from rllm_gym.envs.webarena.sites.app import FormError, choice, text

SHIPPING = {"standard": ("Standard", 495), "express": ("Express", 1495), "pickup": ("Pick up in store", 0)}


def place_order(items: list[Row]) -> str:
    """Make an order of the cart's items and of the form that was sent, and return its number."""
    subtotal = sum(item["amount"] for item in items)
    street, city = text("street", "Street", max_chars=200), text("city", "City", max_chars=100)
    postcode = text("postcode", "Postcode", max_chars=20)
    method = choice("shipping", "Shipping method", list(SHIPPING))
    percent = 0
    if code := text("coupon", "Coupon", required=False, max_chars=50):
        percent = g.db.value("SELECT percent FROM coupons WHERE code = ? AND is_active", code.upper())
        if percent is None:
            raise FormError(f'Coupon "{code}" is not valid.')
    for item in items:
        if item["count"] > item["quantity"]:
            raise FormError(f"Only {item['quantity']} of {item['name']} are in stock.")
    discount = subtotal * percent // 100
    order_number = f"{g.db.value('SELECT max(id) FROM orders') + 1:06}"
    order_id = g.db.insert(
        "orders",
        number=order_number,
        customer_id=g.user["id"],
        created=g.db.now(),
        status="Pending",
        shipping=SHIPPING[method][0],
        shipping_price=SHIPPING[method][1],
        discount=discount,
        total=subtotal - discount + SHIPPING[method][1],
        street=street,
        city=city,
        postcode=postcode,
    )
    for item in items:
        values = (order_id, item["id"], item["name"], item["price"], item["count"])
        g.db.run("INSERT INTO order_items VALUES (?, ?, ?, ?, ?)", *values)
        g.db.run("UPDATE products SET quantity = quantity - ? WHERE id = ?", item["count"], item["id"])
    g.db.run("DELETE FROM cart_items WHERE customer_id = ?", g.user["id"])
    flash("Thank you for your order.")
    return order_number
