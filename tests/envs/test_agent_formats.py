"""The formats of a turn: what a model's text is read as, and that an expert can write each of them everywhere."""

import subprocess
import sys

import gymnasium
import pytest

from rllm_gym.envs.agents.formats import FORMATS
from rllm_gym.envs.agents.functions import REACT, BadCallError, Function, Language
from rllm_gym.envs.contract import RULES
from rllm_gym.thoughts import THOUGHTS
from tests.envs.test_contract import IDS, REMOTE, defaults, textcraft_server  # noqa: F401  (a fixture)
from tests.needs import OF_ENVIRONMENTS, skip_without

CRAFT = Language(
    system_prompt="You craft. Write Thought and Action.",
    introduction="You craft.",
    turn_form=REACT,
    functions=(
        Function("get", "get {count} {item}", "take an item", integers=("count",)),
        Function("inventory", "inventory", "see what you hold"),
        Function("type", "type [{id}] [{text}]", "write", integers=("id",)),
    ),
)
SEARCH = Language("", "", "<think>{thought}</think>\n{action}", (Function("search", "<search>{query}</search>", ""),))
WORDS = Language("", "", "{action}", (Function("act", "{action}", ""),))
AT_THE_TEXT_LEVEL = [name for name in FORMATS if name != "tools"]  # which tests/envs/test_tools.py is about
TURNS = [
    (CRAFT, "Thought: Two 'logs'.\nAction: get 2 oak \"logs\""),
    (CRAFT, "Thought: a\nb: {c}\nAction: type [7] [a] [b\\n{}'\"]"),
    (SEARCH, "<think>I look.</think>\n<search>who? </search>"),
    (WORDS, "open the door"),
]


@pytest.mark.parametrize(
    ("text", "turn"),
    [
        ('{"thought": "Wood.", "name": "get", "arguments": {"count": 2, "item": "oak logs"}}', "Wood.|get 2 oak logs"),
        ('{"name": "inventory", "arguments": {}}', "|inventory"),
        ('{"name": "inventory"}', "|inventory"),
        ('I look {first}. {"name": "inventory", "arguments": {}} and more', "|inventory"),
        ('```json\n{"name": "inventory", "arguments": {}}\n```', "|inventory"),
        ('<think>hm</think><tool_call>\n{"name": "inventory", "arguments": {}}\n</tool_call>', "|inventory"),
        ('{"function_name": "get", "arguments": {"count": "2", "item": 3}}', "|get 2 3"),
        ('{"name": "get", "arguments": "{\\"count\\": 2.0, \\"item\\": \\"a\\"}"}', "|get 2 a"),
        ('{"name": "type", "arguments": {"id": 7, "text": "a] [b"}}', "|type [7] [a] [b]"),
    ],
)
def test_a_function_call_is_read(text, turn):
    assert FORMATS["function_call"].read(text, CRAFT) == [
        REACT.format(**dict(zip(("thought", "action"), turn.split("|"), strict=True)))
    ]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no JSON object that names a function"),
        ("Action: inventory", "no JSON object that names a function"),
        ("{" * 5000, "no JSON object that names a function"),
        ('{"a":' * 1500, "no JSON object that names a function"),
        ("x" * 9000, "it has 9000 characters"),
        ('{"name": "fly", "arguments": {}}', "no function 'fly'; the functions are get, inventory, type"),
        ('{"name": ["get"], "arguments": {}}', "no function"),
        ('{"name": "get", "arguments": {"count": 2}}', "get takes count, item; got count"),
        (
            '{"name": "get", "arguments": {"count": 2, "item": "a", "x": 1}}',
            "get takes count, item; got count, item, x",
        ),
        ('{"name": "get", "arguments": [2, "a"]}', "arguments must be an object"),
        ('{"name": "get", "arguments": "2"}', "it must be a JSON object"),
        ('{"name": "get", "arguments": {"count": true, "item": "a"}}', "count of get must be a whole number"),
        ('{"name": "get", "arguments": {"count": 2.5, "item": "a"}}', "count of get must be a whole number"),
        ('{"name": "get", "arguments": {"count": NaN, "item": "a"}}', "count of get must be a number of at most"),
        ('{"name": "get", "arguments": {"count": 1e400, "item": "a"}}', "count of get must be a number of at most"),
        ('{"name": "get", "arguments": {"count": 2, "item": null}}', "item of get must be a text"),
        ("<tool_call>inventory</tool_call>", "it is no JSON"),
    ],
)
def test_what_is_no_function_call_is_told_why(text, reason):
    with pytest.raises(BadCallError, match=reason):
        FORMATS["function_call"].read(text, CRAFT)


