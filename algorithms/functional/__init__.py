"""The mathematics of the methods: pure functions over torch tensors that read like the papers.

Shape letters: B episodes (sequences), T tokens, N returns, U turns. Masks are bool, True where the policy sampled the
token. What a mask hides may hold any value, inf and nan included, and comes out as 0. Losses are scalars to minimise.
"""

from rllm_gym.algorithms.functional.advantages import (
    greedy_baseline_advantage,
    group_relative_advantage,
    has_spread,
    leave_one_out_advantage,
    step_group_advantage,
    whiten,
)
from rllm_gym.algorithms.functional.kl import KL_KINDS, adaptive_kl_coeff, kl_estimate
from rllm_gym.algorithms.functional.losses import (
    averaging_weight,
    clipped_surrogate,
    clipped_value_loss,
    dpo_loss,
    negative_log_likelihood,
    sequence_clipped_surrogate,
    sequence_ratio,
    truncated_importance_weight,
)
from rllm_gym.algorithms.functional.returns import discounted_return, explained_variance, gae
from rllm_gym.algorithms.functional.rewards import (
    evolution_weight,
    kl_shaped_reward,
    soft_overlong_penalty,
)

__all__ = [
    "KL_KINDS",
    "adaptive_kl_coeff",
    "averaging_weight",
    "clipped_surrogate",
    "clipped_value_loss",
    "discounted_return",
    "dpo_loss",
    "evolution_weight",
    "explained_variance",
    "gae",
    "greedy_baseline_advantage",
    "group_relative_advantage",
    "has_spread",
    "kl_estimate",
    "kl_shaped_reward",
    "leave_one_out_advantage",
    "negative_log_likelihood",
    "sequence_clipped_surrogate",
    "sequence_ratio",
    "soft_overlong_penalty",
    "step_group_advantage",
    "truncated_importance_weight",
    "whiten",
]
