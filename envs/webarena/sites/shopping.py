"""The shop: catalogue, search, reviews, cart, checkout, orders, wish list, account."""

from __future__ import annotations

from sqlite3 import Row

from flask import Blueprint, flash, g, redirect, render_template, request, session, url_for
from flask.typing import ResponseReturnValue

from rllm_gym.envs.webarena.sites.app import (
    FormError,
    Site,
    choice,
    found,
    like,
    login_required,
    money,
    number,
    of,
    paginate,
    show_growing,
    suggest,
    text,
    whole,
)
from rllm_gym.envs.webarena.sites.checkout import SHIPPING, place_order

pages = Blueprint("shop", __name__)
SITE = Site("Harbor Market", "customers", ("email", "Email"), "nora.field@example.com", pages)

SORTS = {
    "name": ("Name", "name"),
    "price": ("Price: low to high", "price, name"),
    "price_desc": ("Price: high to low", "price DESC, name"),
    "rating": ("Rating", "rating DESC, num_reviews DESC, name"),
}
MAX_QUANTITY = 99
_PRODUCTS = """
    SELECT p.*, c.name AS category, c.slug AS category_slug, coalesce(r.rating, 0) AS rating,
        coalesce(r.num_reviews, 0) AS num_reviews
    FROM products p JOIN categories c ON c.id = p.category_id LEFT JOIN (
        SELECT product_id, round(avg(rating), 1) AS rating, count(*) AS num_reviews FROM reviews
        WHERE status = 'approved' GROUP BY product_id) r ON r.product_id = p.id
    WHERE p.is_enabled"""
_CART = """
    SELECT p.*, i.quantity AS count, i.quantity * p.price AS amount FROM cart_items i
    JOIN products p ON p.id = i.product_id WHERE i.customer_id = ? ORDER BY i.rowid"""


@pages.app_context_processor
def _cart_size() -> dict[str, int]:
    if g.get("user") is None:
        return {"cart_size": 0}
    return {"cart_size": g.db.value("SELECT coalesce(sum(quantity), 0) FROM cart_items WHERE customer_id = ?", _me())}


def _me() -> int:
    return g.user["id"]


# Catalogue.


@pages.get("/")
def home() -> ResponseReturnValue:
    categories = g.db.all("SELECT * FROM categories ORDER BY id")
    best = g.db.all(f"{_PRODUCTS} ORDER BY rating DESC, num_reviews DESC, p.name LIMIT 4")
    notes = g.db.all("SELECT * FROM pages WHERE is_published ORDER BY title")
    return render_template("shopping/home.html", categories=categories, products=best, notes=notes)


@pages.get("/category/<slug>")
def category(slug: str) -> ResponseReturnValue:
    row = found(g.db.first("SELECT * FROM categories WHERE slug = ?", slug))
    order = SORTS.get(request.args.get("sort", ""), SORTS["name"])[1]
    page = paginate(f"{_PRODUCTS} AND c.id = ? ORDER BY {order}", row["id"])
    return render_template("shopping/products.html", title=row["name"], page=page, sort_options=_sort_options())


@pages.get("/search")
def search() -> ResponseReturnValue:
    words = request.args.get("q", "").strip()[:200]
    order = SORTS.get(request.args.get("sort", ""), SORTS["name"])[1]
    where = "AND (p.name LIKE ? ESCAPE '\\' OR p.description LIKE ? ESCAPE '\\' OR p.sku = ?)"
    page = paginate(f"{_PRODUCTS} {where} ORDER BY {order}", like(words), like(words), words.upper())
    title = f'Search results for "{words}"'
    return render_template("shopping/products.html", title=title, page=page, sort_options=_sort_options())


@pages.get("/products")
def all_products() -> ResponseReturnValue:
    return show_growing("shopping/range.html", "shopping/rows.html", f"{_PRODUCTS} ORDER BY p.name")


@pages.get("/product/<slug>/details")
def details(slug: str) -> ResponseReturnValue:
    """Answer the list of all products with what its dialog shows."""
    return render_template("shopping/details.html", product=_product(slug))


@pages.get("/api/suggest")
def suggestions() -> ResponseReturnValue:
    return suggest(f"({_PRODUCTS})")


@pages.get("/product/<slug>")
def product(slug: str) -> ResponseReturnValue:
    row = _product(slug)
    reviews = paginate(
        "SELECT * FROM reviews WHERE product_id = ? AND status = 'approved' ORDER BY created DESC, id",
        row["id"],
        size=5,
    )
    return render_template("shopping/product.html", product=row, page=reviews)


