"""10,000 generated cases, which libwebarena decides as this package does; in how actions are read, but for what is
documented.
"""

import importlib
import random
import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from test_webarena_evaluators import Page
from webarena_oracle import load_evaluators

from rllm_gym.envs.web.actions import Action, parse
from rllm_gym.envs.webarena.evaluators import Outcome, is_exact_match, is_included, is_solved

pytestmark = pytest.mark.slow

MARKS = [*" .,:;!?'\"`-_/()[]{}<>*@#$%&+=|~\n\t", "\u2014", "\u2013", "\u2012", "\u2015", "\u2019", "\u201c", "\u00ab"]
WORDS = [
    "6",
    "16",
    "d",
    "d'6",
    "'6",
    "can",
    "cannot",
    "n't",
    "'s",
    "'ll",
    "'t",
    "a",
    "'tis",
    "gonna",
    "6th",
    "--",
    "...",
    "x",
]


@pytest.fixture(scope="module")
def theirs():
    return load_evaluators()


def text_of(rng):
    return "".join(rng.choice(MARKS if rng.random() < 0.5 else WORDS) for _ in range(rng.randint(0, 8)))


def test_5000_texts_include_a_reference_for_both_or_for_neither(theirs):
    rng = random.Random(0)
    verdicts = []
    for _ in range(5000):
        reference = rng.choice(["6", "d", "a", "\u2014", "'", '"', "%", "16", "d'6", " x "])
        text = text_of(rng) + rng.choice(["", reference]) + text_of(rng)
        for as_word in (True, False):
            expected = theirs.StringEvaluator.must_include(reference, text, tokenize=as_word) == 1.0
            assert is_included(reference, text, as_word=as_word) == expected, (reference, text, as_word)
            verdicts.append(expected)
        assert is_exact_match(reference, text) == (theirs.StringEvaluator.exact_match(reference, text) == 1.0), text
    assert 2000 < sum(verdicts) < 8000


def test_2500_addresses_match_for_both_or_for_neither(theirs, tmp_path):
    rng = random.Random(1)

    def address():
        query = "&".join(
            f"{rng.choice('abc')}={rng.choice(['1', '2', '', '%20', 'x+y'])}" for _ in range(rng.randint(0, 3))
        )
        return (
            f"http://{rng.choice(['g', 'shop.test:80'])}/{rng.choice(['', 'x', 'x/y', 'X'])}"
            f"{rng.choice(['', '/'])}{f'?{query}' if query else ''}{rng.choice(['', '', '#top', '/'])}"
        )

    file = tmp_path / "config.json"
    verdicts = []
    for _ in range(2500):
        references = [address() for _ in range(rng.randint(1, 3))]
        config = {"task_id": 0, "intent": "", "eval": {"eval_types": ["url_match"]}}
        config["eval"]["reference_url"] = " |OR| ".join(references)
        file.write_text(theirs.json.dumps(config))
        url = rng.choice([*references, address()])
        expected = theirs.URLEvaluator()([], str(file), theirs.PseudoPage(Page(url), url), None) == 1.0
        assert is_solved(Outcome(config, "", Page(url))) == expected, (url, references)
        verdicts.append(expected)
    assert 300 < sum(verdicts) < 2200


# Where this package reads an action that WebArena refuses, or the other way round: docs/environments/webarena.md.
DIFFERENCES = {
    "a verb in capitals": r"[A-Z]+\b",
    "more than one space before an argument, or white space in it": r".*(\s\s\[|\[\s|\s\]|\s\sdown)",
    "an empty text": r".*\[\]",
    "type: text after its text": r"type ?\[\d+\] ?\[[^\]]+\]( and|\.| \(|down| down|  down)",
    "type: brackets after its Enter, or an Enter other than 0 or 1": r"type ?\[\d+\] ?\[[^\]]+\] ?\[",
    "type: a text of 0 or 1 and no Enter": r"type ?\[\d+\] ?\[[01]\]$",
    "stop: words without brackets": r"stop[ .]*[a-z(]",
    "a verb without arguments, and a mark right after it": r"(new_tab|go_back|go_forward|close_tab|stop)[^a-z ]",
    "a verb without arguments, words and brackets after it": r"(new_tab|go_back|go_forward|close_tab|stop) [^\[]+\[",
    "words between a verb and its bracket": r"(click|hover|tab_focus|press|goto|type|scroll) *[^\[ ].*\[",
}
KINDS = {"CLICK": "click", "HOVER": "hover", "TYPE": "type", "KEY_PRESS": "press", "GOTO_URL": "goto", "STOP": "stop"}


def test_2500_actions_are_read_by_both_alike_but_for_what_is_documented(theirs):
    actions = importlib.import_module("webarena.browser_env.actions")
    rng = random.Random(2)
    verbs = ["click", "hover", "type", "press", "scroll", "goto", "stop", "new_tab", "go_back", "go_forward"]
    verbs += ["tab_focus", "close_tab", "CLICK", "fly"]
    parts = ["[5]", "[12]", "[0]", "[1]", "[2]", "[a b]", "[up]", "[down]", "[http://x.test]", "[]", "[ 5 ]", "down"]
    num_equal = 0
    for _ in range(2500):
        text = rng.choice(verbs)
        for _ in range(rng.choice([0, 1, 1, 2, 3])):
            text += rng.choice([" ", " ", "", "  "]) + rng.choice(parts)
        text += rng.choice(["", "", " and then some", ".", " (a button)"])
        found = parse(text)
        mine = (found.verb, found.number, found.text, found.presses_enter) if isinstance(found, Action) else None
        if mine == theirs_of(actions, text):
            num_equal += 1
        else:
            assert any(re.match(pattern, text) for pattern in DIFFERENCES.values()), (text, mine)
    assert num_equal > 1800


def theirs_of(actions, text):
    """Return verb, number, text and Enter of WebArena's action, or None."""
    try:
        made = actions.create_id_based_action(text)
    except (actions.ActionParsingError, AttributeError):
        return None
    kind = actions.ActionTypes(made["action_type"]).name
    verb = KINDS.get(kind) or {"PAGE_FOCUS": "tab_focus", "PAGE_CLOSE": "close_tab"}.get(kind, kind.lower())
    number, said, presses_enter = -1, "", False
    if verb in ("click", "hover", "type"):
        number = int(made["element_id"])
    if verb == "tab_focus":
        number = made["page_number"]
    if verb == "type":
        said = "".join(actions._id2key[key] if isinstance(key, int) else key for key in made["text"])
        said, presses_enter = said.removesuffix("\n"), said.endswith("\n")
    if verb == "press":
        said = made["key_comb"]
    if verb == "goto":
        said = made["url"]
    if verb == "stop":
        said = made["answer"]
    if verb == "scroll":
        said = made["direction"]
    return verb, number, said, presses_enter
