"""A toy environment over bytes, and loops over it."""

from __future__ import annotations

from types import SimpleNamespace

import gymnasium
import pytest

from rllm_gym.rollout.loop import RolloutLoop
from rllm_gym.types import SamplingParams

# --- a token-level environment over bytes: "|" is the end-of-turn token ---

END = 256


def encode(text: str) -> list[int]:
    return [END if char == "|" else ord(char) for char in text]


def decode(ids) -> str:
    return "".join("|" if token == END else chr(token) for token in ids)


class TalkEnv(gymnasium.Env):
    """Says "ITEM>" first and then its step number; "!" ends the episode with reward 1, and "?" truncates it."""

    stop_ids = (END,)

    def __init__(self):
        self.is_closed = False
        self.reset_seeds: list[int] = []

    def reset(self, *, seed=None, options=None):
        self.reset_seeds.append(seed)
        self.item, self.num_steps = (options or {}).get("item_id", "none"), 0
        self.messages = [{"role": "user", "content": f"{self.item}>"}]
        return encode(f"{self.item}>"), {"item_id": self.item, "messages": list(self.messages)}

    def step(self, action):
        self.num_steps += 1
        text = decode(action)
        self.messages += [{"role": "assistant", "content": text}, {"role": "user", "content": f"{self.num_steps}>"}]
        is_success = "!" in text
        info = {"is_success": is_success, "messages": list(self.messages)}
        return encode(f"{self.num_steps}>"), float(is_success), is_success, "?" in text, info

    def close(self):
        self.is_closed = True


@pytest.fixture
def talk():
    """The toy environment and its codec, as one namespace."""
    return SimpleNamespace(Env=TalkEnv, encode=encode, decode=decode, END=END)


@pytest.fixture
def make_loop():
    """A loop over talk environments and one engine; what it opens is closed at the end of the test."""
    loops = []

    def make(engine, make_env=lambda env_index: TalkEnv(), **options):
        engines = engine if isinstance(engine, dict) else {"main": engine}
        defaults = {"num_envs": 4, "params": SamplingParams(max_new_tokens=8), "max_model_len": 256}
        defaults["module_of"] = lambda agent_id, episode: "main"
        loops.append(RolloutLoop(make_env, engines, **{**defaults, **options}))
        return loops[-1]

    yield make
    for loop in loops:
        loop.close()
