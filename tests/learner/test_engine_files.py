"""A checkpoint goes on with another number of learners, and at another ZeRO stage, as if nothing had been changed."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from rllm_gym.errors import RllmGymError
from rllm_gym.learner.rl_module import BASE_HASH
from tests.learner.learner_helpers import MODULE, SGD, driver_of, make_config, make_group, make_samples, update

pytestmark = pytest.mark.slow

ADAM = {"deepspeed": {}, "lr": 1e-3, "grad_clip": 1.0}
WARMUP = {"scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 10, "warmup_max_lr": 1e-3}}}
NAMES = {0: "stage 0", 1: "stage 1 or 2 with 1 learner", 2: "stage 1 or 2 with 1 learner", 3: "stage 3 with 1 learner"}


def weights(group) -> dict[str, torch.Tensor]:
    return {name: torch.as_tensor(value).clone() for name, value in group.get_weights()[MODULE].items()}


def distance(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
    return max(float((a[name].float() - b[name].float()).abs().max()) for name in a)


def run_two_steps(group, folder: Path) -> dict[str, torch.Tensor]:
    """Take two steps, save the engines as a checkpoint has them, and return the weights, which RLlib's files have."""
    for step in range(2):
        update(group, make_samples(8, seed=step))
    path = str(folder / "deepspeed")
    assert all(result.ok for result in group.foreach_learner(lambda learner: learner.save_engines(path)))
    return weights(group)


def resume(group, state: dict[str, Any], folder: Path) -> None:
    # Copied: a local learner's modules would take these very tensors.
    group.set_weights({MODULE: copy.deepcopy(state)})
    driver_of(group)._load_engines(folder)


def next_step(group) -> tuple[dict[str, torch.Tensor], float]:
    loss = update(group, make_samples(8, seed=2))["policy_loss"]
    return weights(group), loss


def compare_next_step(group, build: Callable[[], Any], folder: Path) -> None:
    """Let one group take two steps and a third; let another go on after two: its third is the same but for rounding."""
    state = run_two_steps(group, folder)
    expected, loss = next_step(group)
    again = build()
    resume(again, state, folder)
    found, found_loss = next_step(again)
    assert found_loss == pytest.approx(loss, abs=1e-6)
    assert distance(expected, found) < 1e-6  # 2e-3 where Adam begins anew


@pytest.mark.parametrize("to_stage", [0, 2, 3])
@pytest.mark.parametrize("from_stage", [0, 1, 3])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_another_zero_stage_takes_the_same_next_step(tiny_model, tmp_path, caplog, dtype, from_stage, to_stage):
    def build(stage: int):
        return make_group(make_config(tiny_model, zero_stage=stage, dtype=dtype, **ADAM))

    with caplog.at_level(logging.WARNING):
        compare_next_step(build(from_stage), lambda: build(to_stage), tmp_path)
    line = f"default_policy is converted, from ZeRO {NAMES[from_stage]} ({dtype}) to ZeRO {NAMES[to_stage]} ({dtype})"
    assert (line in caplog.text) == (NAMES[from_stage] != NAMES[to_stage])
    assert [path.name for path in tmp_path.iterdir()] == ["deepspeed"]


@pytest.mark.parametrize(("from_stage", "to_stage"), [(0, 0), (0, 3), (2, 0), (3, 2), (3, 3)])
def test_an_adapter_goes_on_and_the_base_model_is_in_no_file(tiny_model, tmp_path, from_stage, to_stage):
    def build(stage: int):
        return make_group(make_config(tiny_model, zero_stage=stage, lora={"r": 2, "lora_alpha": 4}, **ADAM))

    group = build(from_stage)
    compare_next_step(group, lambda: build(to_stage), tmp_path)
    adapter = {name for name in weights(group) if ".lora_" in name}
    assert weights(group).keys() - adapter == {BASE_HASH}
    [file] = tmp_path.rglob("*model_states.pt")
    written = torch.load(file, weights_only=False)
    assert not written["module"] and not written["frozen_param_fragments"]


@pytest.mark.parametrize(
    ("from_stage", "to_stage"), [pytest.param(2, 0, marks=pytest.mark.promise), (2, 2), (3, 2), (3, 3)]
)
def test_one_learner_goes_on_from_two(tiny_model, two_learners, tmp_path, from_stage, to_stage):
    compare_next_step(
        two_learners(make_config(tiny_model, zero_stage=from_stage, **ADAM)),
        lambda: make_group(make_config(tiny_model, zero_stage=to_stage, **ADAM)),
        tmp_path,
    )


@pytest.mark.parametrize(("from_stage", "to_stage"), [(0, 2), (2, 2), (3, 3)])
def test_two_learners_go_on_from_one(tiny_model, two_learners, tmp_path, from_stage, to_stage):
    compare_next_step(
        make_group(make_config(tiny_model, zero_stage=from_stage, **ADAM)),
        lambda: two_learners(make_config(tiny_model, zero_stage=to_stage, **ADAM)),
        tmp_path,
    )


@pytest.mark.parametrize(("from_stage", "to_stage"), [(0, 3), (2, 0)])
def test_an_adapter_and_a_schedule_go_on_where_they_were(tiny_model, tmp_path, from_stage, to_stage):
    options = {**ADAM, "deepspeed": WARMUP, "lora": {"r": 4}}
    compare_next_step(
        make_group(make_config(tiny_model, zero_stage=from_stage, **options)),
        lambda: make_group(make_config(tiny_model, zero_stage=to_stage, **options)),
        tmp_path,
    )


def test_another_optimizer_is_refused_by_one_line(tiny_model, tmp_path):
    group = make_group(make_config(tiny_model, zero_stage=0, deepspeed=SGD))
    state = run_two_steps(group, tmp_path)
    with pytest.raises(RllmGymError, match=r"only AdamW's state can be converted from .*; got SGD\. Resume"):
        resume(make_group(make_config(tiny_model, zero_stage=2, deepspeed=SGD)), state, tmp_path)


def test_files_that_are_not_there_are_one_line(tiny_model, tmp_path):
    group = make_group(make_config(tiny_model, zero_stage=0, **ADAM))
    with pytest.raises(RllmGymError, match=r"cannot load the optimizer's state in .*default_policy.*\. Resume with"):
        resume(group, weights(group), tmp_path)
