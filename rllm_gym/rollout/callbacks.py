"""RLlib's callbacks around environments and episodes, called with RLlib's own forms of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ray.rllib.callbacks.callbacks import RLlibCallback
from ray.rllib.callbacks.utils import make_callback
from ray.rllib.env.env_context import EnvContext

from rllm_gym.rollout.rllib_episode import RLlibEpisode
from rllm_gym.types import Episode, TokenIds

if TYPE_CHECKING:
    from rllm_gym.rollout.env_runner import LLMEnvRunner


class EpisodeCallbacks:
    """Makes a runner's callbacks, where the user has any: RLlib's form of an episode costs a copy."""

    def __init__(self, runner: LLMEnvRunner) -> None:
        self._runner, self._config = runner, runner.config

    def environment_created(self, env: Any, env_index: int) -> None:
        context = EnvContext(
            dict(self._config.environments[env_index].env_config), worker_index=self._runner.worker_index
        )
        self._make("on_environment_created", lambda: {"env": env, "env_context": context})

    def episode_started(self, episode: Episode, observations: Mapping[str, TokenIds]) -> None:
        """Call back with an episode of which there are only the first observations."""

        def arguments() -> dict[str, Any]:
            streams = {
                agent_id: replace(stream, final_observation_ids=observations[agent_id])
                for agent_id, stream in episode.streams.items()
            }
            return self._of_episode(replace(episode, streams=streams))

        self._make("on_episode_start", arguments)

    def episode_ended(self, episode: Episode) -> None:
        self._make("on_episode_end", lambda: self._of_episode(episode))

    def sample_ended(self, episodes: Sequence[Episode]) -> None:
        """Call back with what a request for episodes has played; what is changed there changes nothing."""
        self._make("on_sample_end", lambda: {"samples": [self._runner.to_rllib(episode) for episode in episodes]})

    def _of_episode(self, episode: Episode) -> dict[str, Any]:
        of_rllib: RLlibEpisode = self._runner.to_rllib(episode)
        return {"episode": of_rllib, "env": None, "env_index": episode.group.env_index, "rl_module": None}

    def _make(self, name: str, arguments: Any) -> None:
        functions, objects = getattr(self._config, f"callbacks_{name}"), self._runner.callbacks
        if functions or any(has_own(callback, name) for callback in objects):
            common = {"env_runner": self._runner, "metrics_logger": self._runner.metrics, "worker": self._runner}
            make_callback(name, callbacks_objects=objects, callbacks_functions=functions, kwargs=common | arguments())


def has_episode_callbacks(runner: LLMEnvRunner) -> bool:
    """Return whether the user has any that `EpisodeCallbacks` makes."""
    names = ("on_environment_created", "on_episode_start", "on_episode_end", "on_sample_end")
    return any(
        getattr(runner.config, f"callbacks_{name}") or any(has_own(callback, name) for callback in runner.callbacks)
        for name in names
    )


def has_own(callback: Any, name: str) -> bool:
    """Return whether a callback overrides one of RLlib's methods, which do nothing."""
    return getattr(type(callback), name) is not getattr(RLlibCallback, name)
