"""Turns what offline methods learn from into samples: stored and played episodes, conversations in JSON, experts."""

from __future__ import annotations

import importlib
import itertools
import json
import logging
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rllm_gym.data import Dialogue, EpisodeRecord, list_shards, read_dialogues, read_episodes
from rllm_gym.data.conversations import read_json_objects
from rllm_gym.data.records import restore_stream
from rllm_gym.errors import ConfigError, TrajectoryError
from rllm_gym.ties import reaches
from rllm_gym.tokens import ChatTokenizer, Conversation
from rllm_gym.types import Sample, Stream, Turn

logger = logging.getLogger(__name__)


@dataclass
class SampleMaker:
    """Makes samples, and counts those that were cut or left out.

    Args:
        chat: encodes messages.
        max_tokens: what is longer is cut after the last whole turn that fits.
        observation_weight: how much the environment's words count in the loss, beside 1 for the assistant's.
        retokenize: encode stored messages anew instead of taking the stored ids.
    """

    chat: ChatTokenizer
    max_tokens: int
    observation_weight: float = 0.0
    retokenize: bool = False
    num_cut: int = 0
    num_left_out: int = 0
    num_agentgyms: int = 0  # conversations in AgentGym's protocol
    _has_checked_ids: bool = False

    def of_stream(self, stream: Stream) -> list[Sample]:
        """Return a sample for each context of an agent's episode in which something is left to learn."""
        made = (self.of_turns(turns) for turns in stream.contexts)
        return [sample for sample in made if sample is not None]

    def of_turns(self, turns: Iterable[Turn]) -> Sample | None:
        """Return a sample, or None where nothing is left to learn."""
        kept: list[Turn] = []
        num_tokens = 0
        for turn in turns:
            num_tokens += len(turn.observation_ids) + len(turn.action_ids)
            if num_tokens > self.max_tokens:
                self.num_cut += 1
                break
            kept.append(turn)
        if not any(turn.is_trained and len(turn.action_ids) for turn in kept):
            self.num_left_out += 1
            return None
        made = Sample.of_turns(kept, observation_weight=self.observation_weight)
        return Sample(made.tokens, made.weight)

    def of_record(self, record: EpisodeRecord) -> list[Sample]:
        """Return the samples of a stored episode, one for each context: the exact ids, where it has them.

        Raises:
            TrajectoryError: the ids are another tokenizer's, or only the messages are wanted of a rewritten history.
        """
        if self.retokenize or not all(turn.action_ids for turn in record.turns):
            if record.turns[-1].context_index:
                raise TrajectoryError(
                    "data: a conversation does not say what was left out of a context, and cannot be encoded anew; got "
                    f"episode {record.episode_id}, whose history was rewritten. Leave it out, or retokenize: false."
                )
            messages = tuple(record.messages)
            if any(message["role"] == "tool" for message in messages):
                raise TrajectoryError(
                    f"data: calls of functions cannot be encoded anew; got episode {record.episode_id}, of format: "
                    "tools. Leave it out, or retokenize: false."
                )
            last = max((k for k, message in enumerate(messages) if message["role"] == "assistant"), default=-1)
            messages = messages[: last + 1]
            return self.contexts_of_dialogue(Dialogue(messages, tuple(m["role"] == "assistant" for m in messages)))
        if not self._has_checked_ids:
            self._check_ids(record)
        return self.of_stream(restore_stream(record))

    def of_dialogue(self, dialogue: Dialogue) -> Sample | None:
        """Return the sample of a conversation, or None where nothing is left to learn.

        Raises:
            TrajectoryError: the chat template rewrites what was said, so that there are several.
        """
        samples = self.contexts_of_dialogue(dialogue)
        if len(samples) > 1:
            raise TrajectoryError(
                f"data: a conversation must be one sample here; got {len(samples)}, since the chat template rewrites "
                "what was said (history: as_template). Give an append-only chat_template, or train on its last answer."
            )
        return samples[0] if samples else None

    def contexts_of_dialogue(self, dialogue: Dialogue) -> list[Sample]:
        """Return the samples of a conversation, of the ids that a token environment would have given for it.

        They are one, unless the chat template rewrites what was said: then one for each context in which something is
        left to learn.
        """
        self.num_agentgyms += dialogue.is_agentgyms
        if not dialogue.messages:
            return []
        contexts = itertools.groupby(self._make_turns(dialogue), key=lambda turn: turn.context_index)
        made = (self.of_turns(turns) for _, turns in contexts)
        return [sample for sample in made if sample is not None]

    def _make_turns(self, dialogue: Dialogue) -> Iterator[Turn]:
        messages = list(zip(dialogue.messages, dialogue.is_trained, strict=True))
        system_prompt = messages.pop(0)[0]["content"] if messages[0][0]["role"] == "system" else ""
        conversation = Conversation(self.chat, system_prompt)
        context_index = 0
        for k in range(0, len(messages) - 1, 2):
            said = messages[k][0]["content"]
            observation_ids = conversation.open(said) if k == 0 else conversation.reply(said, terminated=False)
            context_index += conversation.num_repeated > 0
            answer, is_learnt = messages[k + 1]
            # What was said before changes nothing where history is append-only.
            before = conversation.messages if self.chat.history == "as_template" else [{"role": "user", "content": "?"}]
            action_ids = self.chat.encode_answer([*before, dict(answer)])
            conversation.act(action_ids)
            conversation.messages[-1]["content"] = answer["content"]  # from which the template wrote these ids
            yield Turn(
                observation_ids=observation_ids,
                action_ids=np.asarray(action_ids, np.int64),
                logp=np.zeros(len(action_ids), np.float32),
                policy_version=0,
                env_step=k // 2,
                is_trained=is_learnt,
                context_index=context_index,
                num_repeated=conversation.num_repeated,
            )

    def _check_ids(self, record: EpisodeRecord) -> None:
        """Make sure, on one record, that its ids are this tokenizer's."""
        said = [message["content"] for message in record.messages if message["role"] == "assistant"]
        for turn, text in zip(record.turns, said, strict=False):
            ids = turn.action_ids
            is_known = max([*ids, *turn.observation_ids]) < self.chat.vocab_size
            if not is_known or text not in (self.chat.said(ids), self.chat.decode_action(ids)):
                raise TrajectoryError(
                    f"data: stored ids must be the tokenizer's of base_model; those of episode {record.episode_id} are "
                    "another's. Set retokenize: true to encode the messages anew."
                )
        self._has_checked_ids = True


