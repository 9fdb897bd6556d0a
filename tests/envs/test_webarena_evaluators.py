"""Our evaluators against libwebarena's, over every published task and over tables of answers and pages."""

import itertools
import sys
import types
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from webarena_oracle import URLS, load_evaluators

from rllm_gym.envs.webarena import tasks
from rllm_gym.envs.webarena.evaluators import Outcome, is_included, is_solved
from rllm_gym.errors import ConfigError

CONFIGS = [tasks.render(config, URLS) for config in tasks.load_configs("webarena")]


def said_to_agree(*texts):
    """Stand for a language model: two texts agree if they have a word in common."""
    first, second = (set(text.lower().split()) for text in texts)
    return bool(first & second)


class Judge:
    def is_correct(self, question, reference, answer):
        return said_to_agree(reference, answer)

    is_same_reason = is_correct


class Page:
    """A page that knows what each locator finds on it, for both kinds of evaluators.

    Args:
        found: by locator; an exception is raised.
        others: pages by address.
    """

    def __init__(self, url="about:blank", html="", found=None, others=None):
        self.url, self.html, self.found, self.others = url, html, found or {}, others or {}

    # Ours.

    def evaluate(self, expression):
        if "documentElement.outerHTML" in expression:
            return [self.html]
        locator = max((key for key in self.found if f"return [{key}]" in expression), key=len, default=None)
        value = self.found.get(locator, TypeError("null has no properties"))
        return [] if isinstance(value, Exception) else [value]

    def elsewhere(self, url):
        return self.others.get(url, Page(url))

    # Theirs.

    @property
    def context(self):
        return types.SimpleNamespace(new_page=lambda: _NewPage(self.others))

    def content(self):
        return self.html

    def theirs_evaluate(self, script):
        value = self.found.get(script.removeprefix("() => "), TypeError("null has no properties"))
        if isinstance(value, Exception):
            raise value
        return value


class _NewPage:
    def __init__(self, others):
        self.others, self.page = others, None

    def goto(self, url):
        self.page = self.others.get(url, Page(url))

    def content(self):
        return self.page.content()

    def evaluate(self, script):
        return self.page.theirs_evaluate(script)

    def close(self):
        pass


@pytest.fixture(scope="module")
def theirs():
    return load_evaluators()


@pytest.fixture
def both(theirs, tmp_path, monkeypatch):
    """Return a function that asks both for their verdict on an outcome, and gives it if they agree."""
    calls = {
        "shopping_get_latest_order_url": lambda: "http://shopping.test/sales/order/view/order_id/7/",
        "shopping_get_sku_latest_review_author": lambda sku: f"author of {sku}",
        "shopping_get_sku_latest_review_rating": lambda sku: f"rating of {sku}",
        "gitlab_get_project_memeber_role": lambda page, account: f"role of {account}",
    }
    for name, function in calls.items():
        monkeypatch.setattr(theirs, name, function)
    calls["reddit_get_post_url"] = theirs.reddit_get_post_url
    monkeypatch.setattr(theirs, "llm_fuzzy_match", lambda pred, ref, question: float(said_to_agree(ref, pred)))
    monkeypatch.setattr(theirs, "llm_ua_match", lambda pred, ref, question: float(said_to_agree(ref, pred)))
    file = tmp_path / "config.json"
    monkeypatch.setattr(theirs, "json", types.SimpleNamespace(load=lambda opened: config_in_file))
    file.touch()
    config_in_file = None

    def ask(config, answer="", page=None):
        nonlocal config_in_file
        config_in_file = config
        page = page or Page()
        their_page = types.SimpleNamespace(
            url=page.url, context=page.context, content=page.content, evaluate=page.theirs_evaluate
        )
        pseudo = theirs.PseudoPage(their_page, page.url)
        evaluator = theirs.evaluator_router(str(file))
        expected = 1.0
        for part in evaluator.evaluators:
            expected *= part([{}, {"answer": answer}], str(file), pseudo, None)
        got = is_solved(Outcome(config, answer, page, Judge(), calls))
        assert got == (expected == 1.0), (config["task_id"], answer, page.url)
        return got

    return ask


def only(config, kind):
    return {**config, "eval": {**config["eval"], "eval_types": [kind]}}


def of_kind(kind):
    return [only(config, kind) for config in CONFIGS if kind in config["eval"]["eval_types"]]


def test_string_match_agrees_over_all_published_tasks_and_a_table_of_answers(both):
    verdicts = []
    for config in of_kind("string_match"):
        rules = config["eval"]
        references = rules["reference_answers"]
        parts = [part for value in references.values() for part in ([value] if isinstance(value, str) else value)]
        right = " and ".join(parts)
        answers = [
            right,
            right.upper(),
            f'"{right}"',
            f" '{right}' ",
            f"It is {right}.",
            parts[0],
            "",
            "N/A",
            "0",
            "10",
        ]
        answers += [
            f"{right}1",
            f"1{right}",
            rules.get("string_note") or "",
            rules.get("reference_answer_raw_annotation") or "none",
        ]
        verdicts += [both(config, answer) for answer in answers]
    assert len(verdicts) == 14 * 335
    assert 1500 < sum(verdicts) < 3700  # neither is the trivial one


