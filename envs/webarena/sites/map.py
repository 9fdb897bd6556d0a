"""The map: places with search as one types, lists that grow as one scrolls, routes, and a traveller's saved places."""

from __future__ import annotations

import heapq
import itertools
import math
from sqlite3 import Row
from typing import Any, NamedTuple

from flask import Blueprint, flash, g, redirect, render_template, request, url_for
from flask.typing import ResponseReturnValue

from rllm_gym.envs.webarena.sites.app import (
    FormError,
    Site,
    choice,
    found,
    like,
    login_required,
    show_growing,
    suggest,
    text,
)
from rllm_gym.envs.webarena.sites.database import Database
from rllm_gym.envs.webarena.sites.seed.town import KINDS

pages = Blueprint("waymark", __name__)
SITE = Site("Waymark", "travellers", ("name", "User name"), "robin_vale", pages)
MODES = {"walk": "On foot", "cycle": "By bicycle", "drive": "By car"}
KMH = {"walk": 5, "cycle": 15}  # a car takes what the road allows
REASONS = {"closed": "It is closed for good", "hours": "The hours are wrong", "phone": "The phone number is wrong"}


class Leg(NamedTuple):
    """A part of a route along one road."""

    road: str
    metres: int


class Route(NamedTuple):
    """The quickest way: its length, its time, and what it goes along."""

    metres: int
    minutes: int
    legs: list[Leg]


def find_route(db: Database, stops: list[Row], mode: str) -> Route:
    """Return the quickest way over places, by Dijkstra's algorithm; the town's roads connect all of them."""
    edges: dict[int, list[tuple[int, str, int, float]]] = {}
    for row in db.all("SELECT * FROM roads"):
        seconds = row["metres"] * 3.6 / KMH.get(mode, row["kmh"])
        for here, there in ((row["a"], row["b"]), (row["b"], row["a"])):
            edges.setdefault(here, []).append((there, row["name"], row["metres"], seconds))
    metres, seconds = 0, 0.0
    legs: list[Leg] = []
    for start, end in itertools.pairwise(stops):
        spent, path = _shortest(edges, start["junction_id"], end["junction_id"])
        seconds += spent
        for road, length in path:
            metres += length
            if legs and legs[-1].road == road:
                legs[-1] = Leg(road, legs[-1].metres + length)
            else:
                legs.append(Leg(road, length))
    return Route(metres, math.ceil(seconds / 60), legs)


def _shortest(edges: dict[int, Any], start: int, end: int) -> tuple[float, list[tuple[str, int]]]:
    queue: list[tuple[float, int, tuple[Any, ...]]] = [(0.0, start, ())]
    seen = set()
    while queue:
        spent, here, path = heapq.heappop(queue)
        if here == end:
            legs = []
            while path:
                path, leg = path
                legs.append(leg)
            return spent, legs[::-1]
        if here not in seen:
            seen.add(here)
            for there, road, metres, seconds in edges[here]:
                heapq.heappush(queue, (spent + seconds, there, (path, (road, metres))))
    raise ValueError("the roads do not connect these places")


def _place(slug: str) -> Row:
    return found(g.db.first("SELECT * FROM places WHERE slug = ?", slug))


def _places() -> tuple[str, list[Any]]:
    """Return the query of the places that the address asks for, and its values."""
    words, kind = request.args.get("q", "").strip()[:200], request.args.get("kind", "")
    where, values = "name LIKE ? ESCAPE '\\'", [like(words)]
    if kind in KINDS:
        where, values = f"{where} AND kind = ?", [*values, kind]
    return f"SELECT * FROM places WHERE {where} ORDER BY id", values


# Places.


@pages.get("/")
def home() -> ResponseReturnValue:
    return render_template("waymark/home.html", kinds=KINDS)


@pages.get("/places")
def places() -> ResponseReturnValue:
    sql, values = _places()
    return show_growing("waymark/places.html", "waymark/rows.html", sql, *values)


@pages.get("/api/suggest")
def suggestions() -> ResponseReturnValue:
    return suggest("places")


@pages.get("/place/<slug>")
def place(slug: str) -> ResponseReturnValue:
    lists = g.db.all("SELECT * FROM place_lists WHERE traveller_id = ? ORDER BY id", g.user["id"]) if g.user else []
    row = _place(slug)
    reports = g.db.all("SELECT * FROM reports WHERE place_id = ? ORDER BY id", row["id"])
    return render_template("waymark/place.html", place=row, lists=lists, reasons=REASONS, reports=reports)


@pages.post("/place/<slug>/save")
@login_required
def save(slug: str) -> ResponseReturnValue:
    row = _place(slug)
    try:
        lists = {str(each["id"]): each["name"] for each in _my_lists()}
        chosen = choice("list", "a list", lists)
        note = text("note", "The note", required=False, max_chars=200)
        g.db.run("INSERT OR REPLACE INTO saved_places VALUES (?, ?, ?)", int(chosen), row["id"], note)
        flash(f"{row['name']} is in your list {lists[chosen]}.")
    except FormError as error:
        flash(str(error), "error")
    return redirect(url_for(".place", slug=slug))


@pages.post("/place/<slug>/report")
@login_required
def report(slug: str) -> ResponseReturnValue:
    row = _place(slug)
    try:
        reason = choice("reason", "what is wrong", REASONS)
        details = text("details", "Details", max_chars=500)
        values = {"place_id": row["id"], "traveller_id": g.user["id"], "reason": reason, "details": details}
        g.db.insert("reports", **values, created=g.db.now())
        flash("Thank you for your report.")
    except FormError as error:
        flash(str(error), "error")
    return redirect(url_for(".place", slug=slug))


# Routes.


@pages.get("/directions")
def directions() -> ResponseReturnValue:
    chosen = {
        name: g.db.first("SELECT * FROM places WHERE slug = ?", request.args.get(name)) for name in ("from", "to")
    }
    return render_template("waymark/directions.html", chosen=chosen, modes=MODES)


@pages.get("/route")
def route() -> ResponseReturnValue:
    slugs = [request.args.get("from", ""), *request.args.getlist("via"), request.args.get("to", "")]
    rows = [g.db.first("SELECT * FROM places WHERE slug = ?", slug) for slug in slugs if slug]
    mode = request.args.get("mode", "")
    if not slugs[0] or not slugs[-1] or None in rows or mode not in MODES:
        flash("Please choose places from the suggestions, and a way to travel.", "error")
        return redirect(url_for(".directions"))
    way = find_route(g.db, rows, mode)
    return render_template("waymark/route.html", stops=rows, way=way, mode=MODES[mode])


# Lists.


def _my_lists() -> list[Row]:
    return g.db.all("SELECT * FROM place_lists WHERE traveller_id = ? ORDER BY id", g.user["id"])


@pages.get("/lists")
@login_required
def lists() -> ResponseReturnValue:
    sql = (
        "SELECT p.*, s.note FROM saved_places s JOIN places p ON p.id = s.place_id WHERE s.list_id = ? ORDER BY s.rowid"
    )
    return render_template("waymark/lists.html", lists=[(row, g.db.all(sql, row["id"])) for row in _my_lists()])


@pages.post("/lists/new")
@login_required
def new_list() -> ResponseReturnValue:
    try:
        name = text("name", "The name", max_chars=40)
        g.db.insert("place_lists", traveller_id=g.user["id"], name=name)
        flash(f"You have a new list, {name}.")
    except FormError as error:
        flash(str(error), "error")
    return redirect(url_for(".lists"))
