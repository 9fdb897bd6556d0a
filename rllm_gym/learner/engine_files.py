"""The files of engines in a checkpoint, and their conversion to another number of learners or another ZeRO stage."""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch
import torch.distributed as dist

from rllm_gym.errors import RllmGymError
from rllm_gym.learner.libraries import import_deepspeed, import_universal_checkpoint

TAG = "engine"
SKIPPED = "num_skipped_steps"
MASTER = "fp32"  # as DeepSpeed's universal checkpoint names the float32 copy of a 16-bit weight
MOMENTS = ("exp_avg", "exp_avg_sq")  # Adam's
STEP = "step"
OPTIMIZER = "optimizer_state.pt"


class Layout(NamedTuple):
    """The layout of an optimizer's state in an engine and in its files.

    Args:
        stages: of ZeRO: "0" each learner has all of it; "1 or 2" a part of it; "3" of the weights, too.
        num_learners: among whom it is split; 1 at stage 0.
        has_masters: whether float32 copies of bfloat16 weights are part of it.
    """

    stages: str
    num_learners: int
    has_masters: bool

    def __str__(self) -> str:
        dtype = "bfloat16" if self.has_masters else "float32"
        if self.stages == "0":
            return f"ZeRO stage 0 ({dtype})"
        return f"ZeRO stage {self.stages} with {self.num_learners} learner{'s' * (self.num_learners > 1)} ({dtype})"


def save_engines(engines: Mapping[str, Any], folder: str, num_skipped_steps: Mapping[str, int]) -> None:
    """Write every module's engine, with its count of skipped steps (collective: every learner must be asked).

    RLlib's files have the weights; DeepSpeed would write them again.
    """
    for module_id, engine in engines.items():
        client_state = {SKIPPED: num_skipped_steps.get(module_id, 0)}
        with mock.patch.object(engine, "module_state_dict", return_value={}):
            engine.save_checkpoint(
                f"{folder}/{module_id}", tag=TAG, client_state=client_state, exclude_frozen_parameters=True
            )


def engines_to_convert(engines: Mapping[str, Any], folder: str) -> dict[str, tuple[Layout, Layout]]:
    """Return the modules whose files were written by other learners or at another stage, with both layouts.

    Raises:
        RllmGymError: the checkpoint lacks a module, or its optimizer is none that can be converted.
    """
    layouts = {id_: (_layout_of_files(Path(folder, id_, TAG)), _layout_of(engine)) for id_, engine in engines.items()}
    changed = {id_: (before, now) for id_, (before, now) in layouts.items() if before != now}
    for module_id, (before, now) in changed.items():
        optimizer = type(engines[module_id].basic_optimizer).__name__
        if optimizer != "AdamW":
            raise RllmGymError(
                f"DeepSpeedLearner: only AdamW's state can be converted from {before} to {now}; got {optimizer}. "
                "Resume with the number of learners and the ZeRO stage that wrote it."
            )
    return changed


def convert_engines(engines: Mapping[str, Any], module_ids: Iterable[str], folder: str, converted: str) -> None:
    """Write the states of modules' optimizers into another folder, each weight's whole; of all learners one does it.

    Raises:
        RllmGymError: the files are not what DeepSpeed writes for AdamW.
    """
    for module_id in module_ids:
        source, target = Path(folder, module_id, TAG), Path(converted, module_id, TAG)
        target.mkdir(parents=True)
        with _errors_in_one_line(source):
            if _layout_of_files(source).stages == "0":
                _gather_whole_states(engines[module_id], source, target)
                continue
            arguments = argparse.Namespace(
                input_folder=str(source),
                output_folder=str(target),
                num_extract_workers=1,
                num_merge_workers=1,
                keep_temp_folder=False,
                strict=False,
                inject_missing_state=True,  # what only tensor parallelism has
            )
            with (
                open(os.devnull, "w") as nowhere,
                contextlib.redirect_stdout(nowhere),
                contextlib.redirect_stderr(nowhere),
            ):
                import_universal_checkpoint().main(arguments)


