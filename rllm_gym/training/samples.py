"""Samples of the episodes of a train step."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from rllm_gym.training.metrics import is_success
from rllm_gym.types import EndReason, Episode, Sample, Stream, TaskGroup


def samples_from_episode(
    episode: Episode,
    group_of: Callable[[str], int],
    *,
    invalid_action_penalty: float = 0.0,
    max_tokens: int | None = None,
) -> list[Sample]:
    """Return the samples of an episode: one for each context of each agent that has acted.

    Args:
        group_of: the group, among those of the train step, of what an agent plays in this task.
        invalid_action_penalty: taken off the reward of every turn whose action the environment called invalid.
        max_tokens: append the final observation of a truncated episode, up to so many tokens in all, for a critic to
            bootstrap from; None leaves it out.
    """
    samples = []
    earned = {agent_id: stream.earnings(invalid_action_penalty) for agent_id, stream in episode.streams.items()}
    for stream in episode.streams.values():
        contexts, states, first = stream.contexts, _states(stream), 0
        for index, context in enumerate(contexts):
            final_ids = None
            if max_tokens is not None and episode.is_truncated and context is contexts[-1]:
                num_tokens = sum(len(turn.observation_ids) + len(turn.action_ids) for turn in context)
                final_ids = stream.final_observation_ids[: max(0, max_tokens - num_tokens)]
            samples.append(
                Sample.of_turns(
                    [replace(turn, reward=turn.earned(invalid_action_penalty)) for turn in context],
                    final_observation_ids=final_ids,
                    group=group_of(stream.role),
                    episode=episode.episode_id,
                    context_index=index,
                    agent=stream.agent_id,
                    role=stream.role,
                    module=stream.module_id,
                    others_return=sum(of[0] for agent_id, of in earned.items() if agent_id != stream.agent_id),
                    others_size=sum(of[1] for agent_id, of in earned.items() if agent_id != stream.agent_id),
                    is_terminated=episode.end_reason == EndReason.TERMINATED,
                    states=states[first : first + len(context)] if states else (),
                    is_overlong=episode.end_reason == EndReason.CONTEXT_LIMIT,
                    is_success=is_success(episode, stream.agent_id),
                )
            )
            first += len(context)
    return samples


def _states(stream: Stream) -> tuple[str, ...]:
    """Return the messages before each of an agent's turns; none where its messages are not those of its turns."""
    told = [b["content"] for b, a in itertools.pairwise(stream.messages) if a["role"] == "assistant"]
    return tuple(told) if len(told) == len(stream.turns) else ()


@dataclass
class StepSamples:
    """The samples of a train step so far. `trained` are the samples that teach something."""

    played: list[Episode] = field(default_factory=list)
    failed: list[Episode] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    trained: list[Sample] = field(default_factory=list)
    ages: list[int] = field(default_factory=list)  # of groups that were sampled ahead, in policy versions
    numbers: dict[tuple[TaskGroup, str], int] = field(default_factory=dict)  # (task, role) to the samples' `group`
    tasks: list[TaskGroup] = field(default_factory=list)  # by the samples' `group`

    def group_of(self, task: TaskGroup, role: str) -> int:
        if (task, role) not in self.numbers:
            self.numbers[task, role] = len(self.tasks)
            self.tasks.append(task)
        return self.numbers[task, role]

    @property
    def useful_groups(self) -> set[int]:
        """The groups that are trained on with an advantage other than 0."""
        return {sample.group for sample in self.trained if sample.advantage is not None and sample.advantage.any()}

    @property
    def num_kept_tasks(self) -> int:
        return len({self.tasks[sample.group] for sample in self.trained})
