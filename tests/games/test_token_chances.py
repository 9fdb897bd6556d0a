"""The chance of a move is the sum over all turns that say it, and what is computed is what is sampled."""

import itertools

import numpy as np
import pytest
import torch

from rllm_gym.envs.poker.rules import KUHN, move_in
from rllm_gym.games import token_chances
from rllm_gym.games.token_chances import LanguageModelTokens, MoveSum
from rllm_gym.models import TINY_MODEL_DIR
from rllm_gym.tokens import ChatTokenizer
from rllm_gym.types import SamplingParams

TEXTS = ["<end>", "b", "et", "bet", "p", "ass", " ", ".", "x", "\x07"]


class Chat:
    """A tokenizer of ten tokens, of which the first ends a turn."""

    vocab_size = len(TEXTS)
    stop_ids = (0,)

    def decode_action(self, ids):
        return "".join(TEXTS[i] for i in ids)


class Table:
    """The next token's chances depend on the sequence alone."""

    def begin(self, prompt_ids):
        self.asked = 0

    def chances(self, sequences):
        self.asked += len(sequences)
        return np.stack([self.row(sequence) for sequence in sequences])

    def row(self, sequence):
        weights = np.random.default_rng([3, *sequence]).random(len(TEXTS)) ** 3
        return weights / weights.sum()


def said(text):
    return move_in(text, KUHN, thoughts=False)


def by_brute_force(max_new_tokens):
    """Play every turn of at most so many tokens; control characters do not reach the game."""
    table, moves, illegal, num_turns = Table(), np.zeros(2), 0.0, 0
    for length in range(1, max_new_tokens + 1):
        for ids in itertools.product(range(len(TEXTS)), repeat=length):
            if 0 in ids[:-1] or (length < max_new_tokens and ids[-1] != 0):
                continue
            p = np.prod([table.row(ids[:k])[token] for k, token in enumerate(ids)])
            move = said("".join(TEXTS[i] for i in ids if i != 0).replace("\x07", ""))
            num_turns += 1
            if move is None:
                illegal += p
            else:
                moves[move] += p
    assert moves.sum() + illegal == pytest.approx(1)
    return moves, illegal, num_turns


@pytest.mark.parametrize("max_new_tokens", [1, 2, 4])
def test_the_sum_is_that_over_every_turn(max_new_tokens):
    moves, illegal, num_turns = by_brute_force(max_new_tokens)
    table = Table()
    found = MoveSum(Chat(), KUHN.move_form, said, 2, max_new_tokens)(table, [])
    np.testing.assert_allclose(found.moves, moves, atol=1e-7)
    assert found.illegal == pytest.approx(illegal, abs=1e-7)
    assert table.asked <= num_turns
    assert max_new_tokens < 2 or (found.moves > 0).all()


def test_a_turn_ends_where_a_stop_text_does():
    """Of "b", "et" and "bet": with the stop text "b" no turn says "bet", and what follows a "b" counts for nothing."""
    table, stopped = Table(), np.zeros(2)
    illegal, waiting = 0.0, [()]
    while waiting:
        ids = waiting.pop()
        text = "".join(TEXTS[i] for i in ids if i != 0).replace("\x07", "")
        is_over = 0 in ids or len(ids) == 3 or "b" in text or "p" in text
        if not is_over:
            waiting += [(*ids, token) for token in range(len(TEXTS))]
            continue
        p = np.prod([table.row(ids[:k])[token] for k, token in enumerate(ids)])
        ends = [text.index(letter) + 1 for letter in "bp" if letter in text]
        move = {"b": 1, "p": 0}.get(text[: min(ends, default=len(text))].strip())
        if move is None:
            illegal += p
        else:
            stopped[move] += p

    def letter(text):
        return {"b": 1, "p": 0}.get(text.strip())

    found = MoveSum(Chat(), r"\s*(b|p)\s*", letter, 2, 3, stop=("b", "p"))(Table(), [])
    np.testing.assert_allclose(found.moves, stopped, atol=1e-7)
    assert found.illegal == pytest.approx(illegal, abs=1e-7)


def test_what_cannot_be_followed_is_no_exact_sum(monkeypatch):
    monkeypatch.setattr(token_chances, "MOST_SEQUENCES", 8)
    assert MoveSum(Chat(), KUHN.move_form, said, 2, 4)(Table(), []) is None
    monkeypatch.setattr(token_chances, "MOST_SEQUENCES", 512)
    monkeypatch.setattr(token_chances, "LEAST", 1e-2)
    assert MoveSum(Chat(), KUHN.move_form, said, 2, 4)(Table(), []) is None


@pytest.fixture(scope="module")
def lm():
    from rllm_gym.learner.rl_module import load_language_model

    return load_language_model(str(TINY_MODEL_DIR), "float32").eval()


@pytest.mark.promise
def test_a_models_next_tokens_are_those_of_a_whole_pass_whatever_was_asked_before(lm):
    chat = ChatTokenizer()
    policy = LanguageModelTokens(lm, SamplingParams(8, temperature=0.7), chat.vocab_size)
    first = chat.encode_chat([{"role": "user", "content": "Your move: pass or bet?"}], add_generation_prompt=True)
    other = chat.encode_chat([{"role": "user", "content": "Your move: fold?"}], add_generation_prompt=True)
    for prompt in (first, other, first[:-1], first, other[:1]):
        policy.begin(prompt)
        for sequences in ([()], [(5,), (9,)], [(5, 6, 7), (9, 8, 7), (1, 2, 3)]):
            found = policy.chances(sequences)
            ids = torch.tensor([[*prompt, *sequence] for sequence in sequences])
            with torch.no_grad():
                expected = (lm(ids).logits[:, -1] / 0.7).softmax(-1).numpy()
            np.testing.assert_allclose(found[:, : expected.shape[1]], expected, rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(found.sum(1), 1, rtol=1e-4, atol=1e-5)


def test_greedy_and_truncated_sampling_are_computed_as_they_are_sampled(lm):
    prompt = [5, 6, 7, 8]
    plain = LanguageModelTokens(lm, SamplingParams(8), 2048)
    plain.begin(prompt)
    p = plain.chances([()])[0]
    for params, expected in [
        (SamplingParams(8, temperature=0.0), p == p.max()),
        (SamplingParams(8, top_k=5), p >= np.sort(p)[-5]),
    ]:
        policy = LanguageModelTokens(lm, params, 2048)
        policy.begin(prompt)
        found = policy.chances([()])[0]
        np.testing.assert_array_equal(found > 0, expected)
        np.testing.assert_allclose(found, np.where(expected, p, 0) / p[expected].sum(), atol=1e-6)
