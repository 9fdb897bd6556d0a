"""What the rollout loop remembers of the episodes it is playing."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from rllm_gym.errors import ConfigError
from rllm_gym.rollout.env_pool import EnvSlot
from rllm_gym.types import Episode, Message, SamplingParams, Stream, TaskGroup, TokenIds

ParamsByModule = SamplingParams | Mapping[str, SamplingParams]  # for all modules, or by module id


@dataclass
class Progress:
    """The episodes of one group that have ended. All have the horizon and the sampling of the first that was begun.

    `waiting` are those that are played only if the others end differently.
    """

    group: TaskGroup
    waiting: list[Episode] = field(default_factory=list)
    begun_with: tuple[int | None, dict[str, SamplingParams]] | None = None
    episodes: list[Episode] = field(default_factory=list)
    failed: list[Episode] = field(default_factory=list)

    def begin(self, seed: int) -> list[Episode]:
        """Return the episodes to play first."""
        group = self.group
        episodes = [
            Episode("-".join(map(str, (*group.key, member))), group, member, seed, item_id=group.item_id)
            for member in group.members or range(group.size)
        ]
        num_first = group.screening_size or group.size
        self.waiting = episodes[num_first:]
        return episodes[:num_first]

    def go_on(self) -> list[Episode]:
        """Return the episodes to play when the first ones have ended: none where these ended alike."""
        is_alike = len(self.episodes) > 1 and len({episode.returns for episode in self.episodes}) == 1
        others, self.waiting = self.waiting, []
        for episode in others:
            episode.is_conditional = True
        return [] if is_alike else others


@dataclass(eq=False)
class Play:
    """One attempt at an episode, while it is played.

    `contexts` are the tokens each agent has been asked with and has answered, `observations` those it has not answered
    yet, `prompts` both as text, `actions` what has been sampled for the coming environment step. Where an agent's
    history was rewritten, its context begins anew: `samples` counts them, and `num_repeated` are the tokens at the
    beginning of the observation that only repeat what was said before. `moves` are what the environment says that an
    opponent may do that is no language model. `asked_s` is when the environment or the engine
    was asked last.
    """

    progress: Progress
    episode: Episode
    slot: EnvSlot
    params: dict[str, SamplingParams]
    begun_s: float
    asked_s: float
    to_act: tuple[str, ...] = ()
    contexts: dict[str, list[int]] = field(default_factory=dict)
    observations: dict[str, TokenIds] = field(default_factory=dict)
    actions: dict[str, TokenIds] = field(default_factory=dict)
    early_rewards: dict[str, float] = field(default_factory=dict)
    prompts: dict[str, list[Message]] = field(default_factory=dict)
    moves: dict[str, tuple[str, ...]] = field(default_factory=dict)
    samples: dict[str, int] = field(default_factory=dict)
    num_repeated: dict[str, int] = field(default_factory=dict)

    def has_used_up(self, max_turns: Mapping[str, int], to_act: Iterable[str]) -> bool:
        """Return whether one of the agents to act has had the turns that its module may take."""
        streams = [self.episode.streams[agent_id] for agent_id in to_act]
        return any(len(stream.turns) >= max_turns.get(stream.module_id, len(stream.turns) + 1) for stream in streams)


@dataclass(frozen=True)
class Request:
    """Whose completion an engine is sampling, and under which policy version it was submitted."""

    play: Play
    stream: Stream
    policy_version: int


def params_by_module(
    params: ParamsByModule, modules: Collection[str], *, max_model_len: int
) -> dict[str, SamplingParams]:
    """Return how each module samples.

    Raises:
        ConfigError: a module without parameters, or whose turn does not fit in a context.
    """
    if isinstance(params, SamplingParams):
        params = dict.fromkeys(modules, params)
    if missing := set(modules) - params.keys():
        raise ConfigError(f"RolloutLoop: every module needs sampling params; got none for {sorted(missing)}. Add them.")
    by_module = {module_id: params[module_id] for module_id in modules}
    for p in by_module.values():
        if not 1 <= p.max_new_tokens < max_model_len:
            raise ConfigError(
                f"RolloutLoop: max_new_tokens must be between 1 and max_model_len - 1 = {max_model_len - 1}; "
                f"got {p.max_new_tokens}. Lower it or raise max_model_len."
            )
    return by_module
