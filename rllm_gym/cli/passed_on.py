"""Checks options that are passed on as they stand to vLLM, DeepSpeed and peft, which notice a fault late or never."""

from __future__ import annotations

import ast
import builtins
import importlib
import importlib.util
import inspect
import typing
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from rllm_gym.cli.options import evaluate, type_fault
from rllm_gym.cli.source import KeyPath
from rllm_gym.cli.sweeps import combinations
from rllm_gym.errors import nearest
from rllm_gym.rollout.engines import VLLM_FIXED_OPTIONS

Fault = tuple[KeyPath, str]  # the path below `config`, and what is wrong

# DeepSpeed ignores any other key in silence. Source: what deepspeed 0.19.8 looks up in its configuration.
_DEEPSPEED_HINTS: dict[str, Any] = {
    **dict.fromkeys(("gradient_clipping", "gradient_predivide_factor"), float),
    **dict.fromkeys(("sequence_parallel_size", "steps_per_print"), int),
    **dict.fromkeys(
        (
            "disable_allgather",
            "disable_python_gc",
            "dump_state",
            "memory_breakdown",
            "prescale_gradients",
            "wall_clock_breakdown",
            "zero_allow_untested_optimizer",
            "zero_force_ds_cpu_optimizer",
        ),
        bool,
    ),
    **dict.fromkeys(("communication_data_type", "gradient_allreduce_op", "log_level"), Any),
    **dict.fromkeys(
        (
            "activation_checkpointing",
            "aio",
            "autotuning",
            "bf16",
            "checkpoint",
            "comet",
            "comms_logger",
            "compile",
            "compression_training",
            "csv_monitor",
            "data_types",
            "datastates_ckpt",
            "elasticity",
            "expert_parallel",
            "flops_profiler",
            "fp16",
            "hybrid_engine",
            "monitor_config",
            "nebula",
            "optimizer",
            "scheduler",
            "tensor_parallel",
            "tensorboard",
            "timers",
            "torch_autocast",
            "wandb",
            "weight_quantization",
            "zero_optimization",
        ),
        dict,
    ),
}
# What the learner relies on, and where to set it.
_DEEPSPEED_ELSEWHERE: dict[KeyPath, str] = {
    ("train_batch_size",): "use `groups_per_step`, `group_size` and `num_minibatches`",
    ("train_micro_batch_size_per_gpu",): "use `tokens_per_micro_batch`",
    ("gradient_accumulation_steps",): "use `tokens_per_micro_batch`",
    ("zero_optimization", "stage"): "use `zero_stage`",
}
# DeepSpeed's own models of sections, which refuse unknown keys and wrong types.
_DEEPSPEED_MODELS = {
    "zero_optimization": ("deepspeed.runtime.zero.config", "DeepSpeedZeroConfig"),
    "bf16": ("deepspeed.runtime.precision_config", "DeepSpeedBF16Config"),
    "fp16": ("deepspeed.runtime.precision_config", "DeepSpeedFP16Config"),
}


def passed_on_faults(option: str, value: Any) -> Iterator[Fault]:
    """Yield what is wrong inside an option's mapping; every candidate of a sweep is looked at."""
    if option in _CHECKS and isinstance(value, dict):
        for options in combinations(value):
            yield from _CHECKS[option](option, options)


def _vllm_faults(option: str, options: Mapping[str, Any]) -> Iterator[Fault]:
    hints = {name: hint for name, hint in _engine_hints().items() if name not in VLLM_FIXED_OPTIONS}
    if hints:
        yield from _faults_by_hints(
            option, options, hints, {(name,): "the sampler sets it" for name in VLLM_FIXED_OPTIONS}
        )


def _engine_hints() -> dict[str, Any]:
    """Return {field: type hint} of vLLM's `EngineArgs`; {} where there is no vLLM.

    Read from its source, since importing it takes seconds and half a gigabyte. Types of its own stand for anything.
    """
    spec = importlib.util.find_spec("vllm")
    if spec is None or not spec.submodule_search_locations:
        return {}
    source = Path(spec.submodule_search_locations[0]) / "engine" / "arg_utils.py"
    for node in ast.parse(source.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef) and node.name == "EngineArgs":
            fields = [field for field in node.body if isinstance(field, ast.AnnAssign)]
            return {ast.unparse(f.target): evaluate(ast.unparse(f.annotation), vars(builtins)) for f in fields}
    return {}


