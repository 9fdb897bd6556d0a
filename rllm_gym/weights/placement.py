"""Where a model's weights lie in an engine of vLLM's: found once, so that new ones are copied straight to their places.

vLLM reads weights as a checkpoint has them: each time it renames them, fuses some into one parameter, allocates every
layer anew and copies it over the old one. A `WeightPlan` remembers which rows of which parameter a weight becomes. On a
CPU vLLM multiplies with a repacked copy of a layer's weight, which it makes anew in any case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch


class NoPlaceError(Exception):
    """A weight has no place that could be told from the names and shapes; the message says which."""


@dataclass(frozen=True)
class _Place:
    """One parameter of a layer, and the weights that are its rows, from above; none where another name wrote them."""

    layer: Any
    name: str
    weights: tuple[str, ...]
    is_repacked: bool

    def load(self, weights: Mapping[str, torch.Tensor]) -> None:
        parameter = getattr(self.layer, self.name)
        parts = [weights[name] for name in self.weights]
        if _is_gone(parameter):
            whole = parts[0] if len(parts) == 1 else torch.cat(parts)
            setattr(self.layer, self.name, torch.nn.Parameter(whole.to(parameter.dtype), requires_grad=False))
        else:
            row = 0
            for part in parts:
                parameter.data[row : row + len(part)].copy_(part)
                row += len(part)
        if self.is_repacked:
            self.layer.cpu_linear = None  # its memory is what the new one takes
            self.layer.quant_method.process_weights_after_loading(self.layer)


class WeightPlan:
    """Copies weights by their Hugging Face names into the parameters of a model of vLLM's, in place.

    Args:
        model: vLLM's, on one device, not quantized.
        shapes: of all weights that will come, by name.

    Raises:
        NoPlaceError: a parameter's weights cannot be told, or a weight belongs to none.
    """

    def __init__(self, model: torch.nn.Module, shapes: Mapping[str, Sequence[int]]) -> None:
        first: dict[int, str] = {}
        self._tied = {}  # a weight to the one that it is, too
        for name, parameter in model.named_parameters(remove_duplicate=False):
            self._tied[_checkpoint_name(name)] = first.setdefault(id(parameter), _checkpoint_name(name))
        self._places = list(_places(model, shapes))
        if missing := set(shapes).difference(self._tied, *(place.weights for place in self._places)):
            raise NoPlaceError(f"the weight {min(missing)} is none of the engine's parameters")

    @torch.no_grad()
    def load(self, weights: Mapping[str, torch.Tensor]) -> None:
        for place in self._places:
            place.load(weights)

    def marked(self, weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return other weights, no two of which are the same, also where they were: biases of 0, norms of 1."""
        numbers = {name: k % 7 for k, name in enumerate(weights)}
        marked = {}
        for name, weight in weights.items():
            number = numbers[self._tied.get(name, name)]
            marked[name] = weight * (0.5 + number / 14) + (0.01 * (1 + number) if weight.ndim == 1 else 0.0)
        return marked


def _places(model: torch.nn.Module, shapes: Mapping[str, Sequence[int]]) -> Iterator[_Place]:
    fused: Mapping[str, Sequence[str]] = getattr(model, "packed_modules_mapping", {})
    head = getattr(model, "lm_head", None)
    seen: set[int] = set()
    for full_name, parameter in model.named_parameters(remove_duplicate=False):
        layer_name, _, name = full_name.rpartition(".")
        layer = model.get_submodule(layer_name)
        # Nothing is multiplied with an embedding, though vLLM repacks it too.
        is_embedding = hasattr(layer, "org_vocab_size") and layer is not head
        is_repacked = name == "weight" and hasattr(layer, "cpu_linear") and not is_embedding
        if id(parameter) in seen:  # tied
            if is_repacked:
                yield _Place(layer, name, (), is_repacked)
            continue
        seen.add(id(parameter))
        weights = _weights_of(_checkpoint_name(full_name), fused, shapes)
        _check_shape(full_name, layer, parameter, [shapes[weight] for weight in weights])
        yield _Place(layer, name, weights, is_repacked)


