"""Runs a checked experiment through Ray Tune: trial folders, stopping, Ctrl-C, resuming, and the closing report."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ray import tune
from ray.exceptions import ActorDiedError
from ray.tune import TuneError
from rich.console import Console

from rllm_gym.checkpoints import (
    CheckpointInfo,
    newest_checkpoint,
    newest_intact_checkpoint,
    read_config,
    read_results,
    write_origin,
)
from rllm_gym.cli.common import FAILED
from rllm_gym.cli.ray_session import check_ray, ray_session
from rllm_gym.cli.train.check import Checked, flat_keys
from rllm_gym.cli.train.loggers import make_services
from rllm_gym.cli.train.memory_meter import MemoryMeter
from rllm_gym.cli.train.progress import ProgressReporter
from rllm_gym.cli.train.results import CheckpointSync, result_writers
from rllm_gym.cli.train.storage import is_remote
from rllm_gym.cli.train.summary import SUMMARY, draw_curve, write_summary
from rllm_gym.cli.train.sweeps import make_scheduler, num_trials, to_tune
from rllm_gym.errors import ConfigError, StorageError

ERROR_LINES = 15
SWEEP_STATE_S = 1
SCHEDULERS_GRACE_S = 30.0  # from SIGTERM to SIGKILL: Slurm's and Kubernetes' default
# Errors with a self-explanatory message, which are printed without a traceback.
SELF_EXPLANATORY = re.compile(
    r"rllm_gym\.errors\."
    r"(ChatTemplate|Config|LearnerDied|NonFinite|RllmGym|Storage|TooManyFailedEpisodes|Trajectory)Error: "
)
NO_FOLDER = "Unable to set up cluster storage"  # Ray's message where its mark in the run's folder is missing
NO_STORAGE = re.compile(r"No space left on device|Disk quota exceeded")
EXCEPTION = re.compile(r"[\w.]+(Error|Exception|Interrupt|Exit)(:|$)")


class StopWhen(tune.Stopper):
    """Stops a trial when a result reaches what `stop` says, or at its next result once somebody asked for an end.

    Args:
        stop: result keys, nested or joined by slashes, to the value that ends a trial once it is reached.
        seconds_before: what a resumed run had taken already; Tune counts `time_total_s` from the resumption.
    """

    def __init__(self, stop: dict[str, Any], *, seconds_before: float = 0.0) -> None:
        self._stop, self._seconds_before = flat_keys(stop), seconds_before
        self.signal: int | None = None  # that asked for an end
        self.reporter: ProgressReporter | None = None

    def is_met(self, result: dict[str, Any]) -> bool:
        flat = flat_keys(result)
        flat["time_total_s"] = flat.get("time_total_s", 0.0) + self._seconds_before
        return any(flat.get(name) is not None and flat[name] >= value for name, value in self._stop.items())

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return self.is_asked or self.is_met(result)

    @property
    def is_asked(self) -> bool:
        """Whether somebody asked for an end."""
        return self.signal is not None

    def stop_all(self) -> bool:
        """Keep trials that wait from starting; those that run end with their next result, and so with a checkpoint."""
        return self.is_asked and (self.reporter is None or self.reporter.num_active == 0)

    def __getstate__(self) -> dict[str, Any]:
        return {
            **vars(self),
            "reporter": None,
        }  # Tune saves the stopper with the experiment; a terminal cannot be saved


class OriginWriter(tune.Callback):
    """Notes in a trial's folder which checkpoint it resumed from."""

    def __init__(self, resumed: CheckpointInfo | None) -> None:
        self._resumed = resumed

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        if self._resumed:
            write_origin(Path(trial.path), self._resumed)