@pages.route("/product/<slug>/review", methods=["GET", "POST"])
@login_required
def review(slug: str) -> ResponseReturnValue:
    row = _product(slug)
    if request.method == "POST":
        try:
            g.db.insert(
                "reviews",
                product_id=row["id"],
                rating=int(choice("rating", "Rating", ["1", "2", "3", "4", "5"])),
                nickname=text("nickname", "Nickname", max_chars=100),
                title=text("title", "Summary", max_chars=200),
                body=text("body", "Review"),
                status="approved",
                created=g.db.now(),
            )
            flash("Thank you for your review.")
            return redirect(url_for(".product", slug=slug))
        except FormError as e:
            flash(str(e), "error")
    return render_template("shopping/review.html", product=row)


@pages.get("/page/<slug>")
def page(slug: str) -> ResponseReturnValue:
    row = found(g.db.first("SELECT * FROM pages WHERE slug = ? AND is_published", slug))
    return render_template("shopping/page.html", page=row)


@pages.route("/contact", methods=["GET", "POST"])
def contact() -> ResponseReturnValue:
    if request.method == "POST":
        try:
            g.db.insert(
                "messages",
                name=text("name", "Name", max_chars=100),
                email=text("email", "Email", max_chars=100),
                subject=text("subject", "Subject", max_chars=200),
                body=text("body", "Message"),
                created=g.db.now(),
            )
            flash("Thank you. We will answer your message soon.")
            return redirect(url_for(".contact"))
        except FormError as e:
            flash(str(e), "error")
    return render_template("shopping/contact.html")


def _sort_options() -> list[tuple[str, str]]:
    return [(key, label) for key, (label, _) in SORTS.items()]


def _product(slug: str) -> Row:
    return found(g.db.first(f"{_PRODUCTS} AND p.slug = ?", slug))


# Cart and wish list.


@pages.get("/cart")
@login_required
def cart() -> ResponseReturnValue:
    items = g.db.all(_CART, _me())
    return render_template("shopping/cart.html", items=items, subtotal=sum(item["amount"] for item in items))


@pages.post("/cart/add/<slug>")
@login_required
def add_to_cart(slug: str) -> ResponseReturnValue:
    row = _product(slug)
    try:
        _add_to_cart(row, number("quantity", "Quantity", 1, MAX_QUANTITY))
    except FormError as e:
        flash(str(e), "error")
        return redirect(url_for(".product", slug=slug))
    flash(f"{row['name']} is in your cart.")
    return redirect(url_for(".cart"))


@pages.route("/quick-order", methods=["GET", "POST"])
@login_required
def quick_order() -> ResponseReturnValue:
    """Put several products into the cart at once: all of them, or none."""
    if request.method == "POST":
        try:
            lines = list(zip(request.form.getlist("product"), request.form.getlist("quantity"), strict=False))
            if not lines:
                raise FormError("Please choose a product.")
            for slug, count in lines:
                row = g.db.first(f"{_PRODUCTS} AND p.slug = ?", slug)
                if row is None:
                    raise FormError("Please choose each product from the suggestions.")
                _add_to_cart(row, whole(count, "Quantity", 1, MAX_QUANTITY))
            flash(f"{of(len(lines), 'line')} {'is' if len(lines) == 1 else 'are'} in your cart.")
            return redirect(url_for(".cart"))
        except FormError as e:
            g.db.rollback()
            flash(str(e), "error")
    return render_template("shopping/quick_order.html")


@pages.post("/cart/update/<slug>")
@login_required
def update_cart(slug: str) -> ResponseReturnValue:
    row = _product(slug)
    try:
        _set_count(row, number("quantity", "Quantity", 0, MAX_QUANTITY))
        flash("The cart is updated.")
    except FormError as e:
        flash(str(e), "error")
    return redirect(url_for(".cart"))


@pages.post("/cart/remove/<slug>")
@login_required
def remove_from_cart(slug: str) -> ResponseReturnValue:
    row = _product(slug)
    g.db.run("DELETE FROM cart_items WHERE customer_id = ? AND product_id = ?", _me(), row["id"])
    flash(f"{row['name']} is removed.")
    return redirect(url_for(".cart"))


def _add_to_cart(product: Row, count: int) -> None:
    sql = "SELECT quantity FROM cart_items WHERE customer_id = ? AND product_id = ?"
    _set_count(product, count + (g.db.value(sql, _me(), product["id"]) or 0))