@pytest.mark.parametrize(
    ("text", "turn"),
    [
        (
            "```python\n# Wood first.\n# Then planks.\nget(count=2, item='oak logs')\n```",
            "Wood first. Then planks.|2 oak logs",
        ),
        ("get(2, 'oak logs')", "|2 oak logs"),
        ("get(2, item='#1 \\n')", "|2 #1 \n"),
        ("get('2', 'a')", "|2 a"),
        ("Let me see.\n```py\nget(2, 'a')\n```\nThat was it.", "|2 a"),
    ],
)
def test_a_python_call_is_read(text, turn):
    thought, what = turn.split("|")
    assert FORMATS["code"].read(text, CRAFT) == [REACT.format(thought=thought, action=f"get {what}")]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no Python expression"),
        ("import os", "no Python expression"),
        ("inventory", "no call of a function by its name"),
        ("os.system('true')", "no call of a function by its name"),
        ("(lambda: 1)()", "no call of a function by its name"),
        ("fly()", "no function 'fly'"),
        ("get(open('x'), 'a')", "arguments must be literals"),
        ("get(__import__('os'), 'a')", "arguments must be literals"),
        ("get(2, f'{1}')", "arguments must be literals"),
        ("get(2, 'a', 3)", "it takes 2 arguments; got 3"),
        ("inventory(1)", "inventory takes no arguments; got argument 1"),
        ("get(2, count=3)", "given once"),
        ("get(**{'count': 2})", "given once"),
        ("get(*[2, 'a'])", "arguments must be literals"),
        ("get(2)", "get takes count, item; got count"),
        ("get(0x" + "f" * 7000 + ", 'a')", "count of get must be a number of at most"),
        ("get(2, 0x" + "f" * 7000 + ")", "item of get must be a number of at most"),
        ("get(2j, 'a')", "count of get must be a whole number"),
        ("x" * 9000, "it has 9000 characters"),
    ],
)
def test_what_is_no_python_call_is_told_why(text, reason):
    with pytest.raises(BadCallError, match=reason):
        FORMATS["code"].read(text, CRAFT)


