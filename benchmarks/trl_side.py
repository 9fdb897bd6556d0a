"""TRL's half of `against_trl.py`, which runs it in a virtual environment with TRL and this package's light core.

Prints one row per train step, as JSON lines.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from typing import Any

os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"

import gymnasium
import numpy as np
import torch
from datasets import Dataset
from trainer_vs_plain import reset_peak_memory, resident_memory_mb
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer


class Rows(TrainerCallback):
    """Prints what a train step took, and stops when the success has been reached."""

    def __init__(self, rollout: Rollout, target: float) -> None:
        self.rollout, self.target, self.successes = rollout, target, list[float]()

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        self.resident_mb = resident_memory_mb("VmRSS")
        reset_peak_memory()

    def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
        self.begun = time.perf_counter(), time.process_time()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        wall_s, cpu_s = time.perf_counter() - self.begun[0], time.process_time() - self.begun[1]
        row = self.rollout.last | {"update_s": wall_s - self.rollout.last["sampling_s"], "update_cpu_s": cpu_s}
        row["extra_mb"] = resident_memory_mb("VmHWM") - self.resident_mb
        print(json.dumps(row), flush=True)
        self.successes.append(row["success_rate"])
        control.should_training_stop = float(np.mean(self.successes[-5:])) >= self.target


class Rollout:
    """Plays TextCraft with TRL's own generation: every episode of the batch one turn further, until all are over."""

    def __init__(self, model: str, num_envs: int, horizon: int, env_config: dict[str, Any]) -> None:
        make = {**env_config, "tokenizer": model, "max_episode_steps": horizon}
        self.envs = [gymnasium.make("rllm_gym:rllm_gym/TextCraft-v0", **make) for _ in range(num_envs)]
        self.last: dict[str, Any] = {}

    def __call__(self, prompts: list[str], trainer: GRPOTrainer) -> dict[str, list[Any]]:
        begun = time.perf_counter()
        prompt_ids = [np.asarray(env.reset(seed=int(p))[0]).tolist() for env, p in zip(self.envs, prompts, strict=True)]
        completions, masks = [list[int]() for _ in prompts], [list[int]() for _ in prompts]
        returns, successes = [0.0] * len(prompts), [False] * len(prompts)
        going = list(range(len(prompts)))
        while going:
            replies, _ = trainer._generate_single_turn([prompt_ids[k] + completions[k] for k in going], None, {}, 1)
            still = []
            for k, reply in zip(going, replies, strict=True):
                observation, reward, terminated, truncated, info = self.envs[k].step(np.asarray(reply))
                completions[k] += reply
                masks[k] += [1] * len(reply)
                returns[k] += float(reward)
                successes[k] = info["is_success"]
                if not (terminated or truncated):
                    added = np.asarray(observation).tolist()
                    completions[k] += added
                    masks[k] += [0] * len(added)
                    still.append(k)
            going = still
        self.last = {
            "success_rate": float(np.mean(successes)),
            "sampling_s": time.perf_counter() - begun,
            "num_sampled_tokens": sum(map(sum, masks)),
            "num_trained_tokens": sum(map(len, prompt_ids)) + sum(map(len, completions)),
        }
        return {
            "prompt_ids": prompt_ids,
            "completion_ids": completions,
            "logprobs": None,  # TRL takes the trainer's own, as it does after its own generation
            "env_mask": masks,
            "returns": returns,
        }


class Recorded:
    """Returns sequences of random tokens of one length, half of them sampled, with random returns."""

    def __init__(self, num_tokens: int, vocabulary: int) -> None:
        self.num_tokens, self.vocabulary = num_tokens, vocabulary
        self.rng = np.random.default_rng(0)
        self.last: dict[str, Any] = {}

    def __call__(self, prompts: list[str], trainer: GRPOTrainer) -> dict[str, list[Any]]:
        half = self.num_tokens // 2
        tokens = self.rng.integers(3, self.vocabulary, (len(prompts), 2, half))
        trained = len(prompts) * self.num_tokens
        self.last = {"success_rate": 0.0, "sampling_s": 0.0, "num_trained_tokens": trained}
        return {
            "prompt_ids": tokens[:, 0].tolist(),
            "completion_ids": tokens[:, 1].tolist(),
            "logprobs": None,
            "env_mask": [[1] * half for _ in prompts],
            "returns": self.rng.normal(size=len(prompts)).tolist(),
        }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("folder", help="of what TRL writes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=85)
    parser.add_argument("--horizon", type=int, default=6)
    parser.add_argument("--target", type=float, default=2.0)
    parser.add_argument("--env-config", type=json.loads, default={})
    parser.add_argument("--batch", type=int, default=64, help="episodes of a train step")
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--micro-batch", type=int, default=64, help="sequences")
    parser.add_argument("--num-tokens", type=int, help="sequences of random tokens instead of TextCraft")
    parser.add_argument("--gradient-checkpointing", action="store_true", help="TRL's default")
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--threads", type=int, default=2)
    asked = parser.parse_args()

    torch.set_num_threads(asked.threads)
    model = AutoModelForCausalLM.from_pretrained(asked.model, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(asked.model)
    rollout: Any
    if asked.num_tokens is None:
        rollout = Rollout(asked.model, asked.batch, asked.horizon, asked.env_config)
    else:
        rollout = Recorded(asked.num_tokens, model.config.vocab_size)
    args = GRPOConfig(
        output_dir=asked.folder,
        seed=asked.seed,
        use_cpu=True,
        bf16=asked.bf16,
        gradient_checkpointing=asked.gradient_checkpointing,
        max_steps=asked.steps,
        per_device_train_batch_size=asked.micro_batch,
        gradient_accumulation_steps=asked.batch // asked.micro_batch,
        num_generations=asked.group,
        max_completion_length=48,
        temperature=1.0,
        learning_rate=1e-4,
        lr_scheduler_type="constant",
        epsilon=0.2,
        epsilon_high=0.28,
        beta=0.0,
        logging_steps=10**6,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    num_tasks = asked.steps * asked.batch // asked.group
    seeds = np.random.default_rng(asked.seed).choice(2**31, num_tasks, replace=False)
    trainer = GRPOTrainer(
        model,
        args=args,
        processing_class=tokenizer,
        reward_funcs=lambda returns, **_: returns,
        train_dataset=Dataset.from_list([{"prompt": str(seed)} for seed in seeds]),
        rollout_func=rollout,
        callbacks=[Rows(rollout, asked.target)],
    )
    trainer.train()


if __name__ == "__main__":
    main()
