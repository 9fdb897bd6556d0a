"""The fast engine: vLLM in this process, continuous batching, prefix cache on, weights replaced in place."""
# ruff: noqa: E402 (the variables must be set before the imports)

from __future__ import annotations

import os

# vLLM reads these while it is imported. In-process, the engine starts in seconds, takes weights without a copy through
# a pipe, and leaves no orphans behind; this class relies on it, so it is no default but set.
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
for _name, _value in {
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # else the processes of a split model ask for a NUMA node each
}.items():
    os.environ.setdefault(_name, _value)

import contextlib
import dataclasses
import functools
import gc
import importlib.util
import inspect
import itertools
import json
import logging
import re
import tempfile
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rllm_gym.importing import did_you_mean, leave_out_scipy, uncollected, without

with uncollected():
    leave_out_scipy()
    with without("scipy.signal"):  # for sounds
        from vllm import EngineArgs, LLMEngine

import numpy as np
import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.conversion_mapping import get_model_conversion_mapping
from vllm import SamplingParams as VLLMSamplingParams
from vllm.config import get_current_vllm_config_or_none
from vllm.distributed import parallel_state
from vllm.lora.request import LoRARequest
from vllm.platforms import current_platform
from vllm.sampling_params import RequestOutputKind
from vllm.triton_utils import dispatcher

from rllm_gym.errors import ConfigError
from rllm_gym.rollout.engines import VLLM_FIXED_OPTIONS, check_weight_names
from rllm_gym.rollout.engines.split_model import all_parts, threads_shared
from rllm_gym.rollout.engines.token_versions import TokenVersions
from rllm_gym.types import Completion, CompletionRequest, SamplingParams
from rllm_gym.weights.checkpoint_form import checkpoint_items
from rllm_gym.weights.format import LORA_A, LORA_B, Tensors
from rllm_gym.weights.placement import LostWeights, NoPlaceError, WeightPlan, left_as_they_were, repack_experts_anew

logger = logging.getLogger(__name__)
_ADAPTER_NUMBERS = itertools.count(1)
_VERSION, _, _BUILD = torch.__version__.partition("+")
_INDEX = f" --index-url https://download.pytorch.org/whl/{_BUILD}" if _BUILD else ""
_OTHERWISE = (
    ", for its text alone, too; it is not installed. Run "
    f"`pip install torchvision torch=={_VERSION}{_INDEX}`, or set engine: transformers."
)
DEFAULT_KV_CACHE_BYTES = 2**30  # CPU only; on CUDA vLLM sizes its cache by gpu_memory_utilization


# Workaround for vLLM 0.32: it looks into the __dict__ of everything in every module that is loaded, and an engine does
# not start where an object of another library answers with a function, or by an import that fails. Such objects have
# nothing that vLLM looks for. It may go once vLLM guards these two calls.
def _vars(value: Any) -> Mapping[str, Any]:
    try:
        attributes = vars(value)
    except Exception:  # foreign code
        return {}
    return attributes if isinstance(attributes, Mapping) else {}


def _hasattr(value: Any, name: str) -> bool:
    try:
        return hasattr(value, name)
    except Exception:
        return False


dispatcher.vars, dispatcher.hasattr = _vars, _hasattr
# What is deprecated says so when it is looked at.
warnings.filterwarnings("ignore", category=FutureWarning, module=re.escape(__name__))


