"""`rllm-gym show` and `play`: what a terminal gets to see of episodes, stored and played."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from rllm_gym.cli.main import make_rllm_gym_app
from rllm_gym.data import EpisodeRecord, TrajectoryWriter, TurnRecord

app = make_rllm_gym_app()


def record(number, *, is_success=False, item="textcraft_1", split="train", action="left", **fields):
    turn = TurnRecord(observation_ids=[1], action_ids=[2], logp=[0.0], reward=float(is_success), policy_version=0)
    fields = {"end_reason": "terminated", **fields}
    return EpisodeRecord(
        env_id="e", item_id=item, episode_id=f"e{number}", split=split, is_success=is_success, seed=0,
        messages=[{"role": "user", "content": "Where to?"}, {"role": "assistant", "content": action}],
        turns=[turn], final_observation_ids=[], **fields,
    )  # fmt: skip


@pytest.fixture
def shown(tmp_path):
    """Store records and return what `show` prints of them."""

    def show(*records, options=(), exit_code=0):
        if records:
            with TrajectoryWriter(tmp_path / "trajectories") as writer:
                writer.append(records)
        result = CliRunner().invoke(app, ["show", str(tmp_path), *options])
        assert result.exit_code == exit_code, result.output
        return result.output

    return show


def test_the_latest_episode_is_shown_with_what_came_of_it(shown):
    text = shown(record(1), record(2, is_success=True, action="Thought: go.\nAction: right", max_episode_steps=4))
    assert text.splitlines() == [
        "textcraft_1  train  solved (terminated)  return 1  1 turns  horizon 4  episode e2",
        "  env    Where to?",
        "  agent  Thought: go.",
        "         Action: right",
        "         (reward 1)",
        "",
        "1 of 2 episodes that match, of 2",
    ]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--last", "9"], ["e1", "e2", "e3", "e4"]),
        (["--last", "2"], ["e3", "e4"]),
        (["--failed", "--last", "9"], ["e1", "e3", "e4"]),
        (["--solved", "--last", "9"], ["e2"]),
        (["--item", "textcraft_7", "--last", "9"], ["e3"]),
        (["--split", "eval", "--last", "9"], ["e2"]),
    ],
)
def test_episodes_are_chosen_by_what_is_asked(shown, options, expected):
    text = shown(
        record(1),
        record(2, is_success=True, split="eval", is_evaluation=True),
        record(3, item="textcraft_7"),
        record(4, end_reason="error", error="the browser died"),
        options=options,
    )
    assert [word for word in text.split() if word in ("e1", "e2", "e3", "e4")] == expected


def test_what_a_model_writes_moves_no_cursor_and_long_texts_are_cut(shown):
    text = shown(record(1, action="\x1b[2J\r\x9b" + "a" * 5000 + "end"))
    assert "\x1b" not in text and "\r" not in text and "\\x1b[2J\\r\\x9b" in text
    assert max(map(len, text.splitlines())) < 2100 and "end" in text
    assert "a" * 5000 in shown(options=["--full"])


def test_what_cannot_be_shown_is_said_in_one_line(shown):
    assert "holds no episodes" in shown(exit_code=2)
    assert "exclude each other" in shown(options=["--failed", "--solved"], exit_code=2)
    result = CliRunner().invoke(app, ["show", "/no/such/run"])
    assert result.exit_code == 2 and "must be a folder or file with trajectories" in result.output


def play(*arguments, typed=""):
    return CliRunner().invoke(app, ["play", *arguments], input=typed)


def test_the_expert_plays_to_success():
    result = play("TextCraft-v0", "--item", "textcraft_17", "--expert", "--env-config", '{"split": "all"}')
    assert result.exit_code == 0, result.output
    assert "[textcraft_17 depth_" in result.output and "> Action: " in result.output
    assert "solved in" in result.output.splitlines()[-1] and "return 1" in result.output.splitlines()[-1]


def test_the_expert_of_an_agent_plays_in_its_format():
    agent = '{"agent": {"format": "function_call", "plan": true}}'
    result = play("TextCraft-v0", "--seed", "3", "--expert", "--env-config", agent)
    assert result.exit_code == 0, result.output
    assert "write one JSON object" in result.output and "> I begin with: " in result.output
    assert '> {"thought": ' in result.output and "solved in" in result.output.splitlines()[-1]


def test_a_person_plays_line_by_line_and_may_leave():
    result = play("TextCraft-v0", "--seed", "3", typed="inventory\nnonsense\n\n")
    assert result.exit_code == 0
    assert "Inventory: You are not carrying anything." in result.output
    assert "(invalid action)" in result.output and "left after 2 turns" in result.output
    assert "left after 0 turns" in play("TextCraft-v0", "--seed", "3", typed="").output


def test_an_episode_ends_at_the_horizon():
    result = play("TextCraft-v0", "--horizon", "1", typed="inventory\ninventory\n")
    assert result.exit_code == 0 and "the horizon of 1 turns is reached" in result.output


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["TextCrafd-v0"], "Did you mean"),
        (["TextCraft-v0", "--item", "textcraft_99999"], "an item id is a number"),
        (["TextCraft-v0", "--env-config", "[1]"], "--env-config: must be a JSON object"),
        (["TextCraft-v0", "--env-config", '{"depht": 1}'], "depht"),
    ],
)
def test_what_cannot_be_played_is_said_in_one_line(arguments, says):
    result = play(*arguments)
    assert result.exit_code == 2 and says in result.output and len(result.output.splitlines()) == 1
