"""The environments of a run: one, or several with weights; how each is made, and which tasks its splits hold."""

from __future__ import annotations

import functools
import itertools
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias, TypeVar, Unpack

import gymnasium

from rllm_gym.envs.agents import AgentEnv
from rllm_gym.envs.token_level import TokenOptions
from rllm_gym.envs.tokens import to_tokens
from rllm_gym.errors import ConfigError, EnvError, nearest
from rllm_gym.registration import TEXT_AND_TOKEN_FACTORY, env_class, normalize_env_id, with_roles
from rllm_gym.rollout.env_process import EnvProcess
from rllm_gym.rollout.opponents import SCRIPTED, WithMoves, check_agents
from rllm_gym.signals import time_limit
from rllm_gym.tokens import ChatTokenizer

logger = logging.getLogger(__name__)

MAKE_TIMEOUT_S, CLOSE_TIMEOUT_S = 120.0, 10.0  # of an environment that is made to be asked something
KEYS = ("id", "weight", "env_config", "name")
TRAIN = "train"  # the split that training draws from

T = TypeVar("T")
# In turns: one for all environments, or by the environment's name. None is no limit.
Horizon: TypeAlias = int | Mapping[str, int | None] | None


@dataclass(frozen=True)
class EnvironmentSpec:
    """One environment of a run.

    Args:
        name: what its metrics and its schedule of horizons go by.
        env: a Gymnasium id, a class, or a name given to `ray.tune.register_env`.
        env_config: keywords of the environment.
        weight: its share of the train steps' groups, relative to the others'.
    """

    name: str
    env: Any
    env_config: Mapping[str, Any] = field(default_factory=dict)
    weight: float = 1.0

    @property
    def version(self) -> str:
        """`v0` of `TextCraft-v0`, "" where there is none."""
        return self.env.rsplit("-", 1)[-1] if isinstance(self.env, str) and "-v" in self.env else ""

    @property
    def rewrites_history(self) -> bool:
        """Whether an agent leaves out some of what was said, so that an episode is not bounded by `max_model_len`."""
        if isinstance(self.env, str) and getattr(env_class(self.env), "needs_horizon", False):
            return True
        agent = self.env_config.get("agent")
        return isinstance(agent, Mapping) and agent.get("context") not in (None, "full")

    @property
    def calls_tools(self) -> bool:
        """Whether an agent calls functions in the syntax of the model's family, which vLLM's parsers read."""
        agent = self.env_config.get("agent")
        return isinstance(agent, Mapping) and agent.get("format") == "tools"

    def with_split(self, split: str | None) -> EnvironmentSpec:
        """Return the same environment over the tasks of `split`; None is as configured.

        `train` is what training draws from, so an environment that knows no splits has this one, too.
        """
        if split is None or (split == TRAIN and self.env_config.get("split") is None):
            return self
        return replace(self, env_config={**self.env_config, "split": split})


def read_environments(env: Any, env_config: Mapping[str, Any]) -> list[EnvironmentSpec]:
    """Return a run's environments, of what its configuration's `env` and `env_config` say.

    Args:
        env: one environment, or a list of `{id, weight, env_config, name}`, of which only `id` must be there.
        env_config: for one environment its keywords, for several the defaults of theirs.

    Raises:
        ConfigError: names the entry and its key.
    """
    if not isinstance(env, (list, tuple)):
        return [EnvironmentSpec(_name_of(env), env, env_config)]
    if not env:
        raise ConfigError("env: a list must name at least one environment; got []. Write [{id: ...}, ...].")
    specs = [_parse_spec(f"env[{k}]", entry, env_config) for k, entry in enumerate(env)]
    names = [spec.name for spec in specs]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(
                f"env: every environment needs a name of its own; got {name!r} {names.count(name)} times. "
                "Set `name:` in these entries."
            )
    return specs


