"""The records that flow through the house: task group -> completion -> turn -> stream -> episode -> sample."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from rllm_gym.infos import copy_info, read, read_messages
from rllm_gym.ties import tie

TokenIds = npt.NDArray[np.int64]  # shape [T]
Logps = npt.NDArray[np.float32]  # shape [T], natural logarithms
Message = dict[str, Any]  # {"role": "system" | "user" | "assistant" | "tool", "content": text}

AGENT = "agent"  # the agent's name in an environment that has only one
DEFAULT_MODULE = "default_policy"  # RLlib's name for the only one
# Keys of an environment's info that an episode keeps elsewhere: copies of the whole conversation in every record would
# grow quadratically.
# Keys of an info that this package's own wrappers pass to each other; every other key is the environment author's.
TURN, CONTEXT_TURNS, CONTEXT_MESSAGES = "rllm_gym/turn", "rllm_gym/context_turns", "rllm_gym/context_messages"
NUM_REPEATED_TOKENS, MOVES, REPLIES = "rllm_gym/num_repeated_tokens", "rllm_gym/moves", "rllm_gym/replies"
NOT_STORED = ("messages", TURN, CONTEXT_TURNS, CONTEXT_MESSAGES, NUM_REPEATED_TOKENS, MOVES, REPLIES)


@dataclass(frozen=True)
class TaskGroup:
    """One task to be played `size` times.

    Args:
        key: (run seed, train step, group index). Every random number of the group's episodes comes from
            `np.random.SeedSequence((*key, ...))`, so results do not depend on which runner plays it.
        item_id: what `reset(options={"item_id": ...})` gets; None lets `reset(seed)` draw a task.
        size: number of episodes.
        env_index: which of the run's environments plays it.
        seed: of the environment's reset; None derives it from the key.
        members: the numbers of the episodes, `size` of them; None counts from 0. They decide what is sampled.
        screening_size: how many of them play first; where these end alike, the others are not played. None plays all.
        invalid_action_penalty: what an invalid action costs, by which episodes differ, too.
        first_seating: where players change seats, how the first member's sit; None takes the group index.
    """

    key: tuple[int, ...]
    item_id: str | int | None
    size: int
    env_index: int = 0
    seed: int | None = None
    members: tuple[int, ...] | None = None
    screening_size: int | None = None
    first_seating: int | None = None
    invalid_action_penalty: float = 0.0

    def seating(self, member: int) -> int:
        """Return by how many seats the players of a member have moved on."""
        return (self.key[-1] if self.first_seating is None else self.first_seating) + member


@dataclass(frozen=True)
class SamplingParams:
    """The parameters of sampling. Temperature 0 is greedy; `max_new_tokens` bounds one turn."""

    max_new_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # 0: all


@dataclass(frozen=True)
class CompletionRequest:
    """A prompt for an engine. Sampling stops after one of `stop_ids`, which is part of the completion.

    `is_over` says of the tokens so far whether they end the turn without one of `stop_ids`, as a stop text does: an
    engine that samples token by token asks it after each. One that does not is cut by the rollout loop.
    `messages` say the same as `prompt_ids`, for engines that speak text; `moves` are for scripted opponents.
    """

    request_id: str
    prompt_ids: list[int]
    stop_ids: tuple[int, ...]
    params: SamplingParams
    seed: int
    messages: Sequence[Message] = ()
    moves: tuple[str | TokenIds, ...] = ()
    is_over: Callable[[Sequence[int]], bool] | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Completion:
    """A sampled completion: ids and their log-probabilities under the sampled distribution, equally long.

    `policy_versions` are those that each token was sampled with; None where no weights came on the way. With an `error`
    there is no completion, and the episode fails.
    """

    request_id: str
    token_ids: TokenIds
    logp: Logps
    num_cached_tokens: int = 0
    policy_versions: npt.NDArray[np.int64] | None = None
    error: str | None = None

    def cut(self, length: int) -> Completion:
        """Return the same up to so many tokens."""
        if length >= len(self.token_ids):
            return self
        versions = None if self.policy_versions is None else self.policy_versions[:length]
        return replace(self, token_ids=self.token_ids[:length], logp=self.logp[:length], policy_versions=versions)


@dataclass(frozen=True)
class Probe:
    """A completion of a fixed prompt by an engine, to be compared with the trainer's log-probabilities.

    Args:
        loading: how it has loaded its weights, where that is worth a word.
        unloaded: its parameters that no weight reaches.
    """

    prompt_ids: list[int]
    completion: Completion
    loading: str = ""
    unloaded: Sequence[str] = ()


class Engine(Protocol):
    """Samples completions for many requests at once. One engine serves one policy module."""

    policy_version: int
    max_context_tokens: int

    def submit(self, request: CompletionRequest) -> None:
        """Queue a request; returns at once."""

    def step(self) -> list[Completion]:
        """Advance every running request by at least one token; return those that finished, in a fixed order."""

    def abort(self, request_id: str) -> None:
        """Forget a request; unknown ids are ignored."""

    def load_weights(self, state: Mapping[str, Any], policy_version: int) -> None:
        """Replace the weights in place (Hugging Face parameter names to arrays) and drop cached prefixes.

        Running requests go on with them: see `rllm_gym.rollout.engines.token_versions`.
        """

    def reset_prefix_cache(self) -> None:
        """Forget cached keys and values."""

    def close(self) -> None:
        """Free the engine; safe to call twice."""


class EndReason(StrEnum):
    """Why an episode ended."""

    TERMINATED = "terminated"  # the environment says that it is over
    HORIZON = "horizon"  # it had the turns that it may take
    CONTEXT_LIMIT = "context_limit"  # no room for a whole turn
    TRUNCATED = "truncated"  # the environment cut it
    ERROR = "error"  # the environment failed after its retries; nothing of it is trained

    @property
    def is_truncated(self) -> bool:
        return self in (EndReason.HORIZON, EndReason.CONTEXT_LIMIT, EndReason.TRUNCATED)

    @property
    def is_error(self) -> bool:
        return self is EndReason.ERROR


@dataclass
class Turn:
    """One completion, and what the environment had added before it.

    `context_index` counts the contexts of the stream: where the history was rewritten before this turn,
    `observation_ids` is the whole new prompt, and a new sample begins; `num_repeated` of its tokens stand for what was
    said before. `kind` is what the completion was for, `action`,
    `plan`, `reflection` or `summary`, in which attempt at the task; `rewards` are the reward functions' values by name,
    not weighted.
    `env_step` counts the environment's steps before this action, so that turns of several agents can be put in order.
    `is_invalid_action` is what the environment's info says of the action; `is_trained` is False where a recorded turn
    is only context. `policy_version` is that of the first token; `token_versions` are those of each, where they differ.
    """

    observation_ids: TokenIds
    action_ids: TokenIds
    logp: Logps
    policy_version: int
    env_step: int
    reward: float = 0.0
    num_cached_tokens: int = 0
    is_invalid_action: bool = False
    is_trained: bool = True
    context_index: int = 0
    kind: str = "action"
    attempt: int = 1
    rewards: dict[str, float] = field(default_factory=dict)
    token_versions: npt.NDArray[np.int64] | None = None
    num_repeated: int = 0

    def earned(self, invalid_action_penalty: float) -> float:
        """Return the reward less the penalty for an action that the environment called invalid."""
        return self.reward - invalid_action_penalty * self.is_invalid_action

    def take_info(self, info: Mapping[str, Any]) -> None:
        """Take over what the environment's info says of this turn."""
        said = read(info, "is_invalid_action")
        self.is_invalid_action = self.is_invalid_action if said is None else said
        for name, value in info.get(TURN, {}).items():
            setattr(self, name, value)


