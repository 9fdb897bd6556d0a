"""The environments: text environments of Gymnasium, one folder each.

Every environment is a `TextEnv` (`base.py`); `wrappers.py` gives it tokens; `multi_agent.py` is the base of
environments with several agents, and is not imported here because it loads RLlib.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium

from rllm_gym.envs.base import StepResult, TextEnv, parse_action
from rllm_gym.envs.text_space import UnicodeText, check_text_env

if TYPE_CHECKING:
    from rllm_gym.envs.wrappers import TokenEnv

__all__ = ["StepResult", "TextEnv", "UnicodeText", "parse_action", "wrap"]


def wrap(
    env: gymnasium.Env[str, str],
    *,
    tokenizer: Any = None,
    chat_template: str | Path | None = None,
    max_tokens: int | None = None,
) -> TokenEnv:
    """Return a token-level environment around any existing text environment.

    Item ids, a system prompt and `info["is_success"]` are optional. `register_text_env` does the same for a class,
    under an id that `gymnasium.make` and experiments can name.

    Args:
        env: a `gymnasium.Env` whose two spaces are `gymnasium.spaces.Text`, such as `UnicodeText`.
        tokenizer: a Hugging Face tokenizer with a chat template, by object, name or path; None is the shipped one.
        chat_template: replaces the tokenizer's template.
        max_tokens: bound on one action and on one observation; None is that of `TokenEnv`.

    Raises:
        ConfigError: the environment's spaces are not text, or an option cannot be used.
    """
    check_text_env(env, "wrap")
    from rllm_gym.envs.wrappers import TokenEnv  # loads tokenizers and Jinja, which the text level does without

    return TokenEnv(env, tokenizer=tokenizer, chat_template=chat_template, max_tokens=max_tokens)
