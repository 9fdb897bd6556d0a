"""Masks: hiding what was not sampled, and walking over what was."""

from __future__ import annotations

import torch


def hide(x_BT: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
    """Return x with 0 where the mask is False; neither hidden values nor their gradients get through, nan included.

    Raises:
        TypeError: the mask is not bool; 0 and 1 as integers would index instead of select.
    """
    check_mask(mask_BT)
    return x_BT.masked_fill(~mask_BT, 0.0)


def as_float(x: torch.Tensor) -> torch.Tensor:
    """Return x itself, or as floats what holds integers, of which a mean or a discount would be cut to integers."""
    return x if x.is_floating_point() else x.to(torch.get_default_dtype())


def check_mask(mask_BT: torch.Tensor) -> None:
    if mask_BT.dtype != torch.bool:
        raise TypeError(f"mask_BT: masks are bool, True where sampled; got {mask_BT.dtype}. Pass mask.bool().")


class Sampled:
    """A view of [B, T] by sampled tokens alone: [B, K], each row's sampled tokens in order, then padding.

    To the methods only sampled tokens are time steps; here neighbours in time are neighbours in memory.
    """

    def __init__(self, mask_BT: torch.Tensor) -> None:
        check_mask(mask_BT)
        self.mask_BT = mask_BT
        self.num_B = mask_BT.sum(1)
        width = max(self.num_B.tolist(), default=0)
        slot_K = torch.arange(width, device=mask_BT.device)
        self.is_filled_BK = slot_K < self.num_B[:, None]
        self.is_last_BK = slot_K == self.num_B[:, None] - 1

    def gather(self, x_BT: torch.Tensor) -> torch.Tensor:
        """Return [B, K], 0 in the padding."""
        x_BK = x_BT.new_zeros(self.is_filled_BK.shape)
        x_BK[self.is_filled_BK] = x_BT.expand_as(self.mask_BT)[self.mask_BT]
        return x_BK

    def scatter(self, x_BK: torch.Tensor) -> torch.Tensor:
        """Return [B, T], 0 where the mask is False."""
        x_BT = x_BK.new_zeros(self.mask_BT.shape)
        x_BT[self.mask_BT] = x_BK[self.is_filled_BK]
        return x_BT