def _set_count(product: Row, count: int) -> None:
    if count > min(product["quantity"], MAX_QUANTITY):
        raise FormError(f"Only {product['quantity']} of {product['name']} are in stock.")
    g.db.run(
        "INSERT INTO cart_items VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET quantity = excluded.quantity",
        _me(),
        product["id"],
        count,
    )
    g.db.run("DELETE FROM cart_items WHERE quantity = 0")


@pages.get("/wishlist")
@login_required
def wishlist() -> ResponseReturnValue:
    page = paginate(f"{_PRODUCTS} AND p.id IN (SELECT product_id FROM wishes WHERE customer_id = ?)", _me())
    return render_template("shopping/wishlist.html", page=page)


@pages.post("/wishlist/<any(add, remove):verb>/<slug>")
@login_required
def wish(verb: str, slug: str) -> ResponseReturnValue:
    row = _product(slug)
    statement = "INSERT OR IGNORE INTO wishes VALUES (?, ?)"
    if verb == "remove":
        statement = "DELETE FROM wishes WHERE customer_id = ? AND product_id = ?"
    g.db.run(statement, _me(), row["id"])
    flash(f"{row['name']} is {'on your wish list' if verb == 'add' else 'removed from your wish list'}.")
    return redirect(url_for(".wishlist"))


# Checkout and orders.


@pages.route("/checkout", methods=["GET", "POST"])
@login_required
def checkout() -> ResponseReturnValue:
    items = g.db.all(_CART, _me())
    if not items:
        flash("Your cart is empty.", "error")
        return redirect(url_for(".cart"))
    if request.method == "POST":
        try:
            return redirect(url_for(".order", order_number=place_order(items)))
        except FormError as e:
            flash(str(e), "error")
    subtotal = sum(item["amount"] for item in items)
    options = [(key, f"{label} ({money(price)})") for key, (label, price) in SHIPPING.items()]
    return render_template("shopping/checkout.html", items=items, subtotal=subtotal, shipping_options=options)


@pages.get("/orders")
@login_required
def orders() -> ResponseReturnValue:
    page = paginate("SELECT * FROM orders WHERE customer_id = ? ORDER BY created DESC, id DESC", _me())
    return render_template("shopping/orders.html", page=page)


@pages.get("/orders/<order_number>")
@login_required
def order(order_number: str) -> ResponseReturnValue:
    row = _order(order_number)
    items = g.db.all(
        "SELECT i.*, p.slug, p.is_enabled FROM order_items i JOIN products p ON p.id = i.product_id WHERE order_id = ?",
        row["id"],
    )
    return render_template("shopping/order.html", order=row, items=items)


@pages.post("/orders/<order_number>/cancel")
@login_required
def cancel_order(order_number: str) -> ResponseReturnValue:
    row = _order(order_number)
    if row["status"] == "Pending":
        g.db.run("UPDATE orders SET status = 'Canceled' WHERE id = ?", row["id"])
        flash("The order is canceled.")
    else:
        flash("Only a pending order can be canceled.", "error")
    return redirect(url_for(".order", order_number=order_number))


def _order(order_number: str) -> Row:
    return found(g.db.first("SELECT * FROM orders WHERE number = ? AND customer_id = ?", order_number, _me()))


# Account.


@pages.route("/account", methods=["GET", "POST"])
@login_required
def account() -> ResponseReturnValue:
    if request.method == "POST":
        try:
            g.db.run(
                "UPDATE customers SET name = ?, phone = ?, street = ?, city = ?, postcode = ?, newsletter = ? "
                "WHERE id = ?",
                text("name", "Name", max_chars=100),
                text("phone", "Phone", required=False, max_chars=40),
                text("street", "Street", max_chars=200),
                text("city", "City", max_chars=100),
                text("postcode", "Postcode", max_chars=20),
                int("newsletter" in request.form),
                _me(),
            )
            flash("Your account is saved.")
            return redirect(url_for(".account"))
        except FormError as e:
            flash(str(e), "error")
    return render_template("shopping/account.html")


@pages.route("/register", methods=["GET", "POST"])
def register() -> ResponseReturnValue:
    if request.method == "POST":
        try:
            email = text("email", "Email", max_chars=100)
            if "@" not in email:
                raise FormError("Email must contain an @.")
            if g.db.first("SELECT 1 FROM customers WHERE email = ?", email):
                raise FormError(f"There is an account for {email} already.")
            g.db.insert(
                "customers",
                email=email,
                name=text("name", "Name", max_chars=100),
                password=text("password", "Password", max_chars=100),
                created=g.db.now(),
            )
            session["user"] = email
            flash("Welcome to Harbor Market.")
            return redirect(url_for(".account"))
        except FormError as e:
            flash(str(e), "error")
    return render_template("shopping/register.html")
