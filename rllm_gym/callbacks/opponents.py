"""Opponents: an RLlib callback that lets frozen policies and the learner's earlier selves play agents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import ray
from ray.rllib.callbacks.callbacks import RLlibCallback

from rllm_gym.callbacks.opponent_pool import Opponent, Pool, Snapshot

DRAWS = 2**30  # keeps a draw's random numbers apart from those of tasks and episodes


class Opponents(RLlibCallback):
    """Sets which snapshot plays each agent of `opponents` in the train step that comes next.

    The algorithm hands the weights to the EnvRunners with every request for episodes, so runners that were restarted or
    restored cannot hold older ones. Every `LLMConfig` algorithm runs this callback; it acts on the configuration's
    `opponents`. The snapshots and the learner's returns against them are in the algorithm's `opponent_pools`, and so in
    checkpoints. A frozen checkpoint is a pool of one.
    """

    def on_algorithm_init(self, *, algorithm: Any, **kwargs: Any) -> None:
        for agent_id, opponent in algorithm.config.opponent_specs.items():
            if opponent.kind == "pool":
                if algorithm.config.trains:  # else the checkpoint has it
                    algorithm.opponent_pools[agent_id] = Pool([self._snapshot(algorithm, agent_id)])
            elif opponent.is_model and opponent.hugging_face_model is None:
                weights = algorithm.frozen_weights(opponent.source, algorithm.config.policy_of(agent_id))
                algorithm.opponent_pools[agent_id] = Pool([Snapshot(0, 0, weights)])
        self._draw(algorithm)

    def on_train_result(self, *, algorithm: Any, result: dict[str, Any], **kwargs: Any) -> None:
        specs, pools = algorithm.config.opponent_specs, algorithm.opponent_pools
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
        """Return what the learner's agents have earned in an episode, on average; None without episodes."""
        returns = sampled.get("agent_episode_returns_mean", {})
        mine = [value for agent_id, value in returns.items() if specs.get(agent_id, Opponent("self")).kind == "self"]
        return float(sum(mine)) if mine and sampled.get("num_episodes") else None

    def _draw(self, algorithm: Any) -> None:
        for number, (agent_id, pool) in enumerate(sorted(algorithm.opponent_pools.items())):
            key = (algorithm.config.seed or 0, algorithm.training_iteration, DRAWS + number)
            pool.draw(algorithm.config.opponent_specs[agent_id].sampling, np.random.default_rng(key))
        self._hand_over(algorithm)

    @staticmethod
    def _hand_over(algorithm: Any) -> None:
        algorithm.opponent_weights = {
            algorithm.config.opponent_specs[agent_id].module_of(agent_id): (
                pool.opponent.policy_version,
                ray.put(pool.opponent.weights),
            )
            for agent_id, pool in algorithm.opponent_pools.items()
        }