class VLLMEngine:
    """Samples with vLLM's `LLMEngine`. Several may live in one process, one per policy module.

    Log-probabilities are those of the distribution that was sampled from (after temperature, top-k and top-p).

    Args:
        model: Hugging Face name or folder.
        dtype: of weights and activations; "float32" agrees with a float32 trainer to about 1e-5.
        max_model_len: tokens of a prompt and its completion.
        max_num_seqs: requests in the running batch; others wait.
        options: more of vLLM's `EngineArgs`, by their own names; they win over the defaults made here. For keys and
            values: `kv_cache_memory_bytes`, by default 1 GiB on a CPU, or on CUDA `gpu_memory_utilization`.
    """

    gives_model_logps = True

    def __init__(
        self,
        model: str,
        *,
        dtype: str = "float32",
        max_model_len: int,
        max_num_seqs: int = 64,
        options: Mapping[str, Any] = {},
    ):
        config = AutoConfig.from_pretrained(model, trust_remote_code=options.get("trust_remote_code", False))
        if fault := model_fault(config, dtype):
            raise ConfigError(f"VLLMEngine: {fault}")
        options = {**_default_options(config, max_model_len, options), **_checked(options)}
        self.policy_version = 0
        self._versions = TokenVersions()
        self._is_over: dict[str, Callable[[Sequence[int]], bool]] = {}  # of requests that a text may end
        self.max_context_tokens = max_model_len
        self.no_adapter: LoRARequest | None = None  # one that adds nothing, where other policies ride along
        # On a CPU vLLM would compile a sum that nobody reads, by a C++ compiler, for eight seconds of every start.
        is_eager = current_platform.is_cpu() and options["enforce_eager"]
        self._stance = "force_eager" if is_eager else "default"
        self._lm = _empty_model(model, options.get("trust_remote_code", False))
        self.load: Callable[[Mapping[str, torch.Tensor]], None] | None = None  # chosen with the first weights
        self.loading = ""  # how, where vLLM does it
        self.unloaded: Sequence[str] = ()  # parameters that no weight reaches, which vLLM's own loading leaves alone
        self._lost: LostWeights | None = None
        self._is_asleep = False
        self._engine: LLMEngine | None = _build(
            EngineArgs(
                model=model,
                dtype=dtype,  # type: ignore[arg-type]
                max_model_len=max_model_len,
                max_num_seqs=max_num_seqs,
                skip_tokenizer_init=True,
                logprobs_mode="processed_logprobs",
                **options,
            )
        )
        self._tied = self._tied_heads()
        # Called by close(), by the garbage collector or at exit, whichever comes first, and only once.
        self._shut_down = weakref.finalize(self, _shut_down, self._engine.engine_core.engine_core)  # type: ignore[union-attr]

    def submit(self, request: CompletionRequest, adapter: LoRARequest | None = None) -> None:
        params = VLLMSamplingParams(
            temperature=request.params.temperature,
            top_p=request.params.top_p,
            top_k=request.params.top_k,
            max_tokens=request.params.max_new_tokens,
            seed=request.seed,
            logprobs=0,  # of the sampled token alone
            detokenize=False,
            stop_token_ids=list(request.stop_ids),
            ignore_eos=True,  # else the end tokens of the model's generation_config.json stop a turn, too
            # All so far, where each token may end it: vLLM's own stop texts want a tokenizer of vLLM's.
            output_kind=RequestOutputKind.FINAL_ONLY if request.is_over is None else RequestOutputKind.CUMULATIVE,
            skip_clone=True,  # nobody else holds them
        )
        if request.is_over is not None:
            self._is_over[request.request_id] = request.is_over
        self._live.add_request(
            request.request_id, {"prompt_token_ids": list(request.prompt_ids)}, params, lora_request=adapter
        )

    def step(self) -> list[Completion]:
        with self._watched(), torch.compiler.set_stance(self._stance):
            outputs = self._live.step()
            finished = [_completion(output) for output in outputs if output.finished or self._end_early(output)]
        for completion in finished:
            self._is_over.pop(completion.request_id, None)
        return [self._versions.stamp(completion, self.policy_version) for completion in finished]

    def _end_early(self, output: Any) -> bool:
        """End a request whose tokens so far are a turn; return whether they are."""
        if not self._is_over[output.request_id](output.outputs[0].token_ids):
            return False
        self._live.abort_request([output.request_id])
        return True

    def abort(self, request_id: str) -> None:
        self._live.abort_request([request_id])
        self._is_over.pop(request_id, None)
        self._versions.forget(request_id)

    def load_weights(self, state: Mapping[str, Any], policy_version: int) -> None:
        check_weight_names("VLLMEngine", state, self._lm.state_dict())
        weights = Tensors(state)
        engine = self._live  # awake: a plan copies to where weights lie on the GPU, and asleep they lie nowhere
        # The choice samples, which requests that are running would notice.
        if self.load is None and not engine.has_unfinished_requests():
            self.load = self._choose_load(weights)
        else:
            (self.load or self.reload)(weights)
        running = engine.output_processor.request_states.values()
        own = (state for state in running if state.lora_request in (None, self.no_adapter))  # not of other policies
        num_tokens = {state.external_req_id: state.detokenizer.num_output_tokens() for state in own}
        self._versions.weights_change(num_tokens, self.policy_version)
        self.policy_version = policy_version
        self.reset_prefix_cache()

    def reload(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Let vLLM load weights, as it loads a checkpoint's; `load_weights` copies them where that does the same."""
        kept: dict[str, torch.Tensor] = {}

        def coming() -> Iterator[tuple[str, torch.Tensor]]:
            for name, weight in checkpoint_items(self._lm, weights):
                if self._lost is not None and name in self._lost.names:
                    kept[name] = weight
                if name not in self._tied:
                    yield name, weight

        items = list(coming()) if self._is_split else coming()  # a list can travel
        if current_platform.is_cpu() and not self._is_split:
            self._live.apply_model(repack_experts_anew)
        try:
            with self._watched():
                self._live.collective_rpc("reload_weights", kwargs={"weights_iterator": iter(items)})
        except (AttributeError, KeyError, TypeError, ValueError) as error:  # each kind of model has a loader of its own
            raise ConfigError(
                "VLLMEngine: vLLM must take a model's weights anew at every train step, and refuses this one's; got "
                f"{type(error).__name__}: {' '.join(str(error).split())[:150]}. Set engine: transformers."
            ) from error
        if self._lost is not None:
            self._lost.load(kept)

    def _choose_load(self, weights: Mapping[str, torch.Tensor]) -> Callable[[Mapping[str, torch.Tensor]], None]:
        """Load weights, and return what does: a plan, if marked ones give the same with it and with vLLM's loading."""
        try:
            plan = self._plan(weights)
            marked = plan.marked(weights)
            plan.load(marked)
            planned = self._look()
            self.reload(marked)
            if planned == self._look():
                plan.load(weights)
                return plan.load
            reason = "the same weights give other log-probabilities"
        except NoPlaceError as error:
            reason = str(error)
        self.loading = f"weights are loaded by vLLM, several times slower than copied: {reason}"
        logger.warning("VLLMEngine: %s.", self.loading)
        if self._is_split:
            self.reload(weights)
        else:
            self._reload_all(weights)
        return self.reload

    def _reload_all(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Let vLLM load weights, find out which parameters that leaves as they were, and load these, too."""
        [model] = self._live.apply_model(lambda model: model)
        self.unloaded = left_as_they_were(model, lambda: self.reload(weights))
        if self.unloaded:
            names = [name for name, _ in checkpoint_items(self._lm, self._lm.state_dict())]
            with contextlib.suppress(NoPlaceError):
                self._lost = LostWeights(model, self.unloaded, names)
                self.unloaded = left_as_they_were(model, lambda: self.reload(weights))

    def _plan(self, weights: Mapping[str, torch.Tensor]) -> WeightPlan:
        config = self._live.vllm_config
        if self._is_split:
            raise NoPlaceError(f"the model is split over {config.parallel_config.world_size} processes")
        if (method := config.model_config.quantization) is not None:
            raise NoPlaceError(f"the model is quantized ({method})")
        [model] = self._live.apply_model(lambda model: model)
        return WeightPlan(model, {name: tuple(weight.shape) for name, weight in weights.items()})

    def _tied_heads(self) -> frozenset[str]:
        """Return the names of heads that are the embedding, where vLLM's model has no head of its own to load."""
        names: dict[int, list[str]] = {}
        for name, parameter in self._lm.named_parameters(remove_duplicate=False):
            names.setdefault(id(parameter), []).append(name)
        head = getattr(self._lm, "get_output_embeddings", lambda: None)()
        tied = names.get(id(getattr(head, "weight", None)), [])
        [has_head, *_] = self._live.apply_model(_has_head)
        return frozenset(name for name in tied[1:] if not has_head)

    def _look(self) -> list[float]:
        """Return sampled tokens and their log-probabilities: so hot that these are not near 0."""
        self.reset_prefix_cache()
        config = self._live.vllm_config.model_config
        prompt = [k * config.get_vocab_size() // 16 for k in range(min(16, self.max_context_tokens - 4))]
        params = SamplingParams(max_new_tokens=4, temperature=2.0)  # the most that vLLM takes
        self.submit(CompletionRequest("weights", prompt, (), params, seed=0))
        while not (done := self.step()):
            pass
        return [*done[0].token_ids.tolist(), *done[0].logp.tolist()]

    @property
    def num_cache_tokens(self) -> int | None:
        """Tokens whose keys and values the cache holds; None where a turn finds none of them again."""
        cache = self._live.vllm_config.cache_config
        return cache.kv_cache_size_tokens if cache.enable_prefix_caching else None

    def reset_prefix_cache(self) -> None:
        # Running requests too: their keys and values are recomputed, with the weights of now, when they go on.
        self._live.reset_prefix_cache(reset_running_requests=True)

    def forget_adapter(self, adapter: LoRARequest) -> None:
        """Make room for another: where vLLM has to choose whom to forget, its adapters change places."""
        self._live.remove_lora(adapter.lora_int_id)

    def with_adapter(self) -> VLLMAdapter:
        """Return an engine for another policy, which differs from this one's by an adapter; see `adapter_options`."""
        return VLLMAdapter(self)

    def sleep(self) -> None:
        """Give the GPU's memory back until the engine is used again, if `enable_sleep_mode` is on.

        Keys and values are dropped, weights wait on the host; nothing may be running.
        """
        if not self._is_asleep and self._live.vllm_config.model_config.enable_sleep_mode:
            self._live.sleep(level=1)
            self._is_asleep = True

    def close(self) -> None:
        self._shut_down()
        self._engine = None
        gc.collect()

    def _watched(self) -> contextlib.AbstractContextManager[None]:
        if not self._is_split:
            return contextlib.nullcontext()
        return all_parts(self._live.engine_core.engine_core.model_executor)  # type: ignore[union-attr]

    @property
    def _is_split(self) -> bool:
        return self._live.vllm_config.parallel_config.world_size > 1

    @property
    def _live(self) -> LLMEngine:
        if self._engine is None:
            raise RuntimeError("VLLMEngine: cannot be used after close().")
        if self._is_asleep:
            self._engine.wake_up()
            self._is_asleep = False
        return self._engine


class VLLMAdapter:
    """Samples from another policy with the same `VLLMEngine`: its weights and an adapter of low rank.

    The requests of both run in one batch; what is asked here may finish in a step of the other, and the other way
    round. Closing it leaves the engine open.
    """

    def __init__(self, engine: VLLMEngine) -> None:
        self._engine = engine
        self._adapter: LoRARequest | None = None
        self._folder = tempfile.TemporaryDirectory(prefix="rllm_gym_adapter_")
        self.policy_version = 0
        self.max_context_tokens = engine.max_context_tokens

    def submit(self, request: CompletionRequest) -> None:
        self._engine.submit(request, self._adapter)

    def step(self) -> list[Completion]:
        return self._engine.step()

    def abort(self, request_id: str) -> None:
        self._engine.abort(request_id)

    def load_weights(self, state: Mapping[str, Any], policy_version: int) -> None:
        """Replace the adapter.

        Args:
            state: `<weight>.lora_A` and `<weight>.lora_B` to the two factors of what is added to a weight.
        """
        folder = Path(self._folder.name)
        if self._adapter is not None:
            self._engine.forget_adapter(self._adapter)
        self._adapter = _write_adapter(folder, state)
        # vLLM's CPU kernels let requests without an adapter have the last one that was loaded; so all have one.
        # Found with vLLM 0.32: lora/ops/torch_ops/lora_ops.py indexes the adapters with -1.
        if self._engine.no_adapter is None:
            self._engine.no_adapter = _write_adapter(
                folder, {name: torch.zeros_like(torch.as_tensor(v)) for name, v in state.items()}
            )
        self.policy_version = policy_version
        self.reset_prefix_cache()

    @property
    def num_cache_tokens(self) -> int | None:
        return self._engine.num_cache_tokens

    def reset_prefix_cache(self) -> None:
        self._engine.reset_prefix_cache()

    def close(self) -> None:
        self._folder.cleanup()


def _write_adapter(folder: Path, state: Mapping[str, Any]) -> LoRARequest:
    """Write an adapter as vLLM reads it, in peft's form; each has a number of its own, by which vLLM keeps it."""
    number = next(_ADAPTER_NUMBERS)
    folder = folder / str(number)
    folder.mkdir()
    names = {LORA_A: "lora_A.weight", LORA_B: "lora_B.weight"}
    tensors = {
        f"base_model.model.{name.removesuffix(f'.weight{end}')}.{theirs}": torch.as_tensor(value).contiguous()
        for name, value in state.items()
        for end, theirs in names.items()
        if name.endswith(end)
    }
    save_file(tensors, folder / "adapter_model.safetensors")
    layers = {name.rsplit(".", 3)[1] for name in tensors}
    rank = next(len(value) for name, value in tensors.items() if name.endswith("lora_A.weight"))
    settings = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": sorted(layers), "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return LoRARequest(f"adapter_{number}", number, str(folder))


def _completion(output: Any) -> Completion:
    sampled = output.outputs[0]
    logp = [at_position[token].logprob for token, at_position in zip(sampled.token_ids, sampled.logprobs, strict=True)]
    return Completion(
        output.request_id,
        np.asarray(sampled.token_ids, np.int64),
        np.asarray(logp, np.float32),
        num_cached_tokens=output.num_cached_tokens or 0,
    )


def _default_options(config: Any, max_model_len: int, given: Mapping[str, Any]) -> dict[str, Any]:
    options: dict[str, Any] = {"enable_prefix_caching": True, "disable_log_stats": True, "use_tqdm_on_load": False}
    if config.get_text_config() is not config:
        options["language_model_only"] = True  # images want a processor, and a processor a tokenizer of vLLM's
    kinds = getattr(config.get_text_config(), "layer_types", None) or ()
    if current_platform.is_cpu() and any("linear" in kind or kind in ("conv", "mamba") for kind in kinds):
        options["enable_prefix_caching"] = False  # vLLM caches their states in chunks of a prompt, which are off here
    if max(given.get("tensor_parallel_size", 1), given.get("pipeline_parallel_size", 1)) > 1:
        options["distributed_executor_backend"] = "mp"  # else it asks Ray for the GPUs that its EnvRunner has
    if current_platform.is_cpu():
        options |= {
            "enforce_eager": True,
            "block_size": 32,
            "kv_cache_memory_bytes": DEFAULT_KV_CACHE_BYTES,
            # Per-request seeds and chunked prefill together fail: "CPU Generator does not use offset".
            "enable_chunked_prefill": False,
            "max_num_batched_tokens": max(2048, max_model_len),
        }
    return options


def _checked(options: Mapping[str, Any]) -> Mapping[str, Any]:
    known = {field.name for field in dataclasses.fields(EngineArgs)}
    for name in options:
        if name in VLLM_FIXED_OPTIONS:
            raise ConfigError(f"VLLMEngine: engine_options must leave {name!r} alone, it is set elsewhere. Remove it.")
        if name not in known:
            raise ConfigError(
                f"VLLMEngine: engine_options takes the fields of vLLM's EngineArgs; got {name!r}."
                f"{did_you_mean(name, known - VLLM_FIXED_OPTIONS)}"
            )
    return options


def _empty_model(model: str, trust_remote_code: bool) -> Any:
    """Return the Hugging Face model without its weights: it knows their names, and how its files hold them."""
    config = AutoConfig.from_pretrained(model, trust_remote_code=trust_remote_code)
    with torch.device("meta"):
        lm = AutoModelForCausalLM.from_config(config, trust_remote_code=trust_remote_code)
    if type(lm.config) is not type(config):  # the text part alone (Qwen3.5): in the files, a prefix says so
        lm._weight_conversions = get_model_conversion_mapping(lm, add_legacy=False)
    return lm


def parse_reason(error: ValueError) -> str:
    """Return in one line why vLLM refuses a model or its options: pydantic writes many."""
    text = " ".join(str(error).split())
    text = text.partition("Value error, ")[2].partition(" [type=")[0] or text
    if "failed to be inspected" in text and importlib.util.find_spec("torchvision") is None:
        text = f"{text.partition(' failed to be')[0]} want torchvision{_OTHERWISE}"
    return text


def model_fault(config: Any, dtype: str) -> str | None:
    """Return in one line why vLLM cannot play a model here, or None.

    Args:
        config: transformers' configuration of the model.
        dtype: of weights and activations.
    """
    text = config.get_text_config()
    if text is not config and importlib.util.find_spec("torchvision") is None:
        return f"a model with images ({config.model_type}) needs torchvision in vLLM{_OTHERWISE}"
    if current_platform.is_cpu() and hasattr(text, "linear_num_value_heads") and dtype != "bfloat16":
        return (
            f"{config.model_type}'s linear attention must be played in bfloat16 on a CPU; got dtype {dtype}. "
            "Set dtype: bfloat16, or engine: transformers."
        )
    return None


def _spare_transformers(model: torch.nn.Module) -> None:
    """Let transformers' models that are made outside an engine be what they were.

    Workaround for vLLM 0.32: where it runs a model by transformers' code (OLMo 2), it changes transformers' class, and
    all objects of it want an engine's configuration. It may go once vLLM changes a class of its own.
    """
    classes: set[Any] = {type(layer) for layer in model.modules() if hasattr(layer, "do_not_compile")}
    for cls in classes:
        if cls.__module__.startswith("transformers.") and "do_not_compile" not in vars(cls):
            vllms = cls.__init__
            own = inspect.getclosurevars(vllms).nonlocals["old_init"]
            cls.do_not_compile = True
            cls.__init__ = _init_in_engines(vllms, own)


def _init_in_engines(vllms: Callable[..., None], own: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(own)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        (own if get_current_vllm_config_or_none() is None else vllms)(self, *args, **kwargs)

    return init


def _has_head(model: torch.nn.Module) -> bool:
    return any(name.rpartition(".")[2] == "lm_head" for name, _ in model.named_modules())


def _build(args: EngineArgs) -> LLMEngine:
    set_num_threads = torch.set_num_threads
    # Workaround for vLLM 0.32: the first engine of a process makes the group of experts, and only if it has some. In
    # one process the group of tensors is the same. It may go once vLLM makes the group when it is missing.
    if parallel_state._TP is not None and parallel_state._EP is None:
        parallel_state._EP = parallel_state._TP
    gc.freeze()  # as vLLM itself does at the end, until `_shut_down`: it has garbage collected four times on its way
    try:
        with uncollected(), threads_shared(args.tensor_parallel_size * args.pipeline_parallel_size):
            engine = LLMEngine.from_engine_args(args)
    except ValueError as error:  # pydantic's, of many lines: a length, a dtype or a size that the model cannot have
        raise ConfigError(f"VLLMEngine: vLLM refuses its options. {parse_reason(error)}") from error
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"VLLMEngine: vLLM needs a package for this model that is not installed: {error.name}. Install it, or set "
            "engine: transformers."
        ) from error
    except (AssertionError, AttributeError, ImportError, KeyError, NotImplementedError, TypeError) as error:
        raise ConfigError(
            f"VLLMEngine: vLLM must know how to build the model; got {type(error).__name__}: "
            f"{' '.join(str(error).split())[:200]}. Set engine: transformers."
        ) from error
    finally:
        # Workaround for vLLM 0.32: its CPU worker replaces it by a function that does nothing, for everybody in this
        # process. It may go once the worker binds its threads without that.
        torch.set_num_threads = set_num_threads
    if args.tensor_parallel_size * args.pipeline_parallel_size == 1:
        engine.apply_model(_spare_transformers)
    # Workaround for vLLM 0.32: its finalizer destroys the process's torch.distributed groups, which belong to the other
    # engines and to a trainer beside it, too. Ours leaves them: they are of size one and cost nothing. It may go once
    # vLLM destroys only the groups that it has made.
    engine.engine_core._finalizer.detach()  # type: ignore[attr-defined]
    return engine


def _shut_down(core: Any) -> None:
    core.model_executor.shutdown()
    core.scheduler.shutdown()
    gc.unfreeze()  # vLLM froze what was alive after the start, weights and caches included; else they are never freed
