"""PPO: the clipped surrogate, with advantages from a critic (GAE over sampled tokens)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModuleSpec
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.utils.annotations import override

from rllm_gym.algorithms.functional import Counts, aggregate, clipped_value_loss, explained_variance, gae, whiten
from rllm_gym.algorithms.policy_gradient import PolicyGradient, PolicyGradientConfig
from rllm_gym.algorithms.policy_learner import PolicyLearner
from rllm_gym.errors import ConfigError
from rllm_gym.learner.batch import Batch
from rllm_gym.learner.critic import ActorCriticModule, CentralisedCriticModule, CriticModule, max_positions
from rllm_gym.learner.deepspeed import Forward, merge
from rllm_gym.learner.rl_module import LLMModule
from rllm_gym.options.methods import CENTRALISED_CRITIC, CRITIC_SUFFIX, PPOOptions
from rllm_gym.training.advantage_rows import AdvantageRows, Advantages
from rllm_gym.training.joint_samples import JointSample
from rllm_gym.types import Episode, Sample


class PPOConfig(PolicyGradientConfig, PPOOptions):
    """Configuration of PPO.

    Source: Schulman et al. 2017, arXiv:1707.06347; for language models Ouyang et al. 2022 (InstructGPT),
    arXiv:2203.02155. gamma and lambda are 1, since with less a reward at the end of hundreds of tokens fades before it
    reaches the first ones: Yuan et al. 2025 (VC-PPO), arXiv:2503.01491.

    Differs: from RLlib's PPO: time steps are sampled tokens; `vf_clip` bounds how far a value moves, not its loss; the
    critic is by default a module of its own with an optimizer of its own.
    """

    @property
    @override(PolicyGradientConfig)
    def max_tokens_to_bootstrap(self) -> int | None:
        return self.max_model_len if self.bootstrap == "truncated" else None

    @property
    @override(PolicyGradientConfig)
    def scores_for_advantage(self) -> list[str]:
        return [*super().scores_for_advantage, "value"]

    @override(PolicyGradientConfig)
    def get_default_learner_class(self) -> type[PPOLearner]:
        return PPOLearner

    @override(PolicyGradientConfig)
    def get_default_rl_module_spec(self) -> RLModuleSpec:
        return RLModuleSpec(module_class=ActorCriticModule if self.critic == "shared" else LLMModule)

    @override(PolicyGradientConfig)
    def get_multi_rl_module_spec(self, *, inference_only: bool = False, **kwargs: Any) -> MultiRLModuleSpec:
        """Return RLlib's specification and, for learners, the critics of the policies that are trained."""
        spec = super().get_multi_rl_module_spec(inference_only=inference_only, **kwargs)
        if inference_only or self.critic == "shared":
            return spec
        is_central = self.critic == "centralised"
        for policy_id, policy in list(spec.rl_module_specs.items()):
            if self.is_trained(policy_id):
                of_run = {"base_model": self.base_model, "lora": self.lora} if is_central else {}
                critic = RLModuleSpec(
                    CentralisedCriticModule if is_central else CriticModule,
                    observation_space=policy.observation_space,
                    action_space=policy.action_space,
                    learner_only=True,
                    model_config={**policy.model_config, **of_run},
                )
                spec.add_modules({self.critic_of(policy_id): critic})
        return spec


