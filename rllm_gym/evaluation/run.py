"""Evaluates a policy on panels of tasks: plays them, keeps every episode, and goes on where it was interrupted."""

from __future__ import annotations

import json
import logging
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rllm_gym.callbacks.horizon_schedules import last_horizon
from rllm_gym.checkpoints import read_config, read_protocol
from rllm_gym.data import EpisodeRecord, Recorder, read_episodes
from rllm_gym.errors import ConfigError, TooManyFailedEpisodesError
from rllm_gym.evaluation.game import measure_games
from rllm_gym.evaluation.panel import Panel, hash_panels, make_panel
from rllm_gym.evaluation.policy import (
    Policy,
    find_policy,
    leave_out_gpus,
    playing_config,
    sampled_policy,
    set_environments,
    with_environment,
)
from rllm_gym.evaluation.report import Outcome, count_outcome, make_report, markdown_table, measures_table
from rllm_gym.rollout.environments import tasks_trained_on
from rllm_gym.types import Episode, TaskGroup

logger = logging.getLogger(__name__)

# Written before the first episode is played.
PLAN, RESULT, TABLE, TRAJECTORIES = "evaluation.json", "result.json", "table.md", "trajectories"
USAGE = "usage.json"  # of an endpoint that is paid for


@dataclass
class Plan:
    """An evaluation that can begin.

    Args:
        algorithm: the class that plays, with its `config`, whose environments are the panels', in their order.
        folder: of the results.
        trained_on: of each panel the tasks that the policy was trained on, as far as its checkpoint tells.
    """

    policy: Policy
    algorithm: Any
    config: Any
    panels: Sequence[Panel]
    folder: Path
    trained_on: Sequence[Sequence[str | int | None]] = ()

    @property
    def names(self) -> list[str]:
        return [spec.name for spec in self.config.environments]

    @property
    def num_episodes(self) -> int:
        return sum(len(panel) * panel.samples for panel in self.panels)


def evaluate(source: str | Path, *, resume: bool = False, on_progress: Any = None, **what: Any) -> dict[str, Any]:
    """Evaluate a checkpoint, the newest one of a run, or a Hugging Face model; returns what `result.json` holds.

        from rllm_gym.evaluation import evaluate
        result = evaluate("runs/quickstart", split="eval", num_tasks=100, samples=4)
        result["success_rate"], result["success_interval"], result["pass@k"]

    Args:
        resume: go on with the evaluation in the folder, without playing again what has been played.
        on_progress: called with the report so far whenever episodes have ended.
        what: see `plan_evaluation`.
    """
    return play(plan_evaluation(source, **what), resume=resume, on_progress=on_progress)


def plan_evaluation(
    source: str | Path,
    *,
    envs: Sequence[tuple[str | None, Mapping[str, Any]]] = (),
    panels: Sequence[Panel] = (),
    split: str = "eval",
    num_tasks: int = 100,
    samples: int = 1,
    seed: int = 10_000,
    horizon: int | None = None,
    greedy: bool = False,
    config: Mapping[str, Any] | None = None,
    out: str | Path | None = None,
    joins_cluster: bool = False,
) -> Plan:
    """Check what an evaluation is asked to play, and return the plan.

    Args:
        envs: (environment's id, keys of its `env_config`); none means what the policy's run evaluates on, which is what
            it was trained on unless its `evaluation_config` says otherwise.
        panels: play these, and nothing of `envs` to `greedy`.
        split: of the environments' tasks.
        num_tasks: of each environment.
        samples: episodes of each task.
        seed: of the tasks, and of their environments.
        horizon: in turns; default: the last stage's of the training.
        greedy: take the likeliest token; else sample as the run evaluated.
        config: options of the sampler (`engine`, `max_model_len`, ...) in place of the checkpoint's or the defaults.
        out: the folder of the results; default: `evaluations/<policy>-<hash of the panels>`.
        joins_cluster: whether a cluster will play it, which may have the GPUs that this machine lacks.

    Raises:
        ConfigError: one of these cannot be.
    """
    policy = find_policy(source)
    if not panels:
        panels = []
        for env, env_config in envs or [(None, {})]:
            _, trained = playing_config(policy, config)
            schedules = trained.horizon_schedules
            with_environment(trained, policy.name, env=env, env_config=env_config, split=split)
            sampling = trained.greedy_params if greedy else trained.evaluation_params
            for spec in trained.environments:
                turns = horizon or last_horizon(schedules, spec.name)
                if turns is None and policy.checkpoint is None:
                    raise ConfigError(f"evaluate: {spec.name} needs a horizon; got none. Set --horizon.")
                panels.append(
                    make_panel(
                        spec,
                        split=split,
                        num_tasks=num_tasks,
                        samples=samples,
                        seed=seed,
                        horizon=turns,
                        sampling=sampling,
                        template=trained.chat_options,
                    )
                )
    if policy.checkpoint is not None and read_protocol(policy.checkpoint) == "agentgym":
        natives = {panel.spec.name for panel in panels if panel.spec.env_config.get("protocol") != "agentgym"}
        if natives:
            logger.warning(
                "evaluate: the policy was trained in AgentGym's protocol and plays %s in the native one, whose words "
                """it has not seen. Set --env-config '{"protocol": "agentgym"}'.""",
                ", ".join(sorted(natives)),
            )
    algorithm, playing = playing_config(policy, config)
    if not joins_cluster:
        leave_out_gpus(playing, config or {})
    _play_on(playing, panels)
    is_greedy = any(panel.sampling.temperature == 0 for panel in panels)
    if is_greedy and playing.engine != "openai" and playing.dtype != "float32":
        logger.warning(
            "evaluate: greedy episodes in %s depend on how many are in flight, as rounding does. Compare single ones "
            """with --config '{"dtype": "float32"}'.""",
            playing.dtype,
        )
    policy = sampled_policy(policy, playing)
    name = Path(policy.name)
    label = name.name if policy.checkpoint is None else "-".join(name.parts[-3:])
    folder = Path(out) if out is not None else Path("evaluations") / f"{label}-{hash_panels(panels)[:8]}"
    return Plan(policy, algorithm, playing, panels, folder, _trained_on(policy, panels))


