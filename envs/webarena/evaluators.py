"""WebArena's evaluators: what an episode is worth, from the answer given and the pages as they are left.

Source: WebArena (Zhou et al. 2023, arXiv:2307.13854), evaluation_harness/evaluators.py. Tests hold these equal to
libwebarena's.
"""

from __future__ import annotations

import ast
import html
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import parse_qs, urlparse

from rllm_gym.envs.webarena.tasks import Config
from rllm_gym.errors import ConfigError


class EvaluatedPage(Protocol):
    """A page of the episode's browser, as the evaluators see it. What fails in the browser is an `EnvError`."""

    @property
    def url(self) -> str: ...

    def evaluate(self, expression: str) -> Any:
        """Return the value of a JavaScript expression, or None where the page does not answer."""

    def elsewhere(self, url: str) -> EvaluatedPage:
        """Return another page, seen with the agent's cookies."""


class AnswerJudge(Protocol):
    """Compares texts by meaning; see `rllm_gym.envs.webarena.judge.Judge`."""

    def is_correct(self, question: str, reference: str, answer: str) -> bool: ...

    def is_same_reason(self, question: str, reference: str, answer: str) -> bool: ...


@dataclass(frozen=True)
class Outcome:
    """The subject of an evaluation: a task's config with addresses filled in, how the episode ended, and what to ask.

    Args:
        answer: what stood in `stop [...]`.
        page: the one that the agent was on.
        judge: for the references of `fuzzy_match`.
        functions: what a config's "func:" may call, by name; see `rllm_gym.envs.webarena.functions`.
    """

    config: Config
    answer: str
    page: EvaluatedPage
    judge: AnswerJudge | None = None
    functions: Mapping[str, Callable[..., str]] | None = None


def is_solved(outcome: Outcome) -> bool:
    """Say whether all evaluators of the task are satisfied; they are asked in order, up to the first that is not.

    Raises:
        ConfigError: the config asks for something unknown.
        EnvError: the browser, a site or the judge failed.
    """
    for kind in outcome.config["eval"]["eval_types"]:
        if kind not in _EVALUATORS:
            raise _unknown(outcome, "eval_types", kind, _EVALUATORS)
        if not _EVALUATORS[kind](outcome):
            return False
    return True


def clean(text: str) -> str:
    """Return a text without outer white space, without one pair of quotation marks, and in lower case."""
    text = text.strip()
    for mark in ("'", '"'):
        if text.startswith(mark) and text.endswith(mark):
            text = text[1:-1]
            break
    return text.lower()


def is_exact_match(reference: str, text: str) -> bool:
    return clean(text) == clean(reference)


def is_included(reference: str, text: str, *, as_word: bool = False) -> bool:
    """Say whether a text includes a reference.

    Args:
        as_word: a reference of a single character must be a word of its own, as NLTK cuts a text into words, so that
            "0" is not in "10".
    """
    reference, text = clean(reference), clean(text)
    if as_word and len(reference) == 1 and not reference.isspace():
        return reference in _words(text)
    return reference in text


def _words(text: str) -> list[str]:
    from nltk.tokenize.destructive import NLTKWordTokenizer

    words: list[str] = NLTKWordTokenizer().tokenize(text)
    return words


def _string_match(outcome: Outcome) -> bool:
    answer = clean(outcome.answer)
    for approach, reference in outcome.config["eval"]["reference_answers"].items():
        if approach not in _APPROACHES:
            raise _unknown(outcome, "reference_answers", approach, _APPROACHES)
        if not _APPROACHES[approach](outcome, reference, answer):
            return False
    return True


def _exact(outcome: Outcome, reference: str, answer: str) -> bool:
    return is_exact_match(reference, answer)


def _must_include(outcome: Outcome, references: list[str], answer: str) -> bool:
    return all(is_included(reference, answer, as_word=len(references) == 1) for reference in references)


def _fuzzy(outcome: Outcome, reference: str | list[str], answer: str) -> bool:
    if reference == "N/A" and is_exact_match("N/A", answer):
        return True
    if outcome.judge is None:
        raise ConfigError(
            f"WebArenaEnv: fuzzy_match needs a judge; got none for task {outcome.config.get('task_id')}. Set judge_url."
        )
    intent = outcome.config["intent"]
    if reference == "N/A":
        return outcome.judge.is_same_reason(intent, outcome.config["eval"].get("string_note", ""), answer)
    references = [reference] if isinstance(reference, str) else reference
    return all(outcome.judge.is_correct(intent, part, answer) for part in references)


