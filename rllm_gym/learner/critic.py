"""Critics: a value head on a backbone of its own, or on the policy's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from transformers import PreTrainedModel

from rllm_gym.learner.rl_module import LanguageModule, LLMModule, last_hidden_state, load_language_model


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
        return load_language_model(base_model, dtype).base_model

    def _forward(self, batch: Mapping[str, torch.Tensor], **kwargs: Any) -> dict[str, torch.Tensor]:
        """Return the values.

        Args:
            batch: `tokens` int64 [B, T], padded on the right.

        Returns:
            `next_value` float32 [B, T], see `next_value`.
        """
        return {"next_value": next_value(self.value_head, last_hidden_state(self.bare_lm, batch["tokens"]))}

    _forward_train = _forward  # without the no_grad of RLlib's inference passes

    def inference_state(self) -> dict[str, torch.Tensor]:
        return {}


class ActorCriticModule(LLMModule):
    """A policy with a value head on its own backbone; the head is neither synced to the samplers nor exported.

    `forward_train` gives `next_value` beside the policy's outputs.
    """

    # Set by the learner while only the value head is to learn.
    detaches_value: bool = False

    def setup(self) -> None:
        super().setup()
        self.value_head = make_value_head(self.bare_lm)

    def _outputs(self, hidden_BTH: torch.Tensor, batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        value_hidden_BTH = hidden_BTH.detach() if self.detaches_value else hidden_BTH
        value = {"next_value": next_value(self.value_head, value_hidden_BTH)}
        return super()._outputs(hidden_BTH, batch) | value


def make_value_head(lm: PreTrainedModel) -> torch.nn.Linear:
    """Return a linear map from hidden states to values, all 0 at first, so that every learner begins alike."""
    head = torch.nn.Linear(lm.config.get_text_config().hidden_size, 1, dtype=lm.dtype)
    torch.nn.init.zeros_(head.weight)
    torch.nn.init.zeros_(head.bias)
    return head


def next_value(head: torch.nn.Linear, hidden_BTH: torch.Tensor) -> torch.Tensor:
    """Return float32 [B, T]: the value of the text up to and including each token."""
    return head(hidden_BTH).float()[..., 0]


def value_before(next_value_BT: torch.Tensor) -> torch.Tensor:
    """Return float32 [B, T]: the value of the text before each token, which the policy saw; 0 at the first."""
    return torch.nn.functional.pad(next_value_BT[:, :-1], (1, 0))


def value_at_the_end(next_value_BT: torch.Tensor, length_B: torch.Tensor) -> torch.Tensor:
    """Return float32 [B]: the value of the whole text."""
    return next_value_BT.gather(1, length_B[:, None].to(next_value_BT.device) - 1)[:, 0]
