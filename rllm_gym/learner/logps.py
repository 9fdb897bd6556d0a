"""Log-probabilities of sampled tokens: a model reads a micro-batch, and its head takes the rows that are needed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.checkpoint import checkpoint

from rllm_gym.errors import ConfigError
from rllm_gym.learner.block_attention import reads_blocks

if TYPE_CHECKING:
    from transformers import PreTrainedModel

CHUNK_LOGITS = 2**25  # 128 MiB in float32; softmax and its gradient take about four times that
# (row, column) of tokens in a [B, T] batch, int64 [N] each -> their hidden states [N, H], wherever packing put them.
HiddenStates = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
Divergence = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def read(lm: PreTrainedModel, batch: Mapping[str, Any]) -> HiddenStates:
    """Let a model read a micro-batch; its heads then take the hidden states that they need, and no others."""
    tokens_BT, packing = batch["tokens"], batch.get("packing")
    if packing is not None:
        tokens_RW, position_RW = packing.pack(tokens_BT)
        mask = packing.attention_mask(by_blocks=reads_blocks(lm, tokens_RW.device))
        hidden_RWH = lm.base_model(
            input_ids=tokens_RW, position_ids=position_RW, attention_mask=mask, use_cache=False
        ).last_hidden_state
        hidden_PH = hidden_RWH.flatten(0, 1)
        return lambda row_N, column_N: hidden_PH[packing.place(row_N, column_N)]
    # Padding is on the right and attention is causal, so what is padded reaches no sampled token: no attention mask.
    hidden_BTH = lm.base_model(input_ids=tokens_BT, use_cache=False).last_hidden_state
    return lambda row_N, column_N: hidden_BTH[row_N, column_N]


class FrozenModel(torch.nn.Module):
    """A model that only scores; one module, so that ZeRO-3 sees where its forward pass begins and ends."""

    def __init__(self, lm: PreTrainedModel, *, temperature: float) -> None:
        super().__init__()
        self.lm, self.temperature = lm, temperature

    def forward(self, batch: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        return compute_logps(self.lm, read(self.lm, batch), batch, temperature=self.temperature)


def compute_logps(
    lm: PreTrainedModel,
    states: HiddenStates,
    batch: Mapping[str, Any],
    *,
    temperature: float,
    has_entropy_gradient: bool = False,
) -> dict[str, torch.Tensor]:
    """Return `logp` and `entropy`, float32 [B, T], of the tokens under the mask; see `LLMModule._forward`."""
    tokens_BT, mask_BT = batch["tokens"], batch["mask"]
    row_N, column_N = mask_BT[:, 1:].nonzero(as_tuple=True)  # the hidden state at t predicts the token at t + 1
    logp_N, entropy_N = sampled_logps(
        states(row_N, column_N),
        tokens_BT[row_N, column_N + 1],
        _head(lm),
        temperature=temperature,
        chunk_tokens=tokens_per_chunk(lm.config.get_text_config().vocab_size),
        num_chunks=batch.get("num_chunks", 1),
        has_entropy_gradient=has_entropy_gradient,
    )
    zero_BT = torch.zeros(tokens_BT.shape, dtype=torch.float32, device=tokens_BT.device)
    return {
        "logp": zero_BT.index_put((row_N, column_N + 1), logp_N),
        "entropy": zero_BT.index_put((row_N, column_N + 1), entropy_N),
    }


def sampled_logps(
    hidden_NH: torch.Tensor,
    target_N: torch.Tensor,
    head: Callable[[torch.Tensor], torch.Tensor],
    *,
    temperature: float,
    chunk_tokens: int,
    num_chunks: int = 1,
    has_entropy_gradient: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return each target's log-probability and the entropy of the distribution it was drawn from.

    The head is recomputed in the backward pass, so at most `chunk_tokens` rows of logits are alive.

    Args:
        hidden_NH: hidden state that predicts each target.
        target_N: int64, the sampled tokens.
        head: hidden states to logits, `[n, H] -> [n, V]`.
        temperature: what the sampler divided the logits by; 0 (greedy) counts as 1.
        chunk_tokens: rows of logits that are alive at once, see `tokens_per_chunk`.
        num_chunks: call the head at least so often, with nothing if need be: under ZeRO-3 every call gathers weights
            from all ranks, so all must make the same number.
        has_entropy_gradient: whether the loss uses the entropy. If it did not, what the backward pass recomputes for it
            would never be consumed, and stay alive to the end.

    Returns:
        (logp_N, entropy_N), float32.
    """
    logps, entropies = [], []
    for k in range(max(num_chunks, count_chunks(len(target_N), chunk_tokens))):
        part = slice(k * chunk_tokens, (k + 1) * chunk_tokens)
        logp, entropy = checkpoint(
            _chunk,
            hidden_NH[part],
            target_N[part],
            head,
            temperature or 1.0,
            has_entropy_gradient,
            use_reentrant=False,
            preserve_rng_state=False,
        )
        logps.append(logp)
        entropies.append(entropy)
    return torch.cat(logps), torch.cat(entropies)