def train(
    checked: Checked,
    *,
    storage: str,
    resume: bool,
    address: str | None,
    show_every: int,
    verbose: bool,
    console: Console,
) -> int:
    """Train, and return the exit code.

    Args:
        storage: folder of all runs, or an address such as s3://bucket/runs.
        show_every: train steps from one episode that is shown to the next; 0 shows none.

    Raises:
        ConfigError: there is nothing to resume, or Ray has no room for a trial.
        StorageError: results could not be written any more.
    """
    experiment = checked.experiment
    if is_remote(storage) and resume:
        raise ConfigError(
            f"resume: looks for checkpoints in a folder; got --storage-path {storage}. Copy the run here."
        )
    storage = storage if is_remote(storage) else os.path.abspath(storage)
    run = Path(storage) / experiment.name
    trials = num_trials(experiment.config, experiment.num_samples)

    def say(text: str) -> None:
        console.print(text, markup=False, highlight=False, soft_wrap=True)

    resumes_sweep = resume and trials > 1
    if resumes_sweep:
        _check_sweep(run)
    resumed = _checkpoint_to_resume(run, say) if resume and not resumes_sweep else None
    history = _history(resumed) if resumed else []
    stopper = StopWhen(experiment.stop, seconds_before=_seconds(history))
    reached = {"training_iteration": resumed.training_iteration if resumed else 0}
    if resumed and (_is_met(StopWhen(experiment.stop), history[-1:]) or StopWhen(experiment.stop).is_met(reached)):
        say(f"{experiment.name}: `stop` is already met at train step {resumed.training_iteration} of {resumed.path}.")
        return 0
    reporter = ProgressReporter(
        console,
        last_step=experiment.stop.get("training_iteration"),
        num_trials=trials,
        first_step=reached["training_iteration"],
        show_every=show_every,
    )
    stopper.reporter = reporter
    memory = MemoryMeter()
    services = make_services(experiment.loggers, experiment.name)
    say(f"{experiment.name}: starting Ray" if address is None else f"{experiment.name}: joining Ray at {address}")

    def on_death(text: str) -> int:
        reporter.close()
        say(f"{text} {go_on_from(run)}")
        return FAILED if stopper.signal is None else 128 + stopper.signal

    if trials > 1:  # how often Tune writes down which trials have ended; a killed driver tells nobody
        os.environ.setdefault("TUNE_GLOBAL_CHECKPOINT_S", str(SWEEP_STATE_S))
    bundles = checked.bundles_per_trial()
    with ray_session(address, bundles, verbose=verbose, on_sampling=reporter.on_sampling, on_death=on_death):
        source = checked.config["env"] or checked.config.get("data")
        reporter.say(f"{experiment.name}: {experiment.run} on {source}, into {storage}/{experiment.name}")
        if not is_remote(storage) and checked.configs[0].save_trajectories:
            reporter.say(f"watch it      rllm-gym view {os.path.relpath(run)}")
        if resumed:
            reporter.say(f"resuming {resumed.path} at train step {resumed.training_iteration}")
            if changes := changed_options(read_config(resumed.path)[1].to_dict(), checked.configs[0].to_dict()):
                reporter.say(f"options that differ from the checkpoint's: {changes}")
        with ending_on_signals(stopper, reporter, run), storage_errors_as_they_are():
            analysis = tune.run(
                checked.algorithm,
                name=experiment.name,
                config=to_tune(checked.config),
                stop=stopper,
                scheduler=make_scheduler(experiment.scheduler),
                num_samples=experiment.num_samples,
                storage_path=storage,
                checkpoint_config=tune.CheckpointConfig(**{"checkpoint_at_end": True, **experiment.checkpoint_config}),
                trial_dirname_creator=trial_dirname,
                restore=str(resumed.path) if resumed else None,
                # Trials that have ended stay as they are; the others go on from their newest checkpoints.
                resume="AUTO+ERRORED" if resumes_sweep else None,
                callbacks=[
                    *result_writers(storage, experiment.loggers, show_every=show_every),
                    *services,
                    *(CheckpointSync(), reporter, memory, OriginWriter(resumed)),
                ],
                raise_on_failed_trial=False,
                verbose=0,
            )
        check_ray()
        failed = [trial for trial in analysis.trials if trial.status == "ERROR"]
        for trial in failed:  # while Ray runs, since Tune's copy of the error lies in its folder
            say(describe_error(Path(trial.path), trial.error_file))
        if failed and stopper.is_asked:
            say(go_on_from(run))
    is_cut = stopper.is_asked and not all(stopper.is_met(trial.last_result or {}) for trial in analysis.trials)
    code = 128 + stopper.signal if is_cut and stopper.signal else FAILED if failed else 0
    if used := memory.describe():
        say(f"memory        {used}")
    if is_remote(storage):
        for trial in analysis.trials:
            say(f"results       {trial.path}")
        return code
    try:
        _conclude(run, analysis.trials, say, was_asked=stopper.is_asked)
    except OSError as error:
        raise StorageError(f"summary: cannot be written into {run}: {error.strerror or error}.") from error
    return code


@contextlib.contextmanager
def storage_errors_as_they_are() -> Iterator[None]:
    """Take a `StorageError` of a callback out of the error that Tune makes of it."""
    try:
        yield
    except TuneError as error:
        if isinstance(error.__context__, StorageError):
            raise error.__context__ from None
        raise


def trial_dirname(trial: Any) -> str:
    """Return a trial's folder: when it began, its id, and of a sweep what it tries."""
    tag = "" if trial.experiment_tag in ("", "0") else "_" + str(trial.experiment_tag).replace("/", "-")[:80]
    return time.strftime("%Y-%m-%d_%H-%M-%S") + f"_{trial.trial_id}{tag}"


def _check_sweep(run: Path) -> None:
    if not any(run.glob("experiment_state-*.json")):
        raise ConfigError(f"resume: {run} holds no sweep, whose state Tune keeps there. Run without --resume.")


def _checkpoint_to_resume(run: Path, say: Callable[[str], None]) -> CheckpointInfo:
    if info := newest_intact_checkpoint(run, say):
        return info
    raise ConfigError(f"resume: {run} holds no intact checkpoint. Run without --resume, or set checkpoint_frequency.")


