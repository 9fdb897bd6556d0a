"""Registers text environments with Gymnasium, each at the level of tokens and of text, and understands their ids."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import gymnasium
from gymnasium.envs.registration import load_env_creator

from rllm_gym.envs.agents import AgentEnv
from rllm_gym.envs.items import keywords_of
from rllm_gym.envs.text_space import check_text_env
from rllm_gym.envs.token_level import TOKEN_OPTIONS
from rllm_gym.errors import ConfigError, nearest

if TYPE_CHECKING:
    from ray.rllib.env.multi_agent_env import MultiAgentEnv

PACKAGE = "rllm_gym"
OBS_TYPES = ("token", "text")
PROTOCOLS = ("native", "agentgym")
SELECTION = ("split", "splits", "item_ids")  # keywords of environments with numbered tasks
# The entry points of what this file registers.
TEXT_AND_TOKEN_FACTORY = "rllm_gym.registration:make_env"
MULTI_AGENT_FACTORY = "rllm_gym.registration:create_multi_agent"
FACTORIES = (TEXT_AND_TOKEN_FACTORY, MULTI_AGENT_FACTORY)

EnvCreator = str | Callable[..., gymnasium.Env[str, str]]


def register_text_env(id: str, env: EnvCreator, *, max_episode_steps: int | None = None, **kwargs: Any) -> None:
    """Register an environment of text under `id`, for `gymnasium.make(id)` and `gymnasium.make(id, obs_type="text")`.

    Args:
        id: as Gymnasium has it, `[namespace/]Name-vN`. To be found in worker processes too, call this in a module and
            make the environment as `"module:namespace/Name-vN"`.
        env: the `gymnasium.Env[str, str]` class, or "module:Class", which is imported only when it is made.
        max_episode_steps: a default for `gymnasium.make(id, max_episode_steps=...)`.
        kwargs: defaults of the environment's keywords, and of `make_env`'s.

    Raises:
        ConfigError: `env` is neither.
    """
    _check_creator("register_text_env", env)
    gymnasium.register(
        id=id,
        entry_point=TEXT_AND_TOKEN_FACTORY,
        max_episode_steps=max_episode_steps,
        kwargs={"env": env, **kwargs},
    )


def register_multi_agent_env(id: str, env: str | Callable[..., Any], **kwargs: Any) -> None:
    """Register an environment of several agents under `id`, for `make_multi_agent(id)` and for experiments.

    Args:
        id: see `register_text_env`.
        env: a `TextMultiAgentEnv` class, or "module:Class", which is imported only when it is made.
        kwargs: defaults of the environment's keywords.

    Raises:
        ConfigError: `env` is neither.
    """
    _check_creator("register_multi_agent_env", env)
    gymnasium.register(
        id=id,
        entry_point=MULTI_AGENT_FACTORY,
        order_enforce=False,  # Gymnasium's wrappers are for one agent
        disable_env_checker=True,
        kwargs={"env": env, **kwargs},
    )


def create_multi_agent(env: str | Callable[..., Any], **kwargs: Any) -> Any:
    """Make an environment of several agents; what `gymnasium.make` calls for every registered one."""
    create: Callable[..., Any] = load_env_creator(env) if isinstance(env, str) else env
    _check_keywords(create, kwargs)
    return create(**kwargs)


def make_multi_agent(id: str, *, roles: Sequence[str] | None = None, **env_config: Any) -> MultiAgentEnv:
    """Make an environment of several agents, as RLlib's `MultiAgentEnv` over texts.

        env = rllm_gym.make_multi_agent("rllm_gym/KuhnPoker-v0")
        observations, infos = env.reset(seed=0)
        observations, rewards, terminateds, truncateds, infos = env.step({"player_0": "bet"})

    Args:
        id: of an environment of several agents, or with `roles` of one agent.
        roles: agents that work on a task of one together, like ["planner", "actor"]; see `RolesEnv`.
        env_config: keywords of the environment.

    Raises:
        ConfigError: an unknown id or keyword, or an environment of one agent.
    """
    env_id = normalize_env_id(id)
    is_multi_agent = gymnasium.spec(env_id.rpartition(":")[2]).entry_point == MULTI_AGENT_FACTORY
    if is_multi_agent == (roles is not None):
        raise ConfigError(
            f"make_multi_agent: must be an environment of several agents, or one of one agent with roles; got {id!r} "
            f"with roles={roles!r}. Use gymnasium.make for one agent."
        )
    if roles is None:
        return gymnasium.make(env_id, **env_config)  # type: ignore[return-value]
    env = gymnasium.make(env_id, obs_type="text", max_episode_steps=-1, disable_env_checker=True, **env_config)
    return with_roles(env, roles)


def with_roles(env: Any, roles: Sequence[str]) -> MultiAgentEnv:
    """Return an environment of one agent as one in which several work on its tasks; see `RolesEnv`."""
    from rllm_gym.envs.roles import RolesEnv  # loads RLlib

    if hasattr(env, "possible_agents"):
        raise ConfigError(
            f"roles: are for an environment of one agent; got {roles!r} for one of several. Leave it out."
        )
    return RolesEnv(env, roles)


def _check_creator(who: str, env: Any) -> None:
    if not (callable(env) or (isinstance(env, str) and re.fullmatch(r"[\w.]+:\w+", env))):
        raise ConfigError(
            f'{who}: env must be a class, a function or "module:Class"; got {env!r}. '
            "An environment that is made already goes into rllm_gym.envs.wrap."
        )


def make_env(
    env: EnvCreator,
    *,
    obs_type: str = "token",
    protocol: str = "native",
    agentgym: EnvCreator | None = None,
    agent: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> gymnasium.Env[Any, Any]:
    """Make an environment at the token or the text level; what `gymnasium.make` calls for every registered environment.

    Args:
        env: the `gymnasium.Env[str, str]` class, or "module:Class".
        obs_type: "token": actions and observations are token ids; "text": they are strings.
        protocol: "native", or "agentgym": the words, rules and rewards of AgentGym's client and server.
        agentgym: the class of the environment in AgentGym's protocol, or "module:Class"; None has none.
        agent: how the policy writes its turns, plans, reflects and remembers; see `AgentEnv`. None is the environment's
            own format, and nothing else.
        kwargs: keywords of the environment, and at the token level those of `TokenOptions`. A name that the environment
            lists is the environment's.

    Raises:
        ConfigError: an unknown level, a keyword that the environment does not take, an option of the token level for
            the text level, or an environment whose spaces are not text.
    """
    if obs_type not in OBS_TYPES:
        raise ConfigError(f'make_env: obs_type must be "token" or "text"; got {obs_type!r}. Choose one of these.')
    if protocol != "native":
        env = _in_protocol(protocol, env, agentgym, agent)
    create: Callable[..., Any] = load_env_creator(env) if isinstance(env, str) else env
    own = keywords_of(create) or ()
    options: Any = {name: kwargs.pop(name) for name in TOKEN_OPTIONS if name in kwargs and name not in own}
    _check_keywords(create, kwargs)
    if obs_type == "text":
        for key, value in options.items():
            if value is not None:
                raise ConfigError(
                    f"make_env: {key} belongs to the token level; got {value!r} with obs_type='text'. "
                    f'Leave it out, or use obs_type="token".'
                )
    text_env = create(**kwargs)
    check_text_env(text_env, "make_env")
    if agent is not None:
        text_env = AgentEnv(text_env, agent)
    if obs_type == "text":
        return text_env
    from rllm_gym.envs.tokens import to_tokens  # loads tokenizers and Jinja, which the text level does without

    return to_tokens(text_env, **options)


def _in_protocol(protocol: Any, env: EnvCreator, agentgym: EnvCreator | None, agent: Any) -> EnvCreator:
    if protocol not in PROTOCOLS:
        raise ConfigError(f"protocol: must be {' or '.join(PROTOCOLS)}; got {protocol!r}. Choose one of these.")
    if agentgym is None:
        raise ConfigError(
            "protocol: agentgym is for BabyAI, SciWorld, SearchQA, TextCraft and WebArena; got it for "
            f"{getattr(env, '__name__', env)}. Leave it out."
        )
    format = agent.get("format") if isinstance(agent, Mapping) else None
    if format not in (None, "native"):
        raise ConfigError(
            "protocol: agentgym says itself how turns are written; got it together with agent: "
            f"{{format: {format}}}. Leave one of them out."
        )
    return agentgym


def normalize_env_id(id: str) -> str:
    """Return an environment's id in the form that `gymnasium.make` takes in any process.

    `TextCraft-v0`, `rllm_gym/TextCraft-v0`, `rllm_gym:TextCraft-v0` and `rllm_gym:rllm_gym/TextCraft-v0` all become the
    last one. `other_module:Name-v0` is kept, once importing `other_module` has registered it. Ids that other code has
    registered in this process are kept.

    Raises:
        ConfigError: no such environment; the message names the nearest known one.
    """
    module, _, name = id.rpartition(":")
    if module:
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as e:
            raise ConfigError(
                f"env: the part before the colon must be a module that registers the environment; got {id!r} ({e}). "
                "Correct it, or install the module."
            ) from e
    spaced = name if "/" in name else f"{PACKAGE}/{name}"
    if module in ("", PACKAGE) and spaced.startswith(f"{PACKAGE}/") and spaced in gymnasium.registry:
        if not module and name != spaced and name in gymnasium.registry:
            raise ConfigError(
                f"env: an id must mean one environment; got {id!r}, which means {spaced} and {name}. "
                f"Write {PACKAGE}:{spaced}, or the other one with its module before a colon."
            )
        return f"{PACKAGE}:{spaced}"
    if name in gymnasium.registry:
        return id
    if module in ("", PACKAGE):
        known = [f"{PACKAGE}:{key}" for key in gymnasium.registry if key.startswith(f"{PACKAGE}/")]
        known += [
            key for key, spec in gymnasium.registry.items() if spec.entry_point == TEXT_AND_TOKEN_FACTORY and not module
        ]
        known = [key for key in known if not key.startswith(f"{PACKAGE}/")]
    else:
        known = [f"{module}:{key}" for key in gymnasium.registry]
    raise ConfigError(f"env: no environment has this id; got {id!r}. Did you mean {nearest(id, known)!r}?")


def env_class(id: str) -> Any:
    """Return the class or function behind a registered environment; None where it cannot be imported."""
    spec = gymnasium.registry.get(id.rpartition(":")[2])
    env = spec.kwargs.get("env") if spec else None
    try:
        return load_env_creator(env) if isinstance(env, str) else env
    except (ImportError, AttributeError, ConfigError):
        return None


def _check_keywords(create: Callable[..., Any], kwargs: dict[str, Any]) -> None:
    """Refuse keywords that an environment does not list, unless it takes any."""
    known = keywords_of(create)
    if known is None:
        return
    for key in kwargs.keys() - set(known):
        who = getattr(create, "__name__", str(create))
        if key in SELECTION:
            hint = "Let it take that, as rllm_gym.envs.TextEnv does, or leave it out."
        else:
            hint = f"Did you mean {nearest(key, known)!r}?" if known else "Remove it."
        raise ConfigError(f"{who}: takes the keywords {', '.join(known) or '(none)'}; got {key!r}. {hint}")