def compute_divergences(
    lm: PreTrainedModel,
    states: HiddenStates,
    batch: Mapping[str, Any],
    other: tuple[PreTrainedModel, HiddenStates],
    divergence: Divergence,
    *,
    temperature: float,
) -> torch.Tensor:
    """Return float32 [B, T]: how far a model's next-token distributions are from another's, at the masked tokens.

    Args:
        other: a frozen model that has read the same batch.
        divergence: (log-probabilities, those of the other) -> the divergence of each row, [n, V] -> [n].
    """
    tokens_BT, mask_BT = batch["tokens"], batch["mask"]
    row_N, column_N = mask_BT[:, 1:].nonzero(as_tuple=True)
    other_lm, other_states = other
    hidden_NH, other_NH = states(row_N, column_N), other_states(row_N, column_N)
    head, other_head, temperature = _head(lm), _head(other_lm), temperature or 1.0
    vocab_size = min(model.config.get_text_config().vocab_size for model in (lm, other_lm))  # rows of padding differ

    def chunk(part: slice) -> torch.Tensor:
        logps = [
            torch.log_softmax(of(hidden[part]).float()[:, :vocab_size] / temperature, -1)
            for of, hidden in ((head, hidden_NH), (other_head, other_NH))
        ]
        return divergence(logps[0], logps[1].detach())

    size = tokens_per_chunk(vocab_size)
    num_chunks = max(batch.get("num_chunks", 1), count_chunks(len(row_N), size))  # as `sampled_logps`, on every rank
    parts = [slice(k * size, (k + 1) * size) for k in range(num_chunks)]
    found = [checkpoint(chunk, part, use_reentrant=False, preserve_rng_state=False) for part in parts]
    zero_BT = torch.zeros(tokens_BT.shape, dtype=torch.float32, device=tokens_BT.device)
    return zero_BT.index_put((row_N, column_N + 1), torch.cat(found))


def tokens_per_chunk(vocab_size: int) -> int:
    """Return how many tokens' logits are computed at once."""
    return max(1, CHUNK_LOGITS // vocab_size)


def count_chunks(num_tokens: int, chunk_tokens: int) -> int:
    """Return how many chunks `num_tokens` sampled tokens make; at least one, so that every backward pass has a head."""
    return max(1, -(-num_tokens // chunk_tokens))


def _chunk(
    hidden_NH: torch.Tensor,
    target_N: torch.Tensor,
    head: Callable[[torch.Tensor], torch.Tensor],
    temperature: float,
    has_entropy_gradient: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    logits_NV = head(hidden_NH).float()
    all_logp_NV = torch.log_softmax(logits_NV if temperature == 1.0 else logits_NV / temperature, -1)
    logp_N = all_logp_NV.gather(-1, target_N[:, None])[:, 0]
    with torch.set_grad_enabled(has_entropy_gradient and torch.is_grad_enabled()):
        entropy_N = -(all_logp_NV.exp() * all_logp_NV).sum(-1)
    return logp_N, entropy_N


def _head(lm: PreTrainedModel) -> Callable[[torch.Tensor], torch.Tensor]:
    output, config = lm.get_output_embeddings(), lm.config.get_text_config()
    softcap = getattr(config, "final_logit_softcapping", None)
    # Cohere multiplies logits, Granite divides them.
    scale = getattr(config, "logit_scale", None) or 1.0 / (getattr(config, "logits_scaling", None) or 1.0)

    def head(hidden: torch.Tensor) -> torch.Tensor:
        logits = output(hidden.to(output.weight.dtype))  # Mamba's hidden states are float32, whatever its weights are
        if scale != 1.0:
            logits = logits * scale
        return torch.tanh(logits / softcap) * softcap if softcap else logits

    return head


@torch.no_grad()
def check_repeats(lm: PreTrainedModel) -> None:
    """Make sure that the model says the same of the same tokens twice, also in the mode in which it is trained."""
    tokens = (torch.arange(32) % lm.config.get_text_config().vocab_size)[None].to(lm.device)
    one, two = (lm.base_model(input_ids=tokens, use_cache=False).last_hidden_state for _ in range(2))
    if not torch.allclose(one, two, rtol=1e-3, atol=1e-3):
        raise ConfigError(
            f"LLMModule: a policy must draw nothing in its forward passes; got {type(lm).__name__}, in which dropout "
            "stays on. Set its rates to 0 in config.json, or gradient_checkpointing: false."
        )


@torch.no_grad()
def check_head(lm: PreTrainedModel) -> None:
    """Make sure that hidden states through the output embedding are this model's logits."""
    tokens = torch.arange(4)[None] % lm.config.get_text_config().vocab_size
    mask = torch.ones_like(tokens, dtype=torch.bool)
    was_training = lm.training
    lm.eval()
    batch = {"tokens": tokens, "mask": mask}
    ours = compute_logps(lm, read(lm, batch), batch, temperature=1.0)["logp"][:, 1:]
    logits = lm(input_ids=tokens, use_cache=False).logits[:, :-1].float()
    theirs = torch.log_softmax(logits, -1).gather(-1, tokens[:, 1:, None])[..., 0]
    lm.train(was_training)
    if not theirs.isfinite().all():
        raise ConfigError(
            f"LLMModule: a model's log-probabilities must be finite; got {theirs.min().item()} from "
            f"{type(lm).__name__} in {lm.dtype}. A weight is no number, or too large for this dtype: choose another "
            "dtype or base_model."
        )
    difference = (ours - theirs).abs().max().item()
    if not difference < (1e-3 if lm.dtype == torch.float32 else 0.5):
        raise ConfigError(
            f"LLMModule: {type(lm).__name__} does not compute its logits as output_embeddings(hidden states), which "
            f"training relies on; log-probabilities differ by {difference:.2g}. Choose another base_model."
        )
