"""The weight sync against `Tensor.copy_` of the same bytes, with vLLM's own loading (before) and with the plan (after).

    .venv/bin/python benchmarks/weight_sync.py tiny
    .venv/bin/python benchmarks/weight_sync.py smollm2
    .venv/bin/python benchmarks/weight_sync.py smollm2 --weight-transfer broadcast
    .venv/bin/python benchmarks/weight_sync.py smollm2 --dtype bfloat16 --num-gpus 0.5     # on one GPU; 1: on two

The sync is all of it, from the call on the driver until the sampler says that it has the weights: what `sync_s` covers.
Learner and sampler are a run's own, the learner in the driver's process, the sampler in one of its own, on the same
machine; each has one thread. `smollm2` is of SmolLM2-135M's shape, with random weights. In each round the learner's
weights are copied, synced by vLLM's loading, and synced by the plan; printed are medians. Before and after differ only
in how the engine loads: what the learner hands over and how it travels is the same, and `--weight-transfer` says how.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from report import print_row

WARM_UP = 3  # Ray's object store writes into memory that it has never touched,
PAUSE_S = 0.5  # and again where the object before has not been freed; in training, seconds lie between two syncs


def make_smollm2(folder: str, dtype: str) -> str:
    """Write a model of SmolLM2-135M's shape with random weights, and the tiny model's tokenizer."""
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    from rllm_gym.models import TINY_MODEL_DIR

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=49_152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
        dtype=dtype,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    AutoTokenizer.from_pretrained(TINY_MODEL_DIR).save_pretrained(folder)
    return folder


def seconds(function: Callable[[], Any]) -> float:
    import torch

    begun = time.perf_counter()
    function()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - begun


def load_by(runner: Any, name: str) -> bool:
    """Let the runner's engine load by "reload" or "plan", the same weights once more; return whether it has a plan."""
    [engine] = runner.engines.values()
    runner.plan = getattr(runner, "plan", engine.load)
    engine.load = runner.plan if name == "plan" else engine.reload
    runner.forget_weights()
    return runner.plan != engine.reload


def measure(
    model: str, dtype: str, rounds: int, weight_transfer: str, num_gpus: float
) -> tuple[dict[str, list[float]], float]:
    """Return the seconds of each round, and the megabytes that move."""
    import ray
    import torch

    from rllm_gym.algorithms.grpo import GRPOConfig
    from rllm_gym.cli.ray_session import prepare_driver

    prepare_driver(None)
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=3 * 2**30)
    config = (
        GRPOConfig()
        .environment("rllm_gym:rllm_gym/TextCraft-v0")
        .rl_module(base_model=model)
        .env_runners(
            max_model_len=512, engine_options={"kv_cache_memory_bytes": 2**27}, num_gpus_per_env_runner=num_gpus
        )
        .learners(num_gpus_per_learner=num_gpus)
        .training(dtype=dtype, weight_transfer=weight_transfer)
    )
    algo = config.build_algo()
    torch.set_num_threads(config.num_learner_threads)
    weights = list({w.data_ptr(): w.detach() for w in algo.get_module().lm.state_dict().values()}.values())
    copies = [torch.empty_like(weight) for weight in weights]

    def copy() -> None:
        for mine, weight in zip(copies, weights, strict=True):
            mine.copy_(weight)

    found: dict[str, list[float]] = defaultdict(list)
    for number in range(WARM_UP + rounds):
        took = {"copy": seconds(copy)}
        for name in ("reload", "plan"):
            [is_planned] = algo.env_runner_group.foreach_env_runner(
                functools.partial(load_by, name=name), local_env_runner=False
            )
            if not is_planned:
                raise SystemExit("vLLM loads these weights by itself, its log says why; there is nothing to compare")
            time.sleep(PAUSE_S)
            took[name] = seconds(algo.sync_weights)
        for name, value in took.items() if number >= WARM_UP else ():
            found[name].append(value)
    algo.stop()
    ray.shutdown()
    return found, sum(weight.nbytes for weight in weights) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="`tiny`, `smollm2`, or a model's folder or name")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--weight-transfer", default="auto", choices=("auto", "object_store", "broadcast"))
    parser.add_argument("--num-gpus", type=float, default=0, help="of the learner, and of the sampler")
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = make_smollm2(folder, args.dtype) if args.model == "smollm2" else args.model
        found, megabytes = measure(model, args.dtype, args.rounds, args.weight_transfer, args.num_gpus)
    medians = {name: statistics.median(values) for name, values in found.items()}
    took = ", ".join(f"{name} {value * 1000:.1f} ms" for name, value in medians.items())
    before = medians["reload"] / medians["copy"]
    what = f"{args.model} {args.dtype}, {args.weight_transfer}, {megabytes:.0f} MB"
    result = f"{what}: medians: {took}; {before:.1f} copies before"
    print_row([0], result, [medians["plan"] / medians["copy"]])


if __name__ == "__main__":
    main()
