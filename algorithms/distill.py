"""Distill: on-policy distillation, which holds what the policy samples against a teacher's probabilities."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from ray.rllib.utils.annotations import override

from rllm_gym.algorithms.functional import divergence, group_relative_advantage
from rllm_gym.algorithms.policy_gradient import PolicyGradient, PolicyGradientConfig
from rllm_gym.algorithms.policy_learner import PolicyLearner
from rllm_gym.checkpoints import RLLIB_FILE, module_folder, module_ids, read_config, resolve_checkpoint
from rllm_gym.errors import ConfigError
from rllm_gym.learner.deepspeed import Forward
from rllm_gym.learner.packing import MicroBatch
from rllm_gym.learner.rl_module import LLMModule, load_language_model
from rllm_gym.models import resolve_tokenizer
from rllm_gym.options.methods import DistillOptions
from rllm_gym.rotary import fix_rotary_frequencies
from rllm_gym.tokenizer_files import read_tokenizer
from rllm_gym.training.advantage_rows import AdvantageRows, Advantages


class DistillLearner(PolicyLearner):
    """A learner with a frozen teacher, whose log-probabilities stand where those of a reference would.

    Metrics, beside those of `PolicyLearner`: `teacher_divergence`, nats per token, with a `divergence`.
    """

    MEAN_STATS = (*PolicyLearner.MEAN_STATS, "teacher_divergence")

    @override(PolicyLearner)
    def build(self) -> None:
        super().build()
        check_tokenizers(self.config.teacher, str(self.config.base_model))
        teacher = load_teacher(self.config.teacher, self.config.weight_dtype, self.config.trust_remote_code)
        fix_rotary_frequencies(teacher, self.config.max_model_len)
        # A divergence reads the teacher within the policy's own forward pass.
        self.teacher = self.freeze(teacher, is_whole=self.config.divergence is not None)

    @override(PolicyLearner)
    def score_forward(self, name: str, module_id: str) -> Forward:
        if name != "ref_logp":
            return super().score_forward(name, module_id)
        return lambda inputs: {name: self.teacher(inputs)["logp"]}

    @override(PolicyLearner)
    def model_inputs(self, part: MicroBatch) -> dict[str, Any]:
        inputs, config = super().model_inputs(part), self.config
        if config.divergence is None:
            return inputs

        def from_teacher(logp_NV: torch.Tensor, teacher_NV: torch.Tensor) -> torch.Tensor:
            return divergence(logp_NV, teacher_NV, kind=config.divergence, beta=config.jsd_beta)

        return {**inputs, "compared_with": (self.teacher.lm, from_teacher)}

    @override(PolicyLearner)
    def token_loss(
        self, batch: dict[str, torch.Tensor], logp_BT: torch.Tensor, old_logp_BT: torch.Tensor, ratio_BT: torch.Tensor
    ) -> torch.Tensor:
        loss_BT = super().token_loss(batch, logp_BT, old_logp_BT, ratio_BT)
        if self.config.divergence is None:
            return loss_BT
        self.add_means(batch["mask"], teacher_divergence=batch["divergence"].detach())
        return loss_BT + self.config.teacher_weight * batch["divergence"]

    @override(PolicyLearner)
    def compute_loss_for_module(
        self, *, module_id: str, config: Any, batch: dict[str, torch.Tensor], fwd_out: dict[str, torch.Tensor]
    ) -> torch.Tensor:
        if "divergence" in fwd_out:
            batch = {**batch, "divergence": fwd_out["divergence"]}
        return super().compute_loss_for_module(module_id=module_id, config=config, batch=batch, fwd_out=fwd_out)


class DistillConfig(PolicyGradientConfig, DistillOptions):
    """Configuration of Distill.

    Source: on-policy distillation as peers ship it: each sampled token is reinforced by the teacher's log-probability
    less the sampling policy's, which is the single-step term of MiniLLM's gradient (Gu et al. 2023, arXiv:2306.08543,
    eq. 4), without a return-to-go, a group or a deviation. `divergence` is GKD's loss at the tokens that the policy
    sampled (Agarwal et al. 2023, arXiv:2306.13649; `jsd` with `jsd_beta`).

    Differs: the tokens are those of whole episodes; the environment's own are read and not learnt.
    """

    @override(PolicyGradientConfig)
    def get_default_learner_class(self) -> type[PolicyLearner]:
        return DistillLearner

    @property
    @override(PolicyGradientConfig)
    def scores_for_advantage(self) -> list[str]:
        if self.divergence is not None:
            return []
        return ["ref_logp", "trainer_logp"] if self.old_logp == "recompute" else ["ref_logp"]

    @override(PolicyGradientConfig)
    def validate(self) -> None:
        super().validate()
        if self.in_evaluation or not self.teacher:
            return
        if Path(self.teacher).is_dir():  # by the path of its folder, whoever reads this
            self.teacher = str(Path(self.teacher).absolute())
        if Path(self.teacher).is_dir() or self.teacher == "tiny":  # what must be downloaded is checked by the learners
            check_tokenizers(self.teacher, str(self.base_model))


class Distill(PolicyGradient):
    """Samples episodes, and makes the policy's tokens as likely as the teacher finds them."""

    config_class = DistillConfig
    config: DistillConfig

    @override(PolicyGradient)
    def advantage(self, rows: AdvantageRows) -> Advantages:
        config, mask_NK = self.config, rows.mask_NK
        advantage_NK, metrics = torch.zeros(mask_NK.shape, dtype=torch.float64), {}
        if config.with_reward:
            of_group_N = group_relative_advantage(rows.return_N, rows.group_N, normalize_std=True)
            advantage_NK = advantage_NK + of_group_N[:, None]
        if config.divergence is None:
            sampled_NK = rows.column("trainer_logp" if config.old_logp == "recompute" else "old_logp")
            gain_NK = rows.column("ref_logp").double() - sampled_NK.double()
            advantage_NK = advantage_NK + config.teacher_weight * gain_NK
            metrics["teacher_kl"] = -float(gain_NK[mask_NK].mean())
        return Advantages(advantage_NK * mask_NK, metrics=metrics)

    @override(PolicyGradient)
    def _count_empty_steps(self, is_empty: bool, step: int) -> None:
        """Count none: a teacher has something to say of every token."""


