"""The mathematics of the methods: pure functions over torch tensors that read like the papers.

A method is an advantage (`advantages.py`; of several agents `multi_agent.py`), a loss per token (`losses.py`) and
one `aggregate` of it.

Shape letters: B rows (sequences), T tokens, N returns, U turns, G groups, K sampled tokens. Masks are bool, True where
the policy sampled the token. What a mask hides may hold any value, inf and nan included, and comes out as 0. Losses are
to be minimised.
"""

from rllm_gym.algorithms.functional.advantages import (
    EPSILON,
    discounted_return,
    explained_variance,
    gae,
    greedy_baseline_advantage,
    group_deviation,
    group_relative_advantage,
    has_spread,
    leave_one_out_advantage,
    step_group_advantage,
    turn_advantage,
    whiten,
)
from rllm_gym.algorithms.functional.losses import (
    KL_KINDS,
    Counts,
    adaptive_kl_coeff,
    aggregate,
    clipped_surrogate,
    clipped_value_loss,
    divergence,
    dpo_loss,
    importance_weight,
    kl_estimate,
    negative_log_likelihood,
    probability_ratio,
)
from rllm_gym.algorithms.functional.multi_agent import joint_advantage, role_advantage
from rllm_gym.algorithms.functional.rewards import (
    evolution_weight,
    kl_shaped_reward,
    soft_overlong_penalty,
)

__all__ = [
    "EPSILON",
    "KL_KINDS",
    "Counts",
    "adaptive_kl_coeff",
    "aggregate",
    "clipped_surrogate",
    "clipped_value_loss",
    "discounted_return",
    "divergence",
    "dpo_loss",
    "evolution_weight",
    "explained_variance",
    "gae",
    "greedy_baseline_advantage",
    "group_deviation",
    "group_relative_advantage",
    "has_spread",
    "importance_weight",
    "joint_advantage",
    "kl_estimate",
    "kl_shaped_reward",
    "leave_one_out_advantage",
    "negative_log_likelihood",
    "probability_ratio",
    "role_advantage",
    "soft_overlong_penalty",
    "step_group_advantage",
    "turn_advantage",
    "whiten",
]