def changed_options(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Return the options whose values differ, each as `name old -> new`; "" where none does."""

    def same(old: Any, new: Any) -> bool:
        if isinstance(old, str) and isinstance(new, str):  # a checkpoint has paths from the root
            return os.path.abspath(old) == os.path.abspath(new)
        return old == new or repr(old) == repr(new)  # RLlib's spaces are equal only to themselves

    names = sorted(name for name in before.keys() & now.keys() if not same(before[name], now[name]))
    return ", ".join(f"{name} {before[name]!r} -> {now[name]!r}" for name in names)


def _history(resumed: CheckpointInfo) -> list[dict[str, Any]]:
    return [r for r in read_results(resumed.trial) if r["training_iteration"] <= resumed.training_iteration]


def _seconds(history: list[dict[str, Any]]) -> float:
    """Return the time that a resumed run has behind it, over all its trials."""
    return float(sum(result.get("time_this_iter_s", 0.0) for result in history))


def _is_met(stopper: StopWhen, results: list[dict[str, Any]]) -> bool:
    return any(stopper.is_met(result) for result in results)


@contextlib.contextmanager
def ending_on_signals(stopper: StopWhen, reporter: ProgressReporter, run: Path) -> Iterator[None]:
    """Stop after the current train step on the first SIGINT or SIGTERM; at once on the second."""

    def handle(number: int, frame: Any) -> None:
        if stopper.is_asked:
            raise KeyboardInterrupt(number)
        stopper.signal = number
        reporter.say_soon("ending after this train step, with a checkpoint; once more ends at once, without one")
        if (newest := newest_checkpoint(run)) and time.time() - newest.saved_at > SCHEDULERS_GRACE_S:
            reporter.say_soon(f"if it is killed before that, --resume goes on from {newest.path}")

    previous = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        reporter.close()
        for number, handler in previous.items():
            signal.signal(number, handler)


def go_on_from(run: Path) -> str:
    """Return from where a run that failed goes on."""
    newest = newest_checkpoint(run)
    return f"The newest checkpoint is {newest.path}; go on with --resume." if newest else "There is no checkpoint yet."


def _conclude(run: Path, trials: list[Any], say: Callable[[str], None], *, was_asked: bool) -> None:
    """Write the summary and the curve, and say where everything lies."""
    folders = [Path(trial.path) for trial in trials]
    summary = write_summary(run, folders)
    curve = draw_curve(run, folders)
    checkpoints = [newest_checkpoint(folder) for folder in folders]
    if was_asked:
        say("ended as asked" + ("; --resume goes on from the checkpoint" if any(checkpoints) else ""))
    for folder, checkpoint in zip(folders, checkpoints, strict=True):
        say(f"checkpoint    {checkpoint.path if checkpoint else 'none'}")
        say(f"TensorBoard   tensorboard --logdir {folder}")
        if (folder / "trajectories").is_dir():
            say(f"trajectories  {folder / 'trajectories'}")
    if curve:
        say(f"curve         {curve}")
    if summary:
        say(f"summary       {run / SUMMARY}")
        for one in summary.get("trials", [summary]):
            say(describe_summary(one))


def describe_summary(summary: dict[str, Any]) -> str:
    """Return the before and after of every split in one line."""
    parts = []
    for split, rate in summary["evaluations"].items():
        before = "?" if rate["before"] is None else f"{rate['before']:.3f}"
        parts.append(f"{split} {before} -> {rate['after']:.3f}")
    return (
        f"success rate  {'   '.join(parts)}   ({summary['episodes']:g} episodes each, horizon {summary['horizon']:g})"
    )


def describe_error(folder: Path, staged: str | None = None) -> str:
    """Return a failed trial's error: its last exception first, then the end of the traceback.

    Where a process died, the disk was full or the folder lost, the line alone.

    Args:
        folder: the trial's.
        staged: Tune's first copy of `error.txt`, which is there also when the folder takes no file.
    """
    # Tune's copy first: what it took from there to a full disk is cut.
    file = next((file for file in (Path(staged or folder), folder / "error.txt") if file.is_file()), None)
    text = file.read_text(encoding="utf-8") if file else ""
    lines = [line for line in text.splitlines() if line.strip(" ^~")]
    if not lines:
        return f"a trial failed; its folder is {folder}"
    if any(NO_FOLDER in line for line in lines):
        return (
            f"failed: results: must be stored, and {folder} was deleted, or is not on every node. Give a folder that "
            "stays and that all nodes see, and go on with --resume."
        )
    # The message may have several lines: it begins at the last line that is not indented and names an exception.
    start = next((k for k in range(len(lines) - 1, -1, -1) if EXCEPTION.match(lines[k])), len(lines) - 1)
    if SELF_EXPLANATORY.match(lines[start]) or NO_STORAGE.search(lines[start]):
        return f"failed: {SELF_EXPLANATORY.sub('', lines[start], count=1)}"
    if ActorDiedError.BASE_ERROR_MSG in lines[:2]:  # Ray's own word below Tune's heading, not a traceback of the trial
        return (
            "failed: the trial's main process died (killed, out of memory, or crashed in native code). "
            "Go on from the last checkpoint with --resume."
        )
    tail = "\n".join(f"    {line}" for line in lines[-ERROR_LINES:])
    return f"failed: {lines[start]}\n{tail}\nthe whole error is in {folder / 'error.txt'}"
