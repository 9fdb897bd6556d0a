"""An RLlib configuration whose options come from the table, and which refuses what it does not know."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Self

from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.utils.annotations import override

from rllm_gym.errors import ConfigError, nearest
from rllm_gym.options.rllib import UNUSED, unused_option
from rllm_gym.options.table import UNSET, OptionTable, list_options
from rllm_gym.options.values import value_fault

SET_BY_VALIDATE = ("action_space", "observation_space", "simple_optimizer")  # ours and RLlib's


def _with_options(builder: Callable[..., Any]) -> Callable[..., Any]:
    """Let one of RLlib's builder methods take every option of the table, too, and refuse what nobody knows."""
    parameters = inspect.signature(builder).parameters

    @functools.wraps(builder)
    def build(self: StrictConfig, *args: Any, **options: Any) -> Any:
        table = list_options(type(self))
        ours = {name: options.pop(name) for name in table if name in options and name not in parameters}
        for name in options:
            if name not in parameters or name == "model":
                raise ConfigError(self._unknown(name, {*table, *parameters} - {"self", "kwargs"}))
        for name, value in self.in_order(ours).items():
            setattr(self, name, value)
        return builder(self, *args, **options)

    return override(AlgorithmConfig)(build)


class StrictConfig(AlgorithmConfig, OptionTable):
    """Base of our configurations. Any builder method takes any option: `GRPOConfig().training(group_size=8)`."""

    def __init__(self, algo_class: type | None = None) -> None:
        super().__init__(algo_class=algo_class)
        for option in list_options(type(self)).values():
            if option.default is not UNSET:
                setattr(self, option.name, option.new_default())

    training = _with_options(AlgorithmConfig.training)
    environment = _with_options(AlgorithmConfig.environment)
    env_runners = _with_options(AlgorithmConfig.env_runners)
    learners = _with_options(AlgorithmConfig.learners)
    rl_module = _with_options(AlgorithmConfig.rl_module)
    evaluation = _with_options(AlgorithmConfig.evaluation)
    offline_data = _with_options(AlgorithmConfig.offline_data)
    multi_agent = _with_options(AlgorithmConfig.multi_agent)
    callbacks = _with_options(AlgorithmConfig.callbacks)
    reporting = _with_options(AlgorithmConfig.reporting)
    resources = _with_options(AlgorithmConfig.resources)
    fault_tolerance = _with_options(AlgorithmConfig.fault_tolerance)
    debugging = _with_options(AlgorithmConfig.debugging)

    @override(AlgorithmConfig)
    def update_from_dict(self, config_dict: Mapping[str, Any]) -> Self:
        """Set options by name. Differs: an unknown name raises, where RLlib would set it in silence.

        Raises:
            ConfigError: names the option and the nearest known one.
        """
        for name, value in config_dict.items():
            # A whole one comes from some configuration's own to_dict().
            if name == "model" and not (isinstance(value, Mapping) and len(value) > len(self.model) // 2):
                raise ConfigError(self._unknown(name, ()))
            known = {"multiagent", "class", "trains", *vars(self)}  # `trains` is in the copy of a policy that plays
            if not name.startswith("_") and self._translate_special_keys(name, warn_deprecated=False) not in known:
                raise ConfigError(self._unknown(name, [n for n in known if not n.startswith("_") and n not in UNUSED]))
        options = {name: value for name, value in config_dict.items() if name != "model"}
        return super().update_from_dict(self.in_order(options))

    @override(AlgorithmConfig)
    def get_state(self) -> dict[str, Any]:
        """Return all options. Differs: -1 is a value, where RLlib would take the default instead, in silence."""
        minus_one = {name: -1 for name in list_options(type(self)) if vars(self).get(name) == -1}
        return super().get_state() | minus_one

    def _unknown(self, name: str, known: Any) -> str:
        hint = unused_option(name) or f"no option has this name; got {name!r}. Did you mean {nearest(name, known)!r}?"
        return f"{type(self).__name__}: {hint}"

    def check_options(self) -> None:
        """Make sure that the options have values of their types, that they go together, and that each does something.

        Raises:
            ConfigError: a line for everything that is wrong.
        """
        if found := list(self._value_faults()) or list(self.faults()):
            raise ConfigError("\n".join(found))

    def _value_faults(self) -> Iterator[str]:
        options, default = list_options(type(self)), type(self)(algo_class=self.algo_class)
        for name, option in options.items():
            value = getattr(self, name)
            if value is not getattr(default, name) and (fault := value_fault(name, value, option.hint)):
                yield f"{type(self).__name__}: {fault}"
            elif name != "env_config" and not is_finite(value):  # whose values mean what the environment says
                yield f"{type(self).__name__}: {name} must hold finite numbers; got {value!r}."
        for name in UNUSED:
            if name in options or name in SET_BY_VALIDATE:
                continue
            if vars(self).get(name) != vars(default).get(name):
                yield self._unknown(name, ())


def is_finite(value: Any) -> bool:
    """Return whether no number in a value is infinite or no number at all."""
    if isinstance(value, Mapping):
        return all(map(is_finite, value.values()))
    if isinstance(value, (list, tuple)):
        return all(map(is_finite, value))
    return not isinstance(value, float) or math.isfinite(value)
