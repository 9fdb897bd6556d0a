"""What a run shows and leaves: step lines, the summary, the curve, errors, stopping."""

from __future__ import annotations

import io
import json
import os
import pickle
import signal
import traceback
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from gymnasium.spaces import Discrete
from ray.rllib.utils.spaces.repeated import Repeated
from rich.console import Console

from rllm_gym.cli.ray_session import check_capacity
from rllm_gym.cli.train.launch import StopWhen, changed_options, describe_error, describe_summary, ending_on_signals
from rllm_gym.cli.train.progress import ProgressReporter, step_line
from rllm_gym.cli.train.results import sample_episode
from rllm_gym.cli.train.summary import draw_curve, smoothed, write_summary
from rllm_gym.data import EpisodeRecord, TurnRecord, latest_episode
from rllm_gym.errors import (
    ChatTemplateError,
    ConfigError,
    LearnerDiedError,
    NonFiniteError,
    RllmGymError,
    StorageError,
    TooManyFailedEpisodesError,
    TrajectoryError,
)

RESULT: dict[str, Any] = {
    "training_iteration": 12,
    "max_episode_steps": 6,
    "num_tokens_sampled_per_s": 2540.4,
    "num_tokens_trained_per_s": 6900.0,
    "num_groups": 8,
    "num_groups_dropped": 3,
    "time_this_iter_s": 13.21,
    "env_runners": {"success_rate": 0.578, "num_turns_mean": 3.14, "num_failed_episodes": 0},
}


def evaluation(train: float, held_out: float) -> dict[str, Any]:
    of = {"num_episodes": 128, "num_failed_episodes": 0, "horizon": 6}
    return {
        "train": {"success_rate": train, **of},
        "eval": {"success_rate": held_out, **of},
        "env_runners": {"success_rate": 0.5, "num_episodes": 256},
    }


def recorded_run(run: Path, *, steps: int = 3) -> Path:
    trial = run / "2026-01-01_00-00-00_abc_00000"
    trial.mkdir(parents=True)
    lines = []
    for step in range(1, steps + 1):
        result = {**RESULT, "training_iteration": step, "config": {"seed": 7, "evaluation_seed": 10_000}}
        if step == steps:
            result |= {"evaluation": evaluation(0.80, 0.61), "evaluation_on_start": evaluation(0.47, 0.41)}
        lines.append(json.dumps(result))
    (trial / "result.json").write_text("\n".join(lines) + "\n")
    return trial


def test_a_step_line_has_the_whole_step() -> None:
    assert step_line(RESULT, 60) == (
        "step 12/60  success 0.58  turns 3.1  horizon 6  sampled 2,540 tok/s  trained 6,900 tok/s  dropped 3/8  13.2 s"
    )


def test_a_step_line_leaves_out_what_a_result_does_not_have() -> None:
    assert step_line({"training_iteration": 1}, None) == "step 1"
    assert step_line({"training_iteration": 1, "env_runners": None, "num_groups": 4}, 2) == "step 1/2"


def test_a_step_that_taught_nothing_and_lost_episodes_says_so() -> None:
    runners = {**RESULT["env_runners"], "num_failed_episodes": 2}
    line = step_line({**RESULT, "num_groups_dropped": 8, "env_runners": runners}, None)
    assert "failed 2" in line
    assert line.endswith("nothing learnt: every group's returns were equal")


def test_the_reporter_prints_plain_lines_where_there_is_no_terminal() -> None:
    out = io.StringIO()
    reporter = ProgressReporter(Console(file=out, width=40), last_step=12, num_trials=1)
    trial = SimpleNamespace(trial_id="abc")
    reporter.setup()
    reporter.on_trial_start(0, [trial], trial)
    assert reporter.num_active == 1
    reporter.on_trial_result(1, [trial], trial, {**RESULT, "evaluation": evaluation(0.8, 0.6)})
    reporter.on_trial_complete(1, [trial], trial)
    assert reporter.num_active == 0
    assert out.getvalue().splitlines() == [
        step_line(RESULT, 12),
        "evaluation  train 0.800  eval 0.600  (128 episodes each, horizon 6)",
    ]