class PPOLearner(PolicyLearner):
    """The clipped surrogate, and a critic that learns the returns.

    Metrics under `learners/<policy>/` beside those of `PolicyLearner`: `vf_loss`; `critic_gradient_norm` where the
    critic is separate; and the algorithm's `value_mean` and `explained_variance` (of the values before the update,
    against their targets). Those of a centralised critic stand under its own id.
    """

    MEAN_STATS = (*PolicyLearner.MEAN_STATS, "vf_loss")

    @override(PolicyLearner)
    def build(self) -> None:
        self._weight_decays: dict[str, list[float]] = {}
        super().build()
        for module_id, engine in self.engines.items():
            self._weight_decays[module_id] = [group["weight_decay"] for group in engine.basic_optimizer.param_groups]

    @property
    def is_warming_up(self) -> bool:
        return self.train_step < self.config.critic_warmup_steps

    @property
    def _has_separate_critic(self) -> bool:
        return self.config.critic == "separate"

    def _is_critic(self, module_id: str) -> bool:
        return self.module[module_id].learner_only

    @override(PolicyLearner)
    def should_module_be_updated(self, module_id: str, multi_agent_batch: Any = None) -> bool:
        if module_id == CENTRALISED_CRITIC:
            return True
        if self._is_critic(module_id):
            module_id = module_id.removesuffix(CRITIC_SUFFIX)
        return super().should_module_be_updated(module_id, multi_agent_batch)

    @override(PolicyLearner)
    def learning_rate(self, module_id: str) -> float:
        return self.config.critic_lr if self._is_critic(module_id) else super().learning_rate(module_id)

    @override(PolicyLearner)
    def deepspeed_options(self, module_id: str) -> Mapping[str, Any]:
        options = super().deepspeed_options(module_id)
        if not self._is_critic(module_id):
            return options
        common = {key: value for key, value in options.items() if key not in ("optimizer", "scheduler")}
        return merge(common, self.config.critic_deepspeed)

    @override(PolicyLearner)
    def passes(self, module_id: str) -> dict[str, int]:
        if self.config.critic == "shared":
            return super().passes(module_id)
        policy = {} if self.is_warming_up or self._is_critic(module_id) else super().passes(module_id)
        has_critics_samples = self._has_separate_critic or self._is_critic(module_id)
        return policy | ({self.config.critic_of(module_id): self.config.critic_epochs} if has_critics_samples else {})

    # --- one train step ---

    @override(PolicyLearner)
    def _update_module(self, module_id: str, batch: Batch) -> dict[str, float]:
        if self.config.critic == "shared":
            self._hold_shared_policy(module_id, self.is_warming_up)
        metrics = super()._update_module(module_id, batch)
        if self.is_warming_up:
            self._num_policy_steps = 0  # a shared critic's steps, too, leave the samplers' weights as they are
        if self.config.critic == "separate":
            metrics["critic_gradient_norm"] = self.mean_gradient_norm(self.config.critic_of(module_id))
        if self._is_critic(module_id):  # a critic reports none of the policy's metrics
            of_policies = {*PolicyLearner.MEAN_STATS, *PolicyLearner.MAX_STATS} - {self.LOSS_STAT}
            metrics = {name: value for name, value in metrics.items() if name not in of_policies}
        return metrics

    def _hold_shared_policy(self, module_id: str, is_held: bool) -> None:
        """Let nothing but the value head move, or all: neither gradients nor weight decay reach the policy."""
        self.module[module_id].detaches_value = is_held
        groups = self.engines[module_id].basic_optimizer.param_groups
        for group, weight_decay in zip(groups, self._weight_decays[module_id], strict=True):
            group["weight_decay"] = 0.0 if is_held else weight_decay

    @override(PolicyLearner)
    def score_forward(self, name: str, module_id: str) -> Forward:
        if name != "value":
            return super().score_forward(name, module_id)
        engine = self.engines[self.config.critic_of(module_id)]

        def forward(inputs: dict[str, Any]) -> dict[str, torch.Tensor]:
            out = engine({**inputs, "only_values": True})
            return {"value": out["value"], "final_value": out["final_value"]}

        return forward

    @override(PolicyLearner)
    def compute_loss_for_module(
        self, *, module_id: str, config: Any, batch: dict[str, torch.Tensor], fwd_out: dict[str, torch.Tensor]
    ) -> torch.Tensor:
        if self._is_critic(module_id):
            return self._value_loss(batch, fwd_out)
        loss = super().compute_loss_for_module(module_id=module_id, config=config, batch=batch, fwd_out=fwd_out)
        if self.config.critic != "shared":
            return loss
        if self.is_warming_up:
            loss = 0.0 * loss  # a gradient of 0, and not none, which not every ZeRO stage takes
        return loss + self.config.vf_loss_coeff * self._value_loss(batch, fwd_out)

    def _value_loss(self, batch: dict[str, torch.Tensor], fwd_out: dict[str, torch.Tensor]) -> torch.Tensor:
        loss_BT = clipped_value_loss(
            fwd_out["value"], batch["value"], batch["value_target"], batch["mask"], clip=self.config.vf_clip
        )
        counts = Counts(batch["num_tokens"], batch["num_sequences"], batch["num_episodes"])
        loss = aggregate(loss_BT, batch["mask"], over="tokens", counts=counts)
        self.add_step_means(vf_loss=loss)
        return loss