def detect_kind(path: Path) -> str:
    """Return the kind of data that a path holds: `store`, `dialogues` or `pairs`.

    Raises:
        ConfigError: the path does not exist.
        TrajectoryError: it holds nothing that is known.
    """
    if not path.exists():
        raise ConfigError(f"data: must be `expert` or a path that exists; got {str(path)!r}. Correct it.")
    files = json_files(path)
    if not files:
        if list_shards(path):
            return "store"
        raise TrajectoryError(f"data: must hold trajectories or JSON files; got {path}, which has none.")
    first = next(read_json_objects(files[0]), {})
    if "chosen" in first:
        return "pairs"
    if "conversations" in first or ("messages" in first and "turns" not in first):
        return "dialogues"
    if "turns" in first:
        return "store"
    raise TrajectoryError(
        f"data: records must be trajectories, or have conversations, messages, or chosen and rejected; got the keys "
        f"{json.dumps(list(first))} in {files[0]}."
    )


def json_files(path: Path) -> list[Path]:
    """Return the plain JSON files of a path that is one, or a folder of nothing else."""
    if path.is_file():
        return [] if path.name.endswith(".zst") else [path]
    if any(path.rglob("episodes-*.jsonl*")):
        return []
    return sorted(file for pattern in ("*.json", "*.jsonl") for file in path.glob(pattern))


def is_function(source: str) -> bool:
    """Return whether a source is the name of a function, as "module:name"."""
    return re.fullmatch(r"[A-Za-z_][\w.]*:\w+", source) is not None


def import_function(source: str) -> Callable[[SampleMaker], Iterable[Sample | None]]:
    """Return the function that a source names.

    Raises:
        ConfigError: there is none.
    """
    module, _, name = source.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"data: must name a function as module:name; got {source!r} ({error}). Correct it."
        ) from error


def read_samples(source: str, maker: SampleMaker, *, min_return: float | None) -> Iterator[Sample]:
    """Yield the samples of a path, or those that a function named "module:name" makes with the maker."""
    if not is_function(source):
        yield from read_samples_of_path(Path(source), maker, min_return=min_return)
        return
    yield from (sample for sample in import_function(source)(maker) if sample is not None)


def read_samples_of_path(path: Path, maker: SampleMaker, *, min_return: float | None) -> Iterator[Sample]:
    """Yield the samples of a store or of conversations, one in memory at a time.

    Args:
        min_return: leaves out stored episodes below it.
    """
    kind = detect_kind(path)
    if kind == "pairs":
        raise ConfigError(f"data: pairs of answers are for DPO; got {str(path)!r}. Give conversations or trajectories.")
    if kind == "dialogues":
        for file in json_files(path):
            for dialogue in read_dialogues(file):
                yield from maker.contexts_of_dialogue(dialogue)
        return
    for record in read_episodes(path):
        if is_wanted(record, min_return):
            yield from maker.of_record(record)


def is_wanted(record: EpisodeRecord, min_return: float | None) -> bool:
    """Return whether a stored episode may be learnt from.

    It did not fail, it was not played to evaluate, somebody acted, and its return suffices.
    """
    if record.error is not None or record.is_evaluation or not record.turns:
        return False
    return min_return is None or reaches(record.total_reward, min_return, record.reward_size)
