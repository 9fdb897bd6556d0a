"""Plays the environments' own experts at the token level, as a policy would have played."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from rllm_gym.errors import ConfigError, EnvError
from rllm_gym.rollout.env_pool import adapt_env
from rllm_gym.rollout.environments import EnvironmentSpec, make_token_env
from rllm_gym.rollout.loop import seed_of
from rllm_gym.tokens import ChatTokenizer
from rllm_gym.types import AGENT, DEFAULT_MODULE, NOT_STORED, Episode, Stream, TaskGroup, Turn

logger = logging.getLogger(__name__)

MAX_TURNS = 200  # where there is no horizon: an expert that is lost must not play for ever
BLOCK = 16  # episodes that a worker plays at a time


class ExpertPlayer:
    """Plays experts' episodes; the records are those of the rollout loop, with log-probabilities of 0.

    Args:
        environments: the run's environments; a group's `env_index` counts them.
        chat: encodes what the expert writes.
        horizons: the horizon of each environment, in turns.
    """

    def __init__(
        self, environments: Sequence[EnvironmentSpec], chat: ChatTokenizer, *, horizons: Sequence[int | None]
    ) -> None:
        self.environments, self.chat, self.horizons = environments, chat, horizons
        self._envs: dict[int, Any] = {}

    def play(self, groups: Iterable[TaskGroup]) -> list[Episode]:
        """Return one episode per group, in order; one whose environment failed holds the error's text.

        Raises:
            ConfigError: the environment has no expert.
        """
        return [self._play(group) for group in groups]

    def close(self) -> None:
        for env in self._envs.values():
            env.close()
        self._envs.clear()

    def _play(self, group: TaskGroup) -> Episode:
        seed = seed_of(*group.key)
        episode = Episode("-".join(map(str, group.key)), group, 0, seed, item_id=group.item_id)
        try:
            env = self._env(group.env_index)
            if hasattr(env, "possible_agents"):
                self._play_together(episode, env)
            else:
                self._play_turns(episode, env)
        except EnvError as error:
            logger.warning("the expert's episode of %s failed: %s", group.item_id, error)
            self._envs.pop(group.env_index).close()
            episode.end_reason, episode.error = "error", str(error)
        except NotImplementedError as error:
            raise self._no_expert(group.env_index) from error
        return episode

    def _play_turns(self, episode: Episode, env: Any) -> None:
        item_id = episode.item_id
        observation, info = env.reset(seed=episode.seed, options=None if item_id is None else {"item_id": item_id})
        stream = episode.streams[AGENT] = Stream(AGENT, "default_policy")
        num_repeated = sample = 0
        while not episode.end_reason:
            action = np.asarray(self.chat.encode_action(env.get_wrapper_attr("expert_action")()), np.int64)
            logp = np.zeros(len(action), np.float32)
            turn = Turn(observation, action, logp, policy_version=0, env_step=episode.num_env_steps, sample=sample)
            stream.turns.append(turn)
            observation, reward, terminated, truncated, info = env.step(action)
            turn.reward = float(reward)
            turn.take_info(info)
            num_repeated = info.get("num_repeated_tokens", 0)
            sample += num_repeated > 0
            episode.num_env_steps += 1
            if terminated or truncated:
                episode.end_reason = "terminated" if terminated else "truncated"
            elif episode.num_env_steps >= (self.horizons[episode.group.env_index] or MAX_TURNS):
                episode.end_reason = "horizon"
        stream.final_observation_ids = observation[num_repeated:]
        stream.messages = info.get("messages", [])
        episode.info = {key: value for key, value in info.items() if key not in NOT_STORED}
        episode.item_id = info.get("item_id", item_id)

    def _play_together(self, episode: Episode, env: Any) -> None:
        """Let the experts of several agents play; every agent's stream is the default policy's."""
        adapter, horizon = adapt_env(env), self.horizons[episode.group.env_index] or MAX_TURNS
        early_rewards: dict[str, float] = {}
        step = adapter.reset(episode.seed, episode.item_id, episode.group.key[-1])
        while True:
            for agent, reward in step.rewards.items():
                if (stream := episode.streams.get(agent)) and stream.turns:
                    stream.turns[-1].reward += reward
                else:
                    early_rewards[agent] = early_rewards.get(agent, 0.0) + reward
            for agent, ids in step.observations.items():
                episode.streams.setdefault(agent, Stream(agent, DEFAULT_MODULE)).final_observation_ids = ids
            for agent, info in step.infos.items():
                episode.take_info(agent, info, is_only_agent=False)
            episode.end_reason = step.end_reason or ("horizon" if episode.num_env_steps >= horizon else "")
            if episode.end_reason:
                episode.streams = {agent: stream for agent, stream in episode.streams.items() if stream.turns}
                return
            actions = {}
            for agent in step.to_act:
                stream = episode.streams[agent]
                said = env.unwrapped.expert_action(agent)
                actions[agent] = action = np.asarray(self.chat.encode_action(said), np.int64)
                stream.turns.append(
                    Turn(
                        stream.final_observation_ids,
                        action,
                        np.zeros(len(action), np.float32),
                        policy_version=0,
                        env_step=episode.num_env_steps,
                        reward=early_rewards.pop(agent, 0.0),
                    )
                )
                stream.final_observation_ids = np.zeros(0, np.int64)
            step = adapter.step(actions)
            episode.num_env_steps += 1

    def _env(self, env_index: int) -> Any:
        if env_index not in self._envs:
            spec = self.environments[env_index]
            env = make_token_env(spec, self.chat)
            if not hasattr(env.unwrapped, "expert_action"):
                env.close()
                raise self._no_expert(env_index)
            self._envs[env_index] = env
        return self._envs[env_index]

    def _no_expert(self, env_index: int) -> ConfigError:
        return ConfigError(
            f"data: expert needs an environment with an expert_action(); {self.environments[env_index].name} has none. "
            "Give a path to trajectories instead."
        )


def play_experts(player: ExpertPlayer, groups: Sequence[TaskGroup], *, num_workers: int = 0) -> Iterator[Episode]:
    """Yield one episode per group, in order, whatever the number of workers.

    Args:
        num_workers: Ray actors that play; 0 plays here.
    """
    if num_workers == 0:
        try:
            for group in groups:
                yield from player.play([group])
        finally:
            player.close()
        return
    import ray
    from ray.util import ActorPool

    # Without CPUs of their own: inside a trial the actors share what the trial has.
    actor_class = ray.remote(num_cpus=0)(ExpertPlayer)
    actors = [
        actor_class.remote(player.environments, player.chat, horizons=player.horizons) for _ in range(num_workers)
    ]
    try:
        blocks = [groups[k : k + BLOCK] for k in range(0, len(groups), BLOCK)]
        for episodes in ActorPool(actors).map(lambda actor, block: actor.play.remote(block), blocks):
            yield from episodes
    finally:
        for actor in actors:
            ray.kill(actor)
