"""The environments: text environments of Gymnasium, one folder each.

Every environment is a `TextEnv` (`base.py`); `wrappers.py` gives it tokens; `multi_agent.py` is the base of
environments with several agents, and is not imported here because it loads RLlib.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium

from rllm_gym.envs.base import StepResult, TextEnv, parse_action
from rllm_gym.envs.text_space import UnicodeText, check_text_env

if TYPE_CHECKING:
    from rllm_gym.envs.pettingzoo import PettingZooEnv
    from rllm_gym.envs.wrappers import TokenEnv

__all__ = ["StepResult", "TextEnv", "UnicodeText", "from_pettingzoo", "parse_action", "wrap"]


def wrap(
    env: gymnasium.Env[str, str],
    *,
    tokenizer: Any = None,
    chat_template: str | Path | None = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
    template_date: str | None = None,
    max_tokens: int | None = None,
) -> TokenEnv:
    """Return a token-level environment around any existing text environment.

    Item ids, a system prompt and `info["is_success"]` are optional. `register_text_env` does the same for a class,
    under an id that `gymnasium.make` and experiments can name.

    Args:
        env: a `gymnasium.Env` whose two spaces are `gymnasium.spaces.Text`, such as `UnicodeText`.
        tokenizer: a Hugging Face tokenizer with a chat template, by object, name or path; None is the shipped one.
        chat_template: replaces the tokenizer's template.
        chat_template_kwargs: variables of the template, such as `enable_thinking`; None is none.
        template_date: today, for a template that writes it, as 2026-01-31; None is 2026-01-01.
        max_tokens: bound on one action and on one observation; None is that of `TokenEnv`.

    Raises:
        ConfigError: the environment's spaces are not text, or an option cannot be used.
    """
    check_text_env(env, "wrap")
    from rllm_gym.envs.tokens import to_tokens  # loads tokenizers and Jinja, which the text level does without

    return to_tokens(
        env,
        tokenizer=tokenizer,
        chat_template=chat_template,
        chat_template_kwargs=chat_template_kwargs,
        template_date=template_date,
        max_tokens=max_tokens,
    )


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
