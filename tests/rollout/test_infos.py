"""Whatever an environment's author says in an info, a run plays, counts and stores the same."""

from __future__ import annotations

import random
import tempfile
import threading
from pathlib import Path

import gymnasium
import numpy as np
import pytest

from rllm_gym.data import Recorder, make_records, read_episodes
from rllm_gym.envs import UnicodeText, wrap
from rllm_gym.infos import read_messages
from rllm_gym.rollout.engines.scripted import ScriptedEngine
from rllm_gym.rollout.environments import EnvironmentSpec
from rllm_gym.training.metrics import episode_metrics, metrics_by_role
from rllm_gym.types import AGENT, TaskGroup


class Hostile:
    is_armed = False  # while a test's tools print it

    def __repr__(self):
        if self.is_armed:
            raise SystemExit(3)
        return "Hostile()"

    def __deepcopy__(self, memo):
        raise RuntimeError

    def __bool__(self):
        raise ValueError("no truth in here")

    def __eq__(self, other):
        raise ValueError("not to be compared")

    __hash__ = None


def nested(depth):
    value = []
    for _ in range(depth):
        value = [value]
    return value


SELF = {}
SELF["me"] = [SELF, SELF]
OBJECTS = [
    object(), Hostile(), threading.Lock(), lambda: 1, (part for part in "ab"), {1, 2}, b"\xff", nested(5_000),
    nested(150), SELF, "\ud800", 10**400, float("nan"), complex(1, 2), np.zeros((2, 3)), np.array([object()]),
    np.float32("inf"), np.str_("x"), np.zeros(5_000), {(1, 2): 3}, {"turn": {"reward": 100}},
    np.array(7), np.bool_(True),
]  # fmt: skip
THEIRS = ("turn", "num_repeated_tokens", "context_turns", "context_messages", "moves", "kind", "reward", "stop", "x")
WRONG = {
    "is_success": ["no", 0.5, [], np.zeros(2), Hostile(), {"a": 1}],
    "is_invalid_action": ["yes", np.ones(2), Hostile(), object()],
    "item_id": [1.5, [1], np.array([1, 2]), object(), True],
    "category": [1, ["a"], Hostile(), np.zeros(2)],
    "role": [1, b"x", [], Hostile(), np.array(["a"])],
    "split": [3, [], Hostile()],
    "legal_actions": [3, Hostile()],
    "messages": [3, "hello", [1], [{"role": 1}], Hostile()],
}


def random_info(seed):
    """Return an info with some of its author's keys, and some documented ones of another type than their own."""
    rng = random.Random(seed)

    def value(depth):
        kind = rng.randrange(4 if depth < 3 else 2)
        if kind < 2:
            return rng.choice(OBJECTS)
        parts = [value(depth + 1) for _ in range(rng.randrange(3))]
        return parts if kind == 2 else dict(zip("ab", parts, strict=False))

    info = {key: value(0) for key in THEIRS if rng.random() < 0.5}
    return info | {key: rng.choice(of_type) for key, of_type in WRONG.items() if rng.random() < 0.5}


FOUND = [
    {"turn": {"reward": 100}, "num_repeated_tokens": 3, "role": np.zeros(2), "kind": "plan", "item_id": 1.5},
    {name: nested(5_000) for name in (*THEIRS, *WRONG)},
    dict(enumerate(OBJECTS)),
]


class Author(gymnasium.Env):
    def __init__(self, info):
        self.observation_space = self.action_space = UnicodeText(100)
        self.info = info

    def reset(self, *, seed=None, options=None):
        self.num_steps = 0
        return "Guess.", dict(self.info)

    def step(self, action):
        self.num_steps += 1
        return "No.", 0.25, self.num_steps == 2, False, dict(self.info)


@pytest.fixture
def play(make_loop, monkeypatch):
    engine = ScriptedEngine(lambda prompt: [int(i) for i in wrap(Author({})).encode_action("7")])

    def play(info):
        loop = make_loop(engine, lambda i: wrap(Author(info)), max_model_len=1024, num_envs=1, max_retries=0)
        loop.submit([TaskGroup((0, 0, 0), "a", 1)], max_episode_steps=None)
        monkeypatch.setattr(Hostile, "is_armed", True)
        [group] = list(loop.finished_groups())
        monkeypatch.setattr(Hostile, "is_armed", False)
        loop.close()
        [episode] = [*group.episodes, *group.failed]
        return episode

    return play


def shape(episode):
    """Return all that a run makes of an episode but its info."""
    metrics = episode_metrics([episode], [])
    with tempfile.TemporaryDirectory() as folder:
        recorder = Recorder(Path(folder), [EnvironmentSpec("Author", Author)])
        recorder.append([episode], train_step=0)
        recorder.close()
        [again] = read_episodes(folder)
    turns = [turn.model_dump() for turn in again.turns]
    counted = {name: value for name, value in metrics.items() if "_s_" not in f"{name}_" and value == value}
    stream = episode.streams[AGENT]
    return (
        episode.error,
        episode.item_id,
        stream.role,
        stream.messages,
        turns,
        again.is_success,
        again.category,
        counted,
    )


@pytest.mark.promise
def test_no_info_bends_an_episode(play):
    plain = shape(play({}))
    for case, info in enumerate([*FOUND, *map(random_info, range(60))]):
        played = shape(play(info))
        assert played == plain, case


def test_documented_keys_are_read_with_numpys_kinds_too(play):
    info = {"is_success": np.float32(1), "is_invalid_action": np.bool_(True), "item_id": np.int64(7)}
    episode = play({**info, "category": np.str_("easy"), "role": np.str_("guesser")})
    assert episode.item_id == 7
    assert type(episode.item_id) is int
    assert episode.streams[AGENT].role == "guesser"
    assert [turn.is_invalid_action for turn in episode.streams[AGENT].turns] == [True, True]
    [record] = make_records(episode, env_version="", train_step=0, max_episode_steps=None)
    assert (record.is_success, record.category, record.role) == (True, "easy", "guesser")
    assert metrics_by_role([episode]) == {}  # of one agent there are none


def test_what_is_stored_is_a_copy_at_the_time(play):
    visited = [1]
    episode = play({"visited": visited, "board": (board := np.zeros(2))})
    visited.append(2)
    board += 1
    assert episode.info["visited"] == [1]
    assert episode.info["board"].tolist() == [0, 0]


def test_a_conversation_may_name_the_calls_that_it_answers():
    answer = {"role": "tool", "content": "You have 1 log.", "name": "get", "tool_call_id": "call_0"}
    assert read_messages({"messages": [answer]}) == [answer]
    assert read_messages({"messages": [{**answer, "content": ["parts"]}]}) is None