def test_the_summary_holds_before_and_after_of_both_splits(tmp_path: Path) -> None:
    run = tmp_path / "quick"
    trial = recorded_run(run)
    summary = write_summary(run, [trial])
    assert summary == json.loads((run / "summary.json").read_text())
    expected = {
        "success_before": 0.47,
        "success_after": 0.80,
        "eval_success_before": 0.41,
        "eval_success_after": 0.61,
        "horizon": 6,
        "episodes": 128,
        "seeds": {"run": 7, "evaluation": 10_000},
        "train_steps": 3,
        "name": "quick",
        "checkpoint": None,
    }
    assert {key: summary[key] for key in expected} == expected
    assert describe_summary(summary) == (
        "success rate  train 0.470 -> 0.800   eval 0.410 -> 0.610   (128 episodes each, horizon 6)"
    )


def test_without_an_evaluation_there_is_no_summary(tmp_path: Path) -> None:
    trial = tmp_path / "run" / "t"
    trial.mkdir(parents=True)
    (trial / "result.json").write_text(json.dumps(RESULT) + "\n")
    assert write_summary(tmp_path / "run", [trial]) is None
    assert not (tmp_path / "run" / "summary.json").exists()


def test_the_curve_is_a_picture_with_success_and_horizon(tmp_path: Path) -> None:
    from matplotlib import pyplot as plt

    run = tmp_path / "quick"
    trial = recorded_run(run)
    drawn: list[Any] = []
    original = plt.close
    plt.close = drawn.append  # type: ignore[assignment]
    try:
        path = draw_curve(run, [trial])
    finally:
        plt.close = original
    assert path is not None
    assert path.read_bytes()[:4] == b"\x89PNG"
    axis, horizon = drawn[0].axes
    lines = {line.get_label(): (list(line.get_xdata()), list(line.get_ydata())) for line in axis.get_lines()}
    assert lines["train steps (sampled), smoothed"] == ([1, 2, 3], pytest.approx([0.578] * 3))
    assert lines["evaluation, train tasks"] == ([0, 3], [0.47, 0.80])
    assert lines["evaluation, eval tasks"] == ([0, 3], [0.41, 0.61])
    assert list(horizon.get_lines()[0].get_ydata()) == [6, 6, 6]
    original(drawn[0])


def test_smoothing_keeps_a_line_and_halves_what_jumps() -> None:
    assert smoothed([0.0, 1.0, 0.0]) == [0.0, 1.0, 0.0]  # of few steps nothing is known but the steps
    line = [k / 60 for k in range(60)]
    assert smoothed(line)[10:50] == pytest.approx(line[10:50])
    jumps = smoothed([0.0, 1.0] * 30)
    assert max(jumps) < 0.67 and min(jumps) > 0.33
    assert len(jumps) == 60


def stored_episode(folder: Path, train_step: int, item_id: str, **fields: Any) -> None:
    """Append an episode as a run that is going on does."""
    turn = TurnRecord(observation_ids=[1], action_ids=[2], logp=[0.0], reward=0.0, policy_version=0)
    said = [{"role": "user", "content": "Rules.\nGoal: a stick."}, {"role": "assistant", "content": "Hm.\nget"}]
    record = EpisodeRecord(
        env_id="e", item_id=item_id, episode_id=item_id, seed=0, messages=said, turns=[turn],
        final_observation_ids=[], end_reason="horizon", train_step=train_step, **fields,
    )  # fmt: skip
    (folder / "trajectories").mkdir(parents=True, exist_ok=True)
    with (folder / "trajectories" / "episodes-000000.jsonl").open("a") as shard:
        shard.write(record.model_dump_json() + "\n")


