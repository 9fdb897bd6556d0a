"""The update with and without reading a group's common beginning once (`share_prefixes`).

    .venv/bin/python benchmarks/shared_prefixes.py tiny
    .venv/bin/python benchmarks/shared_prefixes.py smollm2 --groups 1 --group-size 8 --updates 1

Groups of random tokens: each has a first prompt that its samples share, and each sample goes on with turns of its own.
For each size a process without and one with sharing update on the same samples, with one thread; the first update is
not timed. Both must report the same losses. Extra memory is the peak over the updates, minus what was resident when all
was built. `smollm2` is of SmolLM2-135M's shape, with random weights.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from typing import Any

import numpy as np
from report import print_row
from separate_runs import apart
from trainer_vs_plain import reset_peak_memory, resident_memory_mb
from weight_sync import make_smollm2

SIZES = ((100, 60), (256, 64), (600, 200), (600, 1400))  # tokens of the prompt, and of what goes on after it
LOSS_TOLERANCE = 1e-4


def make_samples(vocabulary: int, groups: int, group_size: int, prompt: int, rest: int) -> list[Any]:
    from rllm_gym.types import Sample

    rng, samples = np.random.default_rng(0), []
    for _ in range(groups):
        begin = rng.integers(0, vocabulary, prompt)
        for _ in range(group_size):
            tokens = np.r_[begin, rng.integers(0, vocabulary, rest)]
            # A third of what goes on is sampled, as in TextCraft's episodes.
            weight = np.r_[np.zeros(prompt), np.arange(rest) % 3 == 0].astype(np.float32)
            samples.append(
                Sample(
                    tokens,
                    weight,
                    old_logp=np.full(len(tokens), -np.log(vocabulary), np.float32),
                    advantage=weight * np.float32(rng.normal()),
                    episode=str(len(samples)),
                )
            )
    return samples


def measure(model: str, share: bool, groups: int, group_size: int, prompt: int, rest: int, updates: int) -> dict:
    from gymnasium.spaces import Discrete
    from ray.rllib.core.learner.learner_group import LearnerGroup
    from ray.rllib.utils.spaces.repeated import Repeated

    from rllm_gym.algorithms.grpo import GRPOConfig
    from rllm_gym.learner.batch import Batch, SampleData, collate

    config = GRPOConfig().rl_module(base_model=model).learners(share_prefixes=share)
    space = Repeated(Discrete(2), 1)  # the module reads its vocabulary from the model
    spec = config.get_multi_rl_module_spec(spaces={"default_policy": (space, space)})
    group = LearnerGroup(config=config, module_spec=spec)
    learner = group._learner
    vocabulary = learner.module["default_policy"].bare_lm.config.vocab_size
    samples = make_samples(vocabulary, groups, group_size, prompt, rest)
    parts = learner.micro_batches("default_policy", Batch.from_mapping(collate(samples)))
    num_read = sum(p.packing.num_rows * p.packing.width if p.packing else p.batch.tokens.numel() for p in parts)
    resident_mb = resident_memory_mb("VmRSS")
    reset_peak_memory()
    seconds, losses = [], []
    for _ in range(1 + updates):
        begun = time.process_time()
        results = group.update(training_data=SampleData(episodes=samples), timesteps={})
        seconds.append(time.process_time() - begun)
        losses.append(float(results[0]["default_policy"]["policy_loss"].peek()))
    extra_mb = resident_memory_mb("VmHWM") - resident_mb
    found = {"cpu_s": statistics.median(seconds[1:]), "extra_mb": extra_mb, "losses": losses}
    return found | {"num_read": num_read, "knee": learner._knees["default_policy"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="`tiny`, `smollm2`, or a model's folder")
    parser.add_argument("--groups", type=int, default=4)
    parser.add_argument("--group-size", type=int, default=16)
    parser.add_argument("--updates", type=int, default=3, help="timed ones in each process")
    parser.add_argument("--sizes", type=json.loads, default=SIZES, help="[[prompt, rest], ...]")
    parser.add_argument("--one", type=json.loads, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one is not None:
        print(json.dumps(measure(args.model, *args.one)))
        return
    with tempfile.TemporaryDirectory() as folder:
        model = make_smollm2(folder, "float32") if args.model == "smollm2" else args.model
        for prompt, rest in args.sizes:
            found = []
            for share in (False, True):
                settings = [share, args.groups, args.group_size, prompt, rest, args.updates]
                found.append(json.loads(apart(model, "--one", json.dumps(settings)).splitlines()[-1]))
            alone, shared = found
            difference = np.abs(np.subtract(alone["losses"], shared["losses"])).max()
            if difference > LOSS_TOLERANCE:
                raise SystemExit(f"the two do not train the same: losses differ by {difference:.2g} in {found}")
            result = (
                f"{args.model}, {args.groups} groups of {args.group_size}, prompt {prompt}, then {rest} tokens: reads "
                f"{alone['num_read']} and {shared['num_read']} tokens, {alone['cpu_s']:.2f} and {shared['cpu_s']:.2f} "
                f"CPU s an update, {alone['extra_mb']:.0f} and {shared['extra_mb']:.0f} MiB extra "
                f"(knee {alone['knee']:.0f})"
            )
            print_row([0], result, [shared["cpu_s"] / alone["cpu_s"]])
            sys.stdout.flush()


if __name__ == "__main__":
    main()
