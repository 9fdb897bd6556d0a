"""DPO: direct preference optimization on pairs of a better and a worse episode of the same task."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ray.rllib.core.learner.learner import Learner
from ray.rllib.utils.annotations import override

from rllm_gym.algorithms.functional import dpo_loss
from rllm_gym.algorithms.offline import OfflineAlgorithm, OfflineConfig
from rllm_gym.algorithms.offline_learner import OfflineLearner
from rllm_gym.data import SampleFile, best_and_worst, read_dialogue_pairs, read_episodes
from rllm_gym.errors import ConfigError, RllmGymError, TrajectoryError
from rllm_gym.options.methods import SAMPLE, DPOOptions
from rllm_gym.training.recorded_samples import SampleMaker, detect_kind, json_files
from rllm_gym.types import Sample


class DPOConfig(OfflineConfig, DPOOptions):
    """Configuration of DPO.

    Source: Rafailov et al. 2023, arXiv:2305.18290; `kind="ipo"`: Azar et al. 2023, arXiv:2310.12036; `reward_gap` and
    `expert_threshold`: AgentGym, examples/dpo/make_dpo_dataset.py and train_dpo.sh.

    Differs: a pair is two whole episodes; the log-probability of one is summed over the assistant's tokens of all its
    turns, as in Song et al. 2024 (ETO), arXiv:2403.02502.
    """

    @override(OfflineConfig)
    def get_default_learner_class(self) -> type[DPOLearner]:
        return DPOLearner

    @property
    @override(OfflineConfig)
    def num_recorded_samples_per_step(self) -> int:  # type: ignore[override]
        return 2 * self.samples_per_step

    @override(OfflineConfig)
    def check_source(self, source: str, who: str) -> None:
        if detect_kind(Path(source)) == "dialogues":
            raise ConfigError(
                f"{who}: data: must be trajectories, or JSON with chosen and rejected; got {source!r}. Set run: SFT."
            )


class DPOLearner(OfflineLearner):
    """The DPO loss of pairs.

    Metrics under `learners/<module>/`, and of held-out pairs under `evaluation/`: `loss`; `accuracy` (share of pairs
    whose chosen episode has the larger reward), `margin` (chosen less rejected reward), `chosen_reward`,
    `rejected_reward`; a reward is beta times the log-ratio to the reference. `entropy` is in nats per token.
    """

    MEAN_STATS = ("loss", "accuracy", "margin", "chosen_reward", "rejected_reward", "entropy")

    @override(Learner)
    def compute_loss_for_module(
        self, *, module_id: str, config: Any, batch: dict[str, torch.Tensor], fwd_out: dict[str, torch.Tensor]
    ) -> torch.Tensor:
        mask_BT = batch["mask"]
        logp_B = fwd_out["logp"].masked_fill(~mask_BT, 0.0).sum(1)
        is_chosen_B, is_there_B = batch["is_chosen"], mask_BT.any(1)  # a filler has no pair
        sides = (is_chosen_B & is_there_B, ~is_chosen_B & is_there_B)
        logps, ref_logps = ([x_B[side_B] for side_B in sides] for x_B in (logp_B, batch["ref_logp_sum"]))
        loss_P = dpo_loss(
            *logps, *ref_logps, beta=config.beta, label_smoothing=config.label_smoothing, kind=config.kind
        )
        chosen_P, rejected_P = (config.beta * (logp - ref).detach() for logp, ref in zip(logps, ref_logps, strict=True))
        every_P = torch.ones_like(chosen_P, dtype=torch.bool)
        self.add_means(
            every_P,
            loss=loss_P,
            accuracy=(chosen_P > rejected_P).float(),
            margin=chosen_P - rejected_P,
            chosen_reward=chosen_P,
            rejected_reward=rejected_P,
        )
        self.add_means(mask_BT, entropy=fwd_out["entropy"])
        # Summed over micro-batches and ranks, the mean over the minibatch's pairs.
        return loss_P.sum() / (batch["num_sequences"] / 2).clamp(min=1)


class DPO(OfflineAlgorithm):
    """Makes the better episode of each pair likelier than the worse one, against a frozen reference."""

    config_class = DPOConfig
    config: DPOConfig

    @override(OfflineAlgorithm)
    def setup(self, config: DPOConfig) -> None:
        self.pairs: dict[SampleFile, list[tuple[int, int]]] = {}
        self.reference: dict[str, np.ndarray] = {}
        self._sampled_path: str | None = None
        super().setup(config)

    # --- data ---

    @override(OfflineAlgorithm)
    def read(self, source: str, *, split: str | None) -> SampleFile:
        if source == SAMPLE:
            source = self.sampled_path()
        path = Path(source)
        samples = SampleFile(self.trajectories_path.parent)
        pairs = self.pairs[samples] = []
        maker = self.sample_maker()
        if detect_kind(path) == "pairs":
            for file in json_files(path):
                for dialogues in read_dialogue_pairs(file):
                    self._append(samples, pairs, [maker.of_dialogue(dialogue) for dialogue in dialogues])
        else:
            self._read_trajectories(path, samples, pairs, maker)
        if not pairs:
            raise RllmGymError(
                f"DPO: data must have pairs; got none from {source}. Of trajectories, some {self.config.pairs_within} "
                f"needs an episode with a return of at least {self.config.expert_threshold} and one that is lower by "
                f"{self.config.reward_gap}: sample more, choose other tasks, or lower expert_threshold and reward_gap."
            )
        return samples

    def _read_trajectories(
        self, path: Path, samples: SampleFile, pairs: list[tuple[int, int]], maker: SampleMaker
    ) -> None:
        """Read twice: once for the returns, once for the episodes that make pairs."""
        places = best_and_worst(
            path,
            within=self.config.pairs_within,  # type: ignore[arg-type]  # checked by validate
            reward_gap=self.config.reward_gap,
            expert_threshold=self.config.expert_threshold,
        )
        wanted = {place for pair in places for place in pair}
        index: dict[int, int] = {}
        for place, record in enumerate(read_episodes(path)):
            if place not in wanted or not (made := maker.of_record(record)):
                continue
            if len(made) > 1:
                raise TrajectoryError(
                    f"DPO: data must be whole conversations, which it compares; got episode {record.episode_id}, whose "
                    f"history was rewritten {len(made) - 1} times. Sample with agent: {{context: full}}."
                )
            index[place] = len(samples)
            samples.append(made[0])
        pairs += [(index[best], index[worst]) for best, worst in places if best in index and worst in index]

    @staticmethod
    def _append(samples: SampleFile, pairs: list[tuple[int, int]], made: list[Any]) -> None:
        if all(sample is not None for sample in made):
            pairs.append((len(samples), len(samples) + 1))
            for sample in made:
                samples.append(sample)

    def sampled_path(self) -> str:
        """Return where the episodes are that the initial policy has played, after playing them if need be."""
        if self._sampled_path is None:
            groups = self.task_sampler.groups(0, self.config.num_sampled_groups)
            played, failed = self.sample(groups)
            self.record(0, played + failed)
            self.samplers.check_failures(played, failed)
            self._sampled_path = str(self.trajectories_path)
        elif not Path(self._sampled_path).exists():
            raise RllmGymError(
                f"DPO: the episodes that were sampled before the first train step must be where they were; got no "
                f"{self._sampled_path}. Bring them back, or start a new run."
            )
        return self._sampled_path

    @override(OfflineAlgorithm)
    def num_items(self, samples: SampleFile) -> int:
        return len(self.pairs[samples])

    @override(OfflineAlgorithm)
    def samples_at(self, samples: SampleFile, indices: Sequence[int]) -> list[Sample]:
        reference = self.reference["evaluation" if samples is not self.samples else "training"]
        return [sample for k in indices for sample in self._pair(samples, k, reference[k])]

    def _pair(self, samples: SampleFile, index: int, ref_logps: Sequence[float] = (0.0, 0.0)) -> list[Sample]:
        """Return the chosen and the rejected sample of a pair."""
        return [
            dataclasses.replace(samples[place], pair=index, is_chosen=side == 0, ref_logp_sum=float(ref_logps[side]))
            for side, place in enumerate(self.pairs[samples][index])
        ]

    # --- the reference ---

    @override(OfflineAlgorithm)
    def prepare(self) -> None:
        if self.samples is not None:
            return
        super().prepare()
        files = {"training": self.samples, "evaluation": self.evaluation_samples}
        for name, samples in files.items():
            if samples is None or (name == "evaluation" and samples is self.samples) or name in self.reference:
                continue
            if self.training_iteration > 0:
                raise RllmGymError(
                    "DPO: the reference is the policy before the first train step, and a restored run needs what it "
                    f"was computed for; got a checkpoint without the {name} data. Start a new run."
                )
            self.reference[name] = self._reference_of(samples)

    def _reference_of(self, samples: SampleFile) -> np.ndarray:
        """Return the present policy's log-probabilities of all pairs, float64 [N, 2]."""
        num_pairs, step = len(self.pairs[samples]), self.config.samples_per_step
        out = np.zeros((num_pairs, 2))
        for first in range(0, num_pairs, step):
            scored = [s for k in range(first, min(first + step, num_pairs)) for s in self._pair(samples, k)]
            self.score(scored, ["trainer_logp"])
            for sample in scored:
                assert sample.trainer_logp is not None
                out[sample.pair, int(not sample.is_chosen)] = sample.trainer_logp.sum(dtype=np.float64)
        return out

    @override(OfflineAlgorithm)
    def on_other_data(self) -> None:
        raise RllmGymError(
            "DPO: a checkpoint must be resumed with the pairs that its reference was computed for; got other data. "
            "Bring them back, or start a new run from its exported model."
        )

    # --- checkpoints ---

    @override(OfflineAlgorithm)
    def get_state(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        return super().get_state(*args, **kwargs) | {"reference": self.reference, "sampled_path": self._sampled_path}

    @override(OfflineAlgorithm)
    def set_state(self, state: dict[str, Any]) -> None:
        super().set_state(state)
        self.reference = state.get("reference", {})
        self._sampled_path = state.get("sampled_path")
