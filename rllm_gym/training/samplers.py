"""The EnvRunners as the driver sees them: who plays which groups, what happens when one dies, and who gets weights."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rllm_gym.errors import RllmGymError, TooManyFailedEpisodesError
from rllm_gym.rollout.beats import StandstillWatch, kill_actor
from rllm_gym.rollout.environments import EnvironmentSpec
from rllm_gym.rollout.notices import tell
from rllm_gym.rollout.policies import OpponentWeights
from rllm_gym.types import Episode, Probe, SampleReply, SamplingParams, TaskGroup

logger = logging.getLogger(__name__)

Horizons = Mapping[str, int | None]  # in turns, by the environment's name
Shares = Mapping[int, list[TaskGroup]]  # by EnvRunner
Ask = Callable[[Any, list[TaskGroup]], SampleReply]  # what a runner does with its share


class NoEnvRunners:
    """An `EnvRunnerGroup` of none, where nothing is sampled: RLlib uses the group without asking if it is there."""

    local_env_runner = None

    def __bool__(self) -> bool:
        return False

    def num_remote_env_runners(self) -> int:
        return 0

    def foreach_env_runner(self, *args: Any, **kwargs: Any) -> list[Any]:
        return []

    healthy_worker_ids = probe_unhealthy_env_runners = foreach_env_runner

    def sync_weights(self, *args: Any, **kwargs: Any) -> None:
        pass

    sync_env_runner_states = stop = sync_weights


class Samplers:
    """Asks the EnvRunners of a run for episodes, and keeps them at work when one dies.

    A runner that dies is restarted by RLlib, and its groups are played again, one by one; a group that kills a second
    runner is dropped and counted.

    Args:
        group: RLlib's `EnvRunnerGroup`.
        who: begins error messages.
        environments: the run's; a group's `env_index` counts them.
        env_timeout_s: after so long without a sign of life a runner is replaced; None replaces none.
        max_failed_fraction: the share of the groups, or of the episodes, beyond which failures end the run.
        restore_timeout_s: how long to wait for RLlib to restart a runner where none is left.
        present_state: returns the weights and the version that a restarted runner loads.
        on_metrics: called with what each runner has measured.
        on_restored: called with the numbers of the runners that are back in service.
    """

    def __init__(
        self,
        group: Any,
        *,
        who: str,
        environments: Sequence[EnvironmentSpec],
        env_timeout_s: float | None,
        max_failed_fraction: float,
        restore_timeout_s: float,
        present_state: Callable[[], Mapping[str, Any]],
        on_metrics: Callable[[Any], None],
        on_restored: Callable[[list[int]], None],
    ) -> None:
        self.group = group
        self.opponents: OpponentWeights = {}  # those of the train step that comes next
        self.num_groups_killed_runners = 0
        self.finish_ahead: Callable[[], None] = lambda: None  # ends what is played ahead, before anything else is
        self._who, self._environments, self._env_timeout_s = who, environments, env_timeout_s
        self._max_failed_fraction, self._restore_timeout_s = max_failed_fraction, restore_timeout_s
        self._present_state, self._on_metrics, self._on_restored = present_state, on_metrics, on_restored
        self._item_ids: dict[tuple[int, str | None], Sequence[str] | None] = {}

    @property
    def ids(self) -> list[int]:
        """The numbers of the EnvRunners that are not known to be dead."""
        return sorted(self.group.healthy_worker_ids())

    # --- playing ---

    def sample(
        self,
        groups: Sequence[TaskGroup],
        *,
        horizons: Horizons,
        params: SamplingParams | None = None,
        most_failed: float | None = None,
    ) -> tuple[list[Episode], list[Episode]]:
        """Play groups; return the episodes in the groups' order, and those that failed.

        Args:
            params: how to sample; None is as in training.
            most_failed: episodes; a runner on which more have failed plays no others, since `check_failures` will end
                the run. None is `max_failed_fraction` of all.

        Raises:
            RllmGymError: a runner failed by an error of its own, or none can be restarted.
            TooManyFailedEpisodesError: too many groups killed two runners each.
        """
        self.finish_ahead()
        runner_ids = self.ids or self.await_any()
        shares = {runner_id: list(groups[k :: len(runner_ids)]) for k, runner_id in enumerate(runner_ids)}
        if most_failed is None:
            most_failed = self._max_failed_fraction * sum(group.size for group in groups)
        replies, lost = self._play(shares, horizons, params, most_failed)
        if lost:
            replies += self.replay(lost, num_groups=len(groups), horizons=horizons, params=params)
        order = {group.key: k for k, group in enumerate(groups)}
        played = [episode for reply in replies for episode in reply.episodes]
        played.sort(key=lambda episode: (order[episode.group.key], episode.member))
        return played, [episode for reply in replies for episode in reply.failed]

    def replay(
        self, lost: Sequence[TaskGroup], *, num_groups: int, horizons: Horizons, params: SamplingParams | None = None
    ) -> list[SampleReply]:
        """Play the groups of dead runners again, each alone on a runner, to find the one that kills.

        Args:
            num_groups: of how many these were lost.

        Raises:
            TooManyFailedEpisodesError: more than `max_failed_fraction` of them killed two runners; one is never too
                many.
            RllmGymError: no runner came back in time.
        """
        logger.error("an EnvRunner died; its %d groups are played again, one by one.", len(lost))
        replies: list[SampleReply] = []
        left, num_dropped = list(lost), 0
        while left:
            runner_ids = self.await_any()
            alone, left = left[: len(runner_ids)], left[len(runner_ids) :]
            shares = {runner_id: [group] for runner_id, group in zip(runner_ids, alone, strict=False)}
            played, killers = self._play(shares, horizons, params)
            replies += played
            for group in killers:
                name = self._environments[group.env_index].name
                logger.error(
                    "dropped the group %s of %s (%s): it killed two EnvRunners.", group.key, name, group.item_id
                )
            num_dropped += len(killers)
            self.num_groups_killed_runners += len(killers)
            if num_dropped > max(1.0, self._max_failed_fraction * num_groups):
                raise TooManyFailedEpisodesError(
                    f"{self._who}: {num_dropped} groups of episodes killed two EnvRunners each, more than "
                    f"max_failed_fraction {self._max_failed_fraction}. The runners' errors are above."
                )
        return replies

    def _play(
        self, shares: Shares, horizons: Horizons, params: SamplingParams | None, most_failed: float = math.inf
    ) -> tuple[list[SampleReply], list[TaskGroup]]:
        """Play each runner's groups there; return the replies, and the groups of runners that died."""
        opponents = self.opponents
        replies = self.ask(
            shares,
            lambda runner, share: runner.sample_groups(
                share, max_episode_steps=horizons, params=params, opponents=opponents, most_failed=most_failed
            ),
        )
        answered = {reply.worker_index for reply in replies}
        return replies, [group for runner_id, share in shares.items() if runner_id not in answered for group in share]

    def ask(self, shares: Shares, ask: Ask) -> list[SampleReply]:
        """Ask each runner about its groups; those that have died do not reply.

        Raises:
            RllmGymError: a runner failed by an error of its own.
        """
        manager = getattr(self.group, "_worker_manager", None)  # a stand-in's runners are no actors
        actors = {number: actor for number, actor in manager.actors().items() if number in shares} if manager else {}
        watch = StandstillWatch(
            {number: actor._actor_id.hex() for number, actor in actors.items()},
            timeout_s=self._env_timeout_s,
            tell=tell,
            replace=lambda number, beat: kill_actor(actors[number], beat),
        )
        try:
            replies = self.group.foreach_env_runner(
                [lambda runner, share=share: ask(runner, share) for share in shares.values()],
                remote_worker_ids=list(shares),
                local_env_runner=False,
                timeout_seconds=None,
            )
        finally:
            watch.stop()
        for reply in replies:
            if reply.error is not None:
                raise RllmGymError(f"EnvRunner {reply.worker_index} failed: {reply.error}")
            self._on_metrics(reply.metrics)
        return replies

    def check_failures(self, played: Sequence[Episode], failed: Sequence[Episode]) -> None:
        """Log failed episodes; stop the run when too many fail.

        Raises:
            TooManyFailedEpisodesError: more than `max_failed_fraction` of the episodes.
        """
        for episode in failed:
            logger.warning("dropped an episode of %s: %s", episode.item_id, episode.error)
        num_episodes = len(played) + len(failed)
        if failed and len(failed) > self._max_failed_fraction * num_episodes:
            raise TooManyFailedEpisodesError(
                f"{self._who}: {len(failed)} of the {num_episodes} episodes that had ended failed, more than "
                f"max_failed_fraction {self._max_failed_fraction} of all. The first error: {failed[0].error}"
            )

    def item_ids(self, env_index: int = 0, split: str | None = None) -> Sequence[str] | None:
        """Return an environment's task ids, of `split` or of the configured one; None where it numbers none."""
        key = (env_index, split)
        if key not in self._item_ids:
            found = self.group.foreach_env_runner(
                lambda runner: runner.item_ids(env_index, split),
                remote_worker_ids=self.ids[:1],
                local_env_runner=False,
            )
            if not found:
                name = self._environments[env_index].name
                raise RllmGymError(
                    f"{self._who}: an EnvRunner must list the tasks of {name}; got none, for it failed or died. Its "
                    "errors are above."
                )
            self._item_ids[key] = found[0]
        return self._item_ids[key]

    # --- life and death ---

    def begin_build(self, *, wait: bool) -> None:
        """Let the runners make their engines; without `wait` the driver goes on meanwhile."""
        self.group.foreach_env_runner("build", local_env_runner=False, timeout_seconds=None if wait else 0.0)

    def check(self, what: str) -> None:
        """Wait until the runners have done what they were asked for.

        Raises:
            RllmGymError: one could not.
        """
        for error in self.group.foreach_env_runner(lambda runner: runner.build(), local_env_runner=False):
            if error is not None:
                raise RllmGymError(f"an EnvRunner {what}: {error}")

    def probes(self) -> list[dict[str, Probe]]:
        """Return the tokens that each runner's engines sample after a fixed prompt, by policy.

        Raises:
            RllmGymError: one could not, or all have died.
        """
        are_some = bool(self.ids)
        found = list(self.group.foreach_env_runner(lambda runner: runner.probe(), local_env_runner=False))
        self.check("could not sample with its first weights")
        if are_some and not found:
            raise RllmGymError(f"{self._who}: every EnvRunner died as it sampled with its first weights.")
        return found

    def restore(self) -> list[int]:
        """Give the runners that RLlib has restarted the present weights; return their numbers.

        They get the horizon with their next request for episodes.
        """
        restored = self.group.probe_unhealthy_env_runners() or []
        if restored:
            logger.warning("EnvRunners %s were restarted.", restored)
            state = self._present_state()
            self.group.foreach_env_runner(
                lambda runner: (runner.forget_weights(), runner.set_state(state)),
                remote_worker_ids=restored,
                local_env_runner=False,
                timeout_seconds=None,
            )
        return restored

    def await_any(self) -> list[int]:
        """Return the living runners; where there is none, wait until RLlib has brought one back.

        Raises:
            RllmGymError: none came back within `restore_timeout_s`.
        """
        deadline = time.monotonic() + self._restore_timeout_s
        while True:
            if restored := self.restore():
                self._on_restored(restored)
            if runner_ids := self.ids:
                return runner_ids
            if time.monotonic() > deadline:
                raise RllmGymError(
                    f"{self._who}: no EnvRunner came back in time; env_runner_restore_timeout_s is "
                    f"{self._restore_timeout_s}. Its errors are above."
                )
            time.sleep(1.0)

    def sleep(self) -> None:
        """Leave shared GPUs to the learners; what uses an engine next wakes it."""
        self.group.foreach_env_runner("sleep", local_env_runner=False)

    # --- weights ---

    def load_from(self, source: Any) -> None:
        """Let the runners take what a source's `get_state` returns, through Ray's object store; it only queues."""
        self.group.sync_weights(from_worker_or_learner_group=source, timeout_seconds=None, inference_only=True)

    def forget_weights(self) -> None:
        """Make the runners load the next weights whatever their number: another run's may have the same."""
        self.group.foreach_env_runner("forget_weights", local_env_runner=False)

    def places(self) -> dict[int, tuple[str | None, str]]:
        """Return each runner's GPU (None of a CPU) and process."""
        return dict(
            self.group.foreach_env_runner(
                lambda runner: (runner.worker_index, runner.receiver.place), local_env_runner=False
            )
        )
