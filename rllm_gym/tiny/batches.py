"""From episodes to token batches: what each token of a conversation counts in the loss."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from rllm_gym.tiny.episodes import ExpertEpisode
from rllm_gym.tokens import ChatTokenizer, Conversation
from rllm_gym.types import Sample

# Tasks and replies count a little: they repeat themselves, and what predicts repetitions also copies names.
WORLD_WEIGHT = 0.2
MAX_PADDED_TOKENS = 4096  # of one micro-batch


def encode(episode: ExpertEpisode, chat: ChatTokenizer) -> Sample:
    """Return the ids that a token environment gives for the same conversation; actions count 1, the world's words less.

    A system prompt counts as the task does, for they are one observation.
    """
    *opening, task = [message["content"] for message in episode.messages[: episode.num_opening]]
    conversation = Conversation(chat, "".join(opening))
    ids, weights = [conversation.open(task)], []
    weights.append(np.full(len(ids[0]), WORLD_WEIGHT, np.float32))
    for message in episode.messages[episode.num_opening :]:
        if message["role"] == "assistant":
            part = np.asarray(chat.encode_action(message["content"]), np.int64)
            conversation.act(part)
        else:
            part = conversation.reply(message["content"], terminated=False)
        ids.append(part)
        weights.append(np.full(len(part), 1.0 if message["role"] == "assistant" else WORLD_WEIGHT, np.float32))
    return Sample(np.concatenate(ids), np.concatenate(weights))


def micro_batches(samples: Sequence[Sample]) -> Iterator[list[Sample]]:
    """Yield all samples in groups of similar length, so that little is padding."""
    group: list[Sample] = []
    for sample in sorted(samples, key=lambda sample: len(sample)):
        if group and (len(group) + 1) * len(sample) > MAX_PADDED_TOKENS:
            yield group
            group = []
        group.append(sample)
    if group:
        yield group
