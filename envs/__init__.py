"""The environments: text environments of Gymnasium, one folder each.

Every environment is a `TextEnv` (`base.py`); `wrappers.py` gives it tokens; `multi_agent.py` is the base of
environments with several agents, and is not imported here because it loads RLlib.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Unpack

import gymnasium

from rllm_gym.envs.base import StepResult, TextEnv, parse_action
from rllm_gym.envs.text_space import UnicodeText, check_text_env

if TYPE_CHECKING:
    from rllm_gym.envs.pettingzoo import PettingZooEnv
    from rllm_gym.envs.token_level import TokenOptions
    from rllm_gym.envs.wrappers import TokenEnv

__all__ = ["StepResult", "TextEnv", "UnicodeText", "from_pettingzoo", "parse_action", "wrap"]


def wrap(env: gymnasium.Env[str, str], **options: Unpack[TokenOptions]) -> TokenEnv:
    """Return a token-level environment around any existing text environment.

    Item ids, a system prompt and `info["is_success"]` are optional. `register_text_env` does the same for a class,
    under an id that `gymnasium.make` and experiments can name.

    Args:
        env: a `gymnasium.Env` whose two spaces are `gymnasium.spaces.Text`, such as `UnicodeText`.
        options: see `rllm_gym.envs.token_level.TokenOptions`.

    Raises:
        ConfigError: the environment's spaces are not text, or an option cannot be used.
    """
    check_text_env(env, "wrap")
    from rllm_gym.envs.tokens import to_tokens  # loads tokenizers and Jinja, which the text level does without

    return to_tokens(env, **options)


def from_pettingzoo(env: Any, *, system_prompts: Mapping[str, str] | None = None) -> PettingZooEnv:
    """Return an environment of PettingZoo's, AEC or parallel, as RLlib's `MultiAgentEnv` over texts.

        from ray.tune.registry import register_env
        register_env("my_game", lambda config: from_pettingzoo(MyGame(**config)))  # then `env: my_game`

    Args:
        env: its spaces are `gymnasium.spaces.Text`, such as `UnicodeText`.
        system_prompts: an instruction for each agent; one that is left out has none.

    Raises:
        ConfigError: it is none, or has other spaces.
    """
    from rllm_gym.envs.pettingzoo import PettingZooEnv  # loads RLlib

    return PettingZooEnv(env, system_prompts=system_prompts)
