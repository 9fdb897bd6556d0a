"""Opponents: an RLlib callback that lets frozen policies and the learner's earlier selves play agents."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import ray
from ray.rllib.callbacks.callbacks import RLlibCallback

from rllm_gym.callbacks.opponent_pool import Opponent, Pool, Snapshot
from rllm_gym.checkpoints import module_folder, module_ids, resolve_checkpoint
from rllm_gym.errors import ConfigError
from rllm_gym.learner.rl_module import LLMModule

DRAWS = 2**30  # keeps a draw's random numbers apart from those of tasks and episodes


class Opponents(RLlibCallback):
    """Sets which snapshot plays each agent of `opponents` in the train step that comes next.

    The algorithm hands the weights to the EnvRunners with every request for episodes, so runners that were restarted or
    restored cannot hold older ones. Every `LLMConfig` algorithm runs this callback; it acts on the configuration's
    `opponents`. `pools` are the snapshots by agent, with the learner's returns against them; checkpoints hold them. A
    frozen checkpoint is a pool of one.
    """

    def __init__(self) -> None:
        super().__init__()
        self.pools: dict[str, Pool] = {}

    def get_state(self) -> dict[str, Pool]:
        return {agent_id: pool.copy() for agent_id, pool in self.pools.items()}

    def set_state(self, state: Mapping[str, Pool]) -> None:
        self.pools = dict(state)

    def on_algorithm_init(self, *, algorithm: Any, **kwargs: Any) -> None:
        for agent_id, opponent in algorithm.config.opponent_specs.items():
            if opponent.kind == "pool":
                if algorithm.config.trains:  # else the checkpoint has it
                    self.pools[agent_id] = Pool([self._snapshot(algorithm, agent_id)])
            elif opponent.is_model and opponent.hugging_face_model is None:
                weights = frozen_weights(opponent.source, algorithm.config.policy_of(agent_id))
                self.pools[agent_id] = Pool([Snapshot(0, 0, weights)])
        self._draw(algorithm)

    def on_train_result(self, *, algorithm: Any, result: dict[str, Any], **kwargs: Any) -> None:
        specs, pools = algorithm.config.opponent_specs, self.pools
        learner_return = self._learner_return(specs, result.get("env_runners", {}))
        for agent_id, pool in pools.items():
            if learner_return is not None:
                pool.opponent.observe(learner_return)
            told = {"snapshot_step": pool.opponent.step, "num_snapshots": len(pool.snapshots)}
            result.setdefault("opponents", {})[agent_id] = told | {"learner_return": learner_return or 0.0}
            opponent = specs[agent_id]
            if opponent.kind == "pool" and algorithm.training_iteration % opponent.every == 0:
                pool.add(self._snapshot(algorithm, agent_id), size=opponent.size)
        self._draw(algorithm)

    def on_checkpoint_loaded(self, *, algorithm: Any, **kwargs: Any) -> None:
        self._hand_over(algorithm)

    @staticmethod
    def _snapshot(algorithm: Any, agent_id: str) -> Snapshot:
        policy_version, weights = algorithm.policy_weights(algorithm.config.policy_of(agent_id))
        return Snapshot(algorithm.training_iteration, policy_version, weights)

    @staticmethod
    def _learner_return(specs: Mapping[str, Opponent], sampled: Mapping[str, Any]) -> float | None:
        """Return the mean reward of the learner's agents in an episode; None without episodes."""
        returns = sampled.get("agent_episode_returns_mean", {})
        mine = [value for agent_id, value in returns.items() if specs.get(agent_id, Opponent("self")).kind == "self"]
        return float(sum(mine)) if mine and sampled.get("num_episodes") else None

    def _draw(self, algorithm: Any) -> None:
        for number, (agent_id, pool) in enumerate(sorted(self.pools.items())):
            key = (algorithm.config.seed or 0, algorithm.training_iteration, DRAWS + number)
            pool.draw(algorithm.config.opponent_specs[agent_id].sampling, np.random.default_rng(key))
        self._hand_over(algorithm)

    def _hand_over(self, algorithm: Any) -> None:
        algorithm.samplers.opponents = {
            algorithm.config.opponent_specs[agent_id].module_of(agent_id): (
                pool.opponent.policy_version,
                ray.put(pool.opponent.weights),
            )
            for agent_id, pool in self.pools.items()
        }


def frozen_weights(source: str | Path, policy_id: str) -> Mapping[str, Any]:
    """Return the weights of a checkpoint's policy as an engine loads them, with LoRA merged.

    Args:
        source: a checkpoint, or a run or trial for its newest.
        policy_id: which policy, where the checkpoint has several.

    Raises:
        ConfigError: no checkpoint, or none of its policies.
    """
    checkpoint = resolve_checkpoint(Path(source))
    known = module_ids(checkpoint)
    chosen = known[0] if len(known) == 1 else policy_id
    if chosen not in known:
        raise ConfigError(
            f"opponents: the frozen checkpoint must hold the policy {policy_id!r}; got {str(source)!r} with "
            f"{', '.join(known) or 'none'}. Choose another checkpoint."
        )
    lm = LLMModule.from_checkpoint(str(module_folder(checkpoint, chosen))).merge_adapter()
    return {name: value.detach().cpu().numpy().copy() for name, value in lm.float().state_dict().items()}
