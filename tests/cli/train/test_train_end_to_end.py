"""The real thing, on the tiny model: train, resume, end on SIGINT, evaluate, export."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from rllm_gym.checkpoints import newest_checkpoint, read_results
from rllm_gym.data import read_episodes
from rllm_gym.lineage import RESUMED_FROM

# One process runs them all, since they share a folder.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.xdist_group("end_to_end")]

QUICKSTART = Path(__file__).parents[3] / "tuned_examples" / "quickstart.yaml"
SMALLER = {
    "groups_per_step": 2,
    "group_size": 4,
    "num_envs_per_env_runner": 8,
    "max_new_tokens": 16,
    "scaling_inter": {"type": "stepwise", "horizons": [2, 3], "steps_per_stage": 2},
    "evaluation_interval": 1,
    "evaluation_duration": 4,
}


def write_experiment(folder: Path, stop: int, **config: object) -> Path:
    """The shipped quickstart with fewer and shorter episodes, under a name of its own."""
    [experiment] = yaml.safe_load(QUICKSTART.read_text()).values()
    experiment["stop"] = {"training_iteration": stop}
    experiment["checkpoint_config"] = {"checkpoint_frequency": 1, "num_to_keep": 2}
    experiment["config"].update(SMALLER | config)
    path = folder / "x.yaml"
    path.write_text(yaml.safe_dump({"e2e": experiment}))
    return path


def command(name: str, *arguments: object) -> list[str]:
    return [sys.executable, "-m", "rllm_gym.cli.main", name, *map(str, arguments)]


def run(folder: Path, name: str, *arguments: object) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    done = subprocess.run(
        command(name, *arguments), cwd=folder, env=environment, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def train_and_signal(folder: Path, path: Path, number: int, after: str) -> list[str]:
    """Train until a line begins with `after`, send the driver a signal, and return all its lines."""
    with subprocess.Popen(
        command("rllib", "train", "file", path),
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if line.startswith(after):
                # Ctrl-C in a terminal reaches the whole group.
                (os.killpg if number == signal.SIGINT else os.kill)(process.pid, number)
    assert process.returncode == (130 if number == signal.SIGINT else -number), "".join(lines)
    return lines


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the experiment's driver was killed after two train steps, and resumed for one more."""
    folder = tmp_path_factory.mktemp("end_to_end")
    path = write_experiment(folder, 500, engine="transformers", engine_options={})  # begins sooner than vLLM
    shown = [line for line in train_and_signal(folder, path, signal.SIGKILL, "step 2/") if line.startswith("step ")]
    assert [line.split("  ")[0] for line in shown[:2]] == ["step 1/500", "step 2/500"]
    assert all("horizon 2" in line and "tok/s" in line for line in shown[:2])
    last = read_results(trials(folder)[0])[-1]["training_iteration"] + 1
    out = run(folder, "rllib", "train", "file", write_experiment(folder, last), "--resume")
    assert f"\nstep {last}/{last}  " in out
    assert "\noptions that differ from the checkpoint's: engine 'transformers' -> 'vllm', engine_options {} -> {" in out
    return folder


def trials(folder: Path) -> list[Path]:
    return sorted(path.parent for path in (folder / "runs" / "e2e").glob("*/params.json"))


def steps(trial: Path) -> list[int]:
    return [result["training_iteration"] for result in read_results(trial)]


@pytest.mark.promise
def test_a_run_leaves_its_files(folder: Path) -> None:
    run_folder = folder / "runs" / "e2e"
    trial = trials(folder)[-1]
    summary = json.loads((run_folder / "summary.json").read_text())
    assert summary["episodes"] == 4
    assert summary["horizon"] == 3
    for name in ("success_before", "success_after", "eval_success_before", "eval_success_after"):
        assert 0.0 <= summary[name] <= 1.0
    assert (run_folder / "learning_curve.png").stat().st_size > 5_000
    assert list(trial.glob("events.out.tfevents.*"))
    assert list((trial / "trajectories").glob("*.jsonl*"))
    assert not (trial / "error.txt").exists()


