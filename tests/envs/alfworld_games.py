"""Games of ALFWorld's shape, where its published ones are not: small rooms, with its own domain, grammar and goals."""

from __future__ import annotations

import json
import random
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

# Receptacles by their class, with whether they open; and what may lie in each.
RECEPTACLES = {
    "Cabinet": True,
    "CounterTop": False,
    "DiningTable": False,
    "Drawer": True,
    "Fridge": True,
    "Microwave": True,
    "SideTable": False,
    "SinkBasin": False,
}
OBJECTS = ("Apple", "Bread", "Mug", "Plate", "Book", "Spoon")


class Task(NamedTuple):
    kind: str
    thing: str
    place: str = ""
    toggle: str = ""


TASKS = (
    Task("pick_and_place_simple", "Mug", "SideTable"),
    Task("look_at_obj_in_light", "Book", toggle="DeskLamp"),
    Task("pick_clean_then_place_in_recep", "Plate", "DiningTable"),
    Task("pick_heat_then_place_in_recep", "Apple", "CounterTop"),
    Task("pick_cool_then_place_in_recep", "Bread", "Cabinet"),
    Task("pick_two_obj_and_place", "Spoon", "Drawer"),
)


def write_games(data: Path, *, train: int, seen: int, unseen: int) -> None:
    """Write games below a folder as `alfworld-download` lays them out.

    Beside them: one that cannot be solved, one of sliced things and one without its game, which nobody plays.
    """
    for split, number in (("train", train), ("valid_seen", seen), ("valid_unseen", unseen)):
        for i in range(number):
            _write(data, split, TASKS[i % len(TASKS)], i // len(TASKS), solvable=True)
    _write(data, "train", TASKS[0], 900, solvable=False)
    _write(data, "train", TASKS[2]._replace(thing="AppleSliced"), 901, solvable=True)
    (_write(data, "train", TASKS[0], 902, solvable=True) / "game.tw-pddl").unlink()


def _write(data: Path, split: str, task: Task, number: int, *, solvable: bool) -> Path:
    from alfworld.agents.utils.misc import add_task_to_grammar

    name = f"{task.kind}-{task.thing}-None-{task.place or task.toggle}-{number + 1}"
    folder = data / "json_2.1.1" / split / name / f"trial_T2019{number:04}"
    folder.mkdir(parents=True)
    trajectory = {
        "task_type": task.kind,
        "pddl_params": {
            "object_target": task.thing,
            "parent_target": task.place,
            "toggle_target": task.toggle,
            "mrecep_target": "",
            "object_sliced": False,
        },
    }
    (folder / "traj_data.json").write_text(json.dumps(trajectory))
    own = files("alfworld") / "data"
    random.seed(number)  # which of its templates
    game = {
        "pddl_domain": (own / "alfred.pddl").read_text(),
        "grammar": add_task_to_grammar((own / "alfred.twl2").read_text(), trajectory),
        "pddl_problem": _problem(task, random.Random(f"{split} {task.kind} {number}")),
        "solvable": solvable,
        "walkthrough": [] if solvable else None,
    }
    (folder / "game.tw-pddl").write_text(json.dumps(game))
    return folder


def _problem(task: Task, rng: random.Random) -> str:
    from alfworld.gen.goal_library import gdict

    places = [name for name in RECEPTACLES for _ in range(2 if name in ("Cabinet", "Drawer") else 1)]
    # ALFRED's id of a basin is its sink's, with the basin behind it.
    receptacles = {
        f"Sink_bar__plus_{i:02}_bar_SinkBasin" if name == "SinkBasin" else f"{name}_bar__plus_{i:02}": name
        for i, name in enumerate(places)
    }
    things = [*OBJECTS, *rng.choices(OBJECTS, k=2), task.thing, "DeskLamp"]
    objects = {f"{name}_bar__minus_{i:02}": name for i, name in enumerate(things)}
    locations = {receptacle: f"loc_bar_{i}" for i, receptacle in enumerate(receptacles)}
    declared = [
        "agent1 - agent",
        "loc_bar_99 - location",
        *(f"{name} - location" for name in locations.values()),
        *(f"{name} - receptacle" for name in receptacles),
        *(f"{name} - object" for name in objects),
        *(f"{name}Type - otype" for name in sorted(set(things))),
        *(f"{name}Type - rtype" for name in RECEPTACLES),
    ]
    facts = ["atLocation agent1 loc_bar_99"]
    for receptacle, kind in receptacles.items():
        facts.append(f"receptacleType {receptacle} {kind}Type")
        facts.append(f"receptacleAtLocation {receptacle} {locations[receptacle]}")
        facts += [f"openable {receptacle}"] if RECEPTACLES[kind] else []
    facts += [f"canContain {kind}Type {thing}Type" for kind in RECEPTACLES for thing in sorted(set(things))]
    for name, kind in objects.items():
        elsewhere = [r for r, where in receptacles.items() if where != task.place]
        where = rng.choice(
            [r for r in elsewhere if not RECEPTACLES[receptacles[r]]] if kind == "DeskLamp" else elsewhere
        )
        facts += [f"objectType {name} {kind}Type", f"inReceptacle {name} {where}"]
        facts.append(f"objectAtLocation {name} {locations[where]}")
        if kind == "DeskLamp":
            facts.append(f"toggleable {name}")
        else:
            facts += [f"{what} {name}" for what in ("pickupable", "cleanable", "heatable", "coolable")]
    goal = gdict[task.kind]["pddl"].format(obj=task.thing, recep=task.place, toggle=task.toggle).replace("#", "-")
    lines = "\n".join(f"({fact})" for fact in facts)
    return "(define (problem plan)\n(:domain alfred)\n(:objects\n" + (
        "\n".join(declared) + f"\n)\n(:init\n(= (total-cost) 0)\n{lines}\n)\n{goal}"
    )
