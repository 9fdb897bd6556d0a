"""The sequence of a centralised critic: all that the agents of an episode have read and written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rllm_gym.types import Episode, Sample


@dataclass
class JointSample:
    """The turns of all agents in the order in which they acted; those of a step in the environment's order.

    Args:
        sample: each turn is what its agent had been told since its own last turn, and what it wrote. So the critic sees
            whose turn it is as the policy does, and the value before an agent's token is of that agent's return.
        positions: agent to int64, where in the sequence the tokens are that it sampled.
    """

    sample: Sample
    positions: dict[str, np.ndarray]

    @classmethod
    def of_episode(cls, episode: Episode, *, module: str, is_trained: Callable[[str], bool]) -> JointSample:
        """Return an episode as one sequence.

        Args:
            module: of the critic.
            is_trained: whether a policy learns; the tokens of the others are only read.
        """
        streams = list(episode.streams.values())
        order = sorted((turn.env_step, k, u) for k, stream in enumerate(streams) for u, turn in enumerate(stream.turns))
        turns, positions, begin = [], {stream.agent_id: [np.zeros(0, np.int64)] for stream in streams}, 0
        for _, k, u in order:
            turn = streams[k].turns[u]
            first = begin + len(turn.observation_ids)
            begin = first + len(turn.action_ids)
            positions[streams[k].agent_id].append(np.arange(first, begin))
            turns.append(replace(turn, is_trained=is_trained(streams[k].module_id)))
        sample = Sample.of_turns(turns, episode=episode.episode_id, agent="", module=module)
        return cls(sample, {agent: np.concatenate(found) for agent, found in positions.items()})

    def give_values(self, samples: Sequence[Sample]) -> None:
        """Write the critic's values at the sampled tokens of the episode's samples."""
        assert self.sample.value is not None
        for sample, positions in self._of_samples(samples):
            sample.value = np.zeros(len(sample), np.float32)
            sample.value[sample.weight != 0] = self.sample.value[positions]

    def with_targets(self, samples: Sequence[Sample]) -> Sample:
        """Return the sequence with the samples' value targets; only their tokens count."""
        weight, target = np.zeros(len(self.sample), np.float32), np.zeros(len(self.sample), np.float32)
        for sample, positions in self._of_samples(samples):
            assert sample.value_target is not None
            weight[positions] = 1.0
            target[positions] = sample.value_target[sample.weight != 0]
        return replace(self.sample, weight=weight, value_target=target)

    def _of_samples(self, samples: Sequence[Sample]) -> list[tuple[Sample, np.ndarray]]:
        """Return each sample's place in the sequence: an agent's samples are the contexts of its turns, in order."""
        found, begin = [], dict.fromkeys(self.positions, 0)
        for sample in sorted(samples, key=lambda sample: sample.context_index):
            first = begin[sample.agent]
            begin[sample.agent] = first + int((sample.weight != 0).sum())
            found.append((sample, self.positions[sample.agent][first : begin[sample.agent]]))
        return found
