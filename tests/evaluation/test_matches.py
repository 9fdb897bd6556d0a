"""Policies that play each other: seats are swapped, and every game counts for both."""

import json

import pytest

from rllm_gym.errors import ConfigError
from rllm_gym.evaluation.matches import matrix_table, win_rates
from tests.needs import skip_without


@pytest.fixture(autouse=True)
def open_spiel():
    skip_without("open_spiel")


@pytest.mark.slow
def test_two_that_know_no_move_win_from_the_second_seat_alone(ray_cluster, tiny_model, other_model, tmp_path):
    """Who begins says no move and loses; so each wins one game of every task."""
    options = {"engine": "transformers", "max_new_tokens": 4, "max_model_len": 500}
    report = win_rates(
        [tiny_model, other_model],
        "KuhnPoker-v0",
        env_config={"system_prompt": ""},
        num_tasks=3,
        horizon=8,
        config=options,
        out=tmp_path / "out",
    )
    assert report["win_rate"] == [[None, 0.5], [0.5, None]] and report["errors"] == 0 and report["num_games"] == 6
    low, high = report["interval"][0][1]
    assert low < 0.5 < high
    assert json.loads((tmp_path / "out" / "matrix.json").read_text()) == report
    table = matrix_table(report).splitlines()
    assert table[0] == f"| wins of row | {tiny_model.name} | {other_model.name} |" and "50.0 (" in table[2]


def test_a_table_tells_policies_of_one_name_apart():
    def header(*names):
        nothing = [[None] * len(names)] * len(names)
        return matrix_table({"policies": names, "win_rate": nothing, "interval": nothing}).splitlines()[0]

    assert header("runs/a/checkpoint_2", "tiny") == "| wins of row | checkpoint_2 | tiny |"
    assert header("runs/a/checkpoint_2", "runs/b/checkpoint_2") == "| wins of row | a/checkpoint_2 | b/checkpoint_2 |"


@pytest.mark.parametrize(
    ("policies", "env", "message"),
    [
        (["tiny"], "KuhnPoker-v0", "two or more different ones; got ['tiny']"),
        (["tiny", "tiny"], "KuhnPoker-v0", "two or more different ones"),
        (["tiny", "other"], "TextCraft-v0", "must be an environment of several agents"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(tmp_path, monkeypatch, policies, env, message):
    from rllm_gym.evaluation import matches
    from rllm_gym.evaluation.policy import Policy

    monkeypatch.setattr(matches, "find_policy", lambda name: Policy(name, None))
    with pytest.raises(ConfigError) as error:
        win_rates(policies, env, out=tmp_path / "out")
    assert message in str(error.value) and "\n" not in str(error.value)
