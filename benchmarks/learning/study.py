"""The design of the study: horizon schedules, methods, budgets, seeds, and the order of the runs.

`plan.md` and `plan_textcraft.md` give the reasons for the schedules, `plan_methods.md` for the methods.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

SHORT, MIDDLE, LONG = 3, 6, 12  # horizons, in turns
HORIZONS = (SHORT, MIDDLE, LONG)
NUM_POINTS = 8  # at which the panel is read, of each budget
TURNS, TOKENS = 12_000, 204_000  # budgets of a run: environment turns, sampled tokens
TEXTCRAFT_TOKENS = 240_000  # its actions are longer
MAX_NEW_TOKENS = 48

FIXED = ("short", "middle", "long")
FIRST = (*FIXED, "scaling_inter", "random")
SECOND = ("adaptive", "tti", "long_to_short")
SCHEDULES = (*FIRST, *SECOND)

SEEDS = tuple(range(10))
SECOND_SEEDS = SEEDS[:5]
SEARCH_SEEDS = (100,)  # never reported
LRS = (5e-5, 1e-4, 2e-4)
SEARCHED = ("long", "scaling_inter")  # each of LRS; the other schedules take the lr of the one that is named here
LR_OF = {"short": "long", "middle": "long", "random": "scaling_inter", "adaptive": "scaling_inter"}
LR_OF |= {"tti": "scaling_inter", "long_to_short": "scaling_inter", "long_slow": "scaling_inter"}
SEARCH_SHARE = 0.5  # of the budgets
LONG_SLOW = "long_slow"  # the long horizon at ScalingInter's lr; exploratory, for the search chose it another
TROUBLE = "long_lr_x3"  # the paper's failing case: the long horizon at three times its lr
ALL_LONG = ("long", LONG_SLOW, TROUBLE)  # one schedule at several lrs
REPORTED = (*FIRST, LONG_SLOW, *SECOND, TROUBLE)

TEXTCRAFT_SCHEDULES = ("middle", "long", "scaling_inter", "random")  # the best of part 1, and the control
TEXTCRAFT_SEARCHED = ("middle", "long", "scaling_inter")  # all at one lr, the best of their mean
TEXTCRAFT_SEEDS = SEEDS[:5]
TEXTCRAFT_SLOW_LR = LRS[0]  # exploratory, for the search chose another
SEEDS_OF = {"babyai": SEEDS, "textcraft": TEXTCRAFT_SEEDS}

# Of each method: the algorithm, and options that differ from those of the schedules' runs. All play the long horizon.
OWN_LR: dict[str, tuple[str, dict[str, Any]]] = {  # searched
    "grpo": ("GRPO", {}),
    "ppo": ("PPO", {"critic_lr": 1e-3}),
    "rloo": ("RLOO", {}),
    "reinforce_pp": ("ReinforcePP", {}),
}
PRESETS = {f"preset_{name}": ("GRPO", {"preset": name}) for name in ("grpo", "dr_grpo", "dapo", "gspo", "gigpo")}
PRESET_LR = 5e-5
GRPO_SLOW = "grpo_slow"  # GRPO at the presets' lr; the search chose it another
METHODS = OWN_LR | PRESETS
METHOD_SEEDS = SEEDS[:5]
METHOD_SEARCH_SEEDS = (100, 101)
METHOD_LRS = (2.5e-5, 5e-5, 1e-4)


@dataclass(frozen=True)
class Run:
    """One training.

    Args:
        env: the name of its tasks.
        lr: of AdamW.
        turns, tokens: it ends when both budgets are spent.
        method: one of `METHODS`.
    """

    env: str
    schedule: str
    seed: int
    lr: float
    turns: int = TURNS
    tokens: int = TOKENS
    method: str = "grpo"

    @property
    def name(self) -> str:
        method = "" if self.method == "grpo" else f"{self.method}-"
        return f"{self.env}-{method}{self.schedule}-lr{self.lr:g}-seed{self.seed}"

    @property
    def content(self) -> dict[str, Any]:
        return asdict(self)


def horizon_of(run: Run, *, turns: int, train_step: int) -> int | None:
    """Return the horizon of a train step; None leaves it to the configuration.

    Args:
        turns: environment turns before this train step.
        train_step: counted from 0.
    """
    done = turns / run.turns
    third = min(int(3 * done), 2)
    match run.schedule:
        case "short":
            return SHORT
        case "middle":
            return MIDDLE
        case name if name in ALL_LONG:
            return LONG
        case "scaling_inter":
            return HORIZONS[third]
        case "long_to_short":
            return HORIZONS[2 - third]
        case "random":  # the control: what ScalingInter plays, in no order
            return int(np.random.default_rng((run.seed, train_step, 7)).choice(HORIZONS))
        case "tti":  # min(h_min * i, h_max) with i the tenth of the run; arXiv:2506.07976
            return min(SHORT * (int(10 * done) + 1), LONG)
        case "adaptive":
            return None
    raise ValueError(f"horizon_of: unknown schedule {run.schedule!r}.")


def search_runs() -> Iterator[Run]:
    """Yield the runs on seeds that are not reported: three lrs, then the other fixed horizons at the one chosen."""
    for seed in SEARCH_SEEDS:
        for schedule in SEARCHED:
            for lr in LRS:
                yield _for_search(Run("babyai", schedule, seed, lr))


def fixed_search_runs(lr: float) -> Iterator[Run]:
    for seed in SEARCH_SEEDS:
        for schedule in FIXED[:2]:
            yield _for_search(Run("babyai", schedule, seed, lr))


def textcraft_search_runs() -> Iterator[Run]:
    """Yield the runs of TextCraft on seeds that are not reported."""
    for seed in SEARCH_SEEDS:
        for lr in LRS:
            for schedule in TEXTCRAFT_SEARCHED:
                yield _for_search(_textcraft_run(schedule, seed, lr))


def textcraft_runs(lr: float) -> Iterator[Run]:
    """Yield the reported runs of TextCraft, seed by seed."""
    for seed in TEXTCRAFT_SEEDS:
        for schedule in TEXTCRAFT_SCHEDULES:
            yield _textcraft_run(schedule, seed, lr)


def textcraft_lrs(chosen: float) -> list[float]:
    """Return the lr that the search chose, then that of the exploratory runs, where it is another."""
    return list(dict.fromkeys((chosen, TEXTCRAFT_SLOW_LR)))


def method_search_runs(methods: Collection[str]) -> Iterator[Run]:
    """Yield the search of those of these methods that have an lr of their own."""
    for seed in METHOD_SEARCH_SEEDS:
        for method in (name for name in OWN_LR if name in methods):
            for lr in METHOD_LRS:
                yield _for_search(Run("babyai", "long", seed, lr, method=method))


def method_runs(methods: Collection[str], lrs: Mapping[str, float]) -> Iterator[Run]:
    """Yield the reported runs of these methods, seed by seed: those with an lr of their own, then the presets.

    Args:
        lrs: of each method that was searched.
    """
    for part in (OWN_LR, PRESETS):
        for seed in METHOD_SEEDS:
            for method in (name for name in part if name in methods):
                yield Run("babyai", "long", seed, lrs[method] if method in OWN_LR else PRESET_LR, method=method)


def grpo_runs_of_presets() -> Iterator[Run]:
    """Yield the runs that the presets are compared with."""
    for seed in METHOD_SEEDS:
        yield Run("babyai", "long", seed, PRESET_LR)


def _textcraft_run(schedule: str, seed: int, lr: float) -> Run:
    return Run("textcraft", schedule, seed, lr, tokens=TEXTCRAFT_TOKENS)


def _for_search(full: Run) -> Run:
    return replace(full, turns=int(full.turns * SEARCH_SHARE), tokens=int(full.tokens * SEARCH_SHARE))


def reported_runs(lrs: dict[str, float]) -> Iterator[Run]:
    """Yield the reported runs in their order: each part, seed by seed, is a result by itself.

    Args:
        lrs: of each of `SEARCHED`.
    """

    def lr_of(schedule: str) -> float:
        return lrs[LR_OF.get(schedule, schedule)]

    for seed in SEEDS:
        for schedule in FIRST:
            yield Run("babyai", schedule, seed, lr_of(schedule))
    for seed in SEEDS:
        yield Run("babyai", LONG_SLOW, seed, lr_of(LONG_SLOW))
    for seed in SECOND_SEEDS:
        for schedule in SECOND:
            yield Run("babyai", schedule, seed, lr_of(schedule))
    for seed in SECOND_SEEDS:
        yield Run("babyai", TROUBLE, seed, 3 * lrs["long"])
