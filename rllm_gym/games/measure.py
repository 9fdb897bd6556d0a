"""Measures a language model at every information set of a game: its choices, and their distance from optimal play."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rllm_gym.envs.poker.rules import move_in, rules_of
from rllm_gym.errors import RllmGymError
from rllm_gym.games.nash import information_states, nash_conv
from rllm_gym.games.questions import Complete, MoveChances, Question, make_questions
from rllm_gym.rollout.loop import derive_seed
from rllm_gym.tokens import ChatTokenizer, end_of_first
from rllm_gym.types import CompletionRequest, SamplingParams

if TYPE_CHECKING:
    from rllm_gym.games.token_chances import LanguageModelTokens, MoveSum

SEED = 10_000


def measure(
    game: str,
    *,
    env_config: Mapping[str, Any],
    chat: ChatTokenizer,
    params: SamplingParams,
    token_options: Mapping[str, Any],
    lm: Any = None,
    complete: Complete | None = None,
    num_samples: int = 0,
) -> dict[str, Any] | None:
    """Return `nash_conv`, `exploitability` (half of it), `illegal_probability`, `method` and `num_information_sets`.

    The chances of moves are those of a turn that says a legal one, uniform where no turn does; `illegal_probability` is
    that of all other turns, averaged over the information sets. They are computed of a model's weights (`exact`) where
    all turns that say a move can be listed, else counted in completions (`sampled`), which makes `nash_conv` too large
    rather than too small. None where neither can be done.

    Args:
        env_config: of the game's environment.
        params: how the policy is sampled.
        token_options: how its conversations are, see `CommonOptions.token_options`.
        lm: a Hugging Face model, for the exact way.
        complete: samples turns, for the other.
        num_samples: completions at each information set.
    """
    rules, states = rules_of(game), information_states(game)
    thoughts = bool(env_config.get("thoughts", False))
    questions = make_questions(game, env_config, chat, **{**token_options, "in_process": False})

    def said(text: str) -> int | None:
        return move_in(text, rules, thoughts=thoughts)

    found = None
    if lm is not None and not thoughts:  # thoughts are without number
        from rllm_gym.games.token_chances import LanguageModelTokens, MoveSum  # loads torch and transformers

        move_sum = MoveSum(chat, rules.move_form, said, len(rules.moves), params.max_new_tokens, questions[0].stop)
        found = _summed(move_sum, LanguageModelTokens(lm, params, chat.vocab_size), questions)
    method = "exact"
    if found is None and complete is not None and num_samples > 0:
        found = _counted(complete(questions, num_samples), said, len(rules.moves))
        method = "sampled"
    if found is None:
        return None
    chances, illegal = {}, []
    for state, of_state in zip(states, found, strict=True):
        legal = of_state.moves[list(state.legal)]
        mass = float(legal.sum())
        shares = legal / mass if mass > 0 else np.full(len(legal), 1 / len(legal))
        chances[state.name] = dict(zip(state.legal, map(float, shares), strict=True))
        illegal.append(min(1.0, max(0.0, of_state.illegal + float(of_state.moves.sum()) - mass)))
    value = nash_conv(game, chances.__getitem__)
    return {
        "nash_conv": value,
        "exploitability": value / 2,
        "illegal_probability": float(np.mean(illegal)),
        "method": method,
        "num_information_sets": len(states),
    }


def _summed(move_sum: MoveSum, policy: LanguageModelTokens, questions: Sequence[Question]) -> list[MoveChances] | None:
    found = []
    for question in questions:
        of_question = move_sum(policy, question.prompt_ids)
        if of_question is None:
            return None
        found.append(of_question)
    return found


def _counted(texts: Sequence[Sequence[str]], said: Callable[[str], int | None], num_moves: int) -> list[MoveChances]:
    found = []
    for of_question in texts:
        moves = [said(text) for text in of_question]
        shares = np.array([moves.count(move) for move in range(num_moves)]) / len(moves)
        found.append(MoveChances(shares, moves.count(None) / len(moves)))
    return found


def completed_by(algorithm: Any, module_id: str, params: SamplingParams) -> Complete:
    """Return the engine that samples an algorithm's policy on one of its EnvRunners."""

    def complete(questions: Sequence[Question], num_samples: int) -> list[list[str]]:
        found = algorithm.env_runner_group.foreach_env_runner(
            functools.partial(
                complete_on_runner, module_id=module_id, questions=questions, num_samples=num_samples, params=params
            ),
            remote_worker_ids=algorithm.samplers.ids[:1],
            local_env_runner=False,
            timeout_seconds=None,
        )
        if not found:
            raise RllmGymError("measure: the EnvRunner that was asked has died. Evaluate again.")
        texts, error = found[0]
        if error is not None:
            raise RllmGymError(f"measure: {error}")
        return texts

    return complete


def complete_on_runner(
    runner: Any, module_id: str, questions: Sequence[Question], num_samples: int, params: SamplingParams
) -> tuple[list[list[str]], str | None]:
    """Return the answers of a policy's engine on an idle EnvRunner, one a question, and the errors.

    An exception would end the runner, and its text would be lost.
    """
    try:
        return _completions(runner, module_id, questions, num_samples, params), None
    except Exception as error:
        return [], f"{type(error).__name__}: {error}"


def _completions(
    runner: Any, module_id: str, questions: Sequence[Question], num_samples: int, params: SamplingParams
) -> list[list[str]]:
    engine, chat = runner.engines[module_id], runner.chat
    texts: list[list[str]] = [[""] * num_samples for _ in questions]
    waiting = {}
    for k, question in enumerate(questions):
        for member in range(num_samples):
            request_id = f"question-{k}-{member}"
            waiting[request_id] = (k, member)
            engine.submit(
                CompletionRequest(
                    request_id,
                    question.prompt_ids,
                    chat.stop_ids,
                    params,
                    derive_seed(SEED, k, member),
                    question.messages,
                    is_over=chat.early_end((question.stop, None)),
                )
            )
    while waiting:
        for completion in engine.step():
            if completion.error is not None:
                raise RllmGymError(completion.error)
            k, member = waiting.pop(completion.request_id)
            stop, ids = questions[k].stop, [int(token) for token in completion.token_ids]
            said = chat.said(ids[: chat.turn_length(ids, (stop, None))])
            texts[k][member] = said[: end_of_first(said, stop)]
    return texts