@pytest.mark.promise
def test_a_killed_driver_leaves_every_result_that_it_has_shown(folder: Path) -> None:
    killed, resumed = trials(folder)
    assert len(steps(killed)) >= 2
    assert (killed / "progress.csv").read_text().count("\n") == 1 + len(
        (killed / "result.json").read_text().splitlines()
    )
    assert list(killed.glob("events.out.tfevents.*"))
    assert newest_checkpoint(killed) is not None
    assert steps(resumed) == [*range(1, len(steps(killed)) + 2)]


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A folder in which a run was ended by Ctrl-C, and the lines that it has printed."""
    folder = tmp_path_factory.mktemp("ended")
    return folder, train_and_signal(folder, write_experiment(folder, 500), signal.SIGINT, "step 1/")


def test_sigint_ends_after_the_train_step_with_a_checkpoint(ended: tuple[Path, list[str]]) -> None:
    folder, out = ended
    assert "ended as asked; --resume goes on from the checkpoint\n" in out
    checkpoint = newest_checkpoint(trials(folder)[-1])
    assert checkpoint is not None
    assert checkpoint.training_iteration == steps(trials(folder)[-1])[-1] < 10


def test_a_finished_run_goes_on_and_keeps_what_was_there(ended: tuple[Path, list[str]]) -> None:
    folder, _ = ended
    before = {path for path in (folder / "runs" / "e2e").rglob("*") if path.is_file()}
    last = steps(trials(folder)[-1])[-1]
    path = write_experiment(folder, last)
    assert f"`stop` is already met at train step {last}" in run(folder, "rllib", "train", "file", path, "--resume")
    run(folder, "rllib", "train", "file", write_experiment(folder, last + 1), "--resume")
    assert all(path.exists() for path in before)
    newest = trials(folder)[-1]
    assert (newest / RESUMED_FROM).is_file()
    assert steps(newest) == [*range(1, last + 2)]


def test_a_run_is_evaluated_and_exported(ended: tuple[Path, list[str]]) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder, _ = ended
    out = run(folder, "rllib", "evaluate", "runs/e2e", "--episodes", 6, "--horizon", 3, "--out", "evaluated")
    assert "| model |" in out
    report = json.loads((folder / "evaluated" / "result.json").read_text())
    [of_env] = report["by_env"].values()
    assert (of_env["split"], report["episodes"], of_env["horizon"]) == ("eval", 6, 3)
    assert len(list(read_episodes(folder / "evaluated"))) == 6
    assert report["success_interval"][0] <= report["success_rate"] <= report["success_interval"][1]

    # The variable that this process's own learners set must not make the export quiet.
    environment = {name: value for name, value in os.environ.items() if name != "DS_ACCELERATOR"}
    exported = subprocess.run(
        command("rllm-gym", "export", "runs/e2e", "exported"),
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert (exported.returncode, exported.stderr, len(exported.stdout.splitlines())) == (0, "", 1), exported.stdout
    lm = AutoModelForCausalLM.from_pretrained(folder / "exported", dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(folder / "exported")
    assert tokenizer.chat_template
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Goal: craft stick."}], add_generation_prompt=True, return_tensors="pt"
    )
    ids = prompt["input_ids"] if hasattr(prompt, "keys") else prompt
    assert lm.generate(ids, max_new_tokens=4, do_sample=False).shape[1] > ids.shape[1]
    refused = subprocess.run(
        command("rllm-gym", "export", "runs/e2e", "exported"), cwd=folder, capture_output=True, text=True
    )
    assert refused.returncode == 2
    assert refused.stderr == "export: the folder must be empty; got 'exported'. Choose another one, or use --force.\n"
    refused = subprocess.run(
        command("rllm-gym", "export", "runs/e2e", "other", "--adapter"), cwd=folder, capture_output=True, text=True
    )
    reason = "export: only a run with lora has an adapter; default_policy has none. Leave out --adapter.\n"
    assert (refused.returncode, refused.stderr) == (2, reason)


def test_a_run_evaluates_on_an_environment_of_its_own_and_samples_without_a_cpu_of_its_own(tmp_path: Path) -> None:
    other = {"env": "BabyAI-v0", "env_config": {"levels": [1]}}
    cpus = {"num_cpus_for_main_process": 2, "num_cpus_per_env_runner": 0}
    path = write_experiment(tmp_path, 1, engine="transformers", engine_options={}, evaluation_config=other, **cpus)
    planned = run(tmp_path, "rllib", "train", "file", path, "--dry-run")
    assert "first prompt of BabyAI-v0: " in planned and "# each trial: 2 CPUs, 0 GPUs\n" in planned
    run(tmp_path, "rllib", "train", "file", path)
    [trial] = trials(tmp_path)
    [result] = read_results(trial)
    for name in ("evaluation_on_start", "evaluation"):
        assert {split: list(of["by_env"]) for split, of in result[name].items() if "by_env" in of} == {
            split: ["BabyAI-v0"] for split in ("train", "eval")
        }
    records = list(read_episodes(trial / "trajectories"))
    assert {(record.is_evaluation, record.env_id) for record in records} == {
        (False, "rllm_gym/TextCraft-v0"), (True, "rllm_gym/BabyAI-v0")
    }  # fmt: skip
