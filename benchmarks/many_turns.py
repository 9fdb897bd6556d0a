"""Measures what a token costs in episodes of 5, 20, 80 and 320 turns: processor time of loop, environment and samples.

    .venv/bin/python benchmarks/many_turns.py   # the engine has prepared replies, and costs next to nothing
    .venv/bin/python benchmarks/many_turns.py --profile 320

As many tokens are played with each number of turns, so that the ratio to five turns is that of the cost per token.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import tempfile
import time
from pathlib import Path
from typing import Any

import gymnasium
from report import print_row

from rllm_gym.data import TrajectoryWriter, make_records
from rllm_gym.envs.text_space import UnicodeText
from rllm_gym.envs.wrappers import TokenEnv
from rllm_gym.rollout.engines.scripted import ScriptedEngine
from rllm_gym.rollout.loop import RolloutLoop
from rllm_gym.tokens import ChatTokenizer
from rllm_gym.training.advantage_rows import AdvantageRows
from rllm_gym.training.samples import samples_from_episode
from rllm_gym.types import SamplingParams, TaskGroup

NUM_TURNS = (5, 20, 80, 320)
NUM_TOTAL_TURNS = 2560
ACTION = "Thought:\nI should look around once more.\n\nAction:\nlook at the shelf"
REPLY = "You see a jar, three apples and an old lamp on the shelf. Nothing else is here."


class Shelf(gymnasium.Env[str, str]):
    """Says the same for a number of turns."""

    observation_space = action_space = UnicodeText(1000)

    def __init__(self, num_turns: int) -> None:
        self.num_turns = num_turns

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        self.turns_left = self.num_turns
        return REPLY, {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.turns_left -= 1
        return REPLY, 0.0, self.turns_left == 0, False, {"is_success": False}


def play(num_turns: int, folder: Path) -> tuple[float, int]:
    """Return the processor time of as many turns as ever, in episodes of so many, and their number of tokens."""
    chat = ChatTokenizer("tiny")
    action = chat.encode_action(ACTION)
    engine = ScriptedEngine(lambda prompt_ids: action, num_steps=lambda prompt_ids: 1, max_context_tokens=2**20)
    loop = RolloutLoop(
        lambda env_index: TokenEnv(Shelf(num_turns), tokenizer=chat),
        {"main": engine},
        module_of=lambda agent_id, episode: "main",
        num_envs=8,
        params=SamplingParams(len(action)),
        max_model_len=2**20,
    )
    begun = time.process_time()
    loop.submit([TaskGroup((0, 0, 0), None, NUM_TOTAL_TURNS // num_turns)], max_episode_steps=None)
    [group] = loop.finished_groups()
    samples = [sample for episode in group.episodes for sample in samples_from_episode(episode, lambda role: 0)]
    AdvantageRows(samples).return_N.sum()
    with TrajectoryWriter(folder) as writer:
        for episode in group.episodes:
            writer.append(make_records(episode, env_version="", train_step=0, max_episode_steps=None))
    seconds = time.process_time() - begun
    loop.close()
    return seconds, sum(map(len, samples))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", type=int, metavar="TURNS", help="where the time goes with so many turns")
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        play(5, Path(folder) / "first")
        if asked.profile:
            with cProfile.Profile() as profile:
                play(asked.profile, Path(folder) / "profile")
            pstats.Stats(profile).sort_stats("cumulative").print_stats(40)
            return
        cost = {}
        for num_turns in NUM_TURNS:
            runs = [play(num_turns, Path(folder) / f"{num_turns}_{k}") for k in range(asked.rounds)]
            cost[num_turns] = min(seconds / tokens for seconds, tokens in runs) * 1e6
    result = ", ".join(f"{num_turns} turns {us:.1f} us" for num_turns, us in cost.items())
    print_row([0], f"processor time per token: {result}", [cost[NUM_TURNS[-1]] / cost[NUM_TURNS[0]]])


if __name__ == "__main__":
    main()
