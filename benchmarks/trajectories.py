"""Measures what storing trajectories costs: per episode, as a share of rollout time, and in memory when reading.

    .venv/bin/python benchmarks/trajectories.py

Episodes are of the size of the tiny model's on TextCraft: 269 tokens, 52 of them sampled in three turns. At 2,500
sampled tokens/s an episode takes 21 ms of rollout time; both figures are settings, not measured here.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import tempfile
import time
from pathlib import Path

import numpy as np

from rllm_gym.data import TrajectoryWriter, make_records, read_episodes
from rllm_gym.types import AGENT, Episode, Stream, TaskGroup, Turn

OBSERVATION_TOKENS, ACTION_TOKENS = (150, 33, 34), (17, 17, 18)


def make_episode(rng: np.random.Generator, number: int) -> Episode:
    words = ["craft", "using", "get", "inventory", "oak", "planks", "stick", "iron", "ingot", "torch", "the", "1", "2"]
    stream = Stream(AGENT, "default_policy", messages=[{"role": "user", "content": " ".join(rng.choice(words, 120))}])
    for index, (num_observed, num_sampled) in enumerate(zip(OBSERVATION_TOKENS, ACTION_TOKENS, strict=True)):
        logp = np.log(rng.uniform(0.05, 1.0, num_sampled)).astype(np.float32)
        ids = rng.integers(0, 1375, num_observed), rng.integers(0, 1375, num_sampled)
        stream.turns.append(Turn(*ids, logp, policy_version=number // 64, env_step=index))
        stream.messages += [
            {"role": "assistant", "content": " ".join(rng.choice(words, 12))},
            {"role": "user", "content": " ".join(rng.choice(words, 8))},
        ]
    return Episode(
        f"0-{number // 64}-{number // 8 % 8}-{number % 8}",
        TaskGroup((0, number // 64, number // 8 % 8), "textcraft_17", 8),
        number % 8,
        seed=number,
        env_id="rllm_gym/TextCraft-v0",
        item_id="textcraft_17",
        streams={AGENT: stream},
        end_reason="terminated",
        info={"is_success": True, "category": "depth_1"},
        timings={"env_s": 0.001, "engine_s": 0.5, "total_s": 0.6},
    )


def peak_memory_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=64_000, help="episodes to write")
    parser.add_argument("--batch", type=int, default=64, help="episodes per append: one train step's")
    parser.add_argument("--sampled-tokens-per-s", type=float, default=2500.0, help="of the rollouts compared with")
    args = parser.parse_args()

    rng = np.random.default_rng(0)
    episodes = [make_episode(rng, number) for number in range(1024)]
    folder = Path(tempfile.mkdtemp(prefix="trajectories_"))
    appends = []
    try:
        writer = TrajectoryWriter(folder)
        for start in range(0, args.episodes, args.batch):
            begin = time.perf_counter()
            records = []
            for number in range(start, start + args.batch):
                records += make_records(
                    episodes[number % len(episodes)], env_version="0.1.0", train_step=0, max_episode_steps=4
                )
            writer.append(records)
            appends.append(time.perf_counter() - begin)
        begin = time.perf_counter()
        writer.close()
        close_s = time.perf_counter() - begin

        write_s = sum(appends) + close_s
        us = write_s / args.episodes * 1e6
        rollout_us = sum(ACTION_TOKENS) / args.sampled_tokens_per_s * 1e6
        print(f"episodes                    {args.episodes}")
        print(f"write, all included         {us:.0f} us per episode ({args.episodes / write_s:.0f} episodes/s)")
        print(f"share of rollout time       {us / rollout_us:.2%} (of {rollout_us / 1000:.1f} ms per episode)")
        print(f"append of {args.batch:<18}{np.median(appends):.4f} s (median), {max(appends):.2f} s where it seals")
        size = sum(path.stat().st_size for path in folder.iterdir())
        print(f"stored                      {size / args.episodes:.0f} bytes per episode, sealed")

        before = peak_memory_mb()
        reading = read_episodes(folder)
        for _ in range(1000):
            next(reading)
        early = peak_memory_mb()
        begin = time.perf_counter()
        num_read = 1000 + sum(1 for _ in reading)
        read_s = time.perf_counter() - begin
        assert num_read == len(appends) * args.batch
        print(f"read, validated             {(num_read - 1000) / read_s:.0f} records/s")
        print(f"peak memory, MB             {before:.0f}, {early:.0f} after 1000 records, then {peak_memory_mb():.0f}")
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
