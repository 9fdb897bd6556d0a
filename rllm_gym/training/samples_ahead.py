"""Sampling and learning side by side: the EnvRunners play for the train steps to come while the learners train."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rllm_gym.training.samplers import Horizons, Samplers
from rllm_gym.types import Episode, SampleReply, TaskGroup

logger = logging.getLogger(__name__)

WAIT_S = 0.2  # how long an EnvRunner that is asked waits for a group to end
Key = tuple[int, ...]


@dataclass
class PlayedGroup:
    """A group that has been played, and how many policy versions ago its oldest token was sampled."""

    episodes: list[Episode] = field(default_factory=list)
    failed: list[Episode] = field(default_factory=list)
    age: int = 0


class SamplesAhead:
    """Keeps the EnvRunners at work, and hands over the groups that have been played.

    A group goes to the train step in which it was submitted, or to one of the `staleness` steps after. What has ended
    is taken first come, first served; but what would be too old in the next step is waited for. So long episodes are
    neither thrown away nor learnt from less often than short ones.

    Args:
        samplers: play.
        staleness: how many train steps later a group may be learnt from.
        num_groups: how many a train step has, of which some may fail.
        horizons: returns the horizons of what is sent to the runners next.
    """

    def __init__(
        self, samplers: Samplers, staleness: int, *, num_groups: int, horizons: Callable[[], Horizons]
    ) -> None:
        self._samplers, self._staleness = samplers, staleness
        self._num_groups, self._horizons = num_groups, horizons
        samplers.finish_ahead = self.drain
        # All that no train step has taken, and the step in which it was submitted.
        self._submitted: dict[Key, tuple[TaskGroup, int]] = {}
        self._unsent: list[TaskGroup] = []
        self.has_begun = False
        self._playing: dict[int, list[TaskGroup]] = {}  # by EnvRunner
        self._ended: dict[Key, PlayedGroup] = {}  # in the order in which they ended

    def submit(self, groups: Sequence[TaskGroup], step: int) -> None:
        """Queue groups in a train step; they go to the runners when something is taken."""
        self._submitted |= {group.key: (group, step) for group in groups}
        self._unsent += groups
        self.has_begun = True

    def take(
        self, num_groups: int, step: int, version: int, *, of_policies: Callable[[str], bool]
    ) -> list[PlayedGroup]:
        """Return so many groups that have ended, first those that would be too old later; wait until they are there.

        Args:
            version: of the policies, by which ages are counted.
            of_policies: whether a module is one of them, and no opponent.
        """
        while True:
            due = {key for key, (_, at) in self._submitted.items() if at + self._staleness <= step}
            is_there = due <= self._ended.keys() and len(self._ended) >= min(num_groups, len(self._submitted))
            if is_there and not self._unsent:
                break
            self._exchange(wait_s=0.0 if is_there else WAIT_S)
        keys = sorted(self._ended, key=lambda key: key not in due)[:num_groups]
        for key in keys:
            del self._submitted[key]
        taken = [self._ended.pop(key) for key in keys]
        for group in taken:
            versions = [
                turn.policy_version  # of its oldest token
                for episode in group.episodes
                for stream in episode.streams.values()
                for turn in stream.turns
                if of_policies(stream.module_id)
            ]
            group.age = version - min(versions, default=version)
        return taken

    def get_state(self) -> list[tuple[TaskGroup, int]]:
        """Return the requests that were submitted and not taken, and when."""
        return list(self._submitted.values())

    def set_state(self, state: Sequence[tuple[TaskGroup, int]]) -> None:
        """Play again what another run had submitted."""
        self._unsent = []
        self.drain()  # of an algorithm that goes on elsewhere
        self._ended.clear()
        self.has_begun = bool(state)
        self._submitted = {group.key: (group, step) for group, step in state}
        self._unsent = [group for group, _ in state]
        if state:
            logger.warning(
                "staleness: %d groups were being played, or waited to be learnt from; they are played again, with the "
                "weights of now. A resumed run is not bit for bit the uninterrupted one.",
                len(state),
            )

    def drain(self) -> None:
        """Wait until nothing is played any more; what has ended stays here for the next train steps."""
        while self._unsent or self._playing:
            self._exchange()

    def _exchange(self, wait_s: float = WAIT_S) -> None:
        """Give the runners what is to be played, and take what has ended."""
        samplers = self._samplers
        runner_ids = samplers.ids or samplers.await_any()
        lost = [group for id_ in set(self._playing) - set(runner_ids) for group in self._playing.pop(id_)]
        shares: dict[int, list[TaskGroup]] = {id_: [] for id_ in runner_ids if id_ in self._playing}
        for group in self._unsent:
            least_busy = min(runner_ids, key=lambda id_: len(self._playing.get(id_, ())))
            shares.setdefault(least_busy, []).append(group)
            self._playing.setdefault(least_busy, []).append(group)
        self._unsent = []
        horizons, opponents = dict(self._horizons()), samplers.opponents
        replies = samplers.ask(
            shares,
            lambda runner, share: runner.sample_ahead(
                share, max_episode_steps=horizons, opponents=opponents, wait_s=wait_s
            ),
        )
        self._take_over(replies)
        # A runner without an answer has died; one that knows nothing of what it was given has been restarted.
        left = {reply.worker_index: reply.groups_left for reply in replies}
        for id_ in shares:
            given = [group for group in self._playing.pop(id_) if group.key not in self._ended]
            lost += [group for group in given if group.key not in left.get(id_, ())]
            if still := [group for group in given if group.key in left.get(id_, ())]:
                self._playing[id_] = still
        if lost:
            self._replay(lost)

    def _replay(self, lost: list[TaskGroup]) -> None:
        """Play the groups of runners that died again, when the others have played theirs."""
        self.drain()
        self._take_over(self._samplers.replay(lost, num_groups=self._num_groups, horizons=self._horizons()))
        for group in lost:
            if group.key not in self._ended:  # it has killed two runners
                del self._submitted[group.key]

    def _take_over(self, replies: Sequence[SampleReply]) -> None:
        for reply in replies:
            for episode in reply.episodes:
                self._ended.setdefault(episode.group.key, PlayedGroup()).episodes.append(episode)
            for episode in reply.failed:
                self._ended.setdefault(episode.group.key, PlayedGroup()).failed.append(episode)
