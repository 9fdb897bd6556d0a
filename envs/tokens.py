"""The one door from a text environment to the token level, for `gymnasium.make`, runs, measures and the page alike."""

from __future__ import annotations

from typing import Any, Unpack

from rllm_gym.envs.token_level import TokenOptions
from rllm_gym.envs.token_multi_agent import TokenMultiAgentEnv
from rllm_gym.envs.wrappers import TokenEnv


def to_tokens(env: Any, **options: Unpack[TokenOptions]) -> Any:
    """Return an environment of one agent or of several at the token level; one that speaks token ids stays as it is.

    Args:
        env: a `gymnasium.Env[str, str]`, or one with the dictionaries of RLlib's `MultiAgentEnv`.
        options: see `TokenOptions`.
    """
    if hasattr(env, "possible_agents"):
        return env if hasattr(env, "stop_ids") else TokenMultiAgentEnv(env, **options)
    if env.has_wrapper_attr("stop_ids"):
        return env
    if hasattr(env.unwrapped, "check_request"):
        from rllm_gym.envs.program.tokens import ProgramTokenEnv

        return ProgramTokenEnv(env, **options)
    return TokenEnv(env, **options)