def _weights_of(name: str, fused: Mapping[str, Sequence[str]], known: Mapping[str, Any]) -> tuple[str, ...]:
    if name in known:
        return (name,)
    *above, layer, end = name.split(".")
    parts = tuple(".".join([*above, part, end]) for part in fused.get(layer.rpartition(".")[2], ()))
    if not parts or any(part not in known for part in parts):
        raise NoPlaceError(f"the engine's parameter {name} is none of the model's weights, nor some of them fused")
    return parts


def _check_shape(name: str, layer: Any, parameter: torch.Tensor, shapes: Sequence[Sequence[int]]) -> None:
    size = getattr(layer, "output_size", 0), getattr(layer, "input_size", 0)
    rows, *others = size if _is_gone(parameter) else parameter.shape
    if len(shapes) == 1 and hasattr(layer, "org_vocab_size"):
        rows = layer.org_vocab_size  # below it are rows for tokens that there are not
    if sum(shape[0] for shape in shapes) != rows or any(list(shape[1:]) != others for shape in shapes):
        raise NoPlaceError(f"the engine's parameter {name} of shape {(rows, *others)} is not {shapes} together")


def _checkpoint_name(name: str) -> str:
    return name.replace(".base_layer.", ".")  # of a layer that can take adapters


def _is_gone(parameter: torch.Tensor) -> bool:
    """Return whether only the repacked copy of a linear layer's weight is left."""
    return parameter.numel() == 0


@torch.no_grad()
def left_as_they_were(model: torch.nn.Module, load: Callable[[], None]) -> list[str]:
    """Load, and return the names of the parameters of a model of vLLM's that this has left alone.

    They get back what they had; meanwhile there is nothing in any parameter that could pass for a weight.
    """
    before = {name: parameter.detach().cpu().clone() for name, parameter in model.named_parameters()}
    repacked = {name: layer.cpu_linear for name, layer in model.named_modules() if hasattr(layer, "cpu_linear")}
    for parameter in model.parameters():
        if parameter.is_floating_point():
            parameter.fill_(torch.nan)
    layers: dict[str, Any] = {name: model.get_submodule(name) for name in repacked}
    for layer in layers.values():
        layer.cpu_linear = None
    load()
    left = [name for name, of in model.named_parameters() if of.is_floating_point() and bool(of.isnan().any())]
    for name in left:
        model.get_parameter(name).copy_(before[name])
    for name, layer in layers.items():
        if layer.cpu_linear is None:
            layer.cpu_linear = repacked[name]
            left.append(f"{name}.weight")
    return sorted(dict.fromkeys(left))


class LostWeights:
    """The weights that vLLM's loading loses, since a model writes them past the loaders of its parameters (gpt-oss).

    Args:
        model: vLLM's.
        lost: its parameters that they belong to.
        names: of all weights, as files hold them.

    Attributes:
        names: of those that are lost.

    Raises:
        NoPlaceError: a parameter is of no weight.
    """

    def __init__(self, model: torch.nn.Module, lost: Sequence[str], names: list[str]) -> None:
        self._model, mapper = model, getattr(model, "hf_to_vllm_mapper", None)
        theirs = dict(zip(mapper.apply_list(names) if mapper else names, names, strict=True))
        self._places = {name: theirs.get(name.replace(".routed_experts.", "."), "") for name in lost}
        if missing := [name for name, of in self._places.items() if not of]:
            raise NoPlaceError(f"vLLM leaves its parameter {missing[0]} as it was")
        self.names = frozenset(self._places.values())

    @torch.no_grad()
    def load(self, weights: Mapping[str, torch.Tensor]) -> None:
        layers = dict.fromkeys(name.rpartition(".")[0] for name in self._places)
        for name, of in self._places.items():
            weight = weights[of]
            self._model.get_parameter(name).copy_(weight.mT if weight.ndim == 3 else weight)  # experts stand transposed
        for layer in map(self._model.get_submodule, layers):
            if (method := getattr(layer, "quant_method", None)) is not None:
                method.process_weights_after_loading(layer)


def repack_experts_anew(model: torch.nn.Module) -> None:
    """Let vLLM repack experts as their weights are loaded, which it does for the first time only.

    Workaround for vLLM 0.32 on CPUs: it writes unpacked weights over the repacked ones. It may go once
    UnquantizedFusedMoEMethod lets its kernel process new weights, too.
    """
    for layer in model.modules():
        method: Any = getattr(layer, "quant_method", None)
        if getattr(method, "moe_kernel", None) is not None:
            method.moe_kernel = None