def _lora_faults(option: str, options: Mapping[str, Any]) -> Iterator[Fault]:
    try:
        from peft import LoraConfig
    except ImportError:  # LLMModule says what to install
        return
    yield from _faults_by_hints(option, options, typing.get_type_hints(LoraConfig))


def _deepspeed_faults(option: str, options: Mapping[str, Any]) -> Iterator[Fault]:
    yield from _faults_by_hints(option, options, _DEEPSPEED_HINTS, _DEEPSPEED_ELSEWHERE)
    for section, (module, name) in _DEEPSPEED_MODELS.items():
        settings = options.get(section)
        if isinstance(settings, dict):
            yield from _model_faults((option, section), settings, getattr(importlib.import_module(module), name))
    if isinstance(scheduler := options.get("scheduler"), dict):
        yield from _scheduler_faults((option, "scheduler"), scheduler)


def _faults_by_hints(
    option: str, options: Mapping[str, Any], hints: Mapping[str, Any], elsewhere: Mapping[KeyPath, str] = {}
) -> Iterator[Fault]:
    for key, value in options.items():
        if (key,) in elsewhere:
            yield (option, key), f"config.{option}.{key} is not used here; {elsewhere[(key,)]}."
        elif key not in hints:
            yield (option, key), f"config.{option}: unknown key {key!r}; did you mean {nearest(key, hints)!r}?"
        elif value is not None and (reason := type_fault(f"{option}.{key}", value, hints[key])):
            yield (option, key), reason


def _model_faults(path: KeyPath, settings: dict[str, Any], model: Any) -> Iterator[Fault]:
    where = ".".join(map(str, path))
    for key in settings:
        if hint := _DEEPSPEED_ELSEWHERE.get((*path[1:], key)):
            yield (*path, key), f"config.{where}.{key} is not used here; {hint}."
    try:
        model(**settings)
    except ValidationError as error:
        for fault in error.errors():
            place = fault["loc"]
            if fault["type"] == "extra_forbidden":
                hint = f"; did you mean {nearest(place[-1], model.model_fields)!r}?" if len(place) == 1 else "."
                around = ".".join(map(str, (where, *place[:-1])))
                yield (*path, *place), f"config.{around}: unknown key {place[-1]!r}{hint}"
            else:
                what = ".".join(map(str, (where, *place)))
                yield (*path, *place), f"config.{what}: {fault['msg']}; got {fault['input']!r}."


def _scheduler_faults(path: KeyPath, scheduler: dict[str, Any]) -> Iterator[Fault]:
    schedules = importlib.import_module("deepspeed.runtime.lr_schedules")
    torch_schedules = importlib.import_module("torch.optim.lr_scheduler")
    where = ".".join(map(str, path))
    for key in scheduler.keys() - {"type", "params"}:
        yield (*path, key), f"config.{where}: unknown key {key!r}; did you mean {nearest(key, ('type', 'params'))!r}?"
    kind, params = scheduler.get("type"), scheduler.get("params") or {}
    make = getattr(schedules, str(kind), None) or getattr(torch_schedules, str(kind), None)
    if not inspect.isclass(make):
        known = schedules.VALID_LR_SCHEDULES
        yield (*path, "type"), f"config.{where}.type: unknown schedule {kind!r}; did you mean {nearest(kind, known)!r}?"
        return
    if not isinstance(params, dict):
        yield (*path, "params"), f"config.{where}.params must be a mapping; got {params!r}."
        return
    accepted = [name for name in inspect.signature(make).parameters if name != "optimizer"]
    for key in params:
        if key not in accepted:
            hint = f"config.{where}.params: unknown key {key!r}; did you mean {nearest(key, accepted)!r}?"
            yield (*path, "params", key), hint


_CHECKS: dict[str, Callable[[str, Mapping[str, Any]], Iterator[Fault]]] = {
    "engine_options": _vllm_faults,
    "lora": _lora_faults,
    "deepspeed": _deepspeed_faults,
    "critic_deepspeed": _deepspeed_faults,
}
