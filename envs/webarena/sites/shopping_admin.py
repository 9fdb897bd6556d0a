"""The shop's content management: products, orders, customers, reviews, coupons, pages, messages."""

from __future__ import annotations

import re
from sqlite3 import Row
from typing import Any

from flask import Blueprint, flash, g, redirect, render_template, request, url_for
from flask.typing import ResponseReturnValue

from rllm_gym.envs.webarena.sites.app import (
    FormError,
    Site,
    cents,
    choice,
    found,
    like,
    login_required,
    number,
    paginate,
    text,
)

pages = Blueprint("admin", __name__)
SITE = Site("Harbor Market Admin", "admins", ("username", "User name"), "admin", pages)

ORDER_STATUSES = ("Pending", "Processing", "Shipped", "Complete", "Canceled")
REVIEW_STATUSES = ("pending", "approved", "rejected")
MAX_STOCK = 100_000


@pages.before_request
@login_required
def _only_for_admins() -> Any:
    return None


@pages.get("/")
def home() -> ResponseReturnValue:
    best = g.db.all("""
        SELECT p.id, i.name, sum(i.quantity) AS sold FROM order_items i JOIN orders o ON o.id = i.order_id
        JOIN products p ON p.id = i.product_id WHERE o.status != 'Canceled'
        GROUP BY p.id ORDER BY sold DESC, i.name LIMIT 5""")
    totals = g.db.first("""
        SELECT count(*) AS orders, sum(total) AS revenue,
            (SELECT count(*) FROM customers) AS customers,
            (SELECT count(*) FROM reviews WHERE status = 'pending') AS pending
        FROM orders WHERE status != 'Canceled'""")
    return render_template("shopping_admin/home.html", best=best, totals=totals)


# Products.


@pages.get("/products")
def products() -> ResponseReturnValue:
    words = request.args.get("q", "").strip()[:200]
    where = {"enabled": "p.is_enabled", "disabled": "NOT p.is_enabled", "out": "p.quantity = 0"}
    sql = f"""
        SELECT p.*, c.name AS category FROM products p JOIN categories c ON c.id = p.category_id
        WHERE (p.name LIKE ? ESCAPE '\\' OR p.sku = ?) AND {where.get(request.args.get("show", ""), "1")}
        ORDER BY p.name"""
    return render_template("shopping_admin/products.html", page=paginate(sql, like(words), words.upper()))


@pages.route("/products/new", methods=["GET", "POST"])
def new_product() -> ResponseReturnValue:
    if request.method == "POST":
        try:
            product_id = g.db.insert("products", **_product_form(None))
            flash("The product is saved.")
            return redirect(url_for(".product", product_id=product_id))
        except FormError as e:
            flash(str(e), "error")
    return _show_product(None)


@pages.route("/products/<int(max=999999):product_id>", methods=["GET", "POST"])
def product(product_id: int) -> ResponseReturnValue:
    row = found(g.db.first("SELECT * FROM products WHERE id = ?", product_id))
    if request.method == "POST":
        try:
            values = _product_form(row)
            names = ", ".join(f"{name} = ?" for name in values)
            g.db.run(f"UPDATE products SET {names} WHERE id = ?", *values.values(), product_id)
            flash("The product is saved.")
            return redirect(url_for(".product", product_id=product_id))
        except FormError as e:
            flash(str(e), "error")
    return _show_product(row)


def _show_product(row: Row | None) -> str:
    options = [(category["id"], category["name"]) for category in _categories()]
    return render_template("shopping_admin/product.html", product=row, options=options)


def _categories() -> list[Row]:
    return g.db.all("SELECT * FROM categories ORDER BY name")


def _product_form(old: Row | None) -> dict[str, Any]:
    name, sku = text("name", "Product name", max_chars=200), text("sku", "SKU", max_chars=40).upper()
    same_sku = g.db.value("SELECT id FROM products WHERE sku = ?", sku)
    if same_sku is not None and (old is None or same_sku != old["id"]):
        raise FormError(f"There is a product with the SKU {sku} already.")
    values = {
        "name": name,
        "sku": sku,
        "price": cents("price", "Price"),
        "quantity": number("quantity", "Quantity", 0, MAX_STOCK),
        "category_id": int(choice("category", "Category", [str(row["id"]) for row in _categories()])),
        "description": text("description", "Description", required=False),
        "is_enabled": int("is_enabled" in request.form),
    }
    if old is None:  # an address lasts, even if the name changes
        values["slug"] = _free_slug("products", name)
    return values


