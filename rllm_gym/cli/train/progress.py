"""Shows a run while it goes: a progress bar on a terminal, and one line per train step."""

from __future__ import annotations

from typing import Any

from ray.tune import Callback
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from rllm_gym.cli.sampling_progress import SamplingProgress
from rllm_gym.cli.train.results import sample_episode
from rllm_gym.cli.train.summary import describe_evaluation


def step_line(result: dict[str, Any], last_step: int | None) -> str:
    """Return one train step in one line; what a result does not have is left out."""
    runners = result.get("env_runners") or {}
    step = result.get("training_iteration", 0)
    parts = [f"step {step}/{last_step}" if last_step else f"step {step}"]

    def add(text: str, *values: Any) -> None:
        if all(value is not None for value in values):
            parts.append(text.format(*values))

    dropped, groups = result.get("num_groups_dropped"), result.get("num_groups")
    add("success {:.2f}", runners.get("success_rate"))
    add("turns {:.1f}", runners.get("num_turns_mean"))
    add("horizon {:g}", result.get("max_episode_steps") or None)
    add("sampled {:,.0f} tok/s", result.get("num_tokens_sampled_per_s"))
    add("trained {:,.0f} tok/s", result.get("num_tokens_trained_per_s"))
    add("dropped {:g}/{:g}", dropped, groups)
    add("kept {:g}", result.get("num_kept_samples"))
    add("epoch {:.2f}", result.get("epoch"))
    add("loss {:.3f}", _loss(result))
    add("failed {:g}", runners.get("num_failed_episodes") or None)
    add("{:.1f} s", result.get("time_this_iter_s"))
    if groups and dropped == groups:
        parts.append("nothing learnt: every group's returns were equal")
    return "  ".join(parts)


def _loss(result: dict[str, Any]) -> float | None:
    """Return the loss of a supervised method; that of a policy gradient says little."""
    modules = (result.get("learners") or {}).values()
    return next((module["loss"] for module in modules if isinstance(module, dict) and "loss" in module), None)


class ProgressReporter(Callback):
    """Reports a run's progress to the user, from Tune's callbacks.

    Args:
        last_step: train steps of each trial, where `stop` says so.
        num_trials: with more than one, every line begins with the trial.
        first_step: train steps that a resumed run has behind it.
        show_every: train steps from one episode that is shown in short to the next; 0 shows none.
    """

    def __init__(
        self, console: Console, *, last_step: int | None, num_trials: int, first_step: int = 0, show_every: int = 0
    ) -> None:
        self._console, self._last_step, self._num_trials = console, last_step, num_trials
        self._show_every = show_every
        self.num_active = 0
        self._waiting: list[str] = []
        self._steps: dict[str, int] = {}
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
            transient=True,
        )
        total = last_step * num_trials if last_step else None
        self._task = self._progress.add_task("building", total=total, completed=first_step)
        self.on_sampling = SamplingProgress(self._progress, console)

    def say(self, text: str) -> None:
        """Print a line above the bar."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def say_soon(self, text: str) -> None:
        """Have Tune's loop print a line: where a signal handler interrupts `say`, printing would repeat that line."""
        self._waiting.append(text)

    def setup(self, **info: Any) -> None:
        self._progress.start()

    def close(self) -> None:
        self._progress.stop()

    def on_step_begin(self, iteration: int, trials: list[Any], **info: Any) -> None:
        while self._waiting:
            self.say(self._waiting.pop(0))

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self.num_active += 1

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self.num_active -= 1

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self.num_active -= 1

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        self._steps[trial.trial_id] = result["training_iteration"]
        who = f"{trial.trial_id}  " if self._num_trials > 1 else ""
        self.say(who + step_line(result, self._last_step))
        for line in sample_episode(trial, result, self._show_every):
            self.say(f"    {line}")
        if evaluation := describe_evaluation(result):
            self.say(f"{who}evaluation  {evaluation}")
        self._progress.update(self._task, description="training", completed=sum(self._steps.values()))

    def on_experiment_end(self, trials: list[Any], **info: Any) -> None:
        self.close()