def test_a_long_sampling_says_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0
    monkeypatch.setattr("rllm_gym.cli.sampling_progress.time.monotonic", lambda: now_s)
    out = io.StringIO()
    reporter = ProgressReporter(Console(file=out, width=200), last_step=4, num_trials=1)
    for seconds, num_done in ((0, 1), (10, 5), (16, 9), (20, 11), (32, 20), (33, 0), (50, 2), (60, 3)):
        now_s = 100.0 + seconds
        reporter.on_sampling(num_done, 24 if num_done else 0)
    assert out.getvalue().splitlines() == ["sampling: 9 of 24 episodes", "sampling: 20 of 24 episodes"]


def test_every_few_steps_an_episode_of_training_is_shown_in_short(tmp_path: Path) -> None:
    trial = SimpleNamespace(trial_id="t", path=str(tmp_path))
    out = io.StringIO()
    reporter = ProgressReporter(Console(file=out, width=200), last_step=4, num_trials=1, show_every=2)
    for step in (1, 2, 3, 4):
        stored_episode(tmp_path, step, f"task_{step}")
        stored_episode(tmp_path, step, "held_out", is_evaluation=True)
        reporter.on_trial_result(step, [trial], trial, {"training_iteration": step})
    shown = [line.split()[0] for line in out.getvalue().splitlines() if line.startswith("    ")]
    assert shown == ["task_2", "task", "agent", "task_4", "task", "agent"]
    assert "      task   Goal: a stick.\n      agent  get\n" in out.getvalue()
    assert sample_episode(trial, {"training_iteration": 4}, 0) == []


def test_an_episode_is_shown_also_where_its_writer_is_in_the_middle_of_the_next(tmp_path: Path) -> None:
    stored_episode(tmp_path, 1, "task_1")
    [shard] = (tmp_path / "trajectories").glob("*.jsonl")
    with shard.open("ab") as file:
        file.write(b'{"episode_id": "half')
    record = latest_episode(tmp_path / "trajectories")
    assert record is not None and record.item_id == "task_1"
    assert latest_episode(tmp_path) is None


def test_a_run_without_steps_draws_nothing(tmp_path: Path) -> None:
    assert draw_curve(tmp_path, [tmp_path / "t"]) is None


def test_stop_reads_nested_and_slashed_keys_and_passes_over_missing_ones() -> None:
    assert StopWhen({"env_runners/success_rate": 0.5}).is_met(RESULT)
    assert StopWhen({"env_runners": {"success_rate": 0.5}}).is_met(RESULT)
    assert not StopWhen({"env_runners/success_rate": 0.6, "evaluation/eval/success_rate": 0.1}).is_met(RESULT)
    assert not StopWhen({}).is_met(RESULT)


def test_a_resumed_runs_time_counts() -> None:
    result = {"time_total_s": 40.0}
    assert not StopWhen({"time_total_s": 60}).is_met(result)
    assert StopWhen({"time_total_s": 60}, seconds_before=20.0).is_met(result)


def test_asked_to_end_running_trials_end_with_a_result_and_waiting_ones_at_once() -> None:
    stopper = StopWhen({})
    stopper.reporter = ProgressReporter(Console(file=io.StringIO()), last_step=None, num_trials=2)
    stopper.reporter.num_active = 1
    assert not stopper("t", RESULT)
    stopper.signal = signal.SIGTERM
    assert stopper("t", RESULT)
    assert not stopper.stop_all()  # it would end the running trial without a checkpoint
    stopper.reporter.num_active = 0
    assert stopper.stop_all()
    assert pickle.loads(pickle.dumps(stopper)).is_asked


