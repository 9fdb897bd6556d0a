"""An RLlib configuration that refuses what it does not know, and helpers for checks that say what is wrong."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Self

from ray.rllib.algorithms.algorithm_config import AlgorithmConfig, NotProvided
from ray.rllib.utils.annotations import override

from rllm_gym.errors import ConfigError, nearest


class StrictConfig(AlgorithmConfig):
    """Base of our configurations."""

    @override(AlgorithmConfig)
    def update_from_dict(self, config_dict: Mapping[str, Any]) -> Self:
        """Set options by name. Differs: an unknown name raises, where RLlib would set it in silence.

        Raises:
            ConfigError: names the option and the nearest known one.
        """
        for name, value in config_dict.items():
            # A whole one comes from some configuration's own to_dict().
            if name == "model" and not (isinstance(value, Mapping) and len(value) > len(self.model) // 2):
                self.refuse_model_key(config_dict)
            known = {"multiagent", "class", *vars(self)}
            if name.startswith("_") or self._translate_special_keys(name, warn_deprecated=False) in known:
                continue
            raise ConfigError(
                f"{type(self).__name__}: no option has this name; got {name!r}. "
                f"Did you mean {nearest(name, (n for n in known if not n.startswith('_')))!r}?"
            )
        return super().update_from_dict({name: value for name, value in config_dict.items() if name != "model"})

    def _set(self, **options: Any) -> None:
        for name, value in options.items():
            if value is not NotProvided:
                setattr(self, name, value)

    def refuse_model_key(self, options: Mapping[str, Any]) -> None:
        """Say what `model`, RLlib's option for networks of its own, is called here."""
        if "model" in options:
            raise ConfigError(
                f"{type(self).__name__}: model is RLlib's legacy option for its own networks; got "
                f"{options['model']!r}. Set base_model instead."
            )

    def _check_at_least(self, **lowest: float) -> None:
        for name, bound in lowest.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= bound:
                raise ConfigError(f"{type(self).__name__}: {name} must be a number of at least {bound}; got {value!r}.")

    def _check_finite(self) -> None:
        """Refuse NaN and infinity in every option; what `env_config` holds means what the environment says."""
        for name, value in vars(self).items():
            if name != "env_config" and not name.startswith("_") and _holds_non_finite(value):
                raise ConfigError(f"{type(self).__name__}: {name} must be finite; got {value!r}. Give a number.")

    def _check_one_of(self, **choices: Sequence[Any]) -> None:
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                listed = ", ".join(map(str, allowed))
                raise ConfigError(
                    f"{type(self).__name__}: {name} must be one of {listed}; got {getattr(self, name)!r}."
                )


def _holds_non_finite(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(map(_holds_non_finite, value.values()))
    if isinstance(value, (list, tuple)):
        return any(map(_holds_non_finite, value))
    return isinstance(value, float) and not math.isfinite(value)
