"""Samplers and learners are built side by side: each takes seconds, most of them on one core."""

from __future__ import annotations

from typing import Any

from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.utils.annotations import override

from rllm_gym.learner.libraries import import_in_background


class SideBySide(Algorithm):
    """An algorithm whose EnvRunners have `build`, which makes what takes long."""

    @override(Algorithm)
    def setup(self, config: Any) -> None:
        if config.num_learners == 0:
            import_in_background()
        super().setup(config)

    @property
    def spaces(self) -> Any:
        """RLlib's spaces, which it asks the EnvRunners for."""
        return self._spaces

    @spaces.setter
    def spaces(self, spaces: Any) -> None:
        """Tell the EnvRunners to build: RLlib sets this just before it builds the learners.

        They are waited for where they share a GPU: an engine measures how much memory is free, and takes it.
        """
        self._spaces = spaces
        if spaces is not None:
            shares_gpu = not float(self.config.num_gpus_per_env_runner).is_integer()
            self.env_runner_group.foreach_env_runner(
                "build", local_env_runner=False, timeout_seconds=None if shares_gpu else 0.0
            )
