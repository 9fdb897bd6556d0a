"""RLlib's form of our episodes, for its callbacks and for `EnvRunner.sample()`."""

from __future__ import annotations

from collections import defaultdict
from typing import TypeAlias

from ray.rllib.env.multi_agent_episode import MultiAgentEpisode
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.utils.spaces.repeated import Repeated

from rllm_gym.types import AGENT, Episode, Stream

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
        terminated=episode.end_reason == "terminated",
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
            terminateds={"__all__": is_last and episode.end_reason == "terminated"},
            truncateds={"__all__": is_last and episode.is_truncated},
            extra_model_outputs=dict(outputs[step]),
        )
    return out
