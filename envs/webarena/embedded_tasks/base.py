"""A template of tasks: a sentence with gaps, and for each way to fill them the evaluators' rules and a script."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from rllm_gym.envs.webarena.script import Step, stop
from rllm_gym.envs.webarena.sites.database import Database

NUM_INSTANCES = 6  # of a template, where the data has as many

T = TypeVar("T")
Fill = Callable[[Database, random.Random], "Iterable[Instance]"]


@dataclass(frozen=True)
class Instance:
    """One task of a template.

    Args:
        values: what fills the gaps of the sentence.
        rules: `eval` of WebArena's format.
        steps: the expert's script.
        start: where the task begins, on its site.
    """

    values: dict[str, Any]
    rules: dict[str, Any]
    steps: Sequence[Step]
    start: str = ""


@dataclass(frozen=True)
class Template:
    """A kind of task.

    Args:
        site: by WebArena's name.
        sentence: the intent, with gaps like {{product}}.
        split: "train" or "eval".
        is_logged_in: whether the agent begins logged in as the site's own user.
        fill: yields the tasks.
    """

    site: str
    sentence: str
    split: str
    is_logged_in: bool
    fill: Fill

    def configs(self, database: Database) -> Iterator[tuple[dict[str, Any], tuple[Step, ...]]]:
        """Yield (config without numbers, script) of each task."""
        rng = random.Random(f"{self.site} {self.sentence}")
        for instance in self.fill(database, rng):
            intent = self.sentence
            for key, value in instance.values.items():
                intent = intent.replace(f"{{{{{key}}}}}", str(value))
            steps = tuple(instance.steps)
            yield (
                {
                    "sites": [self.site],
                    "require_login": self.is_logged_in,
                    "storage_state": f"./.auth/{self.site}_state.json" if self.is_logged_in else None,
                    "start_url": f"__{self.site.upper()}__{instance.start}",
                    "geolocation": None,
                    "intent_template": self.sentence,
                    "instantiation_dict": instance.values,
                    "intent": intent,
                    "require_reset": False,
                    "eval": instance.rules,
                    "split": self.split,
                },
                steps if steps[-1].verb == "stop" else (*steps, stop()),
            )


class Templates(list[Template]):
    """The templates of a site, in the order of their definition."""

    def __init__(self, site: str) -> None:
        super().__init__()
        self.site = site

    def add(self, sentence: str, *, split: str = "train", is_logged_in: bool = True) -> Callable[[Fill], Fill]:
        """Return a decorator that adds a template."""

        def decorate(fill: Fill) -> Fill:
            self.append(Template(self.site, sentence, split, is_logged_in, fill))
            return fill

        return decorate


def pick(rng: random.Random, items: Iterable[T], count: int = NUM_INSTANCES) -> list[T]:
    """Return `count` of the items, or all where there are fewer, in random order."""
    pool = list(items)
    return rng.sample(pool, min(count, len(pool)))


# The evaluators' rules, in WebArena's format.


def answer(*included: object, exact: str | None = None) -> dict[str, Any]:
    """Return rules by which the answer must hold these texts, or be `exact`.

    Where there are few possible answers they must be exact, or a list of all of them would be right.
    """
    wanted = {"must_include": [str(text) for text in included]} if exact is None else {"exact_match": exact}
    return _rules(["string_match"], reference_answers=wanted, raw=exact or ", ".join(map(str, included)))


def address(url: str) -> dict[str, Any]:
    """Return rules by which the episode must end on a page."""
    return _rules(["url_match"], reference_url=url, url_note="GOLD in PRED")


def pages(*checks: dict[str, Any], url: str = "") -> dict[str, Any]:
    """Return rules by which pages must hold something, and the episode must end at `url` where there is one."""
    types = ["program_html", *(["url_match"] if url else [])]
    more = {"url_note": "GOLD in PRED"} if url else {}
    return _rules(types, reference_url=url, program_html=list(checks), **more)


def holds(url: str, selector: str, *texts: object) -> dict[str, Any]:
    """Return a check that the element's text holds all texts; `url` may be "last", where the episode ended."""
    return _check(url, f"document.querySelector('{selector}').outerText", must_include=[str(text) for text in texts])


def reads(url: str, selector: str, text: object) -> dict[str, Any]:
    """Return a check that the element's text is exactly this."""
    return _check(url, f"document.querySelector('{selector}').outerText", exact_match=str(text))


def value(url: str, selector: str, text: object) -> dict[str, Any]:
    """Return a check that a field holds exactly this."""
    return _check(url, f"document.querySelector('{selector}').value", exact_match=str(text))


def count(url: str, selector: str, number: int) -> dict[str, Any]:
    """Return a check that so many elements are there."""
    return _check(url, f"document.querySelectorAll('{selector}').length", exact_match=str(number))


def _check(url: str, locator: str, **required: Any) -> dict[str, Any]:
    return {"url": url, "locator": locator, "required_contents": required}


def _rules(types: list[str], *, raw: str = "", **fields: Any) -> dict[str, Any]:
    empty: dict[str, Any] = {"reference_answers": None, "reference_url": "", "program_html": []}
    notes = {"string_note": "", "reference_answer_raw_annotation": raw} if raw else {}
    return {"eval_types": types, **empty, **fields, **notes}
