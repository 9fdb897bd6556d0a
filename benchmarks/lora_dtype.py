"""Measures how much of a LoRA update reaches a model's log-probabilities in 16 bits, by the way in which it is added.

    python benchmarks/lora_dtype.py [--model tiny] [--tokens 20000]

Prints, by the size of the update (rms of B A to that of the weight), the slope of the effect on log-probabilities
against the effect in float32: 1 is all of it. The base weights are those of bfloat16 in all ways.
"""

from __future__ import annotations

import argparse
import copy
import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model

from rllm_gym.learner.rl_module import load_language_model
from rllm_gym.models import resolve_base_model

RANK, LENGTH = 8, 200
SIZES = (1e-4, 1e-3, 1e-2)
Adapter = dict[str, tuple[torch.Tensor, torch.Tensor]]  # by layer, A and B


def linear_layers(lm: Any) -> Iterator[tuple[str, torch.nn.Linear]]:
    head = lm.get_output_embeddings()
    return ((n, layer) for n, layer in lm.named_modules() if isinstance(layer, torch.nn.Linear) and layer is not head)


def make_adapter(lm: Any, size: float) -> Adapter:
    generator = torch.Generator().manual_seed(0)
    adapter = {}
    for name, layer in linear_layers(lm):
        a = torch.randn(RANK, layer.in_features, generator=generator)
        b = torch.randn(layer.out_features, RANK, generator=generator)
        scale = size * layer.weight.float().square().mean().sqrt() / (b @ a).square().mean().sqrt()
        adapter[name] = (a, b * scale)
    return adapter


def merged(lm: Any, adapter: Adapter) -> Any:
    """The samplers' weights: W + B A, rounded as W is."""
    for name, layer in linear_layers(lm):
        a, b = adapter[name]
        layer.weight.data = (layer.weight.float() + b @ a).to(layer.weight.dtype)
    return lm


def adapted(lm: Any, adapter: Adapter) -> Any:
    """The learner's layer: peft's float32 factors, their product added to the layer's rounded output."""
    names = [name for name, _ in linear_layers(lm)]
    peft = get_peft_model(lm, LoraConfig(r=RANK, lora_alpha=RANK, target_modules=names))
    for name, layer in peft.get_base_model().named_modules():
        if name in adapter:
            layer.lora_A["default"].weight.data, layer.lora_B["default"].weight.data = adapter[name]
    return peft.get_base_model()


def under_autocast(lm: Any, adapter: Adapter) -> Any:
    """The learner's layer under `torch_autocast`: float32 weights and factors, each product rounded to bfloat16."""
    lm = adapted(lm, adapter)
    lm.base_model.forward = torch.autocast("cpu", torch.bfloat16)(lm.base_model.forward)
    return lm


def with_float32_outputs(lm: Any, adapter: Adapter) -> Any:
    """Layers multiply in their own dtype, and their output, the adapter's product added, goes on in float32."""
    for name, layer in linear_layers(lm):
        a, b = adapter[name]

        def forward(x: torch.Tensor, layer: Any = layer, a: torch.Tensor = a, b: torch.Tensor = b) -> torch.Tensor:
            product = torch.nn.functional.linear(x.to(layer.weight.dtype), layer.weight, layer.bias).float()
            return product + (x.float() @ a.T) @ b.T

        layer.forward = forward  # type: ignore[method-assign]
    return lm


@torch.inference_mode()
def logps(lm: Any, tokens: torch.Tensor) -> torch.Tensor:
    head = lm.get_output_embeddings().weight.float()
    found = []
    for part in tokens.split(10):
        hidden = lm.base_model(input_ids=part, use_cache=False).last_hidden_state
        logp = (hidden[:, :-1].float() @ head.T).log_softmax(-1)
        found.append(logp.gather(-1, part[:, 1:, None]).flatten())
    return torch.cat(found).double()


class VLLM:
    """vLLM in bfloat16 with adapters of its own, read from files: a product of 16 bits added to a layer's output."""

    def __init__(self, model: str) -> None:
        from vllm import LLM

        self._llm = LLM(
            str(resolve_base_model(model)),
            dtype="bfloat16",
            enable_lora=True,
            max_lora_rank=RANK,
            max_model_len=LENGTH + 56,
            enforce_eager=True,
            kv_cache_memory_bytes=2**27,
            enable_prefix_caching=False,
            skip_tokenizer_init=True,
        )
        self._num_loaded = 0

    def logps(self, adapter: Adapter, tokens: torch.Tensor) -> torch.Tensor:
        from vllm import SamplingParams

        params = SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=0, detokenize=False)
        prompts = [{"prompt_token_ids": row.tolist()} for row in tokens]
        with tempfile.TemporaryDirectory() as folder:
            outputs = self._llm.generate(
                prompts, params, lora_request=self._write(adapter, Path(folder)), use_tqdm=False
            )
        return torch.tensor(
            [
                output.prompt_logprobs[k][output.prompt_token_ids[k]].logprob
                for output in outputs
                for k in range(1, LENGTH)
            ]
        ).double()

    def _write(self, adapter: Adapter, folder: Path) -> Any:
        from safetensors.torch import save_file
        from vllm.lora.request import LoRARequest

        factors = {
            f"base_model.model.{name}.lora_{letter}.weight": factor.contiguous()
            for name, pair in adapter.items()
            for letter, factor in zip("AB", pair, strict=True)
        }
        save_file(factors, folder / "adapter_model.safetensors")
        targets = sorted({name.rpartition(".")[2] for name in adapter})
        config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": RANK, "lora_alpha": RANK}
        (folder / "adapter_config.json").write_text(json.dumps({**config, "target_modules": targets, "bias": "none"}))
        self._num_loaded += 1
        return LoRARequest(f"adapter-{self._num_loaded}", self._num_loaded, str(folder))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--tokens", type=int, default=20_000)
    asked = parser.parse_args()
    base = load_language_model(asked.model, "bfloat16").eval()
    exact = copy.deepcopy(base).float()
    shape = (asked.tokens // LENGTH, LENGTH)
    tokens = torch.randint(0, base.config.vocab_size, shape, generator=torch.Generator().manual_seed(1))
    ways: dict[str, tuple[Any, Callable[[Any, Adapter], Any]]] = {
        "merged into bfloat16": (base, merged),
        "peft's forward, bfloat16": (base, adapted),
        "peft's forward, bfloat16 autocast": (exact, under_autocast),
        "bfloat16 products, float32 outputs": (base, with_float32_outputs),
        "merged into float32": (exact, merged),
    }
    vllm = VLLM(asked.model)
    for size in SIZES:
        adapter, none = make_adapter(base, size), make_adapter(base, 0.0)
        effect = logps(merged(copy.deepcopy(exact), adapter), tokens) - logps(exact, tokens)
        for name, (lm, add) in ways.items():
            found = logps(add(copy.deepcopy(lm), adapter), tokens) - logps(add(copy.deepcopy(lm), none), tokens)
            show(size, name, found, effect)
        show(size, "vLLM's own adapters, bfloat16", vllm.logps(adapter, tokens) - vllm.logps(none, tokens), effect)


def show(size: float, name: str, found: torch.Tensor, effect: torch.Tensor) -> None:
    slope = float((found @ effect) / (effect @ effect))
    noise = float((found - slope * effect).square().mean().sqrt() / effect.square().mean().sqrt())
    print(f"{size:g} {name:36s} slope {slope:5.2f}, noise {noise:6.2f} of the effect", flush=True)


if __name__ == "__main__":
    main()
