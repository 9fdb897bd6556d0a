"""An environment that does what it is told: sleep, raise, litter, die, or answer with what JSON has no words for."""

from __future__ import annotations

import os
import tempfile
import time

import rllm_gym
from rllm_gym.envs import StepResult, TextEnv


class OddEnv(TextEnv):
    """Do what the action says."""

    name = "odd"
    num_items = 4

    def split_indices(self, split):
        return {"train": (0, 1, 2), "eval": (3,), "all": range(4)}[split]

    @property
    def category(self):
        return "odd"

    def reset_item(self, index):
        return f"item {index}"

    def act(self, action):
        verb, _, argument = action.partition(" ")
        reward = 0.0
        if verb == "sleep":
            time.sleep(float(argument))
        elif verb == "spin":
            end_s = time.perf_counter() + float(argument)
            while time.perf_counter() < end_s:
                pass
        elif verb == "raise":
            raise ValueError(f"secret of {__file__}")
        elif verb == "exit":
            raise SystemExit(3)
        elif verb == "die":
            os.kill(os.getpid(), 9)
        elif verb == "litter":
            tempfile.mkdtemp()
        elif verb == "nan":
            reward = float("nan")
        elif verb == "surrogate":
            return StepResult("half \ud800 a character", 0.0, False, False)
        return StepResult(f"did {action}", reward, verb == "end", False)


rllm_gym.register_text_env("odd/Odd-v0", OddEnv)
ODD = "tests.server.odd_env:odd/Odd-v0"
