"""Engines sample completions. They go by name, or by "module:name"; only the one that is asked for is imported.

An engine of one's own is a class (or a function that returns its object) that is called as `EngineMaker` says, and
whose objects have the methods and attributes of `rllm_gym.types.Engine`:

    class Echo:
        \"\"\"Says the prompt's last token, over and over.\"\"\"

        def __init__(self, model, *, dtype, max_model_len, max_num_seqs, options):
            self.policy_version = 0
            self.max_context_tokens = max_model_len
            ...

`engine: my_package.my_engine:Echo` in YAML, `.env_runners(engine="my_package.my_engine:Echo")` and
`.env_runners(engine=Echo)` mean the same. `engine_options` reach it unchecked, as `options`. With
`gives_model_logps = True` it is compared with the trainer after the first sync of weights, as vLLM is (`check_sync`).
With `num_cache_tokens`, the tokens that its prefix cache holds, no more episodes are in flight than fit in there.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Collection, Mapping
from typing import Any, Protocol

from rllm_gym.errors import ConfigError, nearest
from rllm_gym.importing import did_you_mean, import_object
from rllm_gym.types import Engine

ENGINES = {
    "openai": "rllm_gym.rollout.engines.openai:OpenAIEngine",
    "scripted": "rllm_gym.rollout.engines.scripted:make_scripted_engine",
    "transformers": "rllm_gym.rollout.engines.transformers:TransformersEngine",
    "vllm": "rllm_gym.rollout.engines.vllm:VLLMEngine",
}
OPENAI_OPTIONS: dict[str, tuple[type | tuple[type, ...], str]] = {  # name: (type, meaning)
    "model": (str, "the endpoint's name of the model"),
    "base_url": (str, 'of the endpoint, up to "/v1"; default: `OPENAI_BASE_URL`, or else OpenAI\'s'),
    "api_key_env": (str, "the environment variable that holds the key; default: `OPENAI_API_KEY`, if it is set"),
    "price": (dict, "`{prompt: 0.25, completion: 2.0}`, in dollars per million tokens"),
    "requests_per_minute": ((int, float), "begin no more, of all environments of a sampler"),
    "num_attempts": (int, "of each request; default: 6"),
    "timeout_s": ((int, float), "for each attempt to connect and to read; default: 120"),
    "request": (dict, "keys to add to every request, or with null to leave out: `{reasoning_effort: low, seed: null}`"),
}
TRUST = "trust_remote_code"  # the run's own option, which engines get with theirs
# What `engine_options` may hold; vLLM's are the fields of its EngineArgs.
ENGINE_OPTIONS = {
    "openai": tuple(OPENAI_OPTIONS),
    "scripted": ("replies", "num_steps"),
    "transformers": ("device", TRUST),
}
ONLY_PLAYS = {  # and why
    "openai": "the engine openai is for `rllib evaluate`: an endpoint takes no weights and tells no log-probabilities "
    "of our tokens; got it for training. Set engine: vllm."
}
VLLM_FIXED_OPTIONS = {  # what VLLMEngine relies on, or takes as arguments of its own
    "model", "dtype", "max_model_len", "max_num_seqs", "skip_tokenizer_init", "logprobs_mode",
}  # fmt: skip
VLLM_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)  # what its `max_lora_rank` may be
_METHODS = [name for name, value in vars(Engine).items() if inspect.isfunction(value) and not name.startswith("_")]


class EngineMaker(Protocol):
    """The constructor that every engine has, by keyword but for the model."""

    def __call__(
        self, model: str, *, dtype: str, max_model_len: int, max_num_seqs: int, options: Mapping[str, Any]
    ) -> Engine:
        """Return an engine that holds a model's weights.

        Args:
            model: the folder of a Hugging Face model.
            dtype: "float32", "bfloat16" or "float16".
            max_model_len: tokens of a prompt and its completion, which becomes the engine's `max_context_tokens`.
            max_num_seqs: requests to run at the same time; others wait.
            options: `engine_options`, as they were written.
        """


def engine_maker(engine: str | EngineMaker) -> EngineMaker:
    """Import an engine and return its factory.

    Args:
        engine: a name in `ENGINES`, "module:name", or the class or function itself.

    Raises:
        ConfigError: there is none of this name (the message names the nearest), it is no engine, or vLLM is missing.
    """
    if isinstance(engine, str) and engine in ENGINES:
        module, _, name = ENGINES[engine].partition(":")
        try:
            return getattr(importlib.import_module(module), name)
        except ImportError as error:
            raise ConfigError(
                f'engine: {engine} cannot be imported ({error}). pip install "rllm-gym[cpu]" (or [cuda]), which brings '
                "vLLM; or set engine: transformers."
            ) from error
    if isinstance(engine, str) and ":" not in engine:
        raise ConfigError(
            f'engine: must be one of {", ".join(ENGINES)}, or "module:name"; got {engine!r}. '
            f"Did you mean {nearest(engine, ENGINES)!r}?"
        )
    maker = import_object("engine:", engine) if isinstance(engine, str) else engine
    _check_maker(maker, engine)
    return maker


def check_engine(engine: str | EngineMaker, options: Mapping[str, Any]) -> None:
    """Make sure that there is such an engine and that it takes these options; those of this package are not imported.

    Raises:
        ConfigError: see `engine_maker` and `check_options`.
    """
    if TRUST in options:
        raise ConfigError(
            f"engine_options: {TRUST} is an option of the whole run; got it here. Set it beside base_model."
        )
    if isinstance(engine, str) and engine in ENGINES:
        check_options(engine, options)
    else:
        engine_maker(engine)


def check_options(engine: str, options: Mapping[str, Any]) -> None:
    """Refuse options that one of this package's engines does not take.

    Raises:
        ConfigError: names the nearest option.
    """
    known = ENGINE_OPTIONS.get(engine, ())
    for name in options:
        if known and name not in known:
            own = [option for option in known if option != TRUST]
            raise ConfigError(
                f"engine_options: the engine {engine} takes {', '.join(own)}; got {name!r}. "
                f"Did you mean {nearest(name, own)!r}?"
            )
    if engine == "scripted" and "replies" not in options:
        raise ConfigError(
            "engine_options: the engine scripted needs replies, a list of token ids for each; got none. "
            "Set engine_options: {replies: [[...], ...]}."
        )
    if engine == "openai":
        _check_openai(options)


def _check_openai(options: Mapping[str, Any]) -> None:
    if "model" not in options:
        raise ConfigError(
            "engine_options: the engine openai needs the endpoint's name of a model; got none. "
            "Set engine_options: {model: ..., base_url: ...}."
        )
    for name, value in options.items():
        kind, _ = OPENAI_OPTIONS[name]
        if not isinstance(value, kind) or isinstance(value, bool) or (isinstance(value, (int, float)) and value <= 0):
            kinds = " or ".join(k.__name__ for k in (kind if isinstance(kind, tuple) else (kind,)))
            above = "" if kind in (str, dict) else " above 0"
            raise ConfigError(f"engine_options: {name} must be a {kinds}{above}; got {value!r}. Correct it.")
    price = options.get("price")
    is_price = price is None or all(isinstance(p, (int, float)) and p >= 0 for p in price.values())
    if not is_price or (price is not None and set(price) != {"prompt", "completion"}):
        raise ConfigError(
            "engine_options: price must be like {prompt: 0.25, completion: 2.0}, in dollars per million tokens; "
            f"got {price!r}. Correct it."
        )


def _check_maker(maker: Any, engine: Any) -> None:
    if not callable(maker):
        raise ConfigError(f"engine: must be a class or a function that makes an engine; got {engine!r}. Correct it.")
    missing = [name for name in _METHODS if isinstance(maker, type) and not hasattr(maker, name)]
    if missing:
        raise ConfigError(
            f"engine: must have the methods of rllm_gym.types.Engine; got {engine!r} without {', '.join(missing)}. "
            "Write them."
        )
    try:
        inspect.signature(maker).bind("", dtype="", max_model_len=0, max_num_seqs=0, options={})
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"engine: must be called as (model, *, dtype, max_model_len, max_num_seqs, options); got {engine!r} "
            f"({error}). See rllm_gym.rollout.engines.EngineMaker."
        ) from error


def adapter_options(rank: int, num_adapters: int) -> dict[str, Any] | None:
    """Return the options of a vLLM engine that can hold adapters beside its weights; None where they are too large.

    Args:
        rank: of each of two policies that differ by their adapters; the difference has twice that.
        num_adapters: that it holds at once, beside one that adds nothing.
    """
    fitting = [most for most in VLLM_RANKS if most >= 2 * rank]
    return {"enable_lora": True, "max_lora_rank": fitting[0], "max_loras": num_adapters + 1} if fitting else None


def check_weight_names(who: str, names: Collection[str], expected: Collection[str]) -> None:
    """Refuse weights that would leave part of a model as it was: engines skip missing names in silence."""
    if missing := sorted(set(expected) - set(names)):
        raise ConfigError(
            f"{who}: load_weights needs every weight of the model, tied ones too; {len(missing)} missing, first "
            f"{missing[0]!r}. Pass the items of state_dict(), not of named_parameters()."
        )
    if unknown := sorted(set(names) - set(expected)):
        raise ConfigError(
            f"{who}: load_weights takes the model's Hugging Face parameter names; {len(unknown)} unknown, first "
            f"{unknown[0]!r}.{did_you_mean(unknown[0], expected)}"
        )
