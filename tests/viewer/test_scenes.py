"""Scenes, drawn in a browser from the texts that the environments really write, and what they make of other texts."""

import gymnasium
import pytest

import rllm_gym  # noqa: F401  (registers the environments)
from rllm_gym.data import TrajectoryWriter
from rllm_gym.data.records import EpisodeRecord, TurnRecord

PAGE = """OBJECTIVE: Find Rugs.
[1] RootWebArea 'Shop' focused: True
	[2] searchbox 'Search' value: 'rug'
	[3] link 'Rugs'
	[4] generic '' clickable: True hint: 'like'
	[5] checkbox 'New' checked: True
URL: http://shop.test/
TABS: Tab 0 (current): Shop"""
SCIWORLD = """Your task is to find a plant.
This room is called the hallway. In it, you see:
	the agent
	a painting
You also see:
	A door to the kitchen (that is closed)
	A door to the greenhouse (that is open)"""
TEXTWORLD = "Take the lamp south.\n\n-= Studio =-\nYou are in a studio. There is a door leading south."


def conversation(env_id, task, *exchanges):
    messages = [{"role": "user", "content": task}]
    for action, reply in exchanges:
        messages += [{"role": "assistant", "content": action}, {"role": "user", "content": reply}]
    return record_of(env_id, messages)


def record_of(env_id, messages):
    num_turns = sum(message["role"] == "assistant" for message in messages)
    turn = TurnRecord(observation_ids=[], action_ids=[], logp=[], reward=0.5, policy_version=0)
    return EpisodeRecord(
        env_id=env_id,
        episode_id=f"{env_id}-{len(messages)}",
        messages=messages,
        turns=[turn] * num_turns,
        final_observation_ids=[],
        end_reason="terminated",
        seed=0,
    )


def by_expert(name, item, num_turns=20, **config):
    """Return the record of an expert's episode, with the turns' kinds and attempts."""
    env = gymnasium.make(f"rllm_gym/{name}-v0", obs_type="text", **config)
    task, info = env.reset(seed=0, options={"item_id": item})
    exchanges, turns = [], []
    while len(exchanges) < num_turns:
        action = env.get_wrapper_attr("expert_action")()
        reply, _, is_over, _, info = env.step(action)
        exchanges.append((action, reply))
        turns.append(info.get("rllm_gym/turn", {}))
        if is_over:
            break
    record = conversation(f"rllm_gym/{name}-v0", task, *exchanges)
    turns = [turn.model_copy(update=said) for turn, said in zip(record.turns, turns, strict=True)]
    return record.model_copy(update={"turns": turns})


@pytest.fixture
def scenes_of(open_page, tmp_path, serve):
    """Return the scenes of a record as markup, before its first turn and after each; and what its conversation says."""

    def scenes_of(record, allowed=()):
        with TrajectoryWriter(tmp_path / record.env_id.replace("/", "-") / str(len(record.messages))) as writer:
            writer.append([record])
        address = serve([writer.folder])
        page = open_page(address, allowed=allowed)
        page.locator("a.row").first.click()
        page.locator(".episode h1").wait_for()
        if not page.locator(".scene").count():
            return None, page.locator(".talk").inner_text()
        found = []
        for turn in range(len(record.turns)):
            page.locator(".bead").nth(turn).click()
            for when in ("before", "after")[turn > 0 :]:
                page.get_by_role("button", name=f"{when} turn {turn + 1}").click()
                found.append(page.locator(".scene").evaluate("scene => scene.innerHTML"))
        return found, page.locator(".talk").inner_text()

    return scenes_of


def test_textcraft_shows_what_is_held_and_what_is_made(scenes_of):
    scenes, _ = scenes_of(by_expert("TextCraft", "textcraft_369"))
    assert "empty" in scenes[0] and 'class="held"' not in scenes[0]
    assert any('class="held"' in scene for scene in scenes)
    assert "\u2713" in scenes[-1]


def test_babyai_draws_what_is_seen_where_it_is(scenes_of):
    scenes, _ = scenes_of(by_expert("BabyAI", "babyai_9940"))
    assert "pick up the yellow key" in scenes[0] and "yellow key" in scenes[-1] and "is completed" in scenes[-1]
    # "There is a yellow key 1 4 steps in front of you and 1 steps to your right": column 3 + 1, row 6 - 4.
    assert any("yellow  key 1" in scene and "translate(160 80)" in scene for scene in scenes)


def test_searchqa_shows_hits_and_the_answer(scenes_of):
    scenes, _ = scenes_of(by_expert("SearchQA", "searchqa_226"))
    assert "nothing searched yet" in scenes[0]
    assert "Communications of Serbia and Montenegro" in scenes[1] and 'class="hit"' in scenes[1]
    assert 'class="verdict good"' in scenes[-1]


