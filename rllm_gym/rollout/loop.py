"""The rollout loop: many episodes in flight, each at its own pace, over any environments and any engine.

No episode waits for another: as soon as its completions are there its environment steps, in a worker while the engine
goes on decoding, and its next request joins the engine's running batch. Nothing here knows Ray, torch or vLLM.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from rllm_gym.errors import ConfigError
from rllm_gym.rollout.env_pool import EnvAdapter, EnvJob, EnvPool, EnvStep
from rllm_gym.rollout.play import ParamsByModule, Play, Progress, Request, params_by_module
from rllm_gym.rollout.watch import WaitingReports
from rllm_gym.types import (
    Completion,
    CompletionRequest,
    Engine,
    Episode,
    EpisodeGroup,
    Stream,
    TaskGroup,
    Turn,
)

logger = logging.getLogger(__name__)

MOST_WAIT_S = 0.1  # for environments, where something may be asked of the loop meanwhile
HorizonByEnv = int | None | Sequence[int | None]  # for all environments, or by environment index


def seed_of(*key: int) -> int:
    """Return the 31-bit seed that belongs to a key; Gymnasium, torch and vLLM all take it."""
    return int(np.random.SeedSequence(key).generate_state(1)[0]) & 0x7FFFFFFF


class RolloutLoop:
    """Plays groups of episodes and hands each group over when its last episode has ended.

    Seeds: the environment's reset seed is the group's, by default `seed_of(*group.key)`; that of a completion is
    `seed_of(*group.key, member, agent index, turn)`. A retried episode uses the same ones.

    Args:
        make_env: environment index -> token-level environment without a turn limit: a `gymnasium.Env` over token ids
            with `stop_ids`, or a multi-agent one (see `environments.py`); called in the workers' threads.
        engines: module id -> engine. They are stepped in this order and stay open when the loop closes.
        module_of: (agent id, episode) -> module id; asked once, at the agent's first observation.
        on_start: called with an episode after its reset, and {agent id: first observation}.
        num_envs: most episodes in flight, and most environments; environments are reused by reset.
        num_env_workers: threads that call environments while the engines decode; with 0 there is one, and the loop
            waits for it, in a fixed order.
        env_timeout_s: seconds that a call into an environment may take; then the environment is abandoned, and its
            episode counts as failed. None is no bound.
        params: how to sample, for all modules or by module id.
        max_model_len: tokens a context may hold; an episode ends before a turn for which there is no room.
        episode_timeout_s: seconds an episode may take, not counting pauses between calls; then it counts as failed. In
            a fixed order it is checked between steps only.
        max_retries: how often a failed episode is played again, each time on a fresh environment.
        max_turns: horizons of modules: an episode ends when an agent would act that has had so many turns.
    """

    def __init__(
        self,
        make_env: Callable[[int], Any],
        engines: Mapping[str, Engine],
        *,
        module_of: Callable[[str, Episode], str],
        on_start: Callable[[Episode, Mapping[str, Any]], None] | None = None,
        num_envs: int,
        params: ParamsByModule,
        max_model_len: int,
        num_env_workers: int = 0,
        env_timeout_s: float | None = None,
        episode_timeout_s: float | None = None,
        max_retries: int = 1,
        max_turns: Mapping[str, int] = {},
    ):
        least = {"num_envs": 1, "num_env_workers": 0, "max_retries": 0}
        for (name, bound), value in zip(least.items(), (num_envs, num_env_workers, max_retries), strict=True):
            if value < bound:
                raise ConfigError(
                    f"RolloutLoop: {name} must be at least {bound}; got {value}. Set {name}={bound} or more."
                )
        for module_id, engine in engines.items():
            if max_model_len > engine.max_context_tokens:
                raise ConfigError(
                    f"RolloutLoop: max_model_len must be at most what the engine of module {module_id!r} holds, "
                    f"{engine.max_context_tokens}; got {max_model_len}. Lower it or give the engine more."
                )
        self._engines = dict(engines)
        self._module_of, self._on_start = module_of, on_start
        self._max_model_len = max_model_len
        self._params = params_by_module(params, self._engines, max_model_len=self._max_model_len)
        self._horizon: HorizonByEnv = None
        self._timeout_s = episode_timeout_s
        self._max_retries, self._max_turns = max_retries, max_turns
        self._pool = EnvPool(make_env, num_envs=num_envs, num_workers=num_env_workers, timeout_s=env_timeout_s)
        self._driven_s = self._last_end_s = 0.0
        self._resumed_s: float | None = None
        self._pending: deque[tuple[Progress, Episode]] = deque()
        self._plays: list[Play] = []
        self._requests: dict[str, Request] = {}
        self._request_ids = map(str, itertools.count())
        self._finished: deque[EpisodeGroup] = deque()
        self._reports = WaitingReports(self)

    @property
    def seconds_without_end(self) -> float:
        """How long no episode has ended while the loop was driven."""
        return self._now() - self._last_end_s

    def in_flight(self) -> list[tuple[Play, bool, float]]:
        """Return what is played, whether it waits for an engine (else for its environment), and how many seconds."""
        asking = {id(request.play) for request in list(self._requests.values())}  # copies: any thread may ask
        now_s = self._now()
        return [(play, id(play) in asking, now_s - play.asked_s) for play in list(self._plays)]

    @property
    def num_unfinished_episodes(self) -> int:
        """Episodes submitted and not ended yet, begun or not."""
        return len(self._pending) + len(self._plays)

    def submit(
        self, groups: Iterable[TaskGroup], *, max_episode_steps: HorizonByEnv, params: ParamsByModule | None = None
    ) -> None:
        """Queue groups, and set the horizon and the sampling of every group that begins from here on.

        Args:
            max_episode_steps: the horizon in environment steps, or one for each environment index; None for no limit.
                Groups that were submitted before and have not begun get the new one, those in flight keep theirs.
            params: new sampling parameters; None keeps the ones in use.
        """
        for horizon in max_episode_steps if isinstance(max_episode_steps, Sequence) else [max_episode_steps]:
            if horizon is not None and horizon < 1:
                raise ConfigError(
                    f"RolloutLoop: max_episode_steps must be at least 1; got {horizon}. Use None for no limit."
                )
        if params is not None:
            self._params = params_by_module(params, self._engines, max_model_len=self._max_model_len)
        self._horizon = max_episode_steps
        for group in groups:
            if group.size < 1:
                raise ConfigError(
                    f"RolloutLoop: a group needs at least 1 episode; got size {group.size} for {group.key}."
                )
            seed = seed_of(*group.key) if group.seed is None else group.seed
            progress = Progress(group)
            self._pending += [(progress, episode) for episode in progress.begin(seed)]

    def finished_groups(self, *, between_steps: Callable[[], None] | None = None) -> Iterator[EpisodeGroup]:
        """Play until nothing is in flight, yielding each group as its last episode ends, episodes in member order.

        Stop iterating early, and the unfinished episodes stay in flight for the next call.

        Args:
            between_steps: called before every step of the engines, and while environments are waited for; it may
                submit more, and give the engines weights.
        """
        self._resumed_s = time.perf_counter()
        try:
            while self._finished or self.num_unfinished_episodes:
                if self._finished:
                    self._driven_s, self._resumed_s = self._now(), None
                    yield self._finished.popleft()
                    self._resumed_s = time.perf_counter()
                    continue
                if between_steps is not None:
                    between_steps()
                self._advance(None if between_steps is None else MOST_WAIT_S)
        finally:
            self._driven_s, self._resumed_s = self._now(), None

    def _now(self) -> float:
        """Return the seconds in which the loop was driven: a pause between two calls must not time episodes out."""
        return self._driven_s + (0.0 if self._resumed_s is None else time.perf_counter() - self._resumed_s)

    def close(self) -> None:
        """Drop what is in flight and close the environments; safe to call twice."""
        for request_id, request in self._requests.items():
            self._engines[request.stream.module_id].abort(request_id)
        for left in (self._requests, self._pending, self._plays):
            left.clear()
        self._pool.close()
        self._reports.stop()

    def _advance(self, most_wait_s: float | None) -> None:
        """Begin what can begin, take what the environments have answered, and let each busy engine take one step."""
        self._begin_episodes()
        # Without a request in any engine there is nothing to do until an environment answers: sleep on its queue.
        if self._pool.num_jobs:
            for job in self._pool.poll(0.0 if self._requests else self._seconds_to_timeout(most_wait_s)):
                self._take_answer(job)
        self._fail_overdue()
        for module_id, engine in self._engines.items():
            if any(request.stream.module_id == module_id for request in self._requests.values()):
                for completion in engine.step():
                    self._take_completion(completion)

    def _begin_episodes(self) -> None:
        while self._pending and (slot := self._pool.acquire(self._pending[0][1].group.env_index)):
            progress, episode = self._pending.popleft()
            if progress.begun_with is None:
                horizons = self._horizon
                horizon = horizons[episode.group.env_index] if isinstance(horizons, Sequence) else horizons
                progress.begun_with = horizon, self._params
            episode.horizon, params = progress.begun_with
            play = Play(progress, episode, slot, params, self._now(), self._now())
            self._plays.append(play)
            # So that the episodes of a group, and groups of one episode, put everybody into every seat.
            seating = episode.group.key[-1] + episode.member
            self._pool.submit(slot, play, "reset", episode.seed, episode.group.item_id, seating)

    def _take_answer(self, job: EnvJob) -> None:
        """Record what an environment answered, then end the episode or ask for its next actions."""
        play: Play = job.owner
        play.episode.timings["env_s"] += job.seconds
        if job.error is not None:
            play.episode.num_env_timeouts += job.is_timed_out
            self._fail(play, job.error)
            return
        assert job.result is not None and job.slot.env is not None
        self._record(play, job.slot.env, job.result)
        if self._on_start and job.call == "reset":
            self._on_start(play.episode, play.observations)
        end_reason = job.result.end_reason
        horizon = play.episode.horizon
        if not end_reason and horizon is not None and play.episode.num_env_steps >= horizon:
            end_reason = "horizon"
        if end_reason or (self._max_turns and play.has_used_up(self._max_turns, job.result.to_act)):
            self._finish(play, end_reason or "horizon")
        else:
            self._ask(play, job.slot.env, job.result.to_act)

    def _record(self, play: Play, env: EnvAdapter, step: EnvStep) -> None:
        episode, streams = play.episode, play.episode.streams
        episode.env_id = env.env_id
        episode.num_env_steps += 1 if play.actions else 0  # a reset has none
        play.actions.clear()
        for agent_id, ids in step.observations.items():
            if agent_id not in streams:
                module_id = self._module_of(agent_id, episode)
                if module_id not in self._engines:
                    raise ConfigError(
                        f"RolloutLoop: module_of must name a module with an engine, one of {sorted(self._engines)}; "
                        f"got {module_id!r} for agent {agent_id!r}."
                    )
                streams[agent_id] = Stream(agent_id, module_id)
            play.observations[agent_id] = ids
        for agent_id, reward in step.rewards.items():
            if (stream := streams.get(agent_id)) and stream.turns:
                stream.turns[-1].reward += reward
            else:  # it waits for the agent's first turn
                play.early_rewards[agent_id] = play.early_rewards.get(agent_id, 0.0) + reward
        for agent_id, info in step.infos.items():
            episode.take_info(agent_id, info, is_only_agent=not env.is_multi_agent)
            play.prompts[agent_id] = info.get("context_messages", info.get("messages", []))
            play.moves[agent_id] = info.get("moves", ())
            play.num_repeated[agent_id] = info.get("num_repeated_tokens", 0)
            if play.num_repeated[agent_id]:
                play.contexts[agent_id] = []
                play.samples[agent_id] = play.samples.get(agent_id, 0) + 1

    def _ask(self, play: Play, env: EnvAdapter, to_act: tuple[str, ...]) -> None:
        """Submit one request per agent that has to act, unless one of them has no room for a whole turn."""
        streams = play.episode.streams
        for agent_id in to_act:
            num_tokens = len(play.contexts.get(agent_id, ())) + len(play.observations[agent_id])
            max_new_tokens = play.params[streams[agent_id].module_id].max_new_tokens
            if num_tokens + max_new_tokens > self._max_model_len:
                if streams[agent_id].turns:
                    self._finish(play, "context_limit")
                else:  # Playing it again would give the same prompt.
                    self._fail(
                        play,
                        f"RolloutLoop: a first prompt and one turn must fit in max_model_len = {self._max_model_len}; "
                        f"got {num_tokens} + {max_new_tokens} tokens. Raise max_model_len or lower max_new_tokens.",
                        may_retry=False,
                    )
                return
        play.asked_s, play.to_act = self._now(), to_act
        for agent_id in to_act:
            stream = streams[agent_id]
            context = play.contexts.setdefault(agent_id, [])
            context.extend(play.observations[agent_id].tolist())
            engine = self._engines[stream.module_id]
            agent_index = env.agents.index(agent_id)
            request = CompletionRequest(
                request_id=next(self._request_ids),
                prompt_ids=list(context),
                stop_ids=env.stop_ids(agent_id),
                params=play.params[stream.module_id],
                seed=seed_of(*play.episode.group.key, play.episode.member, agent_index, len(stream.turns)),
                messages=play.prompts.get(agent_id, ()),
                moves=play.moves.get(agent_id, ()),
            )
            self._requests[request.request_id] = Request(play, stream, engine.policy_version)
            engine.submit(request)

    def _take_completion(self, completion: Completion) -> None:
        """Record a turn; step the environment when it was the last one that this step needs."""
        request = self._requests.pop(completion.request_id, None)
        if request is None:  # another agent's completion has failed the episode
            return
        play, stream = request.play, request.stream
        if completion.error is not None:
            return self._fail(play, completion.error)
        agent_id, versions = stream.agent_id, completion.policy_versions
        stream.turns.append(
            Turn(
                observation_ids=play.observations.pop(agent_id),
                action_ids=completion.token_ids,
                logp=completion.logp,
                policy_version=request.policy_version if versions is None else int(versions[0]),
                token_versions=versions,
                env_step=play.episode.num_env_steps,
                reward=play.early_rewards.pop(agent_id, 0.0),
                num_cached_tokens=completion.num_cached_tokens,
                sample=play.samples.get(agent_id, 0),
            )
        )
        play.contexts[agent_id].extend(completion.token_ids.tolist())
        play.actions[agent_id] = completion.token_ids
        if len(play.actions) == len(play.to_act):
            play.episode.timings["engine_s"] += self._now() - play.asked_s
            actions = {agent_id: play.actions[agent_id] for agent_id in play.to_act}
            play.asked_s = self._now()
            self._pool.submit(play.slot, play, "step", actions)

    def _finish(self, play: Play, end_reason: str) -> None:
        episode = play.episode
        for agent_id, ids in play.observations.items():
            episode.streams[agent_id].final_observation_ids = ids[play.num_repeated.get(agent_id, 0) :]
        self._pool.release(play.slot)
        self._end(play, end_reason)
        play.progress.episodes.append(episode)
        self._hand_over(play.progress)

    def _fail(self, play: Play, error: str, *, may_retry: bool = True) -> None:
        """Throw the environment away, then play the episode again or give it up."""
        episode = play.episode
        for request_id in [i for i, request in self._requests.items() if request.play is play]:
            self._engines[self._requests.pop(request_id).stream.module_id].abort(request_id)
        self._pool.discard(play.slot)
        self._end(play, "error")
        if may_retry and episode.num_retries < self._max_retries:
            logger.warning("episode %s failed and is played again: %s", episode.episode_id, error)
            again = Episode(
                episode.episode_id, episode.group, episode.member, episode.seed, item_id=episode.group.item_id,
                timings=episode.timings, num_retries=episode.num_retries + 1, num_env_timeouts=episode.num_env_timeouts,
                is_conditional=episode.is_conditional,
            )  # fmt: skip
            self._pending.appendleft((play.progress, again))
        else:
            logger.warning("episode %s failed and is dropped: %s", episode.episode_id, error)
            play.progress.failed.append(replace(episode, error=error))
            self._hand_over(play.progress)

    def _end(self, play: Play, end_reason: str) -> None:
        self._plays.remove(play)
        self._last_end_s = self._now()
        play.episode.end_reason = end_reason
        play.episode.timings["total_s"] += self._last_end_s - play.begun_s

    def _hand_over(self, progress: Progress) -> None:
        if len(progress.episodes) + len(progress.failed) + len(progress.waiting) < progress.group.size:
            return
        if progress.waiting and (others := progress.go_on()):
            self._pending.extendleft((progress, episode) for episode in reversed(others))
        else:
            episodes, failed = (
                sorted(part, key=lambda episode: episode.member) for part in (progress.episodes, progress.failed)
            )
            self._finished.append(EpisodeGroup(progress.group, episodes, failed))

    def _seconds_to_timeout(self, most: float | None) -> float | None:
        if self._timeout_s is None:
            return most
        oldest_s = min(play.begun_s for play in self._plays)
        seconds = max(0.0, oldest_s + self._timeout_s - self._now())
        return seconds if most is None else min(most, seconds)

    def _fail_overdue(self) -> None:
        if self._timeout_s is None:
            return
        now_s = self._now()
        for play, is_in_engine, _ in self.in_flight():
            if now_s - play.begun_s >= self._timeout_s:
                got = f"{now_s - play.begun_s:.1f} s, now waiting for its {'engine' if is_in_engine else 'environment'}"
                rule = f"an episode must end within episode_timeout_s = {self._timeout_s}"
                self._fail(play, f"RolloutLoop: {rule}; got {got}, after {play.episode.num_env_steps} steps.")