@dataclass
class Stream:
    """One agent's token stream in one episode: observation 0, action 0, observation 1, ..., final observation.

    `final_observation_ids` are what was added after the last completion, without what a rewritten history repeats.
    `role` is what the agent plays, such as a seat that agents take in turns: `info["role"]` if the environment says it,
    else the agent's name.
    """

    agent_id: str
    module_id: str
    turns: list[Turn] = field(default_factory=list)
    final_observation_ids: TokenIds = field(default_factory=lambda: np.zeros(0, np.int64))
    messages: list[Message] = field(default_factory=list)
    role: str = ""

    def __post_init__(self) -> None:
        self.role = self.role or self.agent_id

    def earnings(self, invalid_action_penalty: float) -> tuple[float, float]:
        """Return what an agent has earned, less the penalties, and the size of its rewards (see `rllm_gym.ties`)."""
        rewards = [turn.earned(invalid_action_penalty) for turn in self.turns]
        return float(sum(rewards)), float(sum(map(abs, rewards)))

    @property
    def total_reward(self) -> float:
        return float(sum(turn.reward for turn in self.turns))

    @property
    def reward_size(self) -> float:
        """The size of the rewards, whatever their signs; see `rllm_gym.ties`."""
        return float(sum(abs(turn.reward) for turn in self.turns))

    @property
    def contexts(self) -> list[list[Turn]]:
        """The turns of each sample: one list, unless the history was rewritten on the way."""
        return [list(turns) for _, turns in itertools.groupby(self.turns, key=lambda turn: turn.context_index)]

    @property
    def num_tokens(self) -> int:
        """Tokens of all samples, each up to and including its last sampled one."""
        return sum(len(t.observation_ids) + len(t.action_ids) for t in self.turns)

    @property
    def num_sampled_tokens(self) -> int:
        return sum(len(t.action_ids) for t in self.turns)