def change_environments(
    environments: Sequence[EnvironmentSpec], env: Any, env_config: Mapping[str, Any]
) -> list[EnvironmentSpec]:
    """Return environments as an `evaluation_config` changes them.

    Args:
        env: another environment, or a list, to which what the others have as `env_config` does not apply; None, or the
            only one's own id, is the same.
        env_config: keys to add to or replace in theirs; of another environment all keys.

    Raises:
        ConfigError: as `read_environments`, and for an unknown id.
    """
    if env is None or [_as_known(spec.env) for spec in environments] == [_as_known(env)]:
        return [replace(spec, env_config={**spec.env_config, **env_config}) for spec in environments]
    return read_environments(_as_known(env), env_config)


def _as_known(env: Any) -> Any:
    return _known_id(env) if isinstance(env, str) else env


def _parse_spec(who: str, entry: Any, defaults: Mapping[str, Any]) -> EnvironmentSpec:
    if not isinstance(entry, Mapping) or not isinstance(entry.get("id"), str):
        raise ConfigError(f"{who}: must be a mapping with an id, such as {{id: rllm_gym/TextCraft-v0}}; got {entry!r}.")
    for key in entry:
        if key not in KEYS:
            raise ConfigError(f"{who}: unknown key {key!r}; did you mean {nearest(str(key), KEYS)!r}?")
    weight, env_config = entry.get("weight", 1.0), entry.get("env_config") or {}
    if isinstance(weight, bool) or not isinstance(weight, (int, float)) or not 0 < weight < float("inf"):
        raise ConfigError(f"{who}: weight must be a number above 0; got {weight!r}. Leave an environment out instead.")
    if not isinstance(env_config, Mapping):
        raise ConfigError(f"{who}: env_config must be a mapping; got {env_config!r}.")
    name = entry.get("name", _name_of(entry["id"]))
    if not isinstance(name, str) or not name or "/" in name:
        raise ConfigError(f"{who}: name must be a text without '/', since metrics go by it; got {name!r}.")
    return EnvironmentSpec(name, _known_id(entry["id"]), {**defaults, **env_config}, float(weight))


def _known_id(env: str) -> str:
    return env if _registered_creator(env) else normalize_env_id(env)


def _registered_creator(env: str) -> Any:
    """Return the creator that `ray.tune.register_env` was given under a name, if any; without loading Ray."""
    if "ray" not in sys.modules:  # then nobody has registered anything
        return None
    from ray.tune.registry import ENV_CREATOR, _global_registry

    return _global_registry.get(ENV_CREATOR, env) if _global_registry.contains(ENV_CREATOR, env) else None


def _name_of(env: Any) -> str:
    """Return the last part of an id: `TextCraft-v0` of `rllm_gym:rllm_gym/TextCraft-v0`."""
    text = env if isinstance(env, str) else getattr(env, "__name__", type(env).__name__)
    return text.rpartition(":")[2].rpartition("/")[2]


def resolve_horizons(horizon: Horizon, environments: Sequence[EnvironmentSpec]) -> dict[str, int | None]:
    """Return the horizon of every environment, by its name."""
    names = [environment.name for environment in environments]
    return {name: horizon[name] for name in names} if isinstance(horizon, Mapping) else dict.fromkeys(names, horizon)


def make_text_env(spec: EnvironmentSpec) -> Any:
    """Make an environment, at the text level where it has two; `roles` in its `env_config` make it one of several."""
    env_config = dict(spec.env_config)
    roles = env_config.pop("roles", None)
    if roles is None:
        return _make_text_env(spec, env_config)
    if env_config.get("agent") is not None:
        raise ConfigError(f"{spec.name}: agent and roles exclude each other; got both. Leave one of them out.")
    return with_roles(_make_text_env(spec, env_config), roles)


