"""Plays the environments' own experts at the token level, as a policy would have played."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from rllm_gym.errors import ConfigError
from rllm_gym.rollout.env_adapters import WithExperts, adapt_env
from rllm_gym.rollout.environments import EnvironmentSpec, make_token_env
from rllm_gym.rollout.loop import RolloutLoop
from rllm_gym.rollout.opponents import MovePlayer
from rllm_gym.rollout.play_by_hand import NO_LIMIT
from rllm_gym.tokens import ChatTokenizer
from rllm_gym.types import DEFAULT_MODULE, Episode, SamplingParams, TaskGroup

logger = logging.getLogger(__name__)

MAX_TURNS = 200  # where there is no horizon: an expert that is lost must not play for ever
BLOCK = 16  # episodes that are played, by each worker, before any is handed over


class ExpertPlayer:
    """Plays experts' episodes in the rollout loop, with an engine that says what the expert does.

    The log-probabilities are 0, and all agents are the default policy's.

    Args:
        environments: the run's environments; a group's `env_index` counts them.
        chat: encodes what the expert writes.
        horizons: the horizon of each environment, in turns.
        env_timeout_s: see `RolloutLoop`.
        token_options: keywords of `make_token_env`.
    """

    def __init__(
        self,
        environments: Sequence[EnvironmentSpec],
        chat: ChatTokenizer,
        *,
        horizons: Sequence[int | None],
        env_timeout_s: float | None = None,
        token_options: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self.environments, self.chat, self.horizons = environments, chat, horizons
        self.env_timeout_s, self.token_options = env_timeout_s, dict(token_options)
        self._fault: ConfigError | None = None
        self._loop: RolloutLoop | None = None  # made where it plays: its threads cannot be sent to a worker

    def play(self, groups: Sequence[TaskGroup]) -> list[Episode]:
        """Return one episode per group, in order; one whose environment failed holds the error's text.

        Raises:
            ConfigError: the environment has no expert.
        """
        if self._loop is None:
            self._loop = RolloutLoop(
                self._make_env,
                {DEFAULT_MODULE: MovePlayer(self.chat, max_context_tokens=NO_LIMIT)},
                module_of=lambda agent_id, episode: DEFAULT_MODULE,
                num_envs=len(self.environments),
                params=SamplingParams(max_new_tokens=1),  # how long an action is, the expert decides
                max_model_len=NO_LIMIT,
                env_timeout_s=self.env_timeout_s,
                max_retries=0,
            )
        self._loop.submit(groups, max_episode_steps=[horizon or MAX_TURNS for horizon in self.horizons])
        episodes = {}
        for ended in self._loop.finished_groups():
            [episodes[ended.group.key]] = [*ended.episodes, *ended.failed]
            if self._fault is not None:
                raise self._fault
        for episode in episodes.values():
            episode.streams = {agent: stream for agent, stream in episode.streams.items() if stream.turns}
        return [episodes[group.key] for group in groups]

    def close(self) -> None:
        """Close the environments; safe to call twice."""
        if self._loop is not None:
            self._loop.close()
            self._loop = None

    def _make_env(self, env_index: int) -> Any:
        env = make_token_env(self.environments[env_index], self.chat, **self.token_options)
        return _Expert(self, env_index, env)

    def no_expert(self, env_index: int) -> ConfigError:
        """Note that an environment has no expert; return the error that says so."""
        self._fault = ConfigError(
            f"data: expert needs an environment with an expert_action(); {self.environments[env_index].name} has none. "
            "Give a path to trajectories instead."
        )
        return self._fault


class _Expert(WithExperts):
    """An environment whose expert may turn out not to exist, where only the first action shows it."""

    def __init__(self, player: ExpertPlayer, env_index: int, env: Any) -> None:
        super().__init__(adapt_env(env), horizon=player.horizons[env_index] or MAX_TURNS)
        self._player, self._env_index = player, env_index

    def expert_action(self, agent_id: str) -> str:
        try:
            return super().expert_action(agent_id)
        except NotImplementedError as error:
            raise self._player.no_expert(self._env_index) from error


def play_experts(player: ExpertPlayer, groups: Sequence[TaskGroup], *, num_workers: int = 0) -> Iterator[Episode]:
    """Yield one episode per group, in order, whatever the number of workers.

    Args:
        num_workers: Ray actors that play; 0 plays here.
    """
    blocks = [groups[k : k + BLOCK] for k in range(0, len(groups), BLOCK)]
    if num_workers == 0:
        try:
            for block in blocks:
                yield from player.play(block)
        finally:
            player.close()
        return
    import ray
    from ray.util import ActorPool

    # Without CPUs of their own: inside a trial the actors share what the trial has.
    actor_class = ray.remote(num_cpus=0)(ExpertPlayer)
    options = {name: getattr(player, name) for name in ("horizons", "env_timeout_s", "token_options")}
    actors = [actor_class.remote(player.environments, player.chat, **options) for _ in range(num_workers)]
    try:
        for episodes in ActorPool(actors).map(lambda actor, block: actor.play.remote(block), blocks):
            yield from episodes
    finally:
        for actor in actors:
            ray.kill(actor)
