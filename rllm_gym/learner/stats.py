"""Per-token statistics of one update, summed over micro-batches and ranks."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist

AllReduce = Callable[[torch.Tensor, "dist.ReduceOp.RedOpType"], torch.Tensor]


class TokenStats:
    """Means and maxima over the trained tokens.

    All ranks must name the same statistics, since they reduce them in this order; one that was never added to is 0.
    """

    def __init__(self, mean_names: tuple[str, ...], max_names: tuple[str, ...]) -> None:
        self._mean_names, self._max_names = mean_names, max_names
        self._sums = torch.zeros(len(mean_names), 2, dtype=torch.float64)  # value, tokens
        self._maxima = torch.zeros(len(max_names), dtype=torch.float64)

    def add(self, name: str, value_BT: torch.Tensor, mask_BT: torch.Tensor) -> None:
        """Average a per-token value over the tokens under the mask."""
        total = value_BT.detach().masked_fill(~mask_BT, 0.0).double().sum()
        self._sums[self._mean_names.index(name)] += torch.stack([total, mask_BT.sum().double()]).cpu()

    def add_loss(self, name: str, loss: torch.Tensor, mask_BT: torch.Tensor, num_tokens: torch.Tensor) -> None:
        """Average a loss term that is already divided by the `num_tokens` of its minibatch."""
        total = loss.detach().double().cpu() * num_tokens.cpu()
        self._sums[self._mean_names.index(name)] += torch.stack([total, mask_BT.sum().double().cpu()])

    def maximum(self, name: str, value_BT: torch.Tensor, mask_BT: torch.Tensor) -> None:
        """Keep the largest value (0 at least) over the tokens under the mask."""
        if mask_BT.any():
            k = self._max_names.index(name)
            self._maxima[k] = max(self._maxima[k].item(), value_BT.detach()[mask_BT].max().item())

    def reduced(self, all_reduce: AllReduce) -> dict[str, float]:
        """Return the statistics over all ranks (collective)."""
        sums = all_reduce(self._sums, dist.ReduceOp.SUM).cpu()
        maxima = all_reduce(self._maxima, dist.ReduceOp.MAX).cpu()
        means = (sums[:, 0] / sums[:, 1].clamp(min=1)).tolist()
        return dict(zip(self._mean_names, means, strict=True)) | dict(
            zip(self._max_names, maxima.tolist(), strict=True)
        )
