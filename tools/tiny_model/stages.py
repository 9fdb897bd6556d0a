"""The stages of the tiny model's training: each is one run of SFT on a file of conversations."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rllm_gym.checkpoints import newest_checkpoint
from tools.tiny_model.episodes import ExpertEpisode, Plan
from tools.tiny_model.sources import Sources

if TYPE_CHECKING:
    from rllm_gym.algorithms.sft import SFTConfig

# Tasks and replies count a little: they repeat themselves, and what predicts repetitions also copies names.
ENV_WEIGHT = 0.2
WEB_RATE = 0.5  # how many of the last stage's episodes are drawn from the web's environments
MAX_TOKENS = 2048  # of one episode
CHECKPOINT_EVERY = 50  # train steps


@dataclass(frozen=True)
class Stage:
    """One run of SFT.

    Args:
        name: of its files.
        num_steps: train steps, each with one optimizer step.
        plan: how the experts play.
        renamed_rate: how many of the episodes are under other names.
        web_rate: how many of the episodes are drawn from the web's environments alone.
        lr: AdamW's learning rate, after the warm-up.
        is_falling: let it fall to 0.
    """

    name: str
    num_steps: int
    plan: Plan
    renamed_rate: float
    lr: float
    is_falling: bool = True
    web_rate: float = 0.0


@dataclass(frozen=True)
class Settings:
    """The settings that the weights depend on; see the options of `tools.tiny_model.train`."""

    seed: int = 0
    reading_steps: int = 500
    practice_steps: int = 550
    mistakes_steps: int = 120
    web_steps: int = 400
    mistake_rate: float = 0.5
    repeat_rate: float = 0.6
    batch_size: int = 16
    lr: float = 2e-3
    mistakes_lr: float = 5e-4
    web_lr: float = 1.5e-3
    warmup_steps: int = 40
    bf16: bool = True
    threads: int = 1

    @property
    def stages(self) -> tuple[Stage, ...]:
        """Reading, with names exchanged in most episodes; practice; many mistakes in simple tasks; then the web."""
        plan = Plan(0.1, 0.3, 0.04, max_turns=8, max_chars=1200)  # short episodes, to see many
        mistakes = replace(plan, mistakes_in={"depth_1": (self.mistake_rate, self.repeat_rate)})
        return (
            Stage("reading", self.reading_steps, plan, 0.9, self.lr, is_falling=False),
            Stage("practice", self.practice_steps, plan, 0.3, self.lr),
            Stage("mistakes", self.mistakes_steps, mistakes, 0.3, self.mistakes_lr),
            Stage("web", self.web_steps, mistakes, 0.3, self.web_lr, web_rate=WEB_RATE),
        )


def draw_episodes(stage: Stage, sources: Sources, settings: Settings) -> Iterator[ExpertEpisode]:
    """Yield as many episodes as the stage sees; number k depends on the seed, the stage and k alone."""
    for k in range(stage.num_steps * settings.batch_size):
        rng = np.random.default_rng(np.random.SeedSequence((settings.seed, *stage.name.encode(), k)))
        yield sources.draw(rng, stage.plan, stage.renamed_rate, stage.web_rate)


def write_conversations(path: Path, played: Iterable[ExpertEpisode]) -> None:
    """Write episodes as chat messages in JSON Lines; the file is there once it is whole."""
    scratch = path.with_suffix(".new")
    with scratch.open("w", encoding="utf-8") as file:
        for episode in played:
            file.write(json.dumps({"item_id": episode.item_id, "messages": episode.messages}) + "\n")
    scratch.rename(path)


def sft_config(stage: Stage, settings: Settings, *, data: Path, base_model: Path) -> SFTConfig:
    """Return the configuration of a stage's run."""
    from rllm_gym.algorithms.sft import SFTConfig

    schedule: dict[str, Any] = {
        "warmup_type": "linear",
        "warmup_max_lr": stage.lr,
        "warmup_num_steps": settings.warmup_steps,
    }
    if stage.is_falling:
        schedule["total_num_steps"] = stage.num_steps
    return (
        SFTConfig()
        .offline_data(data=str(data.absolute()), observation_weight=ENV_WEIGHT)
        .rl_module(base_model=str(base_model))
        .env_runners(max_model_len=MAX_TOKENS)
        .training(
            lr=stage.lr,
            samples_per_step=settings.batch_size,
            weight_decay=0.01,
            adam_betas=(0.9, 0.98),
            grad_clip=1.0,
        )
        .learners(
            tokens_per_micro_batch=4096,
            zero_stage=0,
            deepspeed={
                "scheduler": {"type": "WarmupDecayLR" if stage.is_falling else "WarmupLR", "params": schedule},
                "torch_autocast": {"enabled": settings.bf16, "dtype": "bfloat16"},
            },
        )
        .debugging(seed=settings.seed)
    )


def run_stage(stage: Stage, config: SFTConfig, folder: Path, *, threads: int) -> Path:
    """Train, and return the last checkpoint; a line every 10 train steps says how it goes.

    Args:
        folder: of the checkpoints; what it holds from an interrupted run is gone on from.
        threads: CPU threads.
    """
    import torch

    algo = config.build_algo()
    try:
        if interrupted := newest_checkpoint(folder):
            algo.restore_from_path(interrupted.path)
            say(f"{stage.name}: going on from step {algo.training_iteration}.")
        torch.set_num_threads(threads)  # the learner took all cores
        losses, num_tokens, start_s = list[float](), 0.0, time.monotonic()
        for step in range(algo.training_iteration + 1, stage.num_steps + 1):
            learnt = algo.train()["learners"]["default_policy"]
            losses.append(learnt["loss"])
            num_tokens += learnt["num_tokens_trained"]
            if step % 10 == 0 or step == stage.num_steps:
                seconds = time.monotonic() - start_s
                say(
                    f"{stage.name}: step {step}/{stage.num_steps}  loss {np.mean(losses):.4f}  "
                    f"{num_tokens:,.0f} tokens  {num_tokens / seconds:,.0f} tokens/s  {seconds:.0f} s"
                )
                losses.clear()
            if step % CHECKPOINT_EVERY == 0 or step == stage.num_steps:
                path = (folder / f"checkpoint_{step:06d}").absolute()
                algo.save_to_path(path)
                for other in path.parent.glob("checkpoint_*"):
                    if other != path:
                        shutil.rmtree(other)
    finally:
        algo.stop()
        shutil.rmtree(algo.logdir, ignore_errors=True)  # RLlib makes one under ~/ray_results
    last = newest_checkpoint(folder)
    assert last is not None
    return last.path


def say(line: str) -> None:
    print(line, flush=True)  # progress is of use while it happens, also in a log file
