"""The mathematics of the methods: pure functions over torch tensors that read like the papers.

Shape letters: B episodes (sequences), T tokens, N returns. Masks are bool, True where the policy sampled the token.
What a mask hides may hold any value, inf and nan included, and comes out as 0. Losses are scalars to minimise.
"""

from rllm_gym.algorithms.functional.advantages import group_relative_advantage, has_spread
from rllm_gym.algorithms.functional.losses import clipped_surrogate, kl_estimate, truncated_importance_weight

__all__ = [
    "clipped_surrogate",
    "group_relative_advantage",
    "has_spread",
    "kl_estimate",
    "truncated_importance_weight",
]