def _free_slug(table: str, name: str) -> str:
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "item"
    taken = g.db.value(f"SELECT count(*) FROM {table} WHERE slug = ? OR slug LIKE ?", slug, f"{slug}-%")
    return f"{slug}-{taken + 1}" if taken else slug


# Orders and customers.


@pages.get("/orders")
def orders() -> ResponseReturnValue:
    sql = """
        SELECT o.*, c.name FROM orders o JOIN customers c ON c.id = o.customer_id
        WHERE ? IN (o.status, '') AND (o.number = ? OR c.name LIKE ? ESCAPE '\\') ORDER BY o.created DESC, o.id DESC"""
    words = request.args.get("q", "").strip()[:200]
    page = paginate(sql, request.args.get("status", ""), words, like(words))
    options = [("", "All"), *((status, status) for status in ORDER_STATUSES)]
    return render_template("shopping_admin/orders.html", page=page, options=options)


@pages.route("/orders/<order_number>", methods=["GET", "POST"])
def order(order_number: str) -> ResponseReturnValue:
    row = found(
        g.db.first(
            "SELECT o.*, c.name, c.email FROM orders o JOIN customers c ON c.id = o.customer_id WHERE number = ?",
            order_number,
        )
    )
    if request.method == "POST":
        try:
            status = choice("status", "Status", ORDER_STATUSES)
            comment = text("comment", "Comment", required=False)
            g.db.run("UPDATE orders SET status = ? WHERE id = ?", status, row["id"])
            if comment:
                g.db.insert("order_comments", order_id=row["id"], body=comment, created=g.db.now())
            flash("The order is saved.")
            return redirect(url_for(".order", order_number=order_number))
        except FormError as e:
            flash(str(e), "error")
    return render_template(
        "shopping_admin/order.html",
        order=row,
        items=g.db.all("SELECT * FROM order_items WHERE order_id = ?", row["id"]),
        comments=g.db.all("SELECT * FROM order_comments WHERE order_id = ? ORDER BY id", row["id"]),
        options=[(status, status) for status in ORDER_STATUSES],
    )


@pages.get("/customers")
def customers() -> ResponseReturnValue:
    words = like(request.args.get("q", "")[:200])
    sql = """
        SELECT c.*, count(o.id) AS num_orders, coalesce(sum(o.total), 0) AS spent FROM customers c
        LEFT JOIN orders o ON o.customer_id = c.id AND o.status != 'Canceled'
        WHERE c.name LIKE ? ESCAPE '\\' OR c.email LIKE ? ESCAPE '\\' OR c.phone LIKE ? ESCAPE '\\'
        GROUP BY c.id ORDER BY c.name"""
    return render_template("shopping_admin/customers.html", page=paginate(sql, words, words, words))


@pages.route("/customers/<int(max=999999):customer_id>", methods=["GET", "POST"])
def customer(customer_id: int) -> ResponseReturnValue:
    row = found(g.db.first("SELECT * FROM customers WHERE id = ?", customer_id))
    if request.method == "POST":
        try:
            g.db.run(
                "UPDATE customers SET name = ?, phone = ?, street = ?, city = ?, postcode = ? WHERE id = ?",
                text("name", "Name", max_chars=100),
                *(text(name, name.capitalize(), required=False, max_chars=200) for name in ("phone", "street", "city")),
                text("postcode", "Postcode", required=False, max_chars=20),
                customer_id,
            )
            flash("The customer is saved.")
            return redirect(url_for(".customer", customer_id=customer_id))
        except FormError as e:
            flash(str(e), "error")
    orders = paginate("SELECT * FROM orders WHERE customer_id = ? ORDER BY created DESC, id DESC", customer_id)
    return render_template("shopping_admin/customer.html", customer=row, page=orders)