def test_a_web_page_is_drawn_with_the_element_that_is_meant(scenes_of):
    record = conversation(
        "rllm_gym/WebArena-v0",
        PAGE,
        ("Action: click [3]", PAGE.replace("'rug'", "'lamp'")),
        ("Action: stop []", "gone"),
    )
    before, after, last = scenes_of(record)[0]
    assert 'class="line target"' in before and ">Rugs<" in before and ">rug<" in before and ">like<" in before
    assert ">lamp<" in after and 'class="line target"' not in after
    assert ">lamp<" in last


def test_sciworld_follows_the_way_the_doors_and_what_is_carried(scenes_of):
    record = conversation(
        "rllm_gym/SciWorld-v0",
        SCIWORLD,
        ("Action: open door to kitchen", "The door is now open."),
        ("Action: pick up painting", "You move the painting to the inventory."),
        ("Action: go to kitchen", "You move to the kitchen."),
        ("Action: focus on painting", "You focus on the painting."),
    )
    first, opened, taken, moved, focused = scenes_of(record)[0]
    assert '<li class="closed">kitchen' in first and '<li class="open">greenhouse' in first
    assert '<li class="open">kitchen' in opened and "score 50" in opened
    assert "<li>painting</li>" in taken
    assert "hallway \u2192 kitchen" in moved and "not looked around here yet" in moved and "focused on" in focused


def test_textworld_draws_the_map(scenes_of):
    record = conversation(
        "rllm_gym/TextWorld-v0",
        TEXTWORLD,
        ("Action: take lamp", "You pick up the lamp from the ground."),
        ("Action: go south", "-= Bedroom =-\nA bedroom."),
        ("Action: drop lamp", "You drop the lamp on the ground."),
    )
    first, taken, moved, dropped = scenes_of(record)[0]
    assert "Studio" in first and "<line" not in first
    assert "<li>lamp</li>" in taken
    assert "<line" in moved and "Bedroom" in moved and "<li>lamp</li>" in moved and "<li>lamp</li>" not in dropped


@pytest.mark.parametrize("name", ["TextCraft", "BabyAI", "WebArena", "SciWorld", "SearchQA", "TextWorld", "Other"])
def test_texts_of_another_form_leave_the_conversation_as_it_is(name, scenes_of):
    record = conversation(f"mine/{name}-v7", "Anything else.", ("Action: x", "y"), ("", ""))
    scenes, talk = scenes_of(record)
    assert scenes is None and "Anything else." in talk and "(said nothing)" in talk


@pytest.mark.parametrize(
    ("text", "thought", "action", "command"),
    [
        ("Thought: a\nAction: b", "a", "b", "b"),
        ("Thought: Action: no\nAction: b", "Action: no", "b", "b"),
        ("only words", "", "only words", "only words"),
        ("Thought: no action", "no action", "", ""),
        ("<think>a</think>\n<search>b</search>", "a", "<search>b</search>", "<search>b</search>"),
        ("<think>never ends", "never ends", "", ""),
        ('I look. <tool_call>\n{"name": "look"}\n</tool_call>', "I look.", "look()", "look"),
        ("I look.\n```python\nlook()\n```", "I look.", "look()", "look"),
        ("I look.\n```\nanything\n```", "I look.", "anything", "anything"),
        (
            '{"thought": "t", "name": "go_to", "arguments": {"place": "red door", "n": 2}}',
            "t",
            'go_to(place="red door", n=2)',
            "go to red door 2",
        ),
        (
            "# I need wood\nget(count=2, item='oak (dark), logs')",
            "I need wood",
            "get(count=2, item='oak (dark), logs')",
            "get 2 oak (dark), logs",
        ),
        ('{"no": "call"}', "", '{"no": "call"}', '{"no": "call"}'),
        ("[1, 2]", "", "[1, 2]", "[1, 2]"),
        ("", "", "", ""),
    ],
)
def test_thought_and_action_are_told_apart(text, thought, action, command, address, open_page):
    page = open_page(address)
    found = page.evaluate("text => splitTurn(text)", text)
    assert found == {"thought": thought, "action": action, "command": command}


@pytest.mark.parametrize("form", ["react", "function_call", "code"])
def test_scenes_understand_the_agents_formats(form, scenes_of):
    agent = {"format": form, "plan": True}
    scenes, talk = scenes_of(by_expert("TextCraft", "textcraft_369", agent=agent))
    assert "\u2713" in scenes[-1] and any('class="held"' in scene for scene in scenes)
    assert "plan" in talk.lower()


def test_a_second_attempt_begins_with_nothing(scenes_of):
    record = by_expert("TextCraft", "textcraft_17", agent={"attempts": 2, "attempt_turns": 1})
    scenes, talk = scenes_of(record)
    kinds = [(turn.kind, turn.attempt) for turn in record.turns]
    assert kinds[:3] == [("action", 1), ("reflection", 1), ("action", 2)]
    assert "4</b> clay ball" in scenes[1] and "empty" in scenes[2]  # after the first action, after the reflection
    assert "reflection" in talk and "attempt 2" in talk
