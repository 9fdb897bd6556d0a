"""The rollout loop: many episodes in flight, each at its own pace, over any environments and any engine.

No episode waits for another: as soon as its completions are there its environment steps, in a worker while the engine
goes on decoding, and its next request joins the engine's running batch. Nothing here knows Ray, torch or vLLM. The life
of an episode:

    submit -> _begin_episodes -> reset
                                   |
        +-------------------> _take_answer ---> the environment ended it, or the horizon ---> _finish
        |                          |                                                             ^
        |                        _ask ---> no room for a whole turn ---------------------------- +
        |                          | a request for each agent that acts
        |                     engine.step
        |                          |
        +------- step ------- _take_completion, when the last one of the step is there

    an error, a time-out -> _fail -> once more from the reset, or dropped
    the last episode of a group, finished or dropped -> _hand_over -> finished_groups
"""

from __future__ import annotations

import itertools
import logging
import time
import weakref
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from rllm_gym.errors import ConfigError
from rllm_gym.infos import read_messages
from rllm_gym.rollout.env_adapters import EnvAdapter, EnvStep
from rllm_gym.rollout.env_pool import EnvJob, EnvPool, EnvSlot
from rllm_gym.rollout.watch import Waiting, WaitingReports
from rllm_gym.types import (
    CONTEXT_MESSAGES,
    MOVES,
    NUM_REPEATED_TOKENS,
    Completion,
    CompletionRequest,
    EndReason,
    Engine,
    Episode,
    EpisodeGroup,
    Message,
    SamplingParams,
    Stream,
    TaskGroup,
    TokenIds,
    Turn,
    outcomes,
)

logger = logging.getLogger(__name__)

MOST_WAIT_S = 0.1  # for environments, where something may be asked of the loop meanwhile
NUM_MEASURED = 32  # episodes that ended last, by which the next ones are expected to fill an engine's cache
HorizonByEnv = int | None | Sequence[int | None]  # for all environments, or by environment index
ParamsByModule = SamplingParams | Mapping[str, SamplingParams]  # for all modules, or by module id


def derive_seed(*key: int) -> int:
    """Derive the 31-bit seed of a key; Gymnasium, torch and vLLM all take it."""
    return int(np.random.SeedSequence(key).generate_state(1)[0]) & 0x7FFFFFFF


@dataclass
class GroupInFlight:
    """A group that is being played. All its episodes have the horizon and the sampling of the first one to begin.

    `waiting` are those that are played only if the others end differently.
    """

    group: TaskGroup
    waiting: list[Episode] = field(default_factory=list)
    begun_with: tuple[int | None, dict[str, SamplingParams]] | None = None
    episodes: list[Episode] = field(default_factory=list)
    failed: list[Episode] = field(default_factory=list)

    def begin(self, seed: int) -> list[Episode]:
        """Return the episodes to play first."""
        group = self.group
        episodes = [
            Episode("-".join(map(str, (*group.key, member))), group, member, seed, item_id=group.item_id)
            for member in group.members or range(group.size)
        ]
        num_first = group.screening_size or group.size
        self.waiting = episodes[num_first:]
        return episodes[:num_first]

    def take_waiting(self) -> list[Episode]:
        """Return the episodes to play when the first ones have ended: none where these ended alike."""
        is_alike = len(self.episodes) > 1 and len(set(outcomes(self.episodes))) == 1
        others, self.waiting = self.waiting, []
        for episode in others:
            episode.is_conditional = True
        return [] if is_alike else others


@dataclass(eq=False)
class AgentInPlay:
    """One agent of an episode in flight: what it was asked with, what it has not answered yet, what it will do.

    Args:
        stream: None before its first observation.
        context: the tokens that it was asked with and has answered.
        observation: the tokens that it has not answered yet; None after its answer.
        num_repeated: the tokens at the beginning of the observation that only repeat what was said before, where its
            history was rewritten.
        context_index: counts its contexts; one that was rewritten begins anew.
        prompt: context and observation as messages.
        moves: what the environment says that it may do, where it is no language model.
        action: what was sampled for the coming environment step.
        early_reward: earned before its first turn.
    """

    stream: Stream | None = None
    context: list[int] = field(default_factory=list)
    observation: TokenIds | None = None
    num_repeated: int = 0
    context_index: int = 0
    prompt: Sequence[Message] = ()
    moves: tuple[str | TokenIds, ...] = ()
    action: TokenIds | None = None
    early_reward: float = 0.0


