"""Measures what reading trajectories for SFT or DPO takes: peak memory and rates, for few episodes and for many.

    .venv/bin/python benchmarks/offline_memory.py

Each folder is read in a process of its own, as an offline method's driver does: records to samples on disk, then every
sample once in shuffled order. If the trajectories were in memory, the rise would be about their size.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from rllm_gym.data import EpisodeRecord, EpochOrder, SampleFile, TrajectoryWriter, TurnRecord
from rllm_gym.tokens import ChatTokenizer
from rllm_gym.training.recorded_samples import SampleMaker, read_samples_of_path

TURNS, OBSERVATION_TOKENS, ACTION_TOKENS = 10, 80, 30


def make_record(rng: np.random.Generator, number: int) -> EpisodeRecord:
    turns = [
        TurnRecord(
            observation_ids=rng.integers(0, 1000, OBSERVATION_TOKENS).tolist(),
            action_ids=rng.integers(0, 1000, ACTION_TOKENS).tolist(),
            logp=rng.normal(-1, 0.3, ACTION_TOKENS).tolist(),
            reward=float(k == TURNS - 1),
            policy_version=0,
            env_step=k,
        )
        for k in range(TURNS)
    ]
    return EpisodeRecord(
        env_id="made up", episode_id=str(number), seed=number, messages=[], turns=turns, final_observation_ids=[],
        end_reason="terminated",
    )  # fmt: skip


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def read(store: Path, folder: Path, out: Connection) -> None:
    maker = SampleMaker(ChatTokenizer(), max_tokens=4096)
    before_mb, start = peak_mb(), time.perf_counter()
    samples = SampleFile(folder)
    for sample in read_samples_of_path(store, maker, min_return=None):
        samples.append(sample)
    read_s = time.perf_counter() - start
    order = EpochOrder(len(samples), seed=0)
    start = time.perf_counter()
    num_tokens = sum(len(samples[index]) for index in order.indices(0, len(samples)))
    out.send((peak_mb() - before_mb, num_tokens / read_s, num_tokens / (time.perf_counter() - start)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, nargs="+", default=[500, 10_000], help="of each folder to read")
    args = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    print(f"{'episodes':>9} {'JSON MB':>8} {'peak rises by MB':>17} {'tokens/s read':>14} {'tokens/s shuffled':>18}")
    for num_episodes in args.episodes:
        with tempfile.TemporaryDirectory() as scratch:
            store, rng, size = Path(scratch) / "trajectories", np.random.default_rng(0), 0
            with TrajectoryWriter(store) as writer:
                for number in range(num_episodes):
                    record = make_record(rng, number)
                    size += len(record.model_dump_json())
                    writer.append([record])
            mine, theirs = context.Pipe()
            process = context.Process(target=read, args=(store, Path(scratch) / "samples", theirs))
            process.start()
            rise_mb, read_rate, shuffled_rate = mine.recv()
            process.join()
        print(f"{num_episodes:9,} {size / 2**20:8.0f} {rise_mb:17.1f} {read_rate:14,.0f} {shuffled_rate:18,.0f}")


if __name__ == "__main__":
    main()