def _url_match(outcome: Outcome) -> bool:
    rules = outcome.config["eval"]
    rule = rules.get("url_note", "GOLD in PRED")
    if rule != "GOLD in PRED":
        raise _unknown(outcome, "url_note", rule, ("GOLD in PRED",))
    page, query = _parse_url(outcome.page.url)
    alternatives = [_parse_url(url) for url in rules["reference_url"].split(" |OR| ")]
    wanted: dict[str, set[str]] = {}
    for _, reference_query in alternatives:
        for key, values in reference_query.items():
            wanted.setdefault(key, set()).update(values)
    # The queries of all alternatives are one pool: each of their keys must be there with some value of any of them.
    return any(reference in page for reference, _ in alternatives) and all(
        values & set(query.get(key, ())) for key, values in wanted.items()
    )


def _parse_url(url: str) -> tuple[str, dict[str, list[str]]]:
    """Return host and path, and the query."""
    parsed = urlparse(url.rstrip("/"))
    return parsed.netloc + parsed.path, parse_qs(parsed.query)


def _program_html(outcome: Outcome) -> bool:
    return all(_is_target_met(outcome, target) for target in outcome.config["eval"]["program_html"])


def _is_target_met(outcome: Outcome, target: Mapping[str, Any]) -> bool:
    url = target["url"]
    if url.startswith("func:"):
        url = _call(outcome, url, outcome.page)
    page = outcome.page if url == "last" else outcome.page.elsewhere(url)
    found = html.unescape(_find(outcome, target, page))
    required = target["required_contents"]
    if "exact_match" in required:
        return is_exact_match(required["exact_match"], found)
    if "must_include" in required:
        return all(
            any(is_included(alternative, found) for alternative in content.split(" |OR| "))
            for content in required["must_include"]
        )
    raise _unknown(outcome, "required_contents", next(iter(required), None), ("exact_match", "must_include"))


def _find(outcome: Outcome, target: Mapping[str, Any], page: EvaluatedPage) -> str:
    """Return the text that a target's locator finds on a page, or "" where it finds nothing."""
    locator = target["locator"]
    if locator.startswith("func:"):
        return _call(outcome, locator, page)
    if not locator.strip():
        locator = "document.documentElement.outerHTML"
    elif not locator.startswith(("document.", "[...document.")):
        raise _unknown(outcome, "locator", locator, ("document.", "[...document.", "func:"))
    prepare = "; ".join(target.get("prep_actions", ()))
    # What fails in there, as when it reads from an element that the page lacks, finds nothing.
    found = page.evaluate(
        f"(() => {{ try {{ {prepare} }} catch {{}} try {{ return [{locator}]; }} catch {{ return []; }} }})()"
    )
    return str(found[0]) if found else ""


def _call(outcome: Outcome, code: str, page: EvaluatedPage) -> str:
    """Call the function of "func:name('a', __page__)"; nothing in it is evaluated but constants."""
    functions = outcome.functions or {}
    try:
        call = ast.parse(code.removeprefix("func:"), mode="eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.keywords:
            raise ValueError("not a call of a name")
        places = {"__page__": page}
        arguments = [
            places[argument.id] if isinstance(argument, ast.Name) else ast.literal_eval(argument)
            for argument in call.args
        ]
        name = call.func.id
    except (SyntaxError, ValueError, KeyError) as e:
        raise _unknown(outcome, "func:", code, functions) from e
    if name not in functions:
        raise _unknown(outcome, "func:", name, functions)
    return functions[name](*(outcome.page.url if argument == "__last_url__" else argument for argument in arguments))


def _unknown(outcome: Outcome, field: str, got: Any, known: Any) -> ConfigError:
    return ConfigError(
        f"WebArenaEnv: {field} must hold one of {', '.join(known) or '(nothing)'}; got {got!r} in task "
        f"{outcome.config.get('task_id')}. Correct the config."
    )


_EVALUATORS = {"string_match": _string_match, "url_match": _url_match, "program_html": _program_html}
_APPROACHES: dict[str, Callable[[Outcome, Any, str], bool]] = {
    "exact_match": _exact,
    "must_include": _must_include,
    "fuzzy_match": _fuzzy,
}
