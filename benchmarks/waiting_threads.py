"""Measures vLLM's decoding speed, alone and beside a trainer, for several times that idle OpenMP threads spin.

    .venv/bin/python benchmarks/waiting_threads.py --model models/smollm2-135m-instruct   # half an hour on two cores

Between two operations a thread spins for a while before it sleeps. Spinning takes a core from other processes; falling
asleep and being woken takes time. vLLM decodes for 32 prompts on all cores. In the second part another process reads
2,048 tokens forward and backward over and over, also on all cores. Each round tries every setting once.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from typing import Any

from report import print_row

# GOMP_SPINCOUNT is how often an idle thread looks for work before it sleeps; GNU's own default is 300,000.
SETTINGS: dict[str, dict[str, str]] = {
    "asleep at once": {"OMP_WAIT_POLICY": "passive"},
    "2,000": {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "2000"},
    "20,000": {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "20000"},
    "OpenMP's default": {},
}
NUM_PROMPTS, NEW_TOKENS, TRAINED_TOKENS = 32, 64, 2048
BLOCK = 32  # tokens of the cache
PROMPT_TOKENS = 12 * BLOCK + 1  # whole blocks are cached, and one token is read


def sample(model: str) -> float:
    """Return tokens per second of vLLM's decoding; prompts are cached."""
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_LOGGING_LEVEL": "ERROR"}
    from vllm import LLM, SamplingParams

    llm = LLM(
        model, dtype="float32", max_model_len=1024, enforce_eager=True, max_num_seqs=NUM_PROMPTS, block_size=BLOCK
    )
    prompts: Any = [
        {"prompt_token_ids": [(7 * i + j) % 4000 + 100 for j in range(PROMPT_TOKENS)]} for i in range(NUM_PROMPTS)
    ]
    took = []
    for new_tokens in (NEW_TOKENS, 1, NEW_TOKENS):  # the first compiles
        begun = time.perf_counter()
        options = SamplingParams(temperature=1.0, max_tokens=new_tokens, ignore_eos=True, logprobs=0)
        llm.generate(prompts, options, use_tqdm=False)
        took.append(time.perf_counter() - begun)
    return NUM_PROMPTS * (NEW_TOKENS - 1) / (took[2] - took[1])


def train(model: str) -> None:
    """Read tokens forward and backward until the end; print a line after each."""
    import torch

    from rllm_gym.learner.rl_module import load_language_model

    lm = load_language_model(model, "float32")
    tokens = (torch.arange(TRAINED_TOKENS) % 4000)[None] + 100
    while True:
        lm(input_ids=tokens, use_cache=False).logits[:, ::8].logsumexp(-1).sum().backward()
        lm.zero_grad()
        print(time.monotonic(), flush=True)


def start(what: str, model: str, setting: dict[str, str]) -> subprocess.Popen[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
    command = [sys.executable, __file__, "--model", model, "--child", what]
    return subprocess.Popen(command, env=clean | setting, stdout=subprocess.PIPE, text=True)


def measure(model: str, setting: dict[str, str], *, beside: bool) -> dict[str, float]:
    if not beside:
        return {"sampled": sampled(model, setting)}
    with start("train", model, setting) as trainer:
        try:
            assert trainer.stdout is not None
            trainer.stdout.readline()  # it is loaded
            begun = time.monotonic()
            found = {"sampled": sampled(model, setting)}
            ended = time.monotonic()
        finally:
            trainer.terminate()
        steps = [float(line) for line in trainer.stdout.read().splitlines()]
    return found | {"trained": TRAINED_TOKENS * sum(begun < at < ended for at in steps) / (ended - begun)}


def sampled(model: str, setting: dict[str, str]) -> float:
    """Return what `sample` returns in a process of its own."""
    sampler = start("sample", model, setting)
    out, _ = sampler.communicate()
    if sampler.returncode:
        raise SystemExit("sample: failed. Its error is above.")
    return float(out.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--child", choices=("sample", "train"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child == "sample":
        print(json.dumps(sample(args.model)))
        return
    if args.child == "train":
        train(args.model)
    for beside in (False, True):
        rates: dict[tuple[str, str], list[float]] = defaultdict(list)
        for number in range(args.rounds):
            for name, setting in SETTINGS.items():
                for what, rate in measure(args.model, setting, beside=beside).items():
                    rates[name, what].append(rate)
                    print(f"round {number}, {name}, {what}: {rate:.0f} tokens/s", file=sys.stderr, flush=True)
        medians = {key: statistics.median(values) for key, values in rates.items()}
        base = next(iter(SETTINGS))
        for name in list(SETTINGS)[1:]:
            parts = [f"{what} {value:.0f} ({value / medians[base, what]:.2f})"
                     for (of, what), value in medians.items() if of == name]  # fmt: skip
            result = f"{'beside a trainer' if beside else 'alone'}, {name}: {', '.join(parts)} tokens/s"
            ratios = [a / b for a, b in zip(rates[name, "sampled"], rates[base, "sampled"], strict=True)]
            print_row([0], result, ratios)


if __name__ == "__main__":
    main()