def _trained_on(policy: Policy, panels: Sequence[Panel]) -> list[Sequence[str | int | None]]:
    """Return of each panel the tasks that a checkpoint's run has drawn from."""
    if policy.checkpoint is None:
        return [() for _ in panels]
    config = read_config(policy.checkpoint)[1]
    environments = [] if config.env is None else config.environments
    return [tasks_trained_on(environments, panel.spec, panel.item_ids) for panel in panels]


def _play_on(config: Any, panels: Sequence[Panel]) -> None:
    """Give a configuration the panels' environments, in their order."""
    taken = Counter(panel.hash for panel in panels)
    if len(taken) < len(panels):
        raise ConfigError(f"evaluate: a panel is played once; got {max(taken, key=taken.__getitem__)[:12]} twice.")
    if any(panel.template != panels[0].template for panel in panels):
        raise ConfigError(
            "evaluate: panels that are played together must have the same chat_template_kwargs and template_date; got "
            f"{', '.join(dict.fromkeys(str(dict(panel.template)) for panel in panels))}. Play them one by one."
        )
    for name, value in panels[0].template.items() if panels else ():
        setattr(config, name, value)
    names = Counter(panel.spec.name for panel in panels)
    specs = []
    for panel in panels:
        if panel.sampling.max_new_tokens >= config.max_model_len:
            raise ConfigError(
                f"evaluate: max_model_len must be above the panel's max_new_tokens, {panel.sampling.max_new_tokens}; "
                f"got {config.max_model_len}. Raise it: --config '{{\"max_model_len\": ...}}'."
            )
        name = panel.spec.name if names[panel.spec.name] == 1 else f"{panel.spec.name}-{panel.hash[:8]}"
        specs.append(replace(panel.spec, name=name))
    set_environments(config, specs)
    # The panels say what is played, and each its horizon.
    config.evaluation_splits, config.scaling_inter, config.max_episode_steps = ("train",), None, None


def play(
    plan: Plan, *, resume: bool = False, on_progress: Callable[[dict[str, Any]], None] | None = None
) -> dict[str, Any]:
    """Play what is planned and write the results; see `evaluate`.

    Raises:
        ConfigError: the folder holds another evaluation, or this one and `resume` is False.
        TooManyFailedEpisodesError: more than `max_failed_fraction` of all episodes failed. What was played is kept.
    """
    found = _open_folder(plan, resume=resume)
    groups = [_missing(group, found) for k, panel in enumerate(plan.panels) for group in panel.groups(k)]
    groups = [group for group in groups if group.size]
    recorder = Recorder(plan.folder / TRAJECTORIES, plan.config.environments)
    try:
        if groups:
            for outcomes in _played(plan, groups, recorder):
                found.update({(o.group, o.member): o for o in outcomes})
                if on_progress:
                    on_progress(_report(plan, found))
                _check_failures(plan, found)
    finally:
        recorder.close()
    report = _report(plan, found)
    panels = dict(zip(plan.names, plan.panels, strict=True))
    report.update(measure_games(plan.policy, plan.algorithm, plan.config, panels))
    (plan.folder / RESULT).write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    (plan.folder / TABLE).write_text(f"{markdown_table([report])}\n{measures_table(report)}", encoding="utf-8")
    return report


