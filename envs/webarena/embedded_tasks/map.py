"""Tasks on the map; most take more steps than those of the other sites, and all of its pages have scripts."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
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
)
from rllm_gym.envs.webarena.script import Step, choose, fill, follow, press, push, stop, suggested
from rllm_gym.envs.webarena.sites.database import Database
from rllm_gym.envs.webarena.sites.map import MODES, REASONS, Route, find_route
from rllm_gym.envs.webarena.sites.seed.town import KINDS

templates = Templates("map")
URL = "__MAP__"
LISTS = {"Weekend": 1, "Work": 2, "Visitors": 3}
WORDS = {"walk": "on foot", "cycle": "by bicycle", "drive": "by car"}


def _groups(db: Database, rng: random.Random, size: int) -> Iterator[tuple[Row, ...]]:
    """Yield groups of places at different corners."""
    rows = db.all("SELECT * FROM places ORDER BY id")
    for _ in range(NUM_INSTANCES):
        while True:
            group = tuple(rng.sample(rows, size))
            if len({row["junction_id"] for row in group}) == size:
                break
        yield group


def _km(way: Route) -> str:
    return f"{way.metres / 1000:.1f}"


def _ask(stops: Sequence[Row], mode: str) -> list[Step]:
    """Fill in a route from the form's first field on."""
    middle = [
        step
        for number, row in enumerate(stops[1:-1], 1)
        for step in (press("Add a stop"), *suggested(f"Stop {number}", row["name"]))
    ]
    ends = [*suggested("From", stops[0]["name"]), *suggested("To", stops[-1]["name"])]
    return [follow("Directions"), *ends, *middle, choose(MODES[mode]), push("Get directions")]


def _open(name: str) -> list[Step]:
    """Go to a place by the suggestions of the first page."""
    return [
        Step("click", "link", "Waymark", is_navigation=True),
        Step("type", "combobox", "Search the map", name),
        Step("click", "option", name, is_navigation=True),
    ]


def _save(row: Row, list_name: str, note: str) -> list[Step]:
    """Save a place, in the dialog of its page."""
    return [*_open(row["name"]), press("Save"), choose(list_name), fill("Note", note), push("Save place")]


def _saved(list_id: int, *texts: object) -> dict[str, object]:
    return holds(f"{URL}/lists", f"#list-{list_id}", *texts)


@templates.add("How many minutes does it take to go {{mode}} from {{start}} to {{end}}?")
def _minutes(db: Database, rng: random.Random) -> Iterator[Instance]:
    for number, stops in enumerate(_groups(db, rng, 2)):
        mode = list(MODES)[number % 3]
        minutes = find_route(db, list(stops), mode).minutes
        values = {"mode": WORDS[mode], "start": stops[0]["name"], "end": stops[1]["name"]}
        yield Instance(
            values, answer(exact=str(minutes)), [*_ask(stops, mode), stop(str(minutes), seen=f" {minutes} minutes")]
        )


@templates.add("How many kilometres is it {{mode}} from {{start}} to {{end}} over {{stop}}?", split="eval")
def _kilometres(db: Database, rng: random.Random) -> Iterator[Instance]:
    for number, stops in enumerate(_groups(db, rng, 3)):
        mode = list(MODES)[number % 3]
        km = _km(find_route(db, list(stops), mode))
        names = dict(zip(("start", "stop", "end"), (row["name"] for row in stops), strict=True))
        yield Instance(
            {"mode": WORDS[mode], **names}, answer(exact=km), [*_ask(stops, mode), stop(km, seen=f"{km} km")]
        )


@templates.add("Show me the way {{mode}} from {{start}} to {{end}}, with a stop at {{stop}}.")
def _show(db: Database, rng: random.Random) -> Iterator[Instance]:
    for number, stops in enumerate(_groups(db, rng, 3)):
        mode = list(MODES)[number % 3]
        start, middle, end = (row["name"] for row in stops)
        rules = pages(
            holds("last", "h1", f"{start} to {middle} to {end}"), holds("last", "#way", MODES[mode]), url=f"{URL}/route"
        )
        yield Instance({"mode": WORDS[mode], "start": start, "stop": middle, "end": end}, rules, _ask(stops, mode))


@templates.add("How many minutes is it {{mode}} from {{start}} over {{first}} and {{second}} to {{end}}?")
def _two_stops(db: Database, rng: random.Random) -> Iterator[Instance]:
    for number, stops in enumerate(_groups(db, rng, 4)):
        mode = list(MODES)[number % 3]
        minutes = find_route(db, list(stops), mode).minutes
        values = dict(zip(("start", "first", "second", "end"), (row["name"] for row in stops), strict=True))
        yield Instance(
            {"mode": WORDS[mode], **values},
            answer(exact=str(minutes)),
            [*_ask(stops, mode), stop(str(minutes), seen=f" {minutes} minutes")],
        )


