"""The one door from a text environment to the token level, for `gymnasium.make`, runs, measures and the page alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rllm_gym.envs.token_multi_agent import TokenMultiAgentEnv
from rllm_gym.envs.wrappers import TokenEnv


def to_tokens(
    env: Any,
    *,
    tokenizer: Any = None,
    chat_template: str | Path | None = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
    template_date: str | None = None,
    max_tokens: int | None = None,
    stop: Sequence[str] | None = None,
) -> Any:
    """Return an environment of one agent or of several at the token level; one that speaks token ids stays as it is.

    Args:
        env: a `gymnasium.Env[str, str]`, or one with the dictionaries of RLlib's `MultiAgentEnv`.
        tokenizer: see `ChatTokenizer`; None takes the shipped one.
        chat_template: see `ChatTokenizer`; None takes the tokenizer's.
        chat_template_kwargs: see `ChatTokenizer`.
        template_date: see `ChatTokenizer`.
        max_tokens: bound on one action and on one observation, see `TokenEnv`; None is its default.
        stop: texts that end a turn, see `TokenEnv`; None is the environment's own.
    """
    options: dict[str, Any] = {
        "tokenizer": tokenizer,
        "chat_template": chat_template,
        "chat_template_kwargs": chat_template_kwargs,
        "template_date": template_date,
        "max_tokens": max_tokens,
        "stop": stop,
    }
    if hasattr(env, "possible_agents"):
        return env if hasattr(env, "stop_ids") else TokenMultiAgentEnv(env, **options)
    if env.has_wrapper_attr("stop_ids"):
        return env
    if hasattr(env.unwrapped, "check_request"):
        from rllm_gym.envs.program.tokens import ProgramTokenEnv

        return ProgramTokenEnv(env, **options)
    return TokenEnv(env, **options)