def load_teacher(teacher: str, dtype: str, trust_remote_code: bool = False) -> Any:
    """Return the teacher's language model: of a model, or of a checkpoint's only policy, with its adapter merged."""
    if not is_of_a_run(teacher):
        return load_language_model(teacher, dtype, trust_remote_code=trust_remote_code)
    checkpoint = resolve_checkpoint(Path(teacher))
    policies = [id_ for id_ in module_ids(checkpoint) if not id_.endswith("critic")]
    if len(policies) != 1:
        raise ConfigError(
            f"Distill: a teacher must be one policy; got {teacher!r} with {', '.join(policies) or 'none'}. "
            "Give one of them as a model: rllm-gym export CHECKPOINT FOLDER --module NAME."
        )
    lm = LLMModule.from_checkpoint(str(module_folder(checkpoint, policies[0]))).merge_adapter()
    return lm.to(getattr(torch, dtype))


def is_of_a_run(teacher: str) -> bool:
    """Return True for a checkpoint or a folder of checkpoints, and False for a model."""
    folder = Path(teacher)
    return (folder.is_dir() and not (folder / "config.json").is_file()) or (folder / RLLIB_FILE).is_file()


def check_tokenizers(teacher: str, base_model: str) -> None:
    """Make sure that a token is the same text for both.

    Raises:
        ConfigError: the vocabularies differ.
    """
    source = str(read_config(resolve_checkpoint(Path(teacher)))[1].base_model) if is_of_a_run(teacher) else teacher
    theirs, ours = (
        read_tokenizer(resolve_tokenizer(name)).backend.get_vocab(with_added_tokens=True)
        for name in (source, base_model)
    )
    if theirs != ours:
        differing = len(theirs.items() ^ ours.items())
        raise ConfigError(
            f"Distill: the teacher must have the policy's tokenizer; got {teacher!r}, whose tokens differ in "
            f"{differing:,} places from those of {base_model!r}. Choose models of one family."
        )
