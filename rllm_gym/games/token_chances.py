"""The chance of every move, as a sum over the token sequences that say it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import regex
import torch
from transformers import DynamicCache

from rllm_gym.envs.text_space import UNREADABLE
from rllm_gym.games.questions import MoveChances
from rllm_gym.rollout.engines.transformers import sampled_logp
from rllm_gym.tokens import ChatTokenizer, end_of_first
from rllm_gym.types import SamplingParams

Chances = npt.NDArray[np.float64]

LEAST = 1e-9  # a sequence that is less likely is not followed
MOST_UNRESOLVED = 1e-6  # of the mass; above, the sum would be no exact one
MOST_SEQUENCES = 512  # of one length
BATCH = 64


class NextTokens(Protocol):
    """A policy that says what it would sample next."""

    def begin(self, prompt_ids: Sequence[int]) -> None:
        """Take the prompt that the following questions are about."""

    def chances(self, sequences: Sequence[Sequence[int]]) -> Chances:
        """Return float64 [len(sequences), vocabulary]: of the next token behind the prompt and each sequence.

        All sequences are equally long.
        """


@dataclass
class MoveSum:
    """Sums the probabilities of all token sequences that parse to a move.

    Sequences are followed token by token, as long as what they say may still become a move.

    Args:
        chat: encodes the game.
        move_form: the regular expression, without regard to case, of a text that is a move.
        move_in: text -> the number of the move that it says, or None.
        num_moves: of the game.
        max_new_tokens: where a turn is cut off.
        stop: texts that end a turn.
    """

    chat: ChatTokenizer
    move_form: str
    move_in: Callable[[str], int | None]
    num_moves: int
    max_new_tokens: int
    stop: Sequence[str] = ()
    _viable: dict[str, npt.NDArray[np.bool_]] = field(default_factory=dict)
    _ended: dict[str, dict[int, str]] = field(default_factory=dict)
    _pieces: list[str] = field(default_factory=list)

    def __call__(self, policy: NextTokens, prompt_ids: Sequence[int]) -> MoveChances | None:
        """Return the chance of each move; None where more than `MOST_UNRESOLVED` of the mass cannot be followed."""
        policy.begin(prompt_ids)
        result = MoveChances(np.zeros(self.num_moves), 0.0)
        unresolved = 0.0
        sequences: list[tuple[int, ...]] = [()]
        mass = np.ones(1)
        for length in range(1, self.max_new_tokens + 1):
            reached = mass[:, None] * policy.chances(sequences)
            longer: list[tuple[int, ...]] = []
            mass_of_longer: list[float] = []
            for sequence, row in zip(sequences, reached, strict=True):
                result = self._add(result, self._text(sequence), float(row[list(self.chat.stop_ids)].sum()))
                row[list(self.chat.stop_ids)] = 0.0
                for token, said in self._ended_after(self._text(sequence)).items():
                    result = self._add(result, said, float(row[token]))
                    row[token] = 0.0
                viable = self._viable_after(self._text(sequence))
                result = result._replace(illegal=result.illegal + float(row[~viable].sum()))
                followed = np.flatnonzero(viable & (row >= LEAST))
                unresolved += float(row[viable].sum() - row[followed].sum())
                for token in followed:
                    longer.append((*sequence, int(token)))
                    mass_of_longer.append(float(row[token]))
            if length == self.max_new_tokens:
                for sequence, p in zip(longer, mass_of_longer, strict=True):
                    result = self._add(result, self._text(sequence), p)
            if unresolved > MOST_UNRESOLVED or len(longer) > MOST_SEQUENCES:
                return None
            if not longer:
                break
            sequences, mass = longer, np.array(mass_of_longer)
        return result._replace(illegal=result.illegal + unresolved)

    def _add(self, result: MoveChances, text: str, p: float) -> MoveChances:
        move = self.move_in(text)
        if move is None:
            return result._replace(illegal=result.illegal + p)
        result.moves[move] += p
        return result

    def _text(self, ids: Sequence[int]) -> str:
        return UNREADABLE.sub("", self.chat.decode_action(ids))

    def _viable_after(self, text: str) -> npt.NDArray[np.bool_]:
        """Return of each token whether the text and it may still become a move."""
        if text not in self._viable:
            form = regex.compile(self.move_form, regex.IGNORECASE | regex.ASCII)
            self._viable[text] = np.array(
                [form.fullmatch(text + piece, partial=True) is not None for piece in self._all_pieces()]
            )
        return self._viable[text]

    def _ended_after(self, text: str) -> dict[int, str]:
        """Return the tokens that complete a text of `stop` behind a text, and what the turn says then."""
        if self.stop and text not in self._ended:
            ends = ((token, end_of_first(text + piece, self.stop)) for token, piece in enumerate(self._all_pieces()))
            self._ended[text] = {token: (text + self._pieces[token])[:end] for token, end in ends if end is not None}
        return self._ended.get(text, {})

    def _all_pieces(self) -> list[str]:
        """Return the text of each token."""
        if not self._pieces:
            self._pieces = [self._text([token]) for token in range(self.chat.vocab_size)]
        return self._pieces


class LanguageModelTokens:
    """The chances of a Hugging Face model's next token; a beginning shared with the last prompt is not read again.

    Args:
        lm: on whatever device; it is left as it was.
        params: how it is sampled.
        vocab_size: of the tokenizer; the model may have fewer outputs, or more that are no tokens.
    """

    def __init__(self, lm: Any, params: SamplingParams, vocab_size: int) -> None:
        self._lm, self._params, self._vocab_size = lm, params, vocab_size
        self._device = next(lm.parameters()).device
        self._prompt_ids: list[int] = []
        self._cache = DynamicCache()  # of the prompt
        self._first: torch.Tensor | None = None

    def begin(self, prompt_ids: Sequence[int]) -> None:
        num_shared = 0  # with the prompt before, but for a token, behind which something must be asked
        while num_shared < min(len(self._prompt_ids), len(prompt_ids) - 1) and (
            self._prompt_ids[num_shared] == prompt_ids[num_shared]
        ):
            num_shared += 1
        if num_shared:
            if num_shared < len(self._prompt_ids):
                self._cache.crop(num_shared - len(self._prompt_ids))  # takes off what is behind
        else:
            self._cache = DynamicCache(config=self._lm.config)
        self._prompt_ids = list(prompt_ids)
        self._first = self._logits([self._prompt_ids[num_shared:]], self._cache)

    def chances(self, sequences: Sequence[Sequence[int]]) -> Chances:
        assert self._first is not None
        if not sequences[0]:
            return self._sampled(self._first)
        parts = []
        for k in range(0, len(sequences), BATCH):
            batch = sequences[k : k + BATCH]
            cache = copy.deepcopy(self._cache)
            cache.batch_repeat_interleave(len(batch))
            parts.append(self._logits(batch, cache))
        return self._sampled(torch.cat(parts))

    def _logits(self, sequences: Sequence[Sequence[int]], cache: DynamicCache) -> torch.Tensor:
        """Return the model's logits behind the last token of each sequence; the cache grows by them."""
        ids = torch.tensor([list(ids) for ids in sequences], device=self._device)
        with torch.inference_mode():
            return self._lm(ids, past_key_values=cache, use_cache=True, logits_to_keep=1).logits[:, -1]

    def _sampled(self, logits: torch.Tensor) -> Chances:
        out = np.zeros((len(logits), max(self._vocab_size, logits.shape[-1])))
        for row, logits_V in zip(out, logits, strict=True):
            if self._params.temperature == 0:
                row[int(logits_V.argmax())] = 1.0
            else:
                row[: len(logits_V)] = sampled_logp(logits_V, self._params).exp().double().cpu().numpy()
        return out[:, : self._vocab_size]