def load_engines(
    engines: Mapping[str, Any], folder: str, num_skipped_steps: MutableMapping[str, int], converted: str | None = None
) -> None:
    """Load the engines that `save_engines` wrote (collective), and `num_skipped_steps`.

    The modules' weights are loaded already: these are RLlib's files.

    Args:
        converted: where `convert_engines` wrote the modules that it was asked for.

    Raises:
        RllmGymError: the checkpoint lacks a module, or was written by another number of learners or ZeRO stage.
    """
    for module_id, engine in engines.items():
        path = Path(folder, module_id)
        settings = [_settings_of(group) for group in engine.basic_optimizer.param_groups]
        with _errors_in_one_line(path):
            if converted is not None and Path(converted, module_id).is_dir():
                client_state = _load_converted(engine, path / TAG, Path(converted, module_id, TAG))
            else:
                loaded, client_state = engine.load_checkpoint(str(path), tag=TAG, load_module_strict=False)
                if loaded is None:
                    raise FileNotFoundError(path)
        num_skipped_steps[module_id] = client_state[SKIPPED]
        # The configuration says how it goes on, not the checkpoint; but a schedule goes on where it was.
        for group, configured in zip(engine.basic_optimizer.param_groups, settings, strict=True):
            kept = ("lr", "initial_lr") if engine.lr_scheduler is not None else ()
            group.update({name: value for name, value in configured.items() if name not in kept})


