"""The grammar of WebArena's actions."""

import pytest

from rllm_gym.envs.web.actions import Action, BadAction, parse


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("click [12]", Action("click", 12)),
        ("Thought: the link.\nAction: click [12]", Action("click", 12)),
        ("Action: click [1]\nNo. Action: click [2]", Action("click", 2)),
        ("Action: ```click [12]```", Action("click", 12)),
        ("Action:\n```\nclick [12]\n```\n", Action("click", 12)),
        ("In summary, the next action I will perform is ```click [12]```", Action("click", 12)),
        ("First I thought of ```click [1]```, but ```click [2]```", Action("click", 2)),
        ("CLICK [7] where [7] is a link", Action("click", 7)),
        ("type [5] [hello world] [0]", Action("type", 5, "hello world")),
        ("type [5] [hello world] [1]", Action("type", 5, "hello world", presses_enter=True)),
        ("type [5] [hello] [0] (the field)", Action("type", 5, "hello")),
        ("type [5] [hello] and press Enter", Action("type", 5, "hello", presses_enter=True)),
        ("type [5] [hello world]", Action("type", 5, "hello world", presses_enter=True)),
        ("type [5] [hello] [press_enter_after=0]", Action("type", 5, "hello")),
        ("type [5] [a [b] c] [0]", Action("type", 5, "a [b] c")),
        ("type [5] [two\nlines] [0]", Action("type", 5, "two\nlines")),
        ("type [5] [] [0]", Action("type", 5, "")),
        ("type [5] [1]", Action("type", 5, "1", presses_enter=True)),
        ("hover [3]", Action("hover", 3)),
        ("press [Ctrl+v]", Action("press", text="Ctrl+v")),
        ("scroll [down]", Action("scroll", text="down")),
        ("scroll [direction=up]", Action("scroll", text="up")),
        ("scroll down", Action("scroll", text="down")),
        ("tab_focus [0]", Action("tab_focus", 0)),
        ("new_tab", Action("new_tab")),
        ("goto [http://shop.test/a?b=[1]]", Action("goto", text="http://shop.test/a?b=[1]")),
        ("go_back", Action("go_back")),
        ("go_forward", Action("go_forward")),
        ("close_tab", Action("close_tab")),
        ("stop [the answer: 5]", Action("stop", text="the answer: 5")),
        ("stop []", Action("stop")),
        ("stop", Action("stop")),
        ("stop [line\nline]", Action("stop", text="line\nline")),
        ("\u00e9\nAction: stop [caf\u00e9]", Action("stop", text="caf\u00e9")),
    ],
)
def test_an_action_is_read(text, action):
    assert parse(text) == action


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("drag [3] [12]", Action("drag", 3, places=(12,))),
        ("Thought: there.\nAction: mouse_click [80] [120]", Action("mouse_click", places=(80, 120))),
        ("```mouse_drag [1][2] [30] [40]``` (left)", Action("mouse_drag", places=(1, 2, 30, 40))),
        ("click [3]", Action("click", 3)),
    ],
)
def test_places_are_read_where_there_are_some(text, action):
    assert parse(text, has_pointer=True) == action
    if action.verb != "click":
        assert "is not an action" in parse(text).reason  # WebArena has none


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("drag [3]", "drag [id] [id]"),
        ("mouse_click [3]", "mouse_click [x] [y]"),
        ("mouse_click [-3] [4]", "mouse_click [x] [y]"),
        ("mouse_drag [1] [2] [3]", "mouse_drag [x] [y] [x] [y]"),
        ("mouse_drag 1 2 3 4", "mouse_drag [x] [y] [x] [y]"),
    ],
)
def test_the_form_of_a_place_is_named(text, form):
    assert parse(text, has_pointer=True) == BadAction(f"The form of this action is: {form}.")


@pytest.mark.parametrize(
    "text",
    ["", "Action:", "click", "click 12", "click [ok]", "click [\u0663]", "type [5]", "type [x] [y]", "scroll [left]",
     "press []", "goto", "stop the car", "fly to the moon", "``````", "the action: click [1]", "\ud800"],
)  # fmt: skip
def test_what_is_no_action_is_said_in_one_line(text):
    bad = parse(text)
    assert isinstance(bad, BadAction)
    assert "\n" not in bad.reason and bad.reason.endswith(".")
    bad.reason.encode("utf-8")  # it can be printed, whatever the text was


def test_the_form_of_a_known_verb_is_named():
    assert parse("click the button") == BadAction("The form of this action is: click [id].")
    assert "click [id]; type [id] [text] [0 or 1]" in parse("fly").reason


def test_a_text_of_any_length_is_read_at_once():
    assert isinstance(parse("click " + "[" * 60_000), BadAction)
    assert parse(f"type [1] [{'[' * 30_000}] [0]").text == "[" * 30_000
    assert isinstance(parse(f"click [{'9' * 60_000}]"), Action | BadAction)