@dataclass
class Episode:
    """One play of one task by one or several agents.

    `end_reason` is None while the episode goes on; where it is `ERROR`, `error` holds the text. `info` is the last
    step's info of a single agent (`is_success`, `category`, ...), or {agent_id: info} of several. `timings` are
    seconds: `env_s`, `engine_s`, `total_s`. `num_env_timeouts` counts the attempts in which the environment did not
    answer in time, `num_role_markers` the markers of a turn's beginning in the environment's words. `horizon` is the
    number of environment steps that it may take; None is no limit. `is_conditional`: it was played only since others of
    its group had ended differently (`screening_size`), so that it does not say how the task goes.
    """

    episode_id: str
    group: TaskGroup
    member: int
    seed: int
    env_id: str = ""
    item_id: str | int | None = None
    streams: dict[str, Stream] = field(default_factory=dict)
    end_reason: EndReason | None = None
    error: str | None = None
    info: dict[str, Any] = field(default_factory=dict)
    timings: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    num_env_steps: int = 0
    num_retries: int = 0
    num_env_timeouts: int = 0
    num_role_markers: int = 0
    horizon: int | None = None
    is_conditional: bool = False

    def take_info(self, agent_id: str, info: Mapping[str, Any], *, is_only_agent: bool) -> None:
        """Take over what the environment's info says after a reset or a step."""
        item_id = read(info, "item_id")
        self.item_id = self.item_id if item_id is None else item_id
        stored = copy_info(info, left_out=NOT_STORED)
        if is_only_agent:
            self.info = stored
        else:
            self.info[agent_id] = stored
        if stream := self.streams.get(agent_id):
            stream.messages = stream.messages if (messages := read_messages(info)) is None else messages
            stream.role = read(info, "role") or stream.role
            if stream.turns:
                stream.turns[-1].take_info(info)

    @property
    def is_truncated(self) -> bool:
        return self.end_reason is not None and EndReason(self.end_reason).is_truncated


def outcomes(episodes: Sequence[Episode]) -> list[tuple[float, ...]]:
    """Return each agent's return in each episode, in the order of their names; equal where it ties.

    An action that the environment called invalid has cost what the episode's group says.
    """
    agents = sorted({agent_id for episode in episodes for agent_id in episode.streams})
    nobody = Stream("", "")
    columns = []
    for agent_id in agents:
        earned = [
            episode.streams.get(agent_id, nobody).earnings(episode.group.invalid_action_penalty) for episode in episodes
        ]
        columns.append(tie([total for total, _ in earned], [size for _, size in earned]).tolist())
    return list(zip(*columns, strict=True)) if columns else [()] * len(episodes)


@dataclass
class EpisodeGroup:
    """The episodes of one task, in member order; `failed` are those that ended in an error."""

    group: TaskGroup
    episodes: list[Episode]
    failed: list[Episode]


@dataclass
class SampleReply:
    """An EnvRunner's reply to a sampling request: the episodes that were played, those that failed, its metrics.

    `error` is the traceback of an error of the runner itself: RLlib would lose an exception (it ends the actor, and the
    driver gets nothing). `groups_left` are the keys of the groups that it plays on.
    """

    worker_index: int
    episodes: list[Episode] = field(default_factory=list)
    failed: list[Episode] = field(default_factory=list)
    metrics: Any = None
    error: str | None = None
    groups_left: frozenset[tuple[int, ...]] = frozenset()