@pytest.mark.parametrize("reference", ["2", "a"])
def test_a_reference_of_one_letter_or_digit_must_be_a_word_of_its_own(theirs, reference):
    marks = [*";@#$%&?!*[](){}<>\"'`\u201c\u201d\u2018\u2019,:.-/_=+|~x1", "''", "..", "...", "--"]
    lefts = ["", " ", "\n", *marks, ", ", "x ", "x. ", "x,", "1:"]
    rights = ["", " ", "\n", *marks, ". x", ".)", ", x", ",3", ":30", "'s", "'s x", "' x", "'ll x", "n't", "--x", ".' "]
    for left, right in itertools.product(lefts, rights):
        text = f"{left}{reference}{right}"
        expected = theirs.StringEvaluator.must_include(reference, text, tokenize=True) == 1.0
        assert is_included(reference, text, as_word=True) == expected, text


def test_url_match_agrees_over_all_published_tasks_and_a_table_of_addresses(both):
    verdicts = []
    for config in of_kind("url_match"):
        references = config["eval"]["reference_url"].split(" |OR| ")
        for url in references:
            bare, _, query = url.partition("?")
            pairs = query.split("&")
            urls = [url, f"{url}/", bare, f"{bare}/more?{query}", f"{bare[:-1]}?{query}", f"{url}&new=1", "about:blank"]
            urls += [f"{bare}?{'&'.join(reversed(pairs))}", f"{bare}?{'&'.join(pairs[:-1])}", f"{bare}?{pairs[0]}x"]
            verdicts += [both(config, page=Page(each)) for each in urls]
    assert 700 < sum(verdicts) < len(verdicts) - 300


def test_url_match_pools_the_queries_of_all_alternatives(both):
    rules = {"eval_types": ["url_match"], "reference_url": "http://g/x?a=1&a=4 |OR| http://g/y?a=2&b=3"}
    config = {"task_id": 0, "intent": "", "eval": rules}
    paths = ["x?a=1&b=3", "y?a=2&b=3", "x?a=2&b=3", "y?a=4&b=3&c=5", "x/z?a=9&a=1&b=3", "x?a=1", "y?b=3", "z?a=1&b=3"]
    assert [both(config, page=Page(f"http://g/{path}")) for path in paths] == [True] * 5 + [False] * 3


def pages_for(config, values):
    """Return a page on which the i-th target finds `values[i]`."""
    last = "http://reddit.test/f/books/17/a-post/-/comment/3"
    page = Page(last)
    for target, value in zip(config["eval"]["program_html"], values, strict=True):
        url = target["url"]
        if "reddit_get_post_url" in url:
            url = "http://reddit.test/f/books/17/"
        elif "latest_order_url" in url:
            url = "http://shopping.test/sales/order/view/order_id/7/"
        where = page if url == "last" else page.others.setdefault(url, Page(url))
        if target["locator"].strip():
            where.found[target["locator"]] = value
        elif not isinstance(value, Exception):
            where.html += str(value)
    return page


def test_program_html_agrees_over_all_published_tasks_and_a_table_of_pages(both):
    verdicts = []
    for config in of_kind("program_html"):
        targets = config["eval"]["program_html"]
        right, first = [], []
        for target in targets:
            required = target["required_contents"]
            parts = [required["exact_match"]] if "exact_match" in required else required["must_include"]
            right.append(" ".join(part.split(" |OR| ")[-1] for part in parts))
            first.append(parts[0].split(" |OR| ")[0])
        for values in (
            right,
            first,
            [value.upper() for value in right],
            [value.replace("&", "&amp;") for value in right],
            [f"<p>{value}</p>" for value in right],
            [*right[:-1], "nothing of it"],
            [*right[:-1], TypeError("null")],
            [None] * len(right),
            [7] * len(right),
            [""] * len(right),
        ):
            verdicts.append(both(config, page=pages_for(config, values)))
    assert len(verdicts) == 10 * 411
    assert 1000 < sum(verdicts) < 2900


def test_all_evaluators_of_a_task_must_be_satisfied(both):
    [config] = [config for config in CONFIGS if config["eval"]["eval_types"] == ["string_match", "url_match"]][:1]
    answer = next(iter(config["eval"]["reference_answers"].values()))
    answer = answer if isinstance(answer, str) else " ".join(answer)
    there, away = Page(config["eval"]["reference_url"].split(" |OR| ")[0]), Page("http://gitlab.test/nowhere")
    assert [both(config, a, p) for a in (answer, "") for p in (there, away)] == [True, False, False, False]


@pytest.mark.parametrize(
    ("rules", "got"),
    [
        ({"eval_types": ["page_image_query"]}, "page_image_query"),
        ({"eval_types": ["string_match"], "reference_answers": {"must_excluded": ["a"]}}, "must_excluded"),
        ({"eval_types": ["url_match"], "reference_url": "http://x", "url_note": "EXACT"}, "EXACT"),
        ({"eval_types": ["program_html"], "program_html": [{"url": "last", "locator": "alert()"}]}, "alert()"),
        ({"eval_types": ["program_html"], "program_html": [{"url": "func:quit()", "locator": ""}]}, "quit"),
        ({"eval_types": ["program_html"], "program_html": [{"url": "func:__import__('os').x()", "locator": ""}]}, "os"),
    ],
)
def test_a_config_that_asks_for_something_unknown_is_an_error_and_runs_no_code(rules, got):
    with pytest.raises(ConfigError, match=r"^WebArenaEnv: .* got .* in task 5\. Correct the config\.$") as error:
        is_solved(Outcome({"task_id": 5, "intent": "", "eval": rules}, "", Page("http://x")))
    assert got in str(error.value)
