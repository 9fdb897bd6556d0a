"""First weights from which a small transformer learns to copy at once.

To copy a name from its context takes two attention heads in a row: one that looks at the previous token, and one that
finds where the present token was the previous one. Found by gradient descent from noise this takes many millions of
tokens, most of what a CPU can do in an hour. So one such pair is written into the first weights, weakly enough
that training does with it what it likes.

Source: Olsson et al. 2022, arXiv:2209.11895 (induction heads); Trockman and Kolter 2023, arXiv:2305.09828 (first
weights that have the structure of trained ones).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import Qwen2ForCausalLM

SHARPNESS = 6.0  # how much each fast frequency adds to the logit of the previous token
EMBEDDING = 2.0  # a token's own embedding is this much louder than Qwen2's
MATCH = 2.0  # gain of a query and of a key that look for a token
WRITE = 0.08  # a previous token is then about as loud in the stream as the token itself
COPY = 0.3  # and what is copied is louder


def wire_copying(model: Qwen2ForCausalLM) -> None:
    """Write a previous-token head into layer 0 and a head that copies what followed into layer 1.

    Each is head 0 of its layer. All else stays as it was drawn, and so does torch's global generator.
    """
    import torch

    config = model.config
    head_dim = config.hidden_size // config.num_attention_heads
    generator = torch.Generator().manual_seed(0)

    def directions(num: int) -> torch.Tensor:
        return torch.linalg.qr(torch.randn(config.hidden_size, num, generator=generator))[0].T

    token, previous, copied = directions(head_dim), directions(head_dim), directions(head_dim)
    first, second = (layer.self_attn for layer in model.model.layers[:2])
    mine = slice(0, head_dim)
    with torch.no_grad():
        model.model.embed_tokens.weight *= EMBEDDING
        # With RoPE a score that comes from biases alone depends on the distance only: here it is largest at 1.
        # The slow frequencies tell near from nearer in no way, and are left out.
        half = head_dim // 2
        rope_theta: Any = config.rope_parameters["rope_theta"]  # type: ignore[index]
        angle = rope_theta ** (-torch.arange(half) / half)
        size = math.sqrt(SHARPNESS * math.sqrt(head_dim)) * (angle > 0.1)
        first.k_proj.bias[mine] = torch.cat([size, torch.zeros(half)])
        first.q_proj.bias[mine] = torch.cat([size * torch.cos(angle), -size * torch.sin(angle)])
        first.v_proj.weight[mine] = token
        first.o_proj.weight[:, mine] = WRITE * previous.T
        second.q_proj.weight[mine] = MATCH * token
        second.k_proj.weight[mine] = MATCH * previous
        second.v_proj.weight[mine] = copied
        second.o_proj.weight[:, mine] = COPY * copied.T
