"""Critics: a value head on a backbone of its own, or on the policy's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import torch

from rllm_gym.learner.logps import HiddenStates, read
from rllm_gym.learner.rl_module import LanguageModule, LLMModule, load_language_model
from rllm_gym.models import resolve_base_model

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class CriticModule(LanguageModule):
    """A language model without its head, and a value head; only learners have it, and samplers never get it.

    `model_config` keys: those of `LanguageModule`. A LoRA adapter is the backbone's; the value head trains in whole.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{**kwargs, "learner_only": True})  # Ray 2.60's RLModuleSpec.build() forgets to pass it

    def setup(self) -> None:
        super().setup()
        self.value_head = make_value_head(self.bare_lm)

    def load(self, base_model: str, dtype: str) -> PreTrainedModel:
        trusts = self.model_config.get("trust_remote_code", False)
        return cast("PreTrainedModel", load_language_model(base_model, dtype, trust_remote_code=trusts).base_model)

    def _forward(self, batch: Mapping[str, Any], **kwargs: Any) -> dict[str, torch.Tensor]:
        """Return the values.

        Args:
            batch: as `LLMModule` has it, and `lengths` int64 [B].

        Returns:
            `value` and `final_value`, see `compute_values`.
        """
        return compute_values(self.value_head, read(self.bare_lm, batch), batch)

    _forward_train = _forward  # without the no_grad of RLlib's inference passes

    def inference_state(self) -> dict[str, torch.Tensor]:
        return {}


class CentralisedCriticModule(CriticModule):
    """One critic for all policies, with samples of its own: what all agents of an episode have read and written."""

    @property
    def has_samples(self) -> bool:
        return True


class ActorCriticModule(LLMModule):
    """A policy with a value head on its own backbone; the head is neither synced to the samplers nor exported.

    `forward_train` gives `value` and `final_value` beside the policy's outputs.
    """

    # Set by the learner while only the value head is to learn.
    detaches_value: bool = False

    def setup(self) -> None:
        super().setup()
        self.value_head = make_value_head(self.bare_lm)

    def _outputs(self, states: HiddenStates, batch: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        def value_states(row_N: torch.Tensor, column_N: torch.Tensor) -> torch.Tensor:
            hidden_NH = states(row_N, column_N)
            return hidden_NH.detach() if self.detaches_value else hidden_NH

        # Where only values are wanted, no logits are computed.
        inputs = {**batch, "mask": torch.zeros_like(batch["mask"])} if batch.get("only_values") else batch
        return super()._outputs(states, inputs) | compute_values(self.value_head, value_states, batch)


def max_positions(base_model: str, *, trust_remote_code: bool = False) -> float:
    """Return how many tokens a model reads at most; infinity where it does not say."""
    from transformers import AutoConfig

    model = str(resolve_base_model(base_model))
    config = AutoConfig.from_pretrained(model, trust_remote_code=trust_remote_code).get_text_config()
    return getattr(config, "max_position_embeddings", None) or float("inf")


def make_value_head(lm: PreTrainedModel) -> torch.nn.Linear:
    """Return a linear map from hidden states to values, all 0 at first, so that every learner begins alike."""
    head = torch.nn.Linear(lm.config.get_text_config().hidden_size, 1, dtype=lm.dtype)
    torch.nn.init.zeros_(head.weight)
    torch.nn.init.zeros_(head.bias)
    return head


def compute_values(head: torch.nn.Linear, states: HiddenStates, batch: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Return the values of what the policy saw.

    Returns:
        `value` float32 [B, T]: of the text before each sampled token, 0 elsewhere; `final_value` float32 [B]: of the
        whole text.
    """
    mask_BT, length_B = batch["mask"], batch["lengths"]
    row_N, column_N = mask_BT[:, 1:].nonzero(as_tuple=True)
    row_B = torch.arange(len(length_B), device=mask_BT.device)
    hidden_MH = states(torch.cat([row_N, row_B]), torch.cat([column_N, length_B.to(row_B.device) - 1]))
    value_M = head(hidden_MH).float()[:, 0]
    zero_BT = torch.zeros(mask_BT.shape, dtype=torch.float32, device=mask_BT.device)
    return {
        "value": zero_BT.index_put((row_N, column_N + 1), value_M[: len(row_N)]),
        "final_value": value_M[len(row_N) :],
    }
