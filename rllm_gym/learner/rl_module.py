"""RLlib RLModules over a Hugging Face causal language model: the policy, and what it shares with a critic."""

from __future__ import annotations

import copy
import hashlib
import re
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from ray.rllib.core.rl_module.torch import TorchRLModule

from rllm_gym.causal_lm import load_causal_lm
from rllm_gym.errors import ConfigError
from rllm_gym.importing import leave_out_scipy
from rllm_gym.learner.block_attention import attend_by_blocks
from rllm_gym.learner.logps import HiddenStates, check_head, check_repeats, compute_divergences, compute_logps, read
from rllm_gym.learner.recomputation import recompute_activations
from rllm_gym.models import choose_attention, resolve_base_model
from rllm_gym.rotary import fix_rotary_frequencies
from rllm_gym.weights.format import LORA_A, LORA_B, arrays_to_send

if TYPE_CHECKING:
    from transformers import PreTrainedModel

State = dict[str, Any]
BASE_HASH = "base_model_sha256"  # in a state of adapters: of the weights that they belong to, see `_hash_of`


def load_language_model(base_model: str, dtype: str, *, trust_remote_code: bool = False) -> PreTrainedModel:
    """Load a causal language model; `base_model` is what `rllm_gym.models.resolve_base_model` takes.

    Its rotary frequencies are those of the longest sequences; see `fix_rotary_frequencies` for shorter ones.
    """
    leave_out_scipy()
    from transformers import AutoConfig  # takes seconds, see libraries.py

    model = str(resolve_base_model(base_model))
    attention = choose_attention(AutoConfig.from_pretrained(model, trust_remote_code=trust_remote_code))
    lm: PreTrainedModel = load_causal_lm(
        model,
        dtype=getattr(torch, dtype),
        attn_implementation=attention,
        trust_remote_code=trust_remote_code,  # False, too, keeps transformers from asking on standard input
    )
    lm.config.use_cache = False
    fix_rotary_frequencies(lm)
    attend_by_blocks(lm)
    return lm


