"""The base of methods that learn from recorded episodes: their options, the train step, the held-out loss."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from gymnasium.spaces import Discrete
from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.utils.annotations import override
from ray.rllib.utils.spaces.repeated import Repeated

from rllm_gym.algorithms.offline_learner import OfflineLearner
from rllm_gym.callbacks.horizon_schedules import last_horizon
from rllm_gym.data import EpochOrder, SampleFile
from rllm_gym.errors import ConfigError, RllmGymError
from rllm_gym.models import resolve_base_model
from rllm_gym.options.methods import EXPERT, OfflineOptions
from rllm_gym.rollout.environments import list_item_ids
from rllm_gym.rollout.expert import ExpertPlayer, play_experts
from rllm_gym.tokens import ChatTokenizer
from rllm_gym.training.algorithm import LLMAlgorithm
from rllm_gym.training.config import LLMConfig
from rllm_gym.training.metrics import is_success
from rllm_gym.training.recorded_samples import SampleMaker, detect_kind, import_function, is_function, read_samples
from rllm_gym.training.task_sampler import TaskSampler
from rllm_gym.types import Sample

logger = logging.getLogger(__name__)


class OfflineConfig(LLMConfig, OfflineOptions):
    """Options of every method that learns from recorded episodes.

    EnvRunners, and with them an inference engine, are only built where they are used: to evaluate in an environment.
    """

    @override(LLMConfig)
    def get_default_learner_class(self) -> type[OfflineLearner]:
        return OfflineLearner

    @property
    @override(LLMConfig)
    def num_recorded_samples_per_step(self) -> int:  # type: ignore[override]
        return self.samples_per_step

    @property
    @override(LLMConfig)
    def is_online(self) -> bool:  # RLlib's question, whether to build EnvRunners
        return self.has_env_runners

    @property
    @override(LLMConfig)
    def _model_config_auto_includes(self) -> dict[str, Any]:
        # What is learnt from was not sampled at any temperature.
        return super()._model_config_auto_includes | {"temperature": 1.0}

    def without_data(self) -> Self:
        """Forget what is learnt from, for a policy that is only evaluated; it need not be there any more."""
        self.data, self.evaluation_data, self._needs_data = None, None, False
        return self

    @override(LLMConfig)
    def validate(self) -> None:
        if not self.has_env_runners:
            self.num_env_runners = 0
            # RLlib asks for spaces where no environment gives them; nothing here looks at them.
            self.observation_space = self.action_space = Repeated(Discrete(2), self.max_model_len)
        super().validate()
        if self.in_evaluation:
            return
        for source in self.data_sources():
            if source != EXPERT:
                self.check_source(source, type(self).__name__)

    def check_source(self, source: str, who: str) -> None:
        """Make sure that a path or a function can be learnt from."""
        if is_function(source):
            import_function(source)
        elif detect_kind(Path(source)) == "pairs":
            raise ConfigError(f"{who}: data: pairs of answers are for DPO; got {source!r}. Set run: DPO.")


class OfflineAlgorithm(LLMAlgorithm):
    """Trains on recorded episodes in a shuffled order; a method gives the loss, and what its items are."""

    config: OfflineConfig

    @override(LLMAlgorithm)
    def setup(self, config: OfflineConfig) -> None:
        self.samples: SampleFile | None = None
        self._fingerprint: int | None = None
        self._data_protocol: str | None = None
        super().setup(config)

    # --- data ---

    def prepare(self) -> None:
        """Read the data, once; before the first train step or evaluation, so that a restored run can read its own."""
        if self.samples is not None:
            return
        config = self.config
        assert config.data is not None
        self.samples = self.read(config.data, split=None)
        self.evaluation_samples = self.samples
        num_items, num_held_out = self.num_items(self.samples), 0
        self.evaluation_items: Sequence[int] = []
        if config.evaluation_data is not None:
            self.evaluation_samples = self.read(config.evaluation_data, split=config.evaluation_splits[0])
            self.evaluation_items = range(min(config.num_evaluation_samples, self.num_items(self.evaluation_samples)))
        elif config.evaluation_interval:
            num_held_out = config.num_evaluation_samples
        if num_items <= num_held_out:
            raise RllmGymError(
                f"{type(self).__name__}: data must have more than the {num_held_out} samples that are held out; got "
                f"{num_items}. Lower num_evaluation_samples, or give more data."
            )
        order = np.random.default_rng(np.random.SeedSequence((config.seed or 0, 2**32 - 1))).permutation(num_items)
        self.training_items = np.sort(order[num_held_out:])
        if num_held_out:
            self.evaluation_items = order[:num_held_out].tolist()
        self.order = EpochOrder(len(self.training_items), seed=config.seed or 0)
        if self._fingerprint not in (None, self.samples.fingerprint):
            self.on_other_data()
        self._fingerprint = self.samples.fingerprint

    def read(self, source: str, *, split: str | None) -> SampleFile:
        """Return the samples of one source, in a file in the trial's folder."""
        maker, samples = self.sample_maker(), SampleFile(self.trajectories_path.parent)
        found = (
            self.expert_samples(maker, split)
            if source == EXPERT
            else read_samples(source, maker, min_return=self.config.min_return)
        )
        for sample in found:
            if sample.weight.sum() > 0:
                samples.append(sample)
            else:
                maker.num_left_out += 1
        logger.warning(
            "data: %s: %d samples with %d tokens; %d were cut to max_model_len, %d left out, since nothing is to be "
            "learnt from them.",
            source, len(samples), samples.num_tokens, maker.num_cut, maker.num_left_out,
        )  # fmt: skip
        if maker.num_agentgyms:
            self._data_protocol = "agentgym"
        if not len(samples):
            raise RllmGymError(f"{type(self).__name__}: data must have samples; got none from {source}. Widen it.")
        return samples

    def sample_maker(self) -> SampleMaker:
        config = self.config
        return SampleMaker(
            chat=ChatTokenizer(str(resolve_base_model(config.base_model)), **config.chat_options),
            max_tokens=config.max_model_len,
            observation_weight=config.observation_weight,
            retokenize=config.retokenize,
        )

    def expert_samples(self, maker: SampleMaker, split: str | None) -> Iterator[Sample]:
        """Yield the samples of what the environments' experts solve."""
        config = self.config
        environments = config.environments
        if split is not None:
            environments = [spec.with_split(split) for spec in config.evaluation_environments]
        tasks = TaskSampler(
            [list_item_ids(spec, None) for spec in environments],
            [spec.weight for spec in environments],
            seed=config.seed or 0,
            group_size=1,
        )
        schedules = config.horizon_schedules
        horizons = [last_horizon(schedules, spec.name) for spec in environments]
        player = ExpertPlayer(
            environments,
            maker.chat,
            horizons=horizons,
            env_timeout_s=config.env_timeout_s,
            token_options=config.token_options,
        )
        groups = tasks.groups(0, config.num_expert_episodes if split is None else config.num_evaluation_samples)
        num_unsolved = 0
        for episode in play_experts(player, groups, num_workers=config.num_expert_workers):
            is_solved = episode.error is None and (is_success(episode) or "is_success" not in episode.info)
            num_unsolved += not is_solved
            for stream in episode.streams.values() if is_solved else ():
                yield from maker.of_stream(stream)
        if num_unsolved:
            logger.warning(
                "data: expert: %d of %d episodes were not solved and are left out.", num_unsolved, len(groups)
            )

    def num_items(self, samples: SampleFile) -> int:
        """Return how many things there are in a file to train on, or to evaluate on."""
        return len(samples)

    def samples_at(self, samples: SampleFile, indices: Sequence[int]) -> list[Sample]:
        """Return the samples of these items."""
        return [samples[index] for index in indices]

    def on_other_data(self) -> None:
        """Called where a checkpoint was trained on other data than is there."""
        logger.warning(
            "%s: the data are not those that the checkpoint was trained on; their order is another.",
            type(self).__name__,
        )

    # --- the train step ---

    @override(Algorithm)
    def training_step(self) -> None:
        self.prepare()
        self.evaluate_on_start()
        assert self.samples is not None
        step, count = self.training_iteration, self.config.samples_per_step
        positions = self.order.indices(step * count, count)
        trained = self.samples_at(self.samples, self.training_items[positions].tolist())
        start = time.perf_counter()
        self.update(trained)
        learning_s = time.perf_counter() - start
        self.metrics.log_dict(
            {
                "epoch": (step + 1) * count / len(self.training_items),
                "num_samples": len(self.training_items),
                "learning_s": learning_s,
                "num_tokens_trained_per_s": self.num_tokens_trained(trained) / learning_s,
            },
            window=1,
        )

    @override(LLMAlgorithm)
    def evaluate(self, parallel_train_future: Any = None) -> dict[str, Any]:
        """Evaluate the policy: the loss on held-out samples, and success in the environment where there is one."""
        self.prepare()
        if self.config.has_env_runners:
            self.sync_weights()
            results = super().evaluate()
        else:
            results = {}
            self.call_back("on_evaluate_start")
        if self.evaluation_items:
            results |= self.evaluate_samples(self.samples_at(self.evaluation_samples, self.evaluation_items))
        if not self.config.has_env_runners:
            self.call_back("on_evaluate_end", evaluation_metrics=results)
        return results

    def evaluate_samples(self, samples: Sequence[Sample]) -> dict[str, float]:
        """Return the statistics of training on other samples."""
        shards = self.shards(samples)
        return self.on_all_learners(lambda learner: learner.evaluate(samples, shards))[0]

    # --- checkpoints ---

    @property
    @override(LLMAlgorithm)
    def protocol(self) -> str:
        return self._data_protocol or super().protocol

    @override(LLMAlgorithm)
    def get_state(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        return super().get_state(*args, **kwargs) | {"data_fingerprint": self._fingerprint}

    @override(LLMAlgorithm)
    def set_state(self, state: dict[str, Any]) -> None:
        super().set_state(state)
        self._fingerprint = state.get("data_fingerprint")

    @override(LLMAlgorithm)
    def cleanup(self) -> None:
        super().cleanup()
        if self.samples is not None:
            self.samples.close()