@dataclass(eq=False)
class EpisodeInFlight:
    """One attempt at an episode. `asked_s` is when the environment or the engine was asked last."""

    group: GroupInFlight
    episode: Episode
    slot: EnvSlot
    params: dict[str, SamplingParams]
    begun_s: float
    asked_s: float
    cut_short: EndReason | None = None  # why it ends, where its environment is told so
    to_act: tuple[str, ...] = ()
    agents: defaultdict[str, AgentInPlay] = field(default_factory=lambda: defaultdict(AgentInPlay))

    def has_used_up(self, max_turns: Mapping[str, int], to_act: Iterable[str]) -> bool:
        """Return whether one of the agents to act has had the turns that its module may take."""
        streams = [self.episode.streams[agent_id] for agent_id in to_act]
        return any(len(stream.turns) >= max_turns.get(stream.module_id, len(stream.turns) + 1) for stream in streams)

    def num_tokens_of(self, module_id: str) -> int:
        """Return the tokens of a module's contexts that were not in its engine's cache before the first turn."""
        contexts = [
            (len(agent.context), agent.stream.turns[0].num_cached_tokens)
            for agent in self.agents.values()
            if agent.stream is not None and agent.stream.module_id == module_id and agent.stream.turns
        ]
        return sum(max(0, num_tokens - num_cached) for num_tokens, num_cached in contexts)


@dataclass(frozen=True)
class Request:
    """Whose completion an engine is sampling, and under which policy version it was submitted."""

    flight: EpisodeInFlight
    stream: Stream
    policy_version: int


class CacheRoom:
    """Says whether an engine's cache of keys and values has room for one more episode.

    Where more are in flight, the turn of one drops what the cache holds of another, whose next turn then reads its
    whole context anew. An episode is expected to need what the last ones needed in the mean, or what it has already:
    its tokens without those that were cached before its first turn, such as the prompt of its group. At the beginning
    the last ones are taken to have needed whole contexts, for the first that end are the shortest.

    Args:
        num_tokens: that the cache holds.
        max_model_len: tokens that a context may hold.
    """

    def __init__(self, num_tokens: int, max_model_len: int) -> None:
        self.num_tokens = num_tokens
        self._needs = deque([max_model_len] * NUM_MEASURED, maxlen=NUM_MEASURED)
        self._num_taken = 0

    def take(self, num_tokens: int) -> None:
        """Take the tokens that an episode needed."""
        self._needs.append(num_tokens)
        self._num_taken += 1

    def has_room(self, of_each: Iterable[int]) -> bool:
        """Return whether the cache holds one more episode beside those in flight, each as long as it is expected to be.

        Args:
            of_each: the tokens that each episode in flight has.
        """
        need = float(np.mean(self._needs))
        return need + sum(max(need, num_tokens) for num_tokens in of_each) <= self.num_tokens

    @property
    def is_measured(self) -> bool:
        return self._num_taken >= NUM_MEASURED