class LanguageModule(TorchRLModule):
    """The base of policies and critics: a language model `lm`, perhaps with LoRA, and its weights under ZeRO.

    `model_config` keys: `base_model`, `dtype`, `gradient_checkpointing`, `lora`, `max_model_len`,
    `trust_remote_code`.
    """

    # Set by the learner where DeepSpeed holds the weights in shards (ZeRO-3): a context in which they are whole.
    gather_parameters: Callable[..., AbstractContextManager] | None = None
    _gathered: State | None = None

    def setup(self) -> None:
        settings = self.model_config
        self.lm = self.load(settings["base_model"], settings["dtype"])
        fix_rotary_frequencies(self.lm, settings.get("max_model_len"))
        if settings["lora"] is not None:
            self._base_hash = _hash_of(self.lm)
            self.lm = _add_lora(self.lm, settings["lora"])
        _disable_dropout(self.lm)
        if settings["gradient_checkpointing"]:
            recompute_activations(self.lm, is_selective=settings["gradient_checkpointing"] == "selective")
        self.train()
        check_repeats(self.bare_lm)

    def load(self, base_model: str, dtype: str) -> PreTrainedModel:
        """Return the model that `lm` is, without an adapter."""
        raise NotImplementedError

    def train(self, mode: bool = True) -> Any:
        """Let the language model evaluate, also where it is trained: nothing may be drawn that was not sampled from.

        Dropout, dropped layers and a router's jitter are all off. Layers that recompute ask whether they train.
        """
        super().train(mode)
        self.lm.eval()
        for layer in self.lm.modules() if self.model_config["gradient_checkpointing"] else ():
            if hasattr(layer, "gradient_checkpointing"):
                layer.training = mode
        return self

    @property
    def has_samples(self) -> bool:
        """Whether samples are made for it; a policy's own critic goes along with the policy's."""
        return not self.learner_only

    @property
    def bare_lm(self) -> PreTrainedModel:
        """The model without peft's wrapper; adapters stay in its layers."""
        return self.lm if self.model_config["lora"] is None else cast(Any, self.lm).get_base_model()

    def merge_adapter(self) -> PreTrainedModel:
        """Return the model with its adapter, where it has one, added into its weights; this module is spent then."""
        return self.lm if self.model_config["lora"] is None else cast(Any, self.lm).merge_and_unload()

    # --- weights ---

    def get_state(
        self,
        components: str | Collection[str] | None = None,
        *,
        not_components: str | Collection[str] | None = None,
        inference_only: bool = False,
        **kwargs: Any,
    ) -> State:
        """Return the weights: copies, as this module names them, or (`inference_only`) what the samplers get.

        Of LoRA they are the adapter's, with a hash of the base model's. What the samplers get is not copied, for it is
        to be sent: an update changes it. Who keeps it copies it.
        """
        if self.gather_parameters is None:
            return arrays_to_send(self.inference_state()) if inference_only else self._own_state()
        if self._gathered is None:
            raise RuntimeError(
                f"{type(self).__name__}: under ZeRO-3 only the first learner keeps whole weights. Ask learner 0."
            )
        return dict(self._gathered["inference" if inference_only else "full"])

    def set_state(self, state: State) -> None:
        """Load what `get_state` returned; a state of LoRA that has the base model's weights, too, loads them.

        Raises:
            ConfigError: an adapter belongs to other weights than those of `base_model`.
            RuntimeError: the names are not this module's.
        """
        tensors = {name: torch.as_tensor(value) for name, value in state.items()}
        kept: State = {}  # the weights that stay as they are
        if (base_hash := tensors.pop(BASE_HASH, None)) is not None and self.model_config["lora"] is not None:
            self._check_base(base_hash)
            trained = self._trained()
            kept = {name: value for name, value in self.state_dict().items() if name not in trained}
        if self.gather_parameters is None:
            self.load_state_dict({**kept, **tensors})
            return
        with self.gather_parameters(list(self.parameters()), modifier_rank=0), torch.no_grad():
            for name, parameter in self.state_dict(keep_vars=True).items():
                if name not in kept:
                    parameter.data.copy_(tensors[name])
        self.gather(keep=self._gathered is not None)

    def _check_base(self, base_hash: torch.Tensor) -> None:
        if len(base_hash) and len(self._base_hash) and base_hash.tolist() != self._base_hash.tolist():
            raise ConfigError(
                "base_model: must have the weights that the checkpoint's adapter was trained on; those of "
                f"{str(self.model_config['base_model'])!r} are others. Name the model that has them."
            )

    def _trained(self) -> dict[str, torch.nn.Parameter]:
        return {name: parameter for name, parameter in self.named_parameters() if parameter.requires_grad}

    def _own_state(self) -> State:
        if self.model_config["lora"] is None:
            return _to_arrays(self.state_dict())
        return {**_to_arrays(self._trained()), BASE_HASH: self._base_hash}

    def gather(self, *, keep: bool) -> None:
        """Collect whole weights from all ranks (collective, ZeRO-3 only), and keep them on this one if asked.

        RLlib asks learner 0 alone for its state; a collective operation there would wait for the others for ever.
        """
        assert self.gather_parameters is not None
        with self.gather_parameters(list(self.parameters())):
            if keep:
                self._gathered = {
                    "full": self._own_state(),
                    "inference": copy.deepcopy(arrays_to_send(self.inference_state())),
                }

    # --- what the learner watches ---

    def gradient_norm(self) -> float | None:
        """Return the norm of the gradient, None where the parameters hold none: a 16-bit optimizer keeps it."""
        gradients = [parameter.grad for parameter in self.parameters() if parameter.grad is not None]
        if not gradients:
            return None
        return float(torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g.float()) for g in gradients])))

    def is_finite(self) -> bool:
        """Return whether all weights are, of sharded ones those of this rank."""
        return all(bool(torch.isfinite(getattr(p, "ds_tensor", p)).all()) for p in self.parameters())

    def inference_state(self) -> dict[str, torch.Tensor]:
        """Return the weights that the samplers get."""
        raise NotImplementedError


