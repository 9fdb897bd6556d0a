"""RLlib's form of our episodes, for `EnvRunner.sample()` and for RLlib's callbacks around environments and episodes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from ray.rllib.callbacks.callbacks import RLlibCallback
from ray.rllib.callbacks.utils import make_callback
from ray.rllib.env.env_context import EnvContext
from ray.rllib.env.multi_agent_episode import MultiAgentEpisode
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.utils.spaces.repeated import Repeated

from rllm_gym.types import AGENT, EndReason, Episode, Stream, TokenIds

RLlibEpisode: TypeAlias = SingleAgentEpisode | MultiAgentEpisode


def to_rllib_episode(episode: Episode, space: Repeated, *, is_multi_agent: bool) -> RLlibEpisode:
    """Return RLlib's form of an episode; its `custom_data` has `group`, `member`, `item_id` and `end_reason`."""
    if is_multi_agent or set(episode.streams) - {AGENT}:
        out = _to_multi_agent_episode(episode)
    else:
        [stream] = episode.streams.values()
        out = _to_single_agent_episode(episode, stream, space)
    out.custom_data.update(
        group=episode.group.key[-1], member=episode.member, item_id=episode.item_id, end_reason=episode.end_reason
    )
    return out


def _model_outputs(stream: Stream) -> dict[str, list]:
    return {
        "action_logp": [turn.logp for turn in stream.turns],
        "policy_version": [turn.policy_version for turn in stream.turns],
    }


def _to_single_agent_episode(episode: Episode, stream: Stream, space: Repeated) -> SingleAgentEpisode:
    return SingleAgentEpisode(
        id_=episode.episode_id,
        observation_space=space,
        action_space=space,
        observations=[turn.observation_ids for turn in stream.turns] + [stream.final_observation_ids],
        actions=[turn.action_ids for turn in stream.turns],
        rewards=[turn.reward for turn in stream.turns],
        infos=[{}] * len(stream.turns) + [episode.info],  # without `messages`, which would grow quadratically
        terminated=episode.end_reason == EndReason.TERMINATED,
        truncated=episode.is_truncated,
        extra_model_outputs=_model_outputs(stream),
        len_lookback_buffer=0,
    )


def _to_multi_agent_episode(episode: Episode) -> MultiAgentEpisode:
    observations: list[dict] = [{} for _ in range(episode.num_env_steps + 1)]
    actions: list[dict] = [{} for _ in range(episode.num_env_steps)]
    rewards: list[dict] = [{} for _ in range(episode.num_env_steps)]
    outputs: list[dict] = [defaultdict(dict) for _ in range(episode.num_env_steps)]
    for agent_id, stream in episode.streams.items():
        named = _model_outputs(stream)
        for k, turn in enumerate(stream.turns):
            observations[turn.env_step][agent_id] = turn.observation_ids
            actions[turn.env_step][agent_id] = turn.action_ids
            rewards[turn.env_step][agent_id] = turn.reward
            outputs[turn.env_step][agent_id] = {name: values[k] for name, values in named.items()}
        observations[-1].setdefault(agent_id, stream.final_observation_ids)
    out = MultiAgentEpisode(
        id_=episode.episode_id,
        agent_module_ids={agent_id: stream.module_id for agent_id, stream in episode.streams.items()},
    )
    out.add_env_reset(observations=observations[0])
    for step in range(episode.num_env_steps):
        is_last = step == episode.num_env_steps - 1
        out.add_env_step(
            observations[step + 1],
            actions[step],
            rewards[step],
            terminateds={"__all__": is_last and episode.end_reason == EndReason.TERMINATED},
            truncateds={"__all__": is_last and episode.is_truncated},
            extra_model_outputs=dict(outputs[step]),
        )
    return out


EPISODE_CALLBACKS = ("on_environment_created", "on_episode_start", "on_episode_end", "on_sample_end")


class EpisodeCallbacks:
    """Makes a runner's callbacks, where the user has any: RLlib's form of an episode costs a copy.

    Args:
        runner: RLlib's EnvRunner that they are told of.
        callbacks: the user's objects.
        to_rllib: returns RLlib's form of an episode.
    """

    def __init__(
        self, runner: Any, callbacks: Sequence[RLlibCallback], to_rllib: Callable[[Episode], RLlibEpisode]
    ) -> None:
        self._runner, self._config, self._callbacks, self._to_rllib = runner, runner.config, callbacks, to_rllib

    def environment_created(self, env: Any, env_index: int) -> None:
        env_config = dict(self._runner.environments[env_index].env_config)
        context = EnvContext(env_config, worker_index=self._runner.worker_index)
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
        self._make("on_sample_end", lambda: {"samples": [self._to_rllib(episode) for episode in episodes]})

    def _of_episode(self, episode: Episode) -> dict[str, Any]:
        of_rllib: RLlibEpisode = self._to_rllib(episode)
        return {"episode": of_rllib, "env": None, "env_index": episode.group.env_index, "rl_module": None}

    def _make(self, name: str, arguments: Any) -> None:
        functions, objects = getattr(self._config, f"callbacks_{name}"), self._callbacks
        if functions or any(has_own(callback, name) for callback in objects):
            common = {"env_runner": self._runner, "metrics_logger": self._runner.metrics, "worker": self._runner}
            make_callback(name, callbacks_objects=objects, callbacks_functions=functions, kwargs=common | arguments())


def has_callbacks(config: Any, callbacks: Sequence[RLlibCallback], *names: str) -> bool:
    """Return whether the user has any of these."""
    return any(
        getattr(config, f"callbacks_{name}") or any(has_own(callback, name) for callback in callbacks) for name in names
    )


def has_own(callback: Any, name: str) -> bool:
    """Return whether a callback overrides one of RLlib's methods, which do nothing."""
    return getattr(type(callback), name) is not getattr(RLlibCallback, name)