# Reviews, coupons, messages, pages.


@pages.get("/reviews")
def reviews() -> ResponseReturnValue:
    sql = """
        SELECT r.*, p.name AS product FROM reviews r JOIN products p ON p.id = r.product_id
        WHERE ? IN (r.status, 'all') AND (p.name LIKE ? ESCAPE '\\' OR r.nickname LIKE ? ESCAPE '\\')
        ORDER BY r.created DESC, r.id"""
    words = like(request.args.get("q", "")[:200])
    page = paginate(sql, request.args.get("status", "pending"), words, words, size=6)
    options = [*((status, status.capitalize()) for status in REVIEW_STATUSES), ("all", "All")]
    return render_template("shopping_admin/reviews.html", page=page, options=options)


@pages.post("/reviews/<int(max=999999):review_id>/<any(approve, reject, delete):verb>")
def set_review(review_id: int, verb: str) -> ResponseReturnValue:
    row = found(g.db.first("SELECT * FROM reviews WHERE id = ?", review_id))
    if verb == "delete":
        g.db.run("DELETE FROM reviews WHERE id = ?", review_id)
    else:
        g.db.run(
            "UPDATE reviews SET status = ? WHERE id = ?", "approved" if verb == "approve" else "rejected", review_id
        )
    done = {"approve": "approved", "reject": "rejected", "delete": "deleted"}[verb]
    flash(f'The review "{row["title"]}" is {done}.')
    return redirect(url_for(".reviews"))


@pages.route("/coupons", methods=["GET", "POST"])
def coupons() -> ResponseReturnValue:
    if request.method == "POST":
        try:
            code = text("code", "Code", max_chars=50).upper()
            if g.db.first("SELECT 1 FROM coupons WHERE code = ?", code):
                raise FormError(f"There is a coupon {code} already.")
            g.db.insert("coupons", code=code, percent=number("percent", "Percent", 1, 100), is_active=1)
            flash(f"The coupon {code} is saved.")
            return redirect(url_for(".coupons"))
        except FormError as e:
            flash(str(e), "error")
    return render_template("shopping_admin/coupons.html", page=paginate("SELECT * FROM coupons ORDER BY code"))


@pages.post("/coupons/<int(max=999999):coupon_id>/<any(activate, deactivate):verb>")
def set_coupon(coupon_id: int, verb: str) -> ResponseReturnValue:
    found(g.db.first("SELECT * FROM coupons WHERE id = ?", coupon_id))
    g.db.run("UPDATE coupons SET is_active = ? WHERE id = ?", int(verb == "activate"), coupon_id)
    return redirect(url_for(".coupons"))


@pages.get("/messages")
def messages() -> ResponseReturnValue:
    page = paginate("SELECT * FROM messages ORDER BY created DESC, id DESC", size=6)
    return render_template("shopping_admin/messages.html", page=page)


@pages.get("/pages")
def notes() -> ResponseReturnValue:
    return render_template("shopping_admin/notes.html", page=paginate("SELECT * FROM pages ORDER BY title"))


@pages.route("/pages/new", methods=["GET", "POST"], defaults={"slug": None})
@pages.route("/pages/<slug>", methods=["GET", "POST"])
def note(slug: str | None) -> ResponseReturnValue:
    row = found(g.db.first("SELECT * FROM pages WHERE slug = ?", slug)) if slug is not None else None
    if request.method == "POST":
        try:
            title, body = text("title", "Page title", max_chars=200), text("body", "Content")
            is_published = int("is_published" in request.form)
            if row is None:
                slug = _free_slug("pages", title)
                g.db.insert("pages", slug=slug, title=title, body=body, is_published=is_published)
            else:
                g.db.run(
                    "UPDATE pages SET title = ?, body = ?, is_published = ? WHERE slug = ?",
                    title,
                    body,
                    is_published,
                    slug,
                )
            flash("The page is saved.")
            return redirect(url_for(".note", slug=slug))
        except FormError as e:
            flash(str(e), "error")
    return render_template("shopping_admin/note.html", note=row)
