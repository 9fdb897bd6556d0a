"""A panel: the tasks of one environment, with all that decides what an agent meets in them, as a file with a hash."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rllm_gym.errors import ConfigError
from rllm_gym.registration import SELECTION
from rllm_gym.rollout.environments import EnvironmentSpec, list_item_ids
from rllm_gym.rollout.loop import derive_seed
from rllm_gym.safe_options import check_safe_options
from rllm_gym.strangers_files import read_object
from rllm_gym.training.task_sampler import EVALUATION_STEP, evaluation_groups
from rllm_gym.types import SamplingParams, TaskGroup

ItemId = str | int | None
TEMPLATE_OPTIONS = ("chat_template_kwargs", "template_date")


@dataclass(frozen=True)
class Panel:
    """Tasks of an environment; `reset(seed=seeds[k], options={"item_id": item_ids[k]})` begins task k anywhere.

    Args:
        env: a Gymnasium id.
        env_config: keywords of the environment, without those that select tasks.
        item_ids: a task each; None lets the environment draw one by the seed.
        seeds: of the environment's resets, one for each task.
        horizon: in turns; None is no limit.
        sampling: how completions are sampled.
        samples: episodes of each task.
        split: what the tasks were drawn from; it names them and is not part of the hash.
        template: `chat_template_kwargs` and `template_date`, where they are set: what a policy reads depends on them.
        categories: of items that count as another category than the environment's own, which is not part of it, either.
    """

    env: str
    item_ids: Sequence[ItemId]
    seeds: Sequence[int]
    horizon: int | None
    sampling: SamplingParams
    samples: int = 1
    env_config: Mapping[str, Any] = field(default_factory=dict)
    split: str = "eval"
    categories: Mapping[str, str] = field(default_factory=dict)
    template: Mapping[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.item_ids)

    @property
    def content(self) -> dict[str, Any]:
        """The content that the hash is of."""
        return {
            "env": self.env,
            "env_config": dict(self.env_config),
            "item_ids": list(self.item_ids),
            "seeds": list(self.seeds),
            "horizon": self.horizon,
            "sampling": {**asdict(self.sampling), "samples": self.samples},
            **self.template,
        }

    @property
    def hash(self) -> str:
        """The SHA-256 of the content as JSON with sorted keys and without spaces."""
        text = json.dumps(self.content, sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def spec(self) -> EnvironmentSpec:
        return EnvironmentSpec(self.env.rpartition(":")[2].rpartition("/")[2], self.env, self.env_config)

    def groups(self, env_index: int) -> list[TaskGroup]:
        """Return the tasks to play; what is sampled depends on the panel alone, not on its place among others."""
        key = int(self.hash[:8], 16)
        return [
            TaskGroup((key, EVALUATION_STEP, k), item_id, self.samples, env_index, seed)
            for k, (item_id, seed) in enumerate(zip(self.item_ids, self.seeds, strict=True))
        ]

    def to_json(self) -> str:
        """Return the panel's file."""
        names = {"categories": dict(self.categories)} if self.categories else {}
        return json.dumps({"panel_hash": self.hash, "split": self.split, **self.content, **names}, indent=1) + "\n"


def make_panel(
    spec: EnvironmentSpec,
    *,
    split: str,
    num_tasks: int,
    samples: int,
    seed: int,
    horizon: int | None,
    sampling: SamplingParams,
    item_ids: Sequence[ItemId] | None = None,
    categories: Mapping[str, str] | None = None,
    template: Mapping[str, Any] | None = None,
) -> Panel:
    """Return a panel of `num_tasks` tasks over a split's items, as evenly as can be.

    Args:
        seed: of the order of the tasks and of their environments.
        item_ids: these tasks instead, in this order.
        categories: see `Panel`.
        template: options of a run, of which `chat_template_kwargs` and `template_date` become part of the panel.

    Raises:
        ConfigError: `env_config` cannot be written as JSON.
    """
    found: Sequence[ItemId] | None = item_ids
    if item_ids is None:
        found = list_item_ids(spec, split)
        item_ids = [group.item_id for group in evaluation_groups({0: found}, num_tasks, seed=seed)]
    # What selects tasks has done so, unless the environment draws them by the seed.
    selection = SELECTION if found is not None else ()
    env_config = {key: value for key, value in spec.with_split(split).env_config.items() if key not in selection}
    env_config = _as_json("env_config", env_config)
    seeds = [derive_seed(seed, EVALUATION_STEP, k) for k in range(len(item_ids))]
    fixed = {name: value for name in TEMPLATE_OPTIONS if (value := (template or {}).get(name))}
    return Panel(
        str(spec.env),
        list(item_ids),
        seeds,
        horizon,
        sampling,
        samples,
        env_config,
        split,
        categories or {},
        _as_json("chat_template_kwargs", fixed),
    )


def _as_json(name: str, value: Any) -> Any:
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"panel: {name} must be what JSON can hold; got {value!r} ({error}). Use texts, numbers and lists."
        ) from error


def read_panel(path: Path, *, is_trusted: bool = False) -> Panel:
    """Return the panel in a file.

    Args:
        is_trusted: it may name modules, files and addresses; else what `check_safe_options` lets anybody set.

    Raises:
        ConfigError: it is none, or not as it was written, or it names what only a trusted one may.
    """
    try:
        content = read_object(path)
        sampling = dict(content["sampling"])
        samples = sampling.pop("samples")
        panel = Panel(
            content["env"],
            content["item_ids"],
            content["seeds"],
            content["horizon"],
            SamplingParams(**sampling),
            samples,
            content["env_config"],
            content["split"],
            content.get("categories", {}),
            {name: content[name] for name in TEMPLATE_OPTIONS if name in content},
        )
        is_whole = len(panel.item_ids) == len(panel.seeds) > 0
        written = content["panel_hash"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"panel: must be a file that `rllm-gym panel` wrote; got {str(path)!r} ({type(error).__name__}: {error})."
        ) from error
    if not is_whole or panel.hash != written:
        raise ConfigError(
            f"panel: {str(path)!r} is not as it was written: its content has the hash {panel.hash[:12]}, and it says "
            f"{str(written)[:12]}. Make another one with `rllm-gym panel`."
        )
    if not is_trusted:
        what_to_do = "If you trust who made it as you would their code, give --trust-panel."
        check_safe_options(f"panel: {str(path)!r}", panel.env, panel.env_config, what_to_do)
    return panel


def hash_panels(panels: Sequence[Panel]) -> str:
    """Return the hash that names an evaluation on these panels: that of one, or that of the hashes of several."""
    hashes = sorted(panel.hash for panel in panels)
    return hashes[0] if len(hashes) == 1 else hashlib.sha256("".join(hashes).encode()).hexdigest()
