"""`loggers` of an experiment: what is named wrongly is told, and the services get every metric."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rllm_gym.cli.train.loggers import logger_fault, make_services
from rllm_gym.errors import ConfigError

RESULT = {"training_iteration": 3, "env_runners": {"success_rate": 0.625}, "max_episode_steps": 4, "config": {}}


def trial(folder: Path) -> Any:
    class Trial(SimpleNamespace):
        __hash__ = object.__hash__

        def __str__(self) -> str:
            return "GRPO_t"

    return Trial(
        trial_id="t",
        trial_name="GRPO_t",
        experiment_dir_name="mine",
        config={"lr": 1.0},
        path=str(folder),
        local_path=str(folder),
    )


@pytest.mark.parametrize(
    ("loggers", "says"),
    [
        ("csv", "loggers must be a list of tensorboard, csv, wandb, mlflow; got 'csv'"),
        (["cvs"], "got 'cvs'. Did you mean 'csv'?"),
        ([3], "got 3. Write a name."),
        ([{"csv": {"path": "x"}}], "csv has no options; got {'path': 'x'}"),
        (["csv", "csv"], "duplicate logger 'csv'"),
        ([{"wandb": 3}], "got {'wandb': 3}"),
    ],
)
def test_a_wrong_logger_is_named(loggers: Any, says: str) -> None:
    assert says in str(logger_fault(loggers))


def test_known_loggers_are_taken_and_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert logger_fault([]) is None
    assert logger_fault(["tensorboard", "csv", "wandb", {"mlflow": {"tags": {"a": "b"}}}]) is None
    monkeypatch.setattr("rllm_gym.cli.train.loggers.find_missing", list)
    assert "pip install 'rllm-gym[wandb]'" in str(logger_fault(["wandb"]))


@pytest.mark.slow
def test_an_option_that_a_service_does_not_take_is_named() -> None:
    with pytest.raises(ConfigError, match=r"mlflow takes tracking_uri, .*Did you mean 'tracking_uri'"):
        make_services([{"mlflow": {"trackign_uri": "x"}}], "mine")


@pytest.mark.slow
def test_mlflow_gets_every_metric_under_the_runs_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.chdir(tmp_path)
    from mlflow import MlflowClient

    uri = f"file:{tmp_path}/mlruns"
    [callback] = make_services(["csv", {"mlflow": {"tracking_uri": uri}}], "mine")
    callback.setup()
    callback.on_trial_start(0, [], one := trial(tmp_path))
    callback.on_trial_result(3, [], one, RESULT)
    callback.on_trial_complete(3, [], one)
    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name("mine")
    [run] = client.search_runs([experiment.experiment_id])
    assert run.data.metrics["env_runners/success_rate"] == 0.625
    assert run.data.metrics["max_episode_steps"] == 4
    assert run.data.params["lr"] == "1.0"


@pytest.mark.slow
def test_wandb_gets_every_metric(ray_cluster: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    [callback] = make_services([{"wandb": {"dir": str(tmp_path), "mode": "offline"}}], "mine")
    callback.setup()
    callback.on_trial_start(0, [], one := trial(tmp_path))
    callback.on_trial_result(3, [], one, RESULT)
    callback.on_trial_complete(3, [], one)
    callback.on_experiment_end(trials=[one])
    [log] = tmp_path.glob("wandb/offline-run-*/*.wandb")
    assert b"env_runners/success_rate" in log.read_bytes() and b"0.625" in log.read_bytes()