class RolloutLoop:
    """Plays groups of episodes and hands each group over when its last episode has ended.

    Seeds: the environment's reset seed is the group's, by default `derive_seed(*group.key)`; that of a completion is
    `derive_seed(*group.key, member, agent index, turn)`. A retried episode uses the same ones.

    Args:
        make_env: environment index -> token-level environment without a turn limit: a `gymnasium.Env` over token ids
            with `stop_ids`, or a multi-agent one (see `environments.py`); called in the workers' threads.
        engines: module id -> engine. They are stepped in this order and stay open when the loop closes.
        module_of: (agent id, episode) -> module id; asked once, at the agent's first observation.
        on_start: called with an episode after its reset, and {agent id: first observation}.
        num_envs: most episodes in flight, and most environments; environments are reused by reset. Fewer are in flight
            where the cache of an engine holds fewer; see `CacheRoom`.
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
        sizes = {module_id: getattr(engine, "num_cache_tokens", None) for module_id, engine in engines.items()}
        self._num_envs, self._has_said_full = num_envs, False
        self._rooms = {module_id: CacheRoom(size, max_model_len) for module_id, size in sizes.items() if size}
        self._params = params_by_module(params, self._engines, max_model_len=self._max_model_len)
        self._horizon: HorizonByEnv = None
        self._timeout_s = episode_timeout_s
        self._max_retries, self._max_turns = max_retries, max_turns
        self._pool = EnvPool(make_env, num_envs=num_envs, num_workers=num_env_workers, timeout_s=env_timeout_s)
        self._driven_s = self._last_end_s = 0.0
        self._resumed_s: float | None = None
        self._pending: deque[tuple[GroupInFlight, Episode]] = deque()
        self._flights: list[EpisodeInFlight] = []
        self._requests: dict[str, Request] = {}
        self._request_ids = map(str, itertools.count())
        self._finished: deque[EpisodeGroup] = deque()
        self.num_dropped = 0  # episodes that failed for good, over all calls
        itself = weakref.ref(self)  # a thread that watches must not keep it alive
        self._reports = WaitingReports(lambda: None if (loop := itself()) is None else loop.waiting())

    def in_flight(self) -> list[tuple[EpisodeInFlight, bool, float]]:
        """Return the agents in play, whether each waits for an engine (else its environment), and the seconds."""
        asking = {id(request.flight) for request in list(self._requests.values())}  # copies: any thread may ask
        now_s = self._now()
        return [(flight, id(flight) in asking, now_s - flight.asked_s) for flight in list(self._flights)]

    def waiting(self) -> Waiting:
        """Return the waits of the loop, from any thread."""
        in_flight = self.in_flight()
        longest = ""
        if in_flight:
            flight, is_in_engine, seconds = max(in_flight, key=lambda found: found[2])
            job, episode = flight.slot.job, flight.episode
            what = "the engine" if is_in_engine else f"{(job and job.call) or 'a worker'} of {flight.slot.name}"
            longest = f"episode {episode.episode_id} ({episode.item_id}), {seconds:.0f} s for {what}"
        return Waiting(
            seconds_without_end=self._now() - self._last_end_s,
            num_for_engine=sum(is_in_engine for _, is_in_engine, _ in in_flight),
            num_for_environments=sum(not is_in_engine for _, is_in_engine, _ in in_flight),
            num_not_begun=len(self._pending),
            longest=longest,
        )

    @property
    def num_unfinished_episodes(self) -> int:
        """Episodes submitted and not ended yet, begun or not."""
        return len(self._pending) + len(self._flights)

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
            seed = derive_seed(*group.key) if group.seed is None else group.seed
            in_flight = GroupInFlight(group)
            self._pending += [(in_flight, episode) for episode in in_flight.begin(seed)]

    def finished_groups(
        self, *, between_steps: Callable[[], None] | None = None, pauses: Callable[[], bool] = lambda: False
    ) -> Iterator[EpisodeGroup]:
        """Play until nothing is in flight, yielding each group as its last episode ends, episodes in member order.

        Stop iterating early, and the unfinished episodes stay in flight for the next call.

        Args:
            between_steps: called before every step of the engines, and while environments are waited for; it may
                submit more, and give the engines weights.
            pauses: asked there, too; True ends the iteration.
        """
        self._resumed_s = time.perf_counter()
        try:
            while (self._finished or self.num_unfinished_episodes) and not pauses():
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

    def call(self, flight: EpisodeInFlight, function: Callable[[Any], Any]) -> Any:
        """Call a function with the environment of an episode, in flight or ended, in the environment's own thread.

        Raises:
            EnvError: the function raised, or did not return in time.
        """
        return self._pool.call(flight.slot, function)

    def abandon(self) -> list[EpisodeGroup]:
        """Drop what has not ended; return the groups that have, and of those that are cut the episodes that have."""
        cut = [flight.group for flight in self._flights] + [group for group, _ in self._pending]
        groups = {id(group): group for group in cut}.values()
        for request_id, request in self._requests.items():
            self._engines[request.stream.module_id].abort(request_id)
        for flight in self._flights:
            self._pool.discard(flight.slot)
        for left in (self._requests, self._pending, self._flights):
            left.clear()
        finished = [*self._finished, *(EpisodeGroup(group.group, group.episodes, group.failed) for group in groups)]
        self._finished.clear()
        return finished

    def close(self) -> None:
        """Drop what is in flight and close the environments; safe to call twice."""
        for request_id, request in self._requests.items():
            self._engines[request.stream.module_id].abort(request_id)
        for left in (self._requests, self._pending, self._flights):
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
        while (
            self._pending
            and self._is_room_in_caches()
            and (slot := self._pool.acquire(self._pending[0][1].group.env_index))
        ):
            group, episode = self._pending.popleft()
            if group.begun_with is None:
                horizons = self._horizon
                horizon = horizons[episode.group.env_index] if isinstance(horizons, Sequence) else horizons
                group.begun_with = horizon, self._params
            episode.horizon, params = group.begun_with
            flight = EpisodeInFlight(group, episode, slot, params, self._now(), self._now())
            self._flights.append(flight)
            # So that the episodes of a group, and groups of one episode, put everybody into every seat.
            seating = episode.group.seating(episode.member)
            self._pool.submit(slot, flight, "reset", episode.seed, episode.group.item_id, seating)

    def _is_room_in_caches(self) -> bool:
        """Return whether no engine's cache forbids to begin an episode. The only one in flight always begins."""
        num = len(self._flights)
        if not 0 < num < self._num_envs:
            return True
        for module_id, room in self._rooms.items():
            if room.has_room(flight.num_tokens_of(module_id) for flight in self._flights):
                continue
            if room.is_measured and not self._has_said_full:
                self._has_said_full = True
                logger.warning(
                    "the cache of module %s's engine holds %s tokens: %d episodes are in flight at once, not the %d of "
                    "num_envs_per_env_runner. For more, raise kv_cache_memory_bytes in engine_options.",
                    module_id, f"{room.num_tokens:,}", num, self._num_envs,
                )  # fmt: skip
            return False
        return True

    def _take_answer(self, job: EnvJob) -> None:
        """Record what an environment answered, then end the episode or ask for its next actions."""
        flight: EpisodeInFlight = job.owner
        episode = flight.episode
        episode.timings["env_s"] += job.seconds
        if job.error is not None:
            episode.num_env_timeouts += job.is_timed_out
            self._fail(flight, job.error, is_retry=not job.is_lost)
            return
        assert job.slot.env is not None
        step: EnvStep = job.result
        self._record(flight, job.slot.env, step)
        if flight.cut_short is not None:
            self._conclude(flight, flight.cut_short)
            return
        if self._on_start and job.call == "reset":
            agents = flight.agents.items()
            self._on_start(episode, {id_: of.observation for id_, of in agents if of.observation is not None})
        end_reason = step.end_reason
        if not end_reason and episode.horizon is not None and episode.num_env_steps >= episode.horizon:
            end_reason = EndReason.HORIZON
        if end_reason or (self._max_turns and flight.has_used_up(self._max_turns, step.to_act)):
            self._finish(flight, end_reason or EndReason.HORIZON)
        else:
            self._ask(flight, job.slot.env, step.to_act)

    def _record(self, flight: EpisodeInFlight, env: EnvAdapter, step: EnvStep) -> None:
        episode, agents = flight.episode, flight.agents
        episode.env_id = env.env_id
        episode.num_env_steps += any(agent.action is not None for agent in agents.values())  # a reset has none
        for agent in agents.values():
            agent.action = None
        for agent_id, ids in step.observations.items():
            if agents[agent_id].stream is None:
                agents[agent_id].stream = episode.streams[agent_id] = self._new_stream(agent_id, episode)
            agents[agent_id].observation = ids
        for agent_id, reward in step.rewards.items():
            if (stream := agents[agent_id].stream) and stream.turns:
                stream.turns[-1].reward += reward
            else:  # it waits for the agent's first turn
                agents[agent_id].early_reward += reward
        for agent_id, info in step.infos.items():
            episode.take_info(agent_id, info, is_only_agent=not env.is_multi_agent)
            agent = agents[agent_id]
            agent.prompt = info.get(CONTEXT_MESSAGES) or read_messages(info) or []
            agent.moves = info.get(MOVES, ())
            agent.num_repeated = info.get(NUM_REPEATED_TOKENS, 0)
            if agent.num_repeated:
                agent.context = []
                agent.context_index += 1

    def _new_stream(self, agent_id: str, episode: Episode) -> Stream:
        module_id = self._module_of(agent_id, episode)
        if module_id not in self._engines:
            raise ConfigError(
                f"RolloutLoop: module_of must name a module with an engine, one of {sorted(self._engines)}; "
                f"got {module_id!r} for agent {agent_id!r}."
            )
        return Stream(agent_id, module_id)

    def _ask(self, flight: EpisodeInFlight, env: EnvAdapter, to_act: tuple[str, ...]) -> None:
        """Submit one request per agent that has to act, unless one of them has no room for a whole turn."""
        for agent_id in to_act:
            agent, stream = flight.agents[agent_id], flight.episode.streams[agent_id]
            assert agent.observation is not None
            num_tokens = len(agent.context) + len(agent.observation)
            max_new_tokens = flight.params[stream.module_id].max_new_tokens
            if num_tokens + max_new_tokens > self._max_model_len:
                if stream.turns:
                    self._finish(flight, EndReason.CONTEXT_LIMIT)
                else:  # Playing it again would give the same prompt.
                    self._fail(
                        flight,
                        f"RolloutLoop: a first prompt and one turn must fit in max_model_len = {self._max_model_len}; "
                        f"got {num_tokens} + {max_new_tokens} tokens. Raise max_model_len or lower max_new_tokens.",
                        may_retry=False,
                    )
                return
        flight.asked_s, flight.to_act = self._now(), to_act
        for agent_id in to_act:
            agent, stream = flight.agents[agent_id], flight.episode.streams[agent_id]
            assert agent.observation is not None
            agent.context.extend(agent.observation.tolist())
            engine = self._engines[stream.module_id]
            agent_index = env.agents.index(agent_id)
            request = CompletionRequest(
                request_id=next(self._request_ids),
                prompt_ids=list(agent.context),
                stop_ids=env.stop_ids(agent_id),
                params=flight.params[stream.module_id],
                seed=derive_seed(*flight.episode.group.key, flight.episode.member, agent_index, len(stream.turns)),
                messages=agent.prompt,
                moves=agent.moves,
                is_over=env.early_end(),
            )
            self._requests[request.request_id] = Request(flight, stream, engine.policy_version)
            engine.submit(request)

    def _take_completion(self, completion: Completion) -> None:
        """Record a turn; step the environment when it was the last one that this step needs."""
        request = self._requests.pop(completion.request_id, None)
        if request is None:  # another agent's completion has failed the episode
            return
        flight, stream = request.flight, request.stream
        if completion.error is not None:
            return self._fail(flight, completion.error)
        assert flight.slot.env is not None
        length = flight.slot.env.turn_length(completion.token_ids)
        completion = completion.cut(length)
        flight.slot.env.take_logps(completion.logp)
        agent, versions = flight.agents[stream.agent_id], completion.policy_versions
        assert agent.observation is not None
        stream.turns.append(
            Turn(
                observation_ids=agent.observation,
                action_ids=completion.token_ids,
                logp=completion.logp,
                policy_version=request.policy_version if versions is None else int(versions[0]),
                token_versions=versions,
                env_step=flight.episode.num_env_steps,
                reward=agent.early_reward,
                num_cached_tokens=completion.num_cached_tokens,
                context_index=agent.context_index,
                num_repeated=agent.num_repeated,
            )
        )
        agent.observation, agent.early_reward = None, 0.0
        agent.context.extend(completion.token_ids.tolist())
        agent.action = completion.token_ids
        actions = {agent_id: flight.agents[agent_id].action for agent_id in flight.to_act}
        if all(action is not None for action in actions.values()):
            flight.episode.timings["engine_s"] += self._now() - flight.asked_s
            flight.asked_s = self._now()
            self._pool.submit(flight.slot, flight, "step", actions)

    def _finish(self, flight: EpisodeInFlight, end_reason: EndReason) -> None:
        """End an episode; an environment that has not ended it, and wants to know, is told before."""
        env = flight.slot.env
        if env is not None and env.wants_end and end_reason in (EndReason.HORIZON, EndReason.CONTEXT_LIMIT):
            flight.cut_short, flight.asked_s = end_reason, self._now()
            self._pool.submit(flight.slot, flight, "cut_short")
        else:
            self._conclude(flight, end_reason)

    def _conclude(self, flight: EpisodeInFlight, end_reason: EndReason) -> None:
        for agent in flight.agents.values():
            if agent.stream is not None and agent.observation is not None:
                agent.stream.final_observation_ids = agent.observation[agent.num_repeated :]
        self._pool.release(flight.slot)
        self._end(flight, end_reason)
        for module_id, room in self._rooms.items():
            room.take(flight.num_tokens_of(module_id))
        flight.group.episodes.append(flight.episode)
        self._hand_over(flight.group)

    def _fail(self, flight: EpisodeInFlight, error: str, *, may_retry: bool = True, is_retry: bool = True) -> None:
        """Throw the environment away, then play the episode again or give it up.

        Args:
            is_retry: False where another environment's fault took this one away, which counts as no attempt.
        """
        episode = flight.episode
        for request_id in [i for i, request in self._requests.items() if request.flight is flight]:
            self._engines[self._requests.pop(request_id).stream.module_id].abort(request_id)
        self._pool.discard(flight.slot)
        self._end(flight, EndReason.ERROR)
        if may_retry and episode.num_retries + is_retry <= self._max_retries:
            logger.warning("episode %s failed and is played again: %s", episode.episode_id, error)
            again = Episode(
                episode.episode_id, episode.group, episode.member, episode.seed, item_id=episode.group.item_id,
                timings=episode.timings, num_retries=episode.num_retries + is_retry,
                num_env_timeouts=episode.num_env_timeouts, is_conditional=episode.is_conditional,
            )  # fmt: skip
            self._pending.appendleft((flight.group, again))
        else:
            logger.warning("episode %s failed and is dropped: %s", episode.episode_id, error)
            flight.group.failed.append(replace(episode, error=error))
            self.num_dropped += 1
            self._hand_over(flight.group)

    def _end(self, flight: EpisodeInFlight, end_reason: EndReason) -> None:
        self._flights.remove(flight)
        self._last_end_s = self._now()
        flight.episode.end_reason = end_reason
        flight.episode.timings["total_s"] += self._last_end_s - flight.begun_s

    def _hand_over(self, group: GroupInFlight) -> None:
        if len(group.episodes) + len(group.failed) + len(group.waiting) < group.group.size:
            return
        if group.waiting and (others := group.take_waiting()):
            self._pending.extendleft((group, episode) for episode in reversed(others))
        else:
            episodes, failed = (
                sorted(part, key=lambda episode: episode.member) for part in (group.episodes, group.failed)
            )
            self._finished.append(EpisodeGroup(group.group, episodes, failed))

    def _seconds_to_timeout(self, most: float | None) -> float | None:
        if self._timeout_s is None:
            return most
        oldest_s = min(flight.begun_s for flight in self._flights)
        seconds = max(0.0, oldest_s + self._timeout_s - self._now())
        return seconds if most is None else min(most, seconds)

    def _fail_overdue(self) -> None:
        if self._timeout_s is None:
            return
        now_s = self._now()
        for flight, is_in_engine, _ in self.in_flight():
            if now_s - flight.begun_s >= self._timeout_s:
                where = "engine" if is_in_engine else "environment"
                got = f"{now_s - flight.begun_s:.1f} s, now waiting for its {where}"
                rule = f"an episode must end within episode_timeout_s = {self._timeout_s}"
                self._fail(flight, f"RolloutLoop: {rule}; got {got}, after {flight.episode.num_env_steps} steps.")


def params_by_module(
    params: ParamsByModule, modules: Collection[str], *, max_model_len: int
) -> dict[str, SamplingParams]:
    """Return how each module samples.

    Raises:
        ConfigError: a module without parameters, or whose turn does not fit in a context.
    """
    if isinstance(params, SamplingParams):
        params = dict.fromkeys(modules, params)
    if missing := set(modules) - params.keys():
        raise ConfigError(f"RolloutLoop: every module needs sampling params; got none for {sorted(missing)}. Add them.")
    by_module = {module_id: params[module_id] for module_id in modules}
    for p in by_module.values():
        if not 1 <= p.max_new_tokens < max_model_len:
            raise ConfigError(
                f"RolloutLoop: max_new_tokens must be between 1 and max_model_len - 1 = {max_model_len - 1}; "
                f"got {p.max_new_tokens}. Lower it or raise max_model_len."
            )
    return by_module
