"""Every option of `agent:` does something in training: what a run plays, and what the engine is asked with, changes."""

from __future__ import annotations

from typing import Any

import pytest

from rllm_gym.envs.agents.spec import KEYS
from tests.wiring.harness import Run, run

LONG = {"max_episode_steps": 8, "max_model_len": 2048, "groups_per_step": 1}


def kinds(found: Run) -> list[list[str]]:
    return [[turn.kind for turn in episode.streams["agent"].turns] for episode in found.algo.sampled.played]


def attempts(found: Run) -> list[int]:
    return [episode.streams["agent"].turns[-1].attempt for episode in found.algo.sampled.played]


def prompts(found: Run) -> list[int]:
    return [len(request.prompt_ids) for request in found.engine.requests]


def returns(found: Run) -> float:
    return found.env_metrics["episode_return_mean"]


# (option, its value, other options in both runs, what must differ)
ROWS: list[tuple[str, Any, dict[str, Any], Any]] = [
    ("format", "function_call", {}, prompts),
    ("format", "code", {}, prompts),
    ("format", "react", {}, prompts),
    ("plan", True, {}, kinds),
    ("reflect", {"every": 2}, {}, kinds),
    ("reflect", "on_error", {"format": "code"}, kinds),
    ("attempts", 2, {}, attempts),
    ("attempt_turns", 2, {"attempts": 2}, attempts),
    ("context", {"last_n_turns": 1}, {}, lambda found: found.env_metrics["num_samples_mean"]),
    ("context", {"summarize_observations": 2}, {}, kinds),
    ("rewards", ["environment", {"fn": f"{__name__}:one"}], {}, returns),
]


def one(turn: Any) -> float:
    return 1.0


def test_every_option_has_a_row():
    # tests/envs/test_agents.py, since the engine here says one thing at a time, and tests/envs/test_tools.py
    elsewhere = {"parallel_calls", "tool_parser"}
    assert {name for name, *_ in ROWS} == set(KEYS) - elsewhere


@pytest.mark.parametrize(("name", "value", "given", "read"), ROWS, ids=[f"{row[0]}-{row[1]}" for row in ROWS])
def test_setting_an_option_of_the_agent_changes_what_it_says(ray_cluster, tiny_model, name, value, given, read):
    read_of = []
    for agent in (given, {**given, name: value}):
        with run(tiny_model, env_config={"agent": agent, "fall_after": 3}, **LONG) as found:
            read_of.append(read(found))
    assert read_of[0] != read_of[1]
