"""What the rollout loop remembers of the episodes it is playing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from rllm_gym.rollout.env_pool import EnvAdapter, EnvSlot, EnvStep
from rllm_gym.types import NOT_STORED, Episode, Message, SamplingParams, Stream, TaskGroup, TokenIds


@dataclass
class Progress:
    """The episodes of one group that have ended."""

    group: TaskGroup
    episodes: list[Episode] = field(default_factory=list)
    failed: list[Episode] = field(default_factory=list)


@dataclass(eq=False)
class Play:
    """One attempt at an episode, while it is played.

    `contexts` are the tokens each agent has been asked with and has answered, `observations` those it has not answered
    yet, `prompts` both as text, `actions` what has been sampled for the coming environment step. Where an agent's
    history was rewritten, its context begins anew: `samples` counts them, and `num_repeated` are the tokens at the
    beginning of the observation that only repeat what was said before. `asked_s` is when the environment or the engine
    was asked last.
    """

    progress: Progress
    episode: Episode
    slot: EnvSlot
    horizon: int | None
    params: dict[str, SamplingParams]
    begun_s: float
    asked_s: float
    to_act: tuple[str, ...] = ()
    contexts: dict[str, list[int]] = field(default_factory=dict)
    observations: dict[str, TokenIds] = field(default_factory=dict)
    actions: dict[str, TokenIds] = field(default_factory=dict)
    early_rewards: dict[str, float] = field(default_factory=dict)
    prompts: dict[str, list[Message]] = field(default_factory=dict)
    samples: dict[str, int] = field(default_factory=dict)
    num_repeated: dict[str, int] = field(default_factory=dict)

    def record(self, env: EnvAdapter, step: EnvStep, module_of: Callable[[str, Episode], str]) -> None:
        """Take over what an environment said after a reset or a step."""
        episode, streams = self.episode, self.episode.streams
        episode.env_id = env.env_id
        episode.num_env_steps += 1 if self.actions else 0  # a reset has none
        self.actions.clear()
        for agent_id, ids in step.observations.items():
            if agent_id not in streams:
                streams[agent_id] = Stream(agent_id, module_of(agent_id, episode))
            self.observations[agent_id] = ids
        for agent_id, reward in step.rewards.items():
            stream = streams.get(agent_id)
            if stream is not None and stream.turns:
                stream.turns[-1].reward += reward
            else:  # it waits for the agent's first turn
                self.early_rewards[agent_id] = self.early_rewards.get(agent_id, 0.0) + reward
        for agent_id, info in step.infos.items():
            if agent_id in streams and "messages" in info:
                streams[agent_id].messages = info["messages"]
                self.prompts[agent_id] = info.get("context_messages", info["messages"])
            if ("is_invalid_action" in info or "turn" in info) and agent_id in streams and streams[agent_id].turns:
                streams[agent_id].turns[-1].take_info(info)
            self.num_repeated[agent_id] = info.get("num_repeated_tokens", 0)
            if self.num_repeated[agent_id]:
                self.contexts[agent_id] = []
                self.samples[agent_id] = self.samples.get(agent_id, 0) + 1
            episode.item_id = info.get("item_id", episode.item_id)
            slim = {key: value for key, value in info.items() if key not in NOT_STORED}
            if env.is_multi_agent:
                episode.info[agent_id] = slim
            else:
                episode.info = slim


@dataclass(frozen=True)
class Request:
    """Whose completion an engine is sampling, and under which policy version it was submitted."""

    play: Play
    stream: Stream
    policy_version: int
