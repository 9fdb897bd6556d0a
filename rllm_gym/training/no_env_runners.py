"""What stands for EnvRunners where nothing is sampled."""

from __future__ import annotations

from typing import Any


class NoEnvRunners:
    """Stands for RLlib's `EnvRunnerGroup` where nothing is sampled: RLlib uses one without asking if it is there."""

    local_env_runner = None

    def __bool__(self) -> bool:
        return False

    def num_remote_env_runners(self) -> int:
        return 0

    def foreach_env_runner(self, *args: Any, **kwargs: Any) -> list[Any]:
        return []

    healthy_worker_ids = probe_unhealthy_env_runners = foreach_env_runner

    def sync_weights(self, *args: Any, **kwargs: Any) -> None:
        pass

    sync_env_runner_states = stop = sync_weights