def test_a_signal_in_the_middle_of_a_line_repeats_no_line(tmp_path: Path) -> None:
    class InterruptedFile(io.StringIO):
        def flush(self) -> None:
            if not stopper.is_asked:
                os.kill(os.getpid(), signal.SIGINT)

    file, stopper = InterruptedFile(), StopWhen({})
    reporter = ProgressReporter(Console(file=file, width=200), last_step=2, num_trials=1)
    with ending_on_signals(stopper, reporter, tmp_path):
        reporter.say("step 1/2")
        assert stopper.is_asked
        reporter.on_step_begin(1, [])
        reporter.on_step_begin(2, [])
    first, second = file.getvalue().splitlines()
    assert (first, second[:28]) == ("step 1/2", "ending after this train step")


def test_an_error_shows_its_last_exception_first(tmp_path: Path) -> None:
    (tmp_path / "error.txt").write_text(
        "Failure # 1\nTraceback (most recent call last):\n  File x\n    y\n    ^^^^\n"
        "rllm_gym.errors.RllmGymError: runner 1 failed\nTraceback (most recent call last):\n"
        "ValueError: too long\nhint: shorten it\n"
    )
    lines = describe_error(tmp_path).splitlines()
    assert lines[0] == "failed: ValueError: too long"
    assert not any("^^^" in line for line in lines)
    assert lines[-1] == f"the whole error is in {tmp_path / 'error.txt'}"


def test_the_death_of_a_trial_s_process_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "error.txt"
    heading = "Failure # 1 (occurred at 2026-01-01_00-00-00)\n"
    died = "The actor died unexpectedly before finishing this task.\n\tclass_name: GRPO\nThe actor is dead.\n"
    file.write_text(heading + died)
    assert describe_error(tmp_path) == (
        "failed: the trial's main process died (killed, out of memory, or crashed in native code). "
        "Go on from the last checkpoint with --resume."
    )
    file.write_text(f"{heading}ray::GRPO.train()\nray.exceptions.ActorDiedError: {died}")  # of another process
    assert describe_error(tmp_path).startswith("failed: ray.exceptions.ActorDiedError: The actor died unexpectedly")


@pytest.mark.parametrize(
    "error",
    [ChatTemplateError, ConfigError, LearnerDiedError, NonFiniteError, StorageError, TooManyFailedEpisodesError,
     TrajectoryError, RllmGymError],
)  # fmt: skip
def test_an_error_whose_message_says_all_is_one_line(tmp_path: Path, error: type) -> None:
    try:
        raise error("GRPO: a learner died.")
    except error:
        (tmp_path / "error.txt").write_text(traceback.format_exc())
    assert describe_error(tmp_path) == "failed: GRPO: a learner died."


def test_a_trial_that_cannot_fit_is_named_with_its_remedy() -> None:
    bundles = [{"CPU": 1.0}, {"CPU": 1.0, "GPU": 2.0}]
    check_capacity(bundles, [{"CPU": 2.0, "GPU": 2.0}], where="this machine")
    with pytest.raises(ConfigError) as caught:
        check_capacity(bundles, [{"CPU": 8.0}], where="this machine")
    assert str(caught.value) == (
        "ray: a trial must fit this machine; it asks for 2 GPUs, and there are 0. "
        "Lower num_env_runners, num_learners, num_gpus_per_env_runner or num_gpus_per_learner."
    )


def test_a_worker_that_fits_no_single_node_is_named() -> None:
    with pytest.raises(ConfigError, match="it asks for 4 CPUs, which no node has"):
        check_capacity([{"CPU": 4.0}], [{"CPU": 2.0}, {"CPU": 2.0}], where="the cluster")


def test_options_that_differ_from_a_checkpoints_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    before = {"lr": 1e-4, "num_learners": 2, "seed": 1, "base_model": str(tmp_path / "models/mine"), "of_before": 0}
    now = {"lr": 1e-5, "num_learners": 1, "seed": 1, "base_model": "models/mine", "of_today": 0}
    assert changed_options(before, now) == "lr 0.0001 -> 1e-05, num_learners 2 -> 1"
    assert changed_options(now, now) == ""
    spaces = [{"observation_space": Repeated(Discrete(2), 3)} for _ in range(2)]
    assert changed_options(*spaces) == ""