def _make_text_env(spec: EnvironmentSpec, env_config: dict[str, Any]) -> Any:
    creator = _registered_creator(spec.env) if isinstance(spec.env, str) else spec.env
    if creator is None:
        env_id = normalize_env_id(spec.env)
        # normalize_env_id has imported the module before the colon, if there is one.
        if gymnasium.spec(env_id.rsplit(":", 1)[-1]).entry_point == TEXT_AND_TOKEN_FACTORY:
            return _gymnasium_make(env_id, {**env_config, "obs_type": "text"})
    agent = env_config.pop("agent", None)
    if creator is None:
        env = _gymnasium_make(env_id, env_config)
    elif isinstance(spec.env, str):
        from ray.rllib.env.env_context import EnvContext

        env = creator(EnvContext(env_config, worker_index=0))
    else:
        env = creator(env_config)
    if agent is None:
        return env
    if hasattr(env, "possible_agents"):
        raise ConfigError(f"{spec.name}: agent is for an environment of one agent; got one of several. Leave it out.")
    return AgentEnv(env, agent)


def _gymnasium_make(env_id: str, env_config: Mapping[str, Any]) -> Any:
    # The rollout loop owns the horizon: no TimeLimit from the registration.
    return gymnasium.make(env_id, max_episode_steps=-1, disable_env_checker=True, **env_config)


def make_token_env(
    spec: EnvironmentSpec,
    chat: ChatTokenizer,
    opponents: Mapping[str, Any] = {},
    *,
    in_process: bool = False,
    **options: Unpack[TokenOptions],
) -> Any:
    """Make an environment that speaks token ids, or an `EnvProcess` that makes it.

    Args:
        opponents: agent to `rllm_gym.callbacks.opponent_pool.Opponent`; the environment tells what scripted ones do.
        in_process: make it in a process of its own, in which its calls are made by the main thread.
        options: see `TokenOptions`, but for those that `chat` has.
    """
    if in_process:
        make = functools.partial(make_token_env, _by_value(spec), chat, opponents, **options)
        return EnvProcess(make, name=spec.name, chat=chat)
    env = make_text_env(spec)
    check_agents(opponents, env)
    if scripted := {agent: opponent.kind for agent, opponent in opponents.items() if opponent.kind in SCRIPTED}:
        env = WithMoves(env, scripted)
    options["tokenizer"] = chat
    return to_tokens(env, **options)


def ask_text_env(spec: EnvironmentSpec, ask: Callable[[Any], T]) -> T:
    """Make an environment at the text level, ask it something, and close it; its constructor may raise anything.

    Raises:
        EnvError: it ended the process, or did not return within `MAKE_TIMEOUT_S`.
    """
    try:
        with time_limit(MAKE_TIMEOUT_S, f"making {spec.name}"):
            env = make_text_env(spec)
    except (SystemExit, GeneratorExit, TimeoutError) as error:
        raise EnvError(f"{spec.name}: {error or type(error).__name__}") from error
    try:
        return ask(env)
    finally:
        try:
            with time_limit(CLOSE_TIMEOUT_S, f"closing {spec.name}"):
                env.close()
        except Exception as error:
            logger.warning("closing %s failed: %s: %s", spec.name, type(error).__name__, error)


def _by_value(spec: EnvironmentSpec) -> EnvironmentSpec:
    """Return an environment that another process can make, which knows nothing of `ray.tune.register_env`."""
    creator = _registered_creator(spec.env) if isinstance(spec.env, str) else None
    if creator is None:
        return spec
    from ray.rllib.env.env_context import EnvContext

    return replace(spec, env=lambda env_config: creator(EnvContext(env_config, worker_index=0)))


def players_change_seats(spec: EnvironmentSpec) -> bool:
    """Return whether the players of an environment change seats from one episode of a group to the next.

    One that a function makes is made to be asked; one that cannot be made does not.
    """
    env = spec.env
    if isinstance(env, str):
        env = _registered_creator(env) or env_class(env)
    while isinstance(env, functools.partial):
        env = env.func
    if isinstance(env, type) and isinstance(found := getattr(env, "rotates_seats", False), bool):
        return found
    try:
        return ask_text_env(spec, lambda made: bool(getattr(made.unwrapped, "rotates_seats", False)))
    except Exception:  # whoever makes it next says what is wrong
        return False


