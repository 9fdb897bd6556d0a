"""Two evaluations on one panel, task by task."""

from __future__ import annotations

import dataclasses
import json

import pytest
from typer.testing import CliRunner

from rllm_gym.cli.main import make_rllm_gym_app
from rllm_gym.errors import ConfigError
from rllm_gym.evaluation.compare import compare, read_result
from rllm_gym.evaluation.panel import Panel, hash_panels
from rllm_gym.evaluation.report import Outcome, make_report
from rllm_gym.types import SamplingParams

app = make_rllm_gym_app()

CRAFT = Panel("rllm_gym:rllm_gym/TextCraft-v0", [f"textcraft_{k}" for k in range(12)], range(12), 6, SamplingParams(64))
BABY = dataclasses.replace(CRAFT, env="rllm_gym:rllm_gym/BabyAI-v0", item_ids=["babyai_1", "babyai_2"], seeds=[1, 2])


def result(model, solved, *, panel=CRAFT, broken=(), others=()):
    """The result of an evaluation; `solved` are each task's outcomes, one per episode."""
    panels = [panel, *(other for other, _ in others)]
    outcomes = []
    for index, (of, outcome) in enumerate([(panel, solved), *others]):
        for k, (group, successes) in enumerate(zip(of.groups(index), outcome, strict=True)):
            error = "down" if of is panel and k in broken else None
            outcomes += [
                Outcome(group.key, member, bool(success), 0.0, 1, 1, "all", "error" if error else "horizon", error)
                for member, success in enumerate(successes)
            ]
    report = make_report({of.spec.name: of for of in panels}, outcomes)
    return json.loads(json.dumps({"model": model, "panel_hash": hash_panels(panels), **report}))


#        0  1  2  3  4  5  6  7  8  9 10 11
BEFORE = [0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1]
AFTER = [1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 1, 1]


def of(bits):
    return [[bit] for bit in bits]


def test_tasks_that_changed_are_tested_and_named():
    [pair] = compare([result("before", of(BEFORE)), result("after", of(AFTER))])
    assert (pair["a"], pair["b"], pair["num_tasks"], pair["left_out"]) == ("before", "after", 12, 0)
    assert pair["better"] == [f"TextCraft-v0 textcraft_{k}" for k in range(9)]
    assert pair["worse"] == ["TextCraft-v0 textcraft_9"]
    assert pair["p_value"] == pytest.approx(22 / 1024)  # McNemar: 9 against 1
    assert pair["difference"] == pytest.approx(8 / 12)
    low, high = pair["interval"]
    assert low < 8 / 12 < high
    [back] = compare([result("after", of(AFTER)), result("before", of(BEFORE))])
    assert back["difference"] == -pair["difference"]
    assert back["p_value"] == pair["p_value"]


def test_a_task_in_which_an_environment_failed_is_left_out():
    [pair] = compare([result("before", of(BEFORE)), result("after", of(AFTER), broken={0, 9})])
    assert (pair["num_tasks"], pair["left_out"]) == (10, 2)
    assert pair["rate_a"] == 0.2  # of the tasks that both have played
    assert (len(pair["better"]), len(pair["worse"])) == (8, 0)


def test_of_several_samples_it_counts_how_often_a_task_is_solved():
    panel = dataclasses.replace(CRAFT, item_ids=["a", "b", "c"], seeds=[1, 2, 3], samples=2)
    before = result("before", [[1, 0], [0, 0], [1, 1]], panel=panel)
    [pair] = compare([before, result("after", [[1, 1], [0, 0], [0, 1]], panel=panel)])
    assert (pair["better"], pair["worse"], pair["p_value"]) == (["TextCraft-v0 a"], ["TextCraft-v0 c"], 1.0)
    assert pair["difference"] == 0.0


def test_only_results_of_one_panel_are_compared_in_whatever_order_its_environments_were_played():
    baby = [[1], [0]]
    mixed = result("mixed", of(BEFORE), others=[(BABY, baby)])
    turned = result("turned", baby, panel=BABY, others=[(CRAFT, of(BEFORE))])
    [pair] = compare([mixed, turned])
    assert (pair["num_tasks"], pair["better"], pair["worse"]) == (14, [], [])
    assert pair["interval"] == pytest.approx([-0.2153, 0.2153], abs=1e-4)  # fourteen ties do not prove it equal
    longer = dataclasses.replace(CRAFT, horizon=7)
    with pytest.raises(ConfigError, match=r"must be of one panel; before is of \w{12}, and after of \w{12}\. Evaluate"):
        compare([result("before", of(BEFORE)), result("after", of(AFTER), panel=longer)])
    with pytest.raises(ConfigError, match="needs at least two results; got 1"):
        compare([mixed])


def test_the_command_compares_each_with_the_first(tmp_path):
    paths = []
    for name, solved in (("a", BEFORE), ("b", AFTER), ("c", BEFORE)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "result.json").write_text(json.dumps(result("tiny", of(solved))))
        paths.append(str(tmp_path / name))
    shown = CliRunner().invoke(app, ["compare", *paths])
    assert shown.exit_code == 0, shown.output
    assert f"{paths[1]} against {paths[0]}: +66.7 points" in shown.stdout
    assert f"{paths[2]} against {paths[0]}: +0.0 points (-24.2 to +24.2), p = 1.0000, on 12 tasks" in shown.stdout
    assert "worse on 1: TextCraft-v0 textcraft_9" in shown.stdout
    assert len([line for line in shown.stdout.splitlines() if line.startswith("| /")]) == 3
    pairs = json.loads(CliRunner().invoke(app, ["compare", *paths, "--json"]).stdout)
    assert [pair["p_value"] for pair in pairs] == [pytest.approx(22 / 1024), 1.0]
    with pytest.raises(ConfigError, match=r"must be a finished evaluation.*Finish it with --resume"):
        read_result(tmp_path)