class LLMModule(LanguageModule):
    """A language model as a policy over token sequences.

    `forward_train` gives the log-probabilities of the sampled tokens; sampling itself is done by an engine in the
    EnvRunner, which gets its weights from `get_state(inference_only=True)`: see `inference_state`.

    `model_config` keys: those of `LanguageModule`, `temperature`, `has_entropy_gradient`.
    """

    def load(self, base_model: str, dtype: str) -> PreTrainedModel:
        trusts = self.model_config.get("trust_remote_code", False)
        lm = load_language_model(base_model, dtype, trust_remote_code=trusts)
        check_head(lm)
        return lm

    def _forward(self, batch: Mapping[str, Any], **kwargs: Any) -> dict[str, torch.Tensor]:
        """Return the sampled tokens' log-probabilities.

        Args:
            batch: `tokens` int64 [B, T], padded on the right; `mask` bool [B, T], True at sampled tokens; `num_chunks`
                and `packing` optional, see `sampled_logps` and `rllm_gym.learner.packing.Packing`; `compared_with`
                optional, a frozen model and a divergence from it, see `compute_divergences`.

        Returns:
            `logp` and `entropy`, float32 [B, T], aligned with `tokens`: 0 where the mask is False; and `divergence`
            where it is asked for.
        """
        states = read(self.bare_lm, batch)
        out = self._outputs(states, batch)
        if compared_with := batch.get("compared_with"):
            other, divergence = compared_with
            with torch.no_grad():
                other_states = read(other, batch)
            temperature = float(self.model_config["temperature"])
            out["divergence"] = compute_divergences(
                self.bare_lm, states, batch, (other, other_states), divergence, temperature=temperature
            )
        return out

    _forward_train = _forward  # without the no_grad of RLlib's inference passes

    def _outputs(self, states: HiddenStates, batch: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        settings = self.model_config
        return compute_logps(
            self.bare_lm,
            states,
            batch,
            temperature=float(settings["temperature"]),
            has_entropy_gradient=settings["has_entropy_gradient"],
        )

    def inference_state(self) -> dict[str, torch.Tensor]:
        """Return Hugging Face names to tensors: all weights, or with LoRA the adapter's (`format.LORA_A`)."""
        if self.model_config["lora"] is None:
            return self.bare_lm.state_dict()
        state = {}
        for name, layer in self.bare_lm.named_modules():
            for adapter in getattr(layer, "lora_A", ()):
                a, b = layer.lora_A[adapter].weight, layer.lora_B[adapter].weight * layer.scaling[adapter]
                if layer.fan_in_fan_out:  # the weight is stored transposed
                    a, b = b.T, a.T
                state[f"{name}.weight{LORA_A}"], state[f"{name}.weight{LORA_B}"] = a, b
        return state


def _disable_dropout(lm: PreTrainedModel) -> None:
    """Set every rate of dropout to 0: a layer that recomputes is in training mode, and may draw by itself."""
    for module in lm.modules():
        for name, value in vars(module).items():
            is_rate = "drop" in name or (name == "p" and isinstance(module, torch.nn.modules.dropout._DropoutNd))
            if is_rate and isinstance(value, float):
                setattr(module, name, 0.0)


def _add_lora(lm: PreTrainedModel, settings: Mapping[str, Any]) -> Any:
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError as error:
        raise ConfigError('LLMModule: lora needs the peft package: pip install "rllm-gym[lora]".') from error
    # A backbone without its language-model head has nothing to generate with.
    task_type = "CAUSAL_LM" if lm.get_output_embeddings() is not None else "FEATURE_EXTRACTION"
    # By their names: of "all-linear" peft makes experts, too, which are no linear layers. A policy has no dropout.
    settings = {"target_modules": _linear_layers(lm), "task_type": task_type, **settings, "lora_dropout": 0.0}
    adapted = get_peft_model(lm, LoraConfig(**settings))
    if experts := [name for name, layer in adapted.named_modules() if hasattr(layer, "parameter_name")]:
        raise ConfigError(
            f"LLMModule: of lora only the factors of linear layers reach the samplers; got {experts[0]!r}, a "
            "parameter of experts. Leave target_parameters out; set target_modules: [q_proj, k_proj, v_proj, o_proj]."
        )
    for name, parameter in adapted.named_parameters():
        if parameter.requires_grad and not re.search(r"\.lora_[AB]\.\w+\.weight$", name):
            raise ConfigError(
                f"LLMModule: of lora only the factors of linear layers reach the samplers; got {name!r} to train, too. "
                "Leave out what asks for it: modules_to_save, bias, use_dora, embeddings as target_modules."
            )
    return adapted


def _linear_layers(lm: PreTrainedModel) -> list[str]:
    """Return the names of what peft calls all linear layers: those before the head.

    Beside experts, peft 0.21 takes what has these names in a dense layer, or in an expert that all tokens share, for
    the experts' own parameters, of which it makes adapters.
    """
    from transformers.pytorch_utils import Conv1D

    head = lm.get_output_embeddings()
    has_experts = any(".experts." in name and weight.ndim == 3 for name, weight in lm.named_parameters())
    as_experts = ("gate_proj", "up_proj", "down_proj") if has_experts else ()
    return [
        name
        for name, layer in lm.named_modules()
        if isinstance(layer, (torch.nn.Linear, Conv1D)) and layer is not head and not name.endswith(as_experts)
    ]


def _hash_of(lm: PreTrainedModel) -> np.ndarray:
    """Return a hash of a thousand values of each weight in bfloat16, the same of a model in float32: uint8 [32].

    Of one in float16, whose values are rounded otherwise, it is empty.
    """
    found = hashlib.sha256()
    for name, weight in lm.named_parameters():
        if weight.dtype == torch.float16:
            return np.zeros(0, np.uint8)
        found.update(f"{name} {tuple(weight.shape)}".encode())
        found.update(weight.detach().flatten()[:1000].bfloat16().cpu().view(torch.int16).numpy().tobytes())
    return np.frombuffer(found.digest(), np.uint8).copy()  # writable, as tensors want it


def _to_arrays(state: Mapping[str, torch.Tensor]) -> State:
    """Tensors to numpy copies; bfloat16, which numpy has not, stays a CPU tensor."""
    return {name: _to_array(value.detach()) for name, value in state.items()}


def _to_array(value: torch.Tensor) -> np.ndarray | torch.Tensor:
    value = value.cpu().clone()
    return value if value.dtype == torch.bfloat16 else value.numpy()
