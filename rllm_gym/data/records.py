"""The stored form of an episode: one record per agent's token stream, with a versioned schema."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import (
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    FiniteFloat,
    JsonValue,
    field_validator,
    model_validator,
)
from pydantic_core import from_json, to_json, to_jsonable_python

from rllm_gym.infos import copy_value, read, text_of
from rllm_gym.types import AGENT, EndReason, Episode, Sample, Stream, TaskGroup, Turn

# The versions that are read, oldest first; the last one is written. A change of the fields below adds one, and a reader
# refuses the others. Version 6 calls a turn's `context_index` `sample`.
VERSIONS = (6, 7)
SCHEMA_VERSION = VERSIONS[-1]
VERSIONS_IN_WORDS = f"{', '.join(map(str, VERSIONS[:-1]))} or {VERSIONS[-1]}"

TurnKind = Literal["action", "plan", "reflection", "summary"]

# The fields of a `Turn` that are arrays, and those that a record leaves out.
TURN_DTYPES = {"observation_ids": np.int64, "action_ids": np.int64, "logp": np.float32, "token_versions": np.int64}
NOT_RECORDED = ("num_cached_tokens", "is_trained", "num_repeated")
# The fields of an `EpisodeRecord` that a clock measures, as pydantic's `exclude` takes them: equal runs differ in them.
CLOCKED = {"timings": True}
MAX_STORED_NUMBERS = 1_000  # of an array in an info; of a larger one the text is stored


class _Record(BaseModel):
    # Strict and closed: a misspelt or mistyped field is an error here, not a surprise in somebody's training run.
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class TurnRecord(_Record):
    """One completion, and the token ids that the environment had added before it.

    Args:
        action_ids: what the policy sampled, end-of-turn token included. These and no other tokens are trained.
        logp: log-probability of each id in `action_ids` under the distribution that it was sampled from; 0 where the
            action was not sampled (an expert's).
        env_step: environment steps before this action; puts the turns of several agents in order.
        is_invalid_action: the environment could not act on it.
        advantage: of each id in `action_ids`; None where none was computed.
        trainer_logp: the trainer's log-probability of each before the update; None where it was not computed.
        context_index: counts the contexts of the agent. Where the history was rewritten before this turn, it is one
            more than before, and `observation_ids` is the whole new prompt.
        kind: what the completion was for. All but an action stay between the policy and itself.
        attempt: at the task, from 1.
        rewards: the reward functions' values by name, not weighted; empty where none are configured.
        policy_version: what the first token was sampled with; an expert's is 0.
        token_versions: what each token was sampled with; None where no weights came on the way.
    """

    observation_ids: list[int]
    action_ids: list[int]
    logp: list[FiniteFloat]
    reward: FiniteFloat
    policy_version: int
    env_step: int = 0
    is_invalid_action: bool = False
    advantage: list[FiniteFloat] | None = None
    trainer_logp: list[FiniteFloat] | None = None
    context_index: int = Field(default=0, validation_alias=AliasChoices("context_index", "sample"))
    kind: TurnKind = "action"
    attempt: int = 1
    rewards: dict[str, FiniteFloat] = {}
    token_versions: list[int] | None = None

    @model_validator(mode="after")
    def _check_lengths(self) -> Self:
        for name in ("logp", "advantage", "trainer_logp", "token_versions"):
            values = getattr(self, name)
            if values is not None and len(values) != len(self.action_ids):
                raise ValueError(f"{name} must be as long as action_ids ({len(self.action_ids)}); got {len(values)}.")
        return self


class EpisodeRecord(_Record):
    """One agent's part of one episode, as stored. An episode of several agents has several records.

    Args:
        env_version: what the environment was made of, where the id's `-vN` is not enough (package or data version).
        messages: the whole conversation as role and content, whatever was left out of the policy's contexts; the i-th
            assistant message is the i-th turn's action.
        module_id: whose tokens these are: a policy, or an opponent. Each turn has the policy version that it was
            sampled with.
        role: what the agent played, such as a seat; its own name where the environment does not say.
        group: key of the task group, (run seed, train step, group index), and in an evaluation its split, of which
            several have the same seeds; the episodes of one group share it. Older files lack the split.
        member: number of this episode in its group.
        split: what the task was drawn from, as in `train` or `eval`.
        is_evaluation: played to evaluate; such an episode is never learnt from.
        train_step: of an evaluation during training, the train step that came before; None outside training.
        max_episode_steps: horizon in turns; None where there was none.
        timings: seconds.
        error: why the environment failed; set exactly where `end_reason` is `error`. Such an episode is never trained
            on.
        info: the last step's info; what JSON has no form for is its text.
    """

    schema_version: int = SCHEMA_VERSION
    env_id: str
    env_version: str = ""
    item_id: str | int | None = None
    split: str | None = None
    episode_id: str
    agent_id: str = AGENT
    module_id: str = ""
    role: str = ""
    group: list[int | str] = []
    member: int = 0
    train_step: int | None = None
    max_episode_steps: int | None = None
    messages: list[dict[str, str]]
    turns: list[TurnRecord]
    final_observation_ids: list[int]
    timings: dict[str, FiniteFloat] = {}
    end_reason: Annotated[EndReason, Field(strict=False)]
    seed: int
    error: str | None = None
    is_success: bool | None = None
    category: str | None = None
    is_evaluation: bool = False
    info: dict[str, JsonValue] = {}

    @field_validator("schema_version")
    @classmethod
    def _check_version(cls, version: int) -> int:
        if version not in VERSIONS:
            raise ValueError(f"schema_version must be {VERSIONS_IN_WORDS}; got {version}.")
        return version

    @model_validator(mode="after")
    def _check_error(self) -> Self:
        if (self.error is None) == self.end_reason.is_error:
            raise ValueError(f"error must hold a text exactly where end_reason is 'error'; got {self.error!r}.")
        return self

    @property
    def seed_key(self) -> tuple[int, ...]:
        """The key of the task group from which its seeds are drawn: `group` without the split."""
        return tuple(part for part in self.group if isinstance(part, int))

    @property
    def total_reward(self) -> float:
        return sum(turn.reward for turn in self.turns)

    @property
    def reward_size(self) -> float:
        """The size of the rewards, whatever their signs; see `rllm_gym.ties`."""
        return sum(abs(turn.reward) for turn in self.turns)


def make_records(
    episode: Episode,
    *,
    env_version: str,
    train_step: int | None,
    max_episode_steps: int | None,
    split: str | None = None,
    is_evaluation: bool = False,
    samples: Mapping[str, Sequence[Sample]] | None = None,
) -> list[EpisodeRecord]:
    """Return one record per agent of an episode, finished or failed.

    An episode that failed before any agent acted gives one record without turns, so that its error is stored too.

    Args:
        split: of the task, where the environment's info does not say it.
        samples: {agent_id: its samples in this episode}, for what was computed for their tokens.

    Raises:
        pydantic.ValidationError: a field breaks the schema, such as a log-probability that is not finite.
    """
    streams = list(episode.streams.values()) or [Stream(agent_id=AGENT, module_id="")]
    return [
        EpisodeRecord(
            env_id=episode.env_id,
            env_version=env_version,
            item_id=episode.item_id,
            episode_id=episode.episode_id,
            agent_id=stream.agent_id,
            module_id=stream.module_id,
            role=stream.role,
            group=[*episode.group.key, *([split] if split and is_evaluation else [])],
            member=episode.member,
            train_step=train_step,
            max_episode_steps=max_episode_steps,
            messages=stream.messages,
            turns=turn_records(stream.turns, (samples or {}).get(stream.agent_id, ())),
            final_observation_ids=stream.final_observation_ids.tolist(),
            timings={name: float(seconds) for name, seconds in episode.timings.items()},
            end_reason=episode.end_reason,  # type: ignore[arg-type]  # checked by the model
            seed=episode.seed,
            error=episode.error,
            is_evaluation=is_evaluation,
            **_info_fields(_agent_info(episode, stream.agent_id), split),
        )
        for stream in streams
    ]


def restore_episode(records: Sequence[EpisodeRecord], group: TaskGroup) -> Episode:
    """Return the episode that its stored records, one per agent, came from.

    What a record does not hold is as in a fresh `Episode`.
    """
    first = records[0]
    infos = {record.agent_id: _restore_info(record) for record in records}
    return Episode(
        first.episode_id,
        group,
        first.member,
        first.seed,
        env_id=first.env_id,
        item_id=first.item_id,
        streams={record.agent_id: restore_stream(record) for record in records if record.turns or record.error is None},
        end_reason=first.end_reason,
        error=first.error,
        info=infos[AGENT] if set(infos) == {AGENT} else infos,
        timings=defaultdict(float, first.timings),
        num_env_steps=max((turn.env_step + 1 for record in records for turn in record.turns), default=0),
    )


def restore_stream(record: EpisodeRecord) -> Stream:
    """Return the token stream that a record holds."""
    turns = [_restore_turn(turn) for turn in record.turns]
    final_observation_ids = np.asarray(record.final_observation_ids, np.int64)
    return Stream(record.agent_id, record.module_id, turns, final_observation_ids, list(record.messages), record.role)


def _restore_info(record: EpisodeRecord) -> dict[str, Any]:
    known = {"is_success": record.is_success, "category": record.category, "split": record.split}
    return {**record.info, **{key: value for key, value in known.items() if value is not None}}


def turn_records(turns: Sequence[Turn], samples: Sequence[Sample] = ()) -> list[TurnRecord]:
    """Return turns as they are stored, with what samples hold of their tokens."""
    num_tokens = [len(turn.action_ids) for turn in turns]
    contexts = sorted(samples, key=lambda sample: sample.context_index)
    columns = [_by_turn(contexts, name, num_tokens) for name in ("advantage", "trainer_logp")]
    return [
        TurnRecord(**_turn_fields(turn), advantage=advantage, trainer_logp=trainer_logp)
        for turn, advantage, trainer_logp in zip(turns, *columns, strict=True)
    ]


def _turn_fields(turn: Turn) -> dict[str, Any]:
    values = {each.name: getattr(turn, each.name) for each in fields(Turn) if each.name not in NOT_RECORDED}
    return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in values.items()}


def _restore_turn(record: TurnRecord) -> Turn:
    values = {each.name: getattr(record, each.name) for each in fields(Turn) if each.name not in NOT_RECORDED}
    for name, dtype in TURN_DTYPES.items():
        values[name] = None if values[name] is None else np.asarray(values[name], dtype)
    return Turn(**values)


def _by_turn(contexts: Sequence[Sample], name: str, num_tokens: Sequence[int]) -> list[list[float] | None]:
    """Return a field at the sampled tokens of each turn; None for all where it was not computed.

    None, too, for a turn with a value that is not finite, which stops the run after it is stored.
    """
    values = [getattr(sample, name) for sample in contexts]
    if not values or any(value is None for value in values):
        return [None] * len(num_tokens)
    flat = np.concatenate([value[sample.weight != 0] for sample, value in zip(contexts, values, strict=True)])
    turns = np.split(flat, np.cumsum(num_tokens)[:-1])
    return [of_turn.tolist() if np.isfinite(of_turn).all() else None for of_turn in turns]


def _agent_info(episode: Episode, agent_id: str) -> dict[str, Any]:
    if set(episode.streams) <= {AGENT}:
        return episode.info
    return episode.info.get(agent_id, {})


def _info_fields(info: Mapping[str, Any], split: str | None) -> dict[str, Any]:
    """Return the record's fields that come from an environment's info, `split` only where it says none.

    `messages` is left out, being stored already; what JSON cannot hold is stored as its text.
    """
    found = {key: read(info, key) for key in ("is_success", "category", "split")}
    rest = {
        str(key): _to_json(value, str(key))
        for key, value in info.items()
        if key != "messages" and found.get(str(key)) is None
    }
    return {**found, "split": found["split"] or split, "info": rest}


def _to_json(value: Any, key: str) -> Any:
    """Return a value as JSON has it, and as its readers can read it."""
    if isinstance(value, np.ndarray) and value.size > MAX_STORED_NUMBERS:
        return text_of(value)
    value = copy_value(value, key)
    try:
        plain = to_jsonable_python(value, fallback=_plain)
        from_json(to_json([plain], inf_nan_mode="null"))
    except Exception:  # a text that is no UTF-8, a key that cannot be sorted out
        return value if isinstance(value, str) else text_of(value)
    return plain


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise TypeError(type(value))
