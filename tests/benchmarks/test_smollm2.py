"""SmolLM2's study: what its panels hold, and that its rows were judged on them."""

from __future__ import annotations

import json

import gymnasium
import matplotlib.pyplot as plt
import pytest

from benchmarks.learning import smollm2
from rllm_gym.evaluation.panel import read_panel

STUDIES = pytest.mark.parametrize("study", smollm2.STUDIES.values(), ids=smollm2.STUDIES)


def tasks_of(study, kind):
    return json.loads(study.panel_file(kind).read_text(encoding="utf-8"))["item_ids"]


@STUDIES
def test_no_held_out_task_is_trained_on(study):
    env = gymnasium.make(study.env, obs_type="text", split="train", **study.env_config)
    trained = set(env.unwrapped.item_ids)
    held_out = tasks_of(study, smollm2.HELD_OUT)
    assert len(set(held_out)) == smollm2.NUM_HELD_OUT
    assert not trained & set(held_out)
    assert set(tasks_of(study, smollm2.TRAINED)) <= trained


@STUDIES
def test_every_row_was_judged_on_the_panels_that_are_kept(study):
    hashes = {kind: read_panel(study.panel_file(kind)).hash for kind in smollm2.PANELS}
    for row in smollm2.read_rows(study.rows):
        assert {kind: row["panels"][kind]["panel_hash"] for kind in smollm2.PANELS} == hashes


@STUDIES
def test_every_kept_adapter_leads_to_the_model(study):
    kept = {file.parent.name for file in study.adapters.glob(f"*/{smollm2.ADAPTER_FILE}")}
    for name in kept:
        start = json.loads((study.adapters / name / smollm2.ADAPTER_CONFIG).read_text())["base_model_name_or_path"]
        assert start in {smollm2.BASE_MODEL.split("/")[-1], *kept}


def test_an_adapter_that_is_not_kept_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"smollm2_babyai_adapters/ has no adapter 'grpo-9', but: grpo-5, sft\."):
        smollm2.policy(smollm2.STUDIES["babyai"], tmp_path, "grpo-9")


def test_a_run_that_goes_on_is_compared_with_its_first_part_and_drawn_after_it(tmp_path, capsys, monkeypatch):
    rows = {row["policy"]: row for row in smollm2.read_rows(smollm2.STUDIES["babyai"].rows)}
    more = rows["grpo-4"] | {"policy": "more-5"}  # the two played the same panels
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [rows["sft"], rows["grpo-5"], more]))
    monkeypatch.setattr(plt, "close", (figures := []).append)
    smollm2.report(tmp_path / "rows.jsonl", tmp_path / "figure.png", "TextCraft")
    assert "held_out: more-5 less sft: +0.170 " in (out := capsys.readouterr().out)
    assert "held_out: more-5 less grpo-5: -0.010 " in out
    [training, _] = figures[0].axes
    curves = [line.get_xdata() for line in training.lines if line.get_label().startswith(("grpo", "more"))]
    assert [(min(steps), max(steps)) for steps in curves] == [(1, 40), (41, 80)]
    assert [text.get_text() for text in training.texts] == ["horizon 3", "horizon 4", "horizon 3", "horizon 4"]