@dataclass(eq=False)
class Sample:
    """One trainable sequence: what one agent has read and written in one context of one episode.

    This is the one record between episodes and token batches, for online and offline methods alike. Three turns, of
    which the first earned 0.5 and the last 1 (P prompt, a sampled token, E the environment's reply), sampled while the
    weights were synced for the fourth time:

        tokens          P   P  a0  a0  E1  a1  E2  a2  a2
        weight          0   0   1   1   0   1   0   1   1
        old_logp        0   0 -.1 -.7   0 -.2   0 -.3 -.1
        reward          0   0   0  .5   0   0   0   0   1
        is_turn_end     0   0   0   1   0   1   0   0   1
        policy_version -1  -1   3   3  -1   3  -1   4   4
        advantage       0   0  .9  .9   0  .9   0  .9   .9    # None until it is computed

    An episode gives several samples where it has several agents (`agent`) and where a context was rewritten on the way
    (`context_index`). The contexts of one agent share its return, the value after one is the value before the next
    one's first sampled token, and the samples of an episode are never dealt to different learners.

    Args:
        tokens: int64 [T].
        weight: float32 [T], how much each token counts in the loss; 0 is not trained. Sampled tokens have 1.
        old_logp: float32 [T], the sampler's log-probability of each sampled token.
        reward: float64 [T], a turn's reward, at the turn's last token.
        is_turn_end: bool [T], True there.
        policy_version: int64 [T], that each token was sampled with; -1 where it was not sampled.
        advantage, trainer_logp, ref_logp, value: float32 [T], what the driver computes, and what the learners score:
            log-probabilities under the weights before the update and under the reference, and the critic's value before
            each sampled token. None where a method needs none.
        value_target: float32 [T], what the critic learns.
        final_value: the critic's value after the last token, for what bootstraps from it.
        group: samples of one group (one role's, of one task) are compared with each other.
        pair: of the two samples of a preference pair; -1 for none. `is_chosen` tells them apart, and `ref_logp_sum` is
            the log-probability of all tokens under the frozen reference.
        lot, num_lots: which of its module's lots it is in, of how many; minibatches are made of whole ones. -1 until it
            is known, see `rllm_gym.learner.batch.number_lots`.
        episode: names the episode among those of a train step; "" for a sample that stands for itself.
        context_index: counts the contexts of one agent's episode.
        agent, role, module: who acted, as what, and which RLModule is trained on it.
        others_return, others_size: what the other agents of the episode have earned, and how large their rewards were.
        is_terminated: the environment ended the episode, as opposed to a horizon or a full context.
        is_overlong: the episode ended because its context was full.
        is_success: the environment said so to the agent.
        states: what the agent was told before each turn, as text; empty where only the tokens are known.
    """

    tokens: TokenIds
    weight: npt.NDArray[np.float32]
    old_logp: Logps | None = None
    reward: npt.NDArray[np.float64] | None = None
    is_turn_end: npt.NDArray[np.bool_] | None = None
    policy_version: npt.NDArray[np.int64] | None = None
    advantage: npt.NDArray[np.float32] | None = None
    trainer_logp: Logps | None = None
    ref_logp: Logps | None = None
    value: npt.NDArray[np.float32] | None = None
    value_target: npt.NDArray[np.float32] | None = None
    final_value: float = 0.0
    group: int = 0
    pair: int = -1
    is_chosen: bool = False
    ref_logp_sum: float = 0.0
    lot: int = -1
    num_lots: int = 0
    episode: str = ""
    context_index: int = 0
    agent: str = AGENT
    role: str = AGENT
    module: str = DEFAULT_MODULE
    others_return: float = 0.0
    others_size: float = 0.0
    is_terminated: bool = True
    is_overlong: bool = False
    is_success: bool = False
    states: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.tokens)

    @classmethod
    def of_turns(
        cls,
        turns: Iterable[Turn],
        *,
        observation_weight: float = 0.0,
        final_observation_ids: TokenIds | None = None,
        **labels: Any,
    ) -> Sample:
        """Return observation 0, action 0, observation 1, ..., last action, and perhaps the final observation.

        Args:
            turns: at least one. Those with `is_trained` False have weight 0.
            observation_weight: how much the environment's tokens count in the loss.
            final_observation_ids: appended with weight 0, for a critic to bootstrap from.
            labels: fields such as `group` and `episode`.
        """
        parts: list[tuple[TokenIds, float, Logps | float, float, Any]] = []  # ids, weight, logp, reward, version
        for turn in turns:
            parts.append((turn.observation_ids, observation_weight, 0.0, 0.0, -1))
            version = turn.policy_version if turn.token_versions is None else turn.token_versions
            parts.append((turn.action_ids, float(turn.is_trained), turn.logp, turn.reward, version))
        if final_observation_ids is not None:
            parts.append((final_observation_ids, 0.0, 0.0, 0.0, -1))
        ends = np.cumsum([len(ids) for ids, *_ in parts])
        num_tokens = int(ends[-1])
        reward, is_turn_end = np.zeros(num_tokens, np.float64), np.zeros(num_tokens, np.bool_)
        last_of_turn = ends[1::2][: len(parts) // 2] - 1
        reward[last_of_turn] = [part[3] for part in parts[1::2]]
        is_turn_end[last_of_turn] = True

        def spread(column: int, dtype: type) -> Any:
            return np.concatenate([np.broadcast_to(np.asarray(p[column], dtype), len(p[0])) for p in parts])

        return cls(
            tokens=np.concatenate([np.asarray(ids, np.int64) for ids, *_ in parts]),
            weight=spread(1, np.float32),
            old_logp=spread(2, np.float32),
            reward=reward,
            is_turn_end=is_turn_end,
            policy_version=spread(4, np.int64),
            **labels,
        )