def _played(plan: Plan, groups: Sequence[TaskGroup], recorder: Recorder) -> Iterator[list[Outcome]]:
    """Play groups request by request, storing each one's episodes when it is answered."""
    config, checkpoint = plan.config, plan.policy.checkpoint
    if checkpoint is None:
        algo = plan.algorithm(config=config)
    else:
        algo = plan.algorithm.from_checkpoint(str(checkpoint), config=config)
    # Of requests as large as the runners' environments are many the slowest episode would idle half of them.
    capacity = 2 * config.num_env_runners * config.num_envs_per_env_runner
    horizons = {name: panel.horizon for name, panel in zip(plan.names, plan.panels, strict=True)}
    try:
        for k, panel in enumerate(plan.panels):
            of_panel = [group for group in groups if group.env_index == k]
            per_request = max(1, capacity // panel.samples)
            for first in range(0, len(of_panel), per_request):
                request = of_panel[first : first + per_request]
                played, failed = algo.sample(
                    request, max_episode_steps=horizons, params=panel.sampling, most_failed=math.inf
                )  # the share that ends it is of all requests together
                episodes: list[Episode] = [*played, *failed]
                _add_usage(plan.folder, algo.env_runner_group.foreach_env_runner("take_usage", local_env_runner=False))
                records = recorder.append(episodes, train_step=None, split=panel.split)
                yield _outcomes(records) + _dropped(request, episodes)
    finally:
        algo.stop()


def _add_usage(folder: Path, taken: Sequence[Mapping[str, float]]) -> None:
    """Count what a request has cost to what the folder's evaluation has cost so far."""
    usage = Counter(_usage(folder))
    for of_runner in taken:
        usage.update(of_runner)
    if usage:
        (folder / USAGE).write_text(json.dumps(usage) + "\n", encoding="utf-8")


def _usage(folder: Path) -> dict[str, float]:
    file = folder / USAGE
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}


def _dropped(request: Sequence[TaskGroup], episodes: Sequence[Episode]) -> list[Outcome]:
    """Return the episodes that never came back: their groups have killed two EnvRunners. They have no record."""
    answered = {episode.group.key for episode in episodes}
    return [
        Outcome(group.key, member, False, 0.0, 0, 0, "all", "error", "it killed two EnvRunners")
        for group in request
        if group.key not in answered
        for member in group.members or range(group.size)
    ]


def _outcomes(records: Sequence[EpisodeRecord]) -> list[Outcome]:
    """Return the outcomes of stored episodes; of one that was played again, the later."""
    by_episode: dict[tuple[Any, ...], dict[str, EpisodeRecord]] = {}
    for record in records:
        episode = by_episode.setdefault((*record.seed_key, record.member), {})
        if any(other.error is not None for other in episode.values()):
            episode.clear()
        episode[record.agent_id] = record
    return [count_outcome(list(of_episode.values())) for of_episode in by_episode.values()]


def _open_folder(plan: Plan, *, resume: bool) -> dict[Any, Outcome]:
    """Return the outcomes that the folder holds of this evaluation; note in a fresh one which evaluation it is of."""
    mine = {
        "model": plan.policy.name,
        "identity": plan.policy.identity,
        "panel_hash": hash_panels(plan.panels),
        "panels": [json.loads(panel.to_json()) for panel in plan.panels],
    }
    file = plan.folder / PLAN
    if not file.is_file():
        if plan.folder.exists() and any(plan.folder.iterdir()):
            raise ConfigError(f"evaluate: --out must be an empty folder; got {str(plan.folder)!r}. Choose another one.")
        plan.folder.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(mine, indent=1) + "\n", encoding="utf-8")
        return {}
    there = json.loads(file.read_text(encoding="utf-8"))
    for key in ("identity", "panel_hash"):
        if there[key] != mine[key]:
            raise ConfigError(
                f"evaluate: {str(plan.folder)!r} holds the evaluation of another "
                f"{'policy' if key == 'identity' else 'panel'}: {there[key][:12]}, and this one is {mine[key][:12]}. "
                "Choose another --out."
            )
    if not resume:
        raise ConfigError(
            f"evaluate: {str(plan.folder)!r} holds this evaluation already. Go on with it with --resume, or choose "
            "another --out."
        )
    trajectories = plan.folder / TRAJECTORIES
    records = list(read_episodes(trajectories)) if trajectories.is_dir() else []
    return {(outcome.group, outcome.member): outcome for outcome in _outcomes(records)}


def _missing(group: TaskGroup, found: Mapping[Any, Outcome]) -> TaskGroup:
    """Return the rest of a group: the episodes that were not played, or ended in an error."""
    members = []
    for member in range(group.size):
        outcome = found.get((group.key, member))
        if outcome is None or outcome.error is not None:
            members.append(member)
    return replace(group, size=len(members), members=tuple(members))


def _report(plan: Plan, found: Mapping[Any, Outcome]) -> dict[str, Any]:
    usage = _usage(plan.folder)
    return {
        "model": plan.policy.name,
        "panel_hash": hash_panels(plan.panels),
        "num_tasks_trained_on": sum(len(set(tasks)) for tasks in plan.trained_on),
        **({"usage": usage} if usage else {}),
        **make_report(dict(zip(plan.names, plan.panels, strict=True)), list(found.values())),
    }


def _check_failures(plan: Plan, found: Mapping[Any, Outcome]) -> None:
    failed = [outcome.error for outcome in found.values() if outcome.error is not None]
    if failed and len(failed) > plan.config.max_failed_fraction * plan.num_episodes:
        raise TooManyFailedEpisodesError(
            f"evaluate: {len(failed)} of {plan.num_episodes} episodes failed, more than max_failed_fraction "
            f"{plan.config.max_failed_fraction}. The first error: {failed[0]} What was played is in {plan.folder}; "
            "--resume plays the rest, and what failed."
        )
