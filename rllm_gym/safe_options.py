"""The options of environments that a stranger may set, such as who made a panel or posts to the page's hub."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rllm_gym.envs.agents.rewards import ENVIRONMENT
from rllm_gym.envs.items import SPLITS
from rllm_gym.errors import ConfigError
from rllm_gym.registration import PACKAGE, PROTOCOLS, env_class

MAX_TEXT_CHARS = 100_000


def check_safe_options(who: str, env: str, env_config: Mapping[str, Any], what_to_do: str) -> None:
    """Refuse an environment and options that may run code, read files or reach servers.

    Safe are the environments of this package that are registered here, what each of them names in `safe_options`, and
    what all have: tasks by their numbers or names, a system prompt, a way to write turns.

    Args:
        who: the beginning of the message.
        env: a Gymnasium id; one with a module of somebody else's is refused before that is imported.
        what_to_do: the end of the message.

    Raises:
        ConfigError: it holds another option, or a value that names a file or a module.
    """
    module, _, name = env.rpartition(":")
    if module not in ("", PACKAGE):
        raise ConfigError(f"{who}: an environment must be one that is registered here; got {env!r}. {what_to_do}")
    safe = (*_GENERAL, *getattr(env_class(name), "safe_options", ()))
    for key, value in env_config.items():
        is_safe = _GENERAL.get(key, _is_choice)
        if key not in safe or not is_safe(value):
            raise ConfigError(
                f"{who}: may set {', '.join(safe)} of {name}, and no path, address or module; "
                f"got {key}: {value!r:.200}. {what_to_do}"
            )


def _is_choice(value: Any) -> bool:
    """Return whether it is a text, a number or a list of these; the environment knows which ones there are."""
    values = value if isinstance(value, Sequence) and not isinstance(value, str) else [value]
    return all(isinstance(one, str | int | float | None) and len(str(one)) <= MAX_TEXT_CHARS for one in values)


def _is_list_of_items(value: Any) -> bool:
    return value is None or (isinstance(value, Sequence) and not isinstance(value, str))  # a text is a file's path


def _are_splits(value: Any) -> bool:
    return value is None or (
        isinstance(value, Mapping) and all(ids in SPLITS or _is_list_of_items(ids) for ids in value.values())
    )


def _is_agent(value: Any) -> bool:
    """Return whether an agent has no reward function but the environment's: others are imported."""
    if not isinstance(value, Mapping):
        return value is None
    rewards = value.get("rewards", ())
    if not isinstance(rewards, Sequence) or isinstance(rewards, str):
        return False
    return all((one.get("fn") if isinstance(one, Mapping) else one) == ENVIRONMENT for one in rewards)


_GENERAL = {
    "split": _is_choice,
    "item_ids": _is_list_of_items,
    "splits": _are_splits,
    "system_prompt": _is_choice,
    "render_mode": _is_choice,
    "max_tokens": _is_choice,
    "protocol": lambda value: value in PROTOCOLS,
    "agent": _is_agent,
}