def list_item_ids(spec: EnvironmentSpec, split: str | None) -> Sequence[str] | None:
    """Return the ids of the tasks of `split` (default: the configured one); None where the environment numbers none."""
    return _load_tasks(spec.with_split(split)).item_ids


def check_evaluation(config: Any) -> None:
    """Make sure that no evaluation plays tasks that are trained on, but for those of the split `train`.

    Makes the environments of a run once, and those that it evaluates on once for each split, at the text level; nothing
    where only `train` is evaluated.

    Raises:
        ConfigError: `item_ids`, which hold for all splits; an environment without item ids, whose tasks cannot be told
            apart; an unknown split; or a task that is trained on, in this or in another environment of the run.
    """
    held_out = [split for split in evaluated_splits(config) if split != TRAIN]
    if config.env is None or not held_out:
        return
    environments, evaluated = config.environments, config.evaluation_environments
    for spec in evaluated:
        if spec in environments and spec.env_config.get("item_ids") is not None:
            raise ConfigError(
                f"{spec.name}: item_ids in env_config hold for every split, so that evaluation would play what is "
                f"trained on; got them with evaluation on {', '.join(held_out)}. Use splits: {{train: ..., eval: ...}} "
                "in place of item_ids, or evaluate on train."
            )
    trained = {spec.name: _load_tasks(spec) for spec in environments}
    for spec, split in itertools.product(evaluated, held_out):
        if (trained[spec.name] if spec in environments else _load_tasks(spec)).item_ids is None:
            raise ConfigError(
                f"{spec.name}: evaluation on another split than train needs item_ids, by which its tasks are played; "
                f"got {split!r}, and an environment without item_ids. Give it some, or evaluate on train."
            )
        _check_held_out(spec, split, trained)


def tasks_trained_on(
    environments: Sequence[EnvironmentSpec], spec: EnvironmentSpec, item_ids: Sequence[str | int | None]
) -> list[str | int | None]:
    """Return which of an environment's items are among those that a run's environments draw from."""
    alike = [trained for trained in environments if trained.env == spec.env]
    if not alike:
        return []
    numbering = _load_tasks(spec).numbering
    trained = [tasks for tasks in map(_load_tasks, alike) if tasks.numbering == numbering]
    known = {item_id for tasks in trained for item_id in tasks.item_ids or ()}
    return [item_id for item_id in item_ids if item_id in known]


def evaluated_splits(config: Any) -> list[str]:
    """Return the splits that a run evaluates on: `evaluation_splits`, or the first one where only its expert plays."""
    if config.evaluation_interval:
        return list(config.evaluation_splits)
    return list(config.evaluation_splits[:1]) if getattr(config, "evaluation_data", None) == "expert" else []


class _Tasks(NamedTuple):
    """The tasks that an environment draws from; an id means the same task to environments of equal `numbering`."""

    item_ids: Sequence[str] | None
    numbering: tuple[Any, ...]


def _load_tasks(spec: EnvironmentSpec) -> _Tasks:
    def ask(env: Any) -> _Tasks:
        text_env = env.unwrapped
        ids = getattr(text_env, "item_ids", None)
        return _Tasks(None if ids is None else list(ids), (type(text_env), getattr(text_env, "num_items", None)))

    return ask_text_env(spec, ask)


def _check_held_out(spec: EnvironmentSpec, split: str, trained: Mapping[str, _Tasks]) -> None:
    ids, numbering = _load_tasks(spec.with_split(split))
    for name, tasks in trained.items() if split != "all" else ():  # whose name says that the training tasks are in it
        known = set(tasks.item_ids or ())
        shared = [item_id for item_id in ids or () if item_id in known]
        if shared and numbering == tasks.numbering:
            more = f", the first of {len(shared)} tasks," if shared[1:] else ""
            raise ConfigError(
                f"{spec.name}: evaluation must play no task that is trained on; got {shared[0]!r}{more} in the split "
                f"{split!r} and in {name}'s training. Say in splits what each split holds, or evaluate on train."
            )