class PPO(PolicyGradient):
    """Samples episodes, values their tokens with a critic, and reinforces those that did better than it expected."""

    config_class = PPOConfig
    config: PPOConfig

    @override(PolicyGradient)
    def setup(self, config: PPOConfig) -> None:
        self._joint_samples: dict[str, JointSample] = {}  # of the train step's episodes, for a centralised critic
        super().setup(config)

    @override(PolicyGradient)
    def advantage(self, rows: AdvantageRows) -> Advantages:
        """Return whitened GAE advantages, and the targets that the critic learns."""
        config, mask_NK, value_NK = self.config, rows.mask_NK, rows.column("value")
        never = config.bootstrap == "never"
        advantage_NK, target_NK = gae(
            rows.reward_NK,
            value_NK,
            mask_NK,
            rows.final_value_N.masked_fill(rows.is_terminated_N | never, 0.0),
            gamma=config.gamma,
            lam=config.lambda_,
            is_turn_end_BT=rows.column("is_turn_end") if config.gae_per == "turn" else None,
        )
        metrics = {
            "value_mean": float(value_NK[mask_NK].mean()),
            "explained_variance": explained_variance(value_NK, target_NK, mask_NK),
        }
        return Advantages(whiten(advantage_NK, mask_NK), {"value_target": target_NK}, metrics)

    # --- a centralised critic: it reads what all agents of an episode have read and written ---

    @override(PolicyGradient)
    def _score_for_advantage(self, samples: Sequence[Sample], played: Sequence[Episode]) -> None:
        if self.config.critic != "centralised":
            return super()._score_for_advantage(samples, played)
        self.score(samples, [name for name in self._scores_for_advantage if name != "value"])
        by_episode = group_by_episode(samples)
        joint = {
            episode.episode_id: JointSample.of_episode(
                episode, module=CENTRALISED_CRITIC, is_trained=lambda module: module not in self._only_playing
            )
            for episode in played
            if episode.episode_id in by_episode
        }
        self._check_lengths(joint)
        self.score([each.sample for each in joint.values()], ["value"])
        for episode_id, each in joint.items():
            each.give_values(by_episode[episode_id])
        self._joint_samples |= joint

    @override(PolicyGradient)
    def update(self, samples: Sequence[Sample], **settings: Any) -> list[Any]:
        by_episode = group_by_episode(samples)
        joint = [each.with_targets(by_episode[id_]) for id_, each in self._joint_samples.items() if id_ in by_episode]
        self._joint_samples = {}
        return super().update([*samples, *joint], **settings)

    def _check_lengths(self, joint: Mapping[str, JointSample]) -> None:
        longest = max((len(each.sample) for each in joint.values()), default=0)
        if longest > (most := max_positions(self.config.base_model, trust_remote_code=self.config.trust_remote_code)):
            raise ConfigError(
                f"PPO: critic: centralised reads what all agents of an episode have read and written; got {longest} "
                f"tokens, and {self.config.base_model} reads {most}. Shorten episodes, or set critic: separate."
            )


def group_by_episode(samples: Sequence[Sample]) -> dict[str, list[Sample]]:
    """Return the samples of each episode."""
    groups: dict[str, list[Sample]] = defaultdict(list)
    for sample in samples:
        groups[sample.episode].append(sample)
    return groups