@templates.add('Save {{first}} and {{second}} in my list {{list}}, both with the note "{{note}}".')
def _save_two(db: Database, rng: random.Random) -> Iterator[Instance]:
    notes = ("For Sunday", "Ask Nora", "With the children", "Before noon", "Not on Monday", "Take cash")
    for note, (first, second) in zip(notes, _groups(db, rng, 2), strict=True):
        name = rng.choice(list(LISTS))
        yield Instance(
            {"first": first["name"], "second": second["name"], "list": name, "note": note},
            pages(_saved(LISTS[name], f"{first['name']} {note}", f"{second['name']} {note}")),
            [*_save(first, name, note), *_save(second, name, note)],
        )


@templates.add('Save {{place}} in my list {{list}} with the note "{{note}}", and show me the list.', split="eval")
def _save_and_show(db: Database, rng: random.Random) -> Iterator[Instance]:
    notes = ("Good soup", "Too loud", "Quiet in the morning", "Has a garden", "Closed in May", "Very old")
    for note, (row,) in zip(notes, _groups(db, rng, 1), strict=True):
        name = rng.choice(list(LISTS))
        yield Instance(
            {"place": row["name"], "list": name, "note": note},
            pages(_saved(LISTS[name], f"{row['name']} {note}"), url=f"{URL}/lists"),
            [*_save(row, name, note), follow("My lists")],
        )


@templates.add("Make a new list called {{list}} and save {{place}} in it.")
def _new_list(db: Database, rng: random.Random) -> Iterator[Instance]:
    names = ("Rainy days", "Lunch", "With Omar", "Autumn", "Late at night", "Photographs")
    for name, (row,) in zip(names, _groups(db, rng, 1), strict=True):
        steps = [follow("My lists"), press("New list"), fill("Name", name), push("Create list")]
        steps += [*_open(row["name"]), press("Save"), choose(name), push("Save place")]
        yield Instance({"list": name, "place": row["name"]}, pages(_saved(4, row["name"])), steps)


@templates.add('Report that {{what}} of {{first}} and of {{second}}, with the details "{{details}}".')
def _report(db: Database, rng: random.Random) -> Iterator[Instance]:
    said = {"hours": "the hours are wrong", "phone": "the phone number is wrong"}
    details = ("I was there today", "A sign says so", "My neighbor told me", "Since last week", "I called", "It is new")
    for number, (text, (first, second)) in enumerate(zip(details, _groups(db, rng, 2), strict=True)):
        reason = list(said)[number % 2]
        steps: list[Step] = []
        for row in (first, second):
            steps += [*_open(row["name"]), press("Report a problem"), choose(REASONS[reason]), fill("Details", text)]
            steps += [push("Send report")]
        checks = [
            holds(f"{URL}/place/{row['slug']}", "#reports", f"{REASONS[reason]}: {text}") for row in (first, second)
        ]
        values = {"what": said[reason], "first": first["name"], "second": second["name"], "details": text}
        yield Instance(values, pages(*checks), steps)


def _best(db: Database, rng: random.Random) -> Iterator[tuple[str, Row]]:
    """Yield kinds of places with the one that is rated best, where there is only one."""
    for kind in pick(rng, KINDS, len(KINDS)):
        first, second = db.all("SELECT * FROM places WHERE kind = ? ORDER BY rating DESC, id LIMIT 2", kind)
        if first["rating"] > second["rating"]:
            yield kind, first


@templates.add("How many minutes does it take to go {{mode}} from the {{kind}} with the best rating to {{end}}?")
def _from_the_best(db: Database, rng: random.Random) -> Iterator[Instance]:
    for number, ((kind, best), (end,)) in enumerate(zip(_best(db, rng), _groups(db, rng, 1), strict=False)):
        mode = list(MODES)[number % 3]
        minutes = find_route(db, [best, end], mode).minutes
        steps = [follow(kind), press("Sort by rating"), follow(best["name"]), follow("Directions from here")]
        steps += [*suggested("To", end["name"]), choose(MODES[mode]), push("Get directions")]
        yield Instance(
            {"mode": WORDS[mode], "kind": kind, "end": end["name"]},
            answer(exact=str(minutes)),
            [*steps, stop(str(minutes), seen=f" {minutes} minutes")],
        )


@templates.add("Save the {{kind}} with the best rating in my list {{list}}, with its phone number as the note.")
def _save_the_best(db: Database, rng: random.Random) -> Iterator[Instance]:
    for kind, best in list(_best(db, rng))[:NUM_INSTANCES]:
        name = rng.choice(list(LISTS))
        steps = [follow(kind), press("Sort by rating"), follow(best["name"]), press("Save"), choose(name)]
        steps += [fill("Note", best["phone"]), push("Save place")]
        yield Instance(
            {"kind": kind, "list": name}, pages(_saved(LISTS[name], f"{best['name']} {best['phone']}")), steps
        )


@templates.add("Open the page of the place at {{street}}. It is in the list of all places.", split="eval")
def _by_street(db: Database, rng: random.Random) -> Iterator[Instance]:
    rows = db.all("SELECT * FROM places GROUP BY street HAVING count(*) = 1 ORDER BY id")
    for row in pick(rng, rows[25:90]):
        yield Instance(
            {"street": row["street"]},
            address(f"{URL}/place/{row['slug']}"),
            [follow("Places"), follow(row["name"])],
        )