def _settings_of(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return a parameter group's learning rate, betas and so on."""
    return {name: value for name, value in group.items() if name != "params"}


@contextlib.contextmanager
def _errors_in_one_line(path: Path) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # DeepSpeed raises anything from AssertionError to KeyError here
        raise RllmGymError(
            f"DeepSpeedLearner: cannot load the optimizer's state in {path} ({type(error).__name__}: {error}). Resume "
            "with the options that wrote it, or start a new run from its exported model."
        ) from error


# --- layouts ---


def _layout_of(engine: Any) -> Layout:
    stage = engine.zero_optimization_stage()
    stages = "1 or 2" if stage in (1, 2) else str(stage)  # which write the same files
    return Layout(stages, dist.get_world_size() if stage else 1, engine.bfloat16_enabled())


def _layout_of_files(folder: Path) -> Layout:
    shards = list(folder.glob("*zero_pp_rank_*_optim_states.pt"))
    if shards:
        stages = "3" if any(folder.glob("zero_pp_rank_*_model_states.pt")) else "1 or 2"
        return Layout(stages, len(shards), shards[0].name.startswith("bf16_"))
    with _errors_in_one_line(folder):
        return Layout("0", 1, "fp32_groups" in _read_common(folder)["optimizer"])


def _read_common(folder: Path) -> dict[str, Any]:
    """Read the first learner's file beside the optimizer's shards; at stage 0 it holds the optimizer's state."""
    file = next(iter(sorted(folder.glob("*mp_rank_00_model_states.pt"))), folder / "mp_rank_00_model_states.pt")
    return torch.load(file, map_location="cpu", mmap=True, weights_only=False)


# --- one weight after the other, whole: <folder>/zero/<weight>/<state>.pt ---


def _trained_parameters(engine: Any) -> Iterator[tuple[str, torch.nn.Parameter]]:
    return ((name, parameter) for name, parameter in engine.module.named_parameters() if parameter.requires_grad)


def _gather_whole_states(engine: Any, source: Path, target: Path) -> None:
    """Write stage 0's files as DeepSpeed's own conversion, which looks for a file of shards, writes the others'."""
    saved = _read_common(source)["optimizer"]
    masters = [master for group in saved.get("fp32_groups", ()) for master in group]
    optimizer = saved.get("optimizer_state_dict", saved)  # beside masters it stands one deeper
    for number, (name, _) in enumerate(_trained_parameters(engine)):
        folder = target / "zero" / name
        folder.mkdir(parents=True)
        state = dict(optimizer["state"].get(number, {}))
        if masters:
            state[MASTER] = masters[number]
        for key, value in state.items():
            torch.save(value, folder / f"{key}.pt")
    torch.save({"param_groups": optimizer["param_groups"]}, target / "zero" / OPTIMIZER)


def _load_converted(engine: Any, source: Path, converted: Path) -> dict[str, Any]:
    """Give an engine the states that `convert_engines` wrote; return what else `save_engines` had written."""
    optimizer = torch.load(converted / "zero" / OPTIMIZER, map_location="cpu", weights_only=False)
    if engine.zero_optimization_stage() == 0:
        _load_whole_states(engine, converted, optimizer)
    else:
        _load_shards(engine, converted, optimizer)
    common = _read_common(source)
    if engine.lr_scheduler is not None:
        engine.lr_scheduler.load_state_dict(common["lr_scheduler"])
        for group, saved in zip(engine.basic_optimizer.param_groups, optimizer["param_groups"], strict=True):
            group.update({name: saved[name] for name in ("lr", "initial_lr") if name in saved})
    engine.global_steps, engine.skipped_steps = common["global_steps"], common["skipped_steps"]
    return common


def _load_whole_states(engine: Any, converted: Path, optimizer: Mapping[str, Any]) -> None:
    trained = [p for group in engine.basic_optimizer.param_groups for p in group["params"]]  # weights, or their masters
    for (name, _), parameter in zip(_trained_parameters(engine), trained, strict=True):
        state = _read_states(converted, name, optimizer)
        if (master := state.pop(MASTER, None)) is not None:
            parameter.data.copy_(master.view_as(parameter))
        if STEP in state:
            moments = {key: state[key].view_as(parameter).to(parameter.device) for key in MOMENTS}
            engine.basic_optimizer.state[parameter] = {STEP: state[STEP], **moments}


def _load_shards(engine: Any, converted: Path, optimizer: Mapping[str, Any]) -> None:
    trained = list(_trained_parameters(engine))
    step = _read_states(converted, trained[0][0], optimizer).get(STEP)  # the same of all; none before the first
    if step is not None:
        _make_shards(engine, step)
    utils = import_deepspeed().utils
    for name, parameter in trained:
        state = _read_states(converted, name, optimizer)
        if MASTER in state:
            utils.safe_set_full_fp32_param(parameter, state[MASTER])
        for key in MOMENTS if step is not None else ():
            utils.safe_set_full_optimizer_state(parameter, state[key], key)


def _make_shards(engine: Any, step: torch.Tensor) -> None:
    """Make this learner's shards of the moments, which else the first step makes."""
    sharded, is_stage_3 = engine.optimizer, engine.zero_optimization_stage() == 3
    shards = sharded.fp32_partitioned_groups_flat if is_stage_3 else sharded.single_partition_of_fp32_groups
    for shard in shards:
        state = engine.basic_optimizer.state[shard]
        state[STEP] = step.clone()
        for key in MOMENTS:
            state.setdefault(key, torch.zeros_like(shard))
    if not is_stage_3:  # the weights learn their places in the shards
        sharded._lazy_init_hp_params_optimizer_state()


def _read_states(converted: Path, name: str, optimizer: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Return a weight's moments, its float32 copy where there is one, and the optimizer's step."""
    states = {}
    for file in (converted / "zero" / name).glob("*.pt"):
        value = torch.load(file, map_location="cpu", weights_only=False)
        states[file.stem] = value["param"] if isinstance(value, dict) else value
    if "optimizer_state_dict" in optimizer:  # of stage 3, whose conversion leaves the step here
        states[STEP] = optimizer["optimizer_state_dict"]["state"][0][STEP]
    return {key: torch.as_tensor(value).clone() for key, value in states.items()}  # stage 3's step is that of them all
