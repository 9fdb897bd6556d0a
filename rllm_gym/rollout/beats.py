"""Signs of life of the samplers, by which the driver notices one that stands still.

A sampler that is stopped (SIGSTOP), or in native code that holds Python's lock, can neither time a call out nor say
that it waits: its threads stand still, too. So the driver looks at what a thread there counts, in the cluster's
key-value store.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import platform
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import ray

from rllm_gym.rollout import ray_store
from rllm_gym.rollout.watch import Watcher

NAMESPACE = "beats"
BEAT_S = 5.0
REPORT_S = 60.0  # without a beat


class Beats(Watcher):
    """Counts in the store as long as this process, an actor of Ray's, is alive and its threads run."""

    def __init__(self) -> None:
        self._count = itertools.count()
        self._key = ray.get_runtime_context().get_actor_id() if ray.is_initialized() else None
        self._beat()  # the first one: an environment may stop this process before the thread's
        super().__init__(self._beat, tick_s=BEAT_S, name="beats")

    def _beat(self) -> bool:
        if self._key is not None:
            place = f"{platform.node()} {os.getpid()}"
            with contextlib.suppress(Exception):  # the store may go before this process
                ray_store.put(NAMESPACE, self._key, f"{place} {next(self._count)}")
        return True


def read_beat(actor_id: str) -> str | None:
    """Return an actor's last beat: the names of its machine and process, and its count; None before the first."""
    return ray_store.get(NAMESPACE, actor_id)


@dataclass
class _Seen:
    beat: str
    silent_s: float = 0.0
    is_told: bool = False


class StandstillWatch(Watcher):
    """Looks at the samplers that were asked for something until it is stopped.

    Only time in which this process itself was awake counts: a suspended laptop ends no sampler.

    Args:
        actor_ids: of the samplers, by their numbers.
        tell: gets a line about one without a beat for `REPORT_S`.
        replace: called with the number and the last beat of one without a beat for `timeout_s`; None replaces none.
        read: returns the last beat of an actor.
    """

    def __init__(
        self,
        actor_ids: Mapping[int, str],
        *,
        timeout_s: float | None,
        tell: Callable[[str], None],
        replace: Callable[[int, str], None],
        read: Callable[[str], str | None] = read_beat,
        tick_s: float = BEAT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._actor_ids, self._tell, self._replace, self._read = dict(actor_ids), tell, replace, read
        self._timeout_s = None if timeout_s is None else max(timeout_s, REPORT_S)
        self._tick_s, self._clock, self._looked_s = tick_s, clock, clock()
        self._seen: dict[int, _Seen] = {}
        super().__init__(self._look, tick_s=tick_s, name="standstill-watch")

    def _look(self) -> bool:
        now_s = self._clock()
        awake_s, self._looked_s = min(now_s - self._looked_s, 2 * self._tick_s), now_s
        for number, actor_id in list(self._actor_ids.items()):
            beat = None
            with contextlib.suppress(Exception):  # the store may be busy, or gone
                beat = self._read(actor_id)
            if beat is None:  # it is being built, or of a version without beats
                continue
            seen = self._seen.get(number)
            if seen is None or seen.beat != beat:
                self._seen[number] = _Seen(beat)
                continue
            seen.silent_s += awake_s
            if seen.silent_s >= REPORT_S and not seen.is_told:
                seen.is_told = True
                what = "is left as it is" if self._timeout_s is None else f"is replaced after {self._timeout_s:g} s"
                place = beat.rpartition(" ")[0]
                self._tell(
                    f"EnvRunner {number} has stood still for {seen.silent_s:.0f} s (process {place}): it is stopped, "
                    f"or native code of an environment holds Python's lock. It {what} (env_timeout_s)."
                )
            if self._timeout_s is not None and seen.silent_s >= self._timeout_s:
                self._tell(f"EnvRunner {number} is replaced, and its groups are played again.")
                del self._actor_ids[number]
                self._replace(number, beat)
        return bool(self._actor_ids)


def kill_actor(actor: ray.actor.ActorHandle, beat: str) -> None:
    """End an actor that cannot end by itself; Ray restarts it.

    Ray asks the process to end, which one that is stopped does not; so on this machine the system ends it.
    """
    node, pid, _ = beat.split()
    ray.kill(actor, no_restart=False)
    if node == platform.node():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(int(pid), signal.SIGKILL)
