"""The options of `agent:`, checked once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rllm_gym.envs.agents.context import CONTEXTS, Context
from rllm_gym.envs.agents.formats import FORMATS
from rllm_gym.envs.agents.rewards import RewardFunction, reward_functions
from rllm_gym.errors import ConfigError, nearest

KEYS = ("format", "tool_parser", "parallel_calls", "plan", "reflect", "attempts", "attempt_turns", "context", "rewards")

PARALLEL_CALLS = ("run", "refuse")


@dataclass(frozen=True)
class AgentSpec:
    """The options of `agent:`.

    Args:
        format: a name in `FORMATS`.
        tool_parser: for the format `tools`: vLLM's name of the parser; None is the one for what the template writes.
        parallel_calls: several calls of a turn "run" in order, or such a turn is invalid ("refuse").
        plan: the first completion is a plan.
        reflect_every: a reflection follows so many actions; None is never.
        reflect_on_error: a reflection follows an invalid action.
        attempts: at the task, each but the first after a reflection on the one that failed.
        attempt_turns: actions after which an attempt has failed; None leaves its end to the environment.
        context: what the policy reads of what was said.
        rewards: reward functions; none is the environment's reward alone.
    """

    format: str = "native"
    tool_parser: str | None = None
    parallel_calls: str = "run"
    plan: bool = False
    reflect_every: int | None = None
    reflect_on_error: bool = False
    attempts: int = 1
    attempt_turns: int | None = None
    context: Context = field(default_factory=Context)
    rewards: tuple[RewardFunction, ...] = ()

    @property
    def max_kept_turns(self) -> int | None:
        """The most turns that a rewritten context holds; None where none is left out."""
        if self.context.kind == "full":
            return None
        # Actions and what may follow each, the plan, the reflections on failed attempts, and the turn that is over.
        return 2 * self.context.num_turns + self.attempts + 2


def agent_spec(agent: Any) -> AgentSpec:
    """Return the options that a mapping says.

    Raises:
        ConfigError: one of them cannot be.
    """
    if not isinstance(agent, Mapping):
        raise ConfigError(f"agent: must be a mapping, like {{format: react, plan: true}}; got {agent!r}. Correct it.")
    for key in agent:
        if key not in KEYS:
            raise ConfigError(f"agent: unknown key {key!r}; did you mean {nearest(key, KEYS)!r}?")
    given = {key: value for key, value in agent.items() if value is not None}
    name = given.get("format", "native")
    if name not in FORMATS:
        raise ConfigError(
            f"agent: format must be one of {', '.join(FORMATS)}; got {name!r}. Did you mean {nearest(name, FORMATS)!r}?"
        )
    parallel_calls = given.get("parallel_calls", "run")
    if parallel_calls not in PARALLEL_CALLS:
        raise ConfigError(
            f"agent: parallel_calls must be one of {', '.join(PARALLEL_CALLS)}; got {parallel_calls!r}. Did you mean "
            f"{nearest(str(parallel_calls), PARALLEL_CALLS)!r}?"
        )
    tool_parser = given.get("tool_parser")
    if tool_parser is not None and (name != "tools" or not isinstance(tool_parser, str)):
        raise ConfigError(
            f"agent: tool_parser names a parser of vLLM for format: tools; got {tool_parser!r} with format: {name}. "
            "Correct it, or leave it out."
        )
    plan = given.get("plan", False)
    if not isinstance(plan, bool):
        raise ConfigError(f"agent: plan must be true or false; got {plan!r}. Correct it.")
    attempts = _count("attempts", given.get("attempts", 1))
    attempt_turns = given.get("attempt_turns")
    if attempt_turns is not None:
        _count("attempt_turns", attempt_turns)
        if attempts == 1:
            raise ConfigError(
                f"agent: attempt_turns is for several attempts; got {attempt_turns} with attempts: 1. Set attempts, or "
                "leave it out: the horizon bounds an episode."
            )
    reflect_every, reflect_on_error = _reflect(given.get("reflect", {}))
    return AgentSpec(
        format=name,
        tool_parser=tool_parser,
        parallel_calls=parallel_calls,
        plan=plan,
        reflect_every=reflect_every,
        reflect_on_error=reflect_on_error,
        attempts=attempts,
        attempt_turns=attempt_turns,
        context=_context(given.get("context", "full")),
        rewards=reward_functions(given.get("rewards", ())),
    )


def _count(what: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"agent: {what} must be a whole number of at least 1; got {value!r}. Correct it.")
    return value


def _reflect(value: Any) -> tuple[int | None, bool]:
    """Return after how many actions to reflect, and whether after an invalid one."""
    if value == "on_error":
        return None, True
    if not isinstance(value, Mapping) or set(value) - {"every", "on_error"}:
        raise ConfigError(
            f"agent: reflect must be on_error or a mapping, like {{every: 4, on_error: true}}; got {value!r}."
        )
    on_error = value.get("on_error", False)
    if not isinstance(on_error, bool):
        raise ConfigError(f"agent: on_error of reflect must be true or false; got {on_error!r}. Correct it.")
    every = value.get("every")
    return (None if every is None else _count("every of reflect", every)), on_error


def _context(value: Any) -> Context:
    """Return the context that `full`, `last_n_turns` or `{last_n_turns: 4}` names."""
    kind, num_turns = value, None
    if isinstance(value, Mapping) and len(value) == 1:
        [(kind, num_turns)] = value.items()
    if not isinstance(kind, str) or kind not in CONTEXTS or (kind == "full" and num_turns is not None):
        raise ConfigError(
            f"agent: context must be one of {', '.join(CONTEXTS)}, the last two also with a number of turns, like "
            f"{{last_n_turns: 4}}; got {value!r}. Did you mean {nearest(kind, CONTEXTS)!r}?"
        )
    return Context(kind) if num_turns is None else Context(kind, _count(kind, num_turns))