def test_deep_nesting_neither_runs_nor_kills_the_interpreter():
    program = """
from rllm_gym.envs.agents.formats import FORMATS
from rllm_gym.envs.agents.functions import BadCallError
from tests.envs.test_agent_formats import CRAFT
pieces = ["(", "[", "{", "-", "~", "not ", "get(", "a.", "a[", "lambda:", "f'{", "1+", "1if 1else ", "await ", "{1:"]
for piece in pieces:
    for text in (piece * (8000 // len(piece)), "get(" + piece * (7990 // len(piece)) + "1"):
        for name in ("code", "function_call"):
            try:
                FORMATS[name].read(text, CRAFT)
            except BadCallError:
                pass
            else:
                raise SystemExit(f"{name} read {text[:40]}")
print("done")
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert (run.returncode, run.stdout) == (0, "done\n"), run.stderr[-500:]


@pytest.mark.parametrize(
    ("text", "turn"),
    [
        ("Thought: I look.\nAction: <search>a</search>", "<think>I look.</think>\n<search>a</search>"),
        ("<search>a</search>", "<think></think>\n<search>a</search>"),
    ],
)
def test_react_is_put_into_the_environments_own_form(text, turn):
    assert FORMATS["react"].read(text, SEARCH) == [turn]
    # An environment that says nothing of its form gets the action alone, and one of this form every word.
    assert FORMATS["react"].read(text, WORDS) == ["<search>a</search>"]
    assert FORMATS["react"].read(text, CRAFT) == FORMATS["native"].read(text, CRAFT) == [text]


@pytest.mark.parametrize("name", AT_THE_TEXT_LEVEL)
@pytest.mark.parametrize(("language", "turn"), TURNS)
def test_what_an_expert_writes_is_read_as_the_same_turn(name, language, turn):
    written = FORMATS[name].write(turn, language)
    [read] = FORMATS[name].read(written, language)
    if name == "code":  # comments have no lines
        assert read == turn.replace("a\nb: {c}", "a b: {c}")
    else:
        assert read == turn


LOOK = '{"name": "inventory", "arguments": {}}'
GET = '{"name": "get", "arguments": {"count": 1, "item": "a"}}'


def actions_of(name, text, language=CRAFT):
    return [language.split(turn)[1].rpartition("Action:")[2].strip() for turn in FORMATS[name].read(text, language)]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("function_call", f"<think>maybe {LOOK}</think>{GET}"),
        ("function_call", f"maybe {LOOK}</think>{GET}"),  # the generation prompt opened the thought
        ("function_call", f"{GET}<think>or <tool_call>{LOOK}</tool_call>"),
        ("function_call", f"<think>a</think><tool_call>{GET}</tool_call><think><tool_call>{LOOK}</tool_call></think>"),
        ("function_call", f"[THINK]```json\n{LOOK}\n```[/THINK]{GET}"),
        *(("function_call", f"{opens}{LOOK}{closes}{GET}") for opens, closes in THOUGHTS),
        ("code", "<think>maybe\n```\ninventory()\n```\n</think>\n```\nget(1, 'a')\n```"),
        ("code", "inventory()</think>get(1, 'a')"),
        ("react", "<think>\nAction: inventory\n</think>\nAction: get 1 a"),
        ("react", "Action: get 1 a\n<think>\nAction: inventory"),
    ],
)
def test_a_call_in_a_thought_is_none(name, text):
    assert actions_of(name, text) == ["get 1 a"]


@pytest.mark.parametrize("text", [f"<think>{GET}", f"{GET}</think>", f"<think>{GET}</think>"])
def test_a_turn_that_is_all_thought_has_no_call(text):
    with pytest.raises(BadCallError, match="no JSON object that names a function"):
        FORMATS["function_call"].read(text, CRAFT)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("function_call", f"<tool_call>{GET}</tool_call>\n<tool_call>{LOOK}</tool_call>"),
        ("function_call", f"{GET} and then {LOOK}"),
        ("function_call", f"[{GET}, {LOOK}]"),
        ("function_call", f"<tool_call>[{GET}, {LOOK}]</tool_call>"),
        ("function_call", f"```json\n{GET}\n```\n```json\n{LOOK}\n```"),
        ("code", "get(1, 'a'); inventory()"),
        ("code", "```python\nget(1, 'a')\n```\nThen:\n```python\ninventory()\n```"),
        ("react", "Thought: I take one.\nAction: get 1 a\nThought: I look.\nAction: inventory"),
    ],
)
def test_several_calls_are_read_in_their_order(name, text):
    assert actions_of(name, text) == ["get 1 a", "inventory"]


def test_a_call_that_is_cut_off_among_others_is_told():
    with pytest.raises(BadCallError, match="a <tool_call> has no </tool_call>"):
        FORMATS["function_call"].read(f"<tool_call>{GET}</tool_call><tool_call>{LOOK}", CRAFT)
    with pytest.raises(BadCallError, match="more than 20 JSON objects"):
        FORMATS["function_call"].read(LOOK * 21, CRAFT)


def test_json_with_raw_line_breaks_in_texts_is_read():
    text = '{"name": "type", "arguments": {"id": 7, "text": "a\n\tb"}}'
    for written in (text, f"<tool_call>{text}</tool_call>", f"```\n{text}\n```"):
        assert actions_of("function_call", written) == ["type [7] [a\n\tb]"]


def test_the_system_prompt_asks_for_the_format():
    prompts = {name: style.system_prompt(CRAFT) for name, style in FORMATS.items()}
    assert prompts["native"] == prompts["react"] == CRAFT.system_prompt
    for name in ("function_call", "code"):
        assert prompts[name].startswith("You craft.\nEach turn, write one ") and "Action:" not in prompts[name]
    assert '{"name": "get", "description": "take an item", "parameters": {"type": "object"' in prompts["function_call"]
    assert "- get(count: int, item: str): take an item" in prompts["code"]
    assert "- <search>{query}</search>" in FORMATS["react"].system_prompt(SEARCH)


# --- every environment ---


def make(env_id, agent, **kwargs):
    return gymnasium.make(env_id, agent=agent, **{**defaults(env_id), **kwargs})


@pytest.mark.slow
@pytest.mark.parametrize("name", AT_THE_TEXT_LEVEL)
@pytest.mark.parametrize("env_id", IDS)
def test_every_environment_keeps_the_contract_in_every_format(env_id, name, request):
    skip_without(OF_ENVIRONMENTS.get(env_id))
    if env_id == "rllm_gym/ALFWorld-v0":
        request.getfixturevalue("alfworld_data")
    if env_id in REMOTE:
        request.getfixturevalue("textcraft_server")
    names = {
        "observations_are_in_their_space_and_steps_have_their_types",
        "the_expert_succeeds_and_its_last_step_terminates",
        "nonsense_is_an_ordinary_turn_without_reward",
        "it_plays_alike_with_tokens",
    }
    rules = [rule for rule in RULES if rule.__name__ in names]
    assert len(rules) == len(names)
    made = []  # for the next rule, too: a world may be a process that takes seconds to start
    for rule in rules:
        ready = iter(tuple(made))

        def make_or_take(ready=ready):
            if (env := next(ready, None)) is None:
                made.append(env := make(env_id, {"format": name}))
            return env

        rule(make_or_take)
    for env in made:
        env.close()


@pytest.mark.parametrize("name", AT_THE_TEXT_LEVEL)
@pytest.mark.parametrize("env_id", ["rllm_gym/TextCraft-v0", "rllm_gym/SearchQA-v0"])
def test_an_expert_earns_the_same_in_every_format(env_id, name):
    skip_without(OF_ENVIRONMENTS.get(env_id))
    for seed in range(3):
        played = []
        for agent in (None, {"format": name}):
            env = make(env_id, agent)
            env.reset(seed=seed)
            steps = []
            while not steps or not steps[-1][2]:
                steps.append(env.step(env.get_wrapper_attr("expert_action")()))
            played.append([(reply, reward, info["is_success"]) for reply, reward, _, _, info in steps])
        assert played[0] == played[1]
