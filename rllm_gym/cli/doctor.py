"""`rllm-gym doctor`: says what of a model fits training, and how to set it, before anything starts."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from rllm_gym.cli.common import FAILED, errors_in_one_line, parse_mapping
from rllm_gym.errors import ConfigError, RllmGymError

MOST_TIMED = 256  # tokens of a sequence whose reading is timed
CLEARLY = 1.2  # times as quick
NOISE = 0.02  # of a weight's mean size, which a sync carries to the sampler


def doctor(
    model: Annotated[str, typer.Argument(help="tiny, a folder, or a Hugging Face name in the local cache.")],
    env: Annotated[str | None, typer.Option(help="Also reset this environment, and count its first prompt.")] = None,
    engine: Annotated[
        str | None, typer.Option(help="Also start vllm or transformers, and compare it with the trainer.")
    ] = None,
    config: Annotated[
        str | None, typer.Option(help="Options of the run as JSON, such as max_model_len, dtype, lora, env_config.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Check whether a model can be trained here: one line a check, and at the end the `config:` that fits."""
    with errors_in_one_line():
        os.environ["HF_HUB_OFFLINE"] = "1"  # before its client is imported
        built, folder = _configured(model, env, engine, parse_mapping("--config", config))
        found = []
        for finding in examine(folder, built, with_engine=engine is not None):
            found.append(finding)
            if not as_json:
                typer.echo(f"{finding.level:5}  {finding.check}: {finding.text}")
        fitting = {"base_model": model, "engine": built.engine}
        for finding in found:
            fitting |= finding.config
        if as_json:
            lines = [{"check": f.check, "level": f.level, "text": f.text} for f in found]
            typer.echo(json.dumps({"model": model, "findings": lines, "config": fitting}, indent=1))
        else:
            typer.echo("\n" + yaml.safe_dump({"config": fitting}, sort_keys=False), nl=False)
        if any(f.level == "wrong" for f in found):
            raise typer.Exit(FAILED)


def _configured(model: str, env: str | None, engine: str | None, options: dict[str, Any]) -> tuple[Any, Path]:
    from rllm_gym.cli.ray_session import prepare_driver
    from rllm_gym.models import resolve_base_model
    from rllm_gym.registration import normalize_env_id

    folder = resolve_base_model(model, allow_lookup=False)
    if not isinstance(folder, Path):
        raise ConfigError(f"doctor: must find the model on this machine; got {model!r}, which is not. Download it.")
    if engine not in (None, "vllm", "transformers"):
        raise ConfigError(f"--engine: must be vllm or transformers; got {engine!r}. Choose one.")
    prepare_driver(None)
    from rllm_gym.algorithms import GRPO

    config = GRPO.get_default_config()
    given = {"env": normalize_env_id(env)} if env else {}
    if engine:
        given["engine"] = engine
    config.update_from_dict({"zero_stage": 0, **options, **given, "base_model": str(folder)})
    return config, folder


def examine(folder: Path, config: Any, *, with_engine: bool) -> Iterator[Any]:
    """Yield the findings of all checks: those that load nothing first; where these say `wrong`, no others follow."""
    from rllm_gym.cli.scratch import temporary_folder
    from rllm_gym.cli.train.model_findings import Finding, look_at_folder

    is_wrong = False
    for finding in look_at_folder(folder, config):
        is_wrong = is_wrong or finding.level == "wrong"
        yield finding
    if is_wrong:
        return
    from rllm_gym.learner.probes import notice_of_lora

    if notice := notice_of_lora(config):
        yield Finding("LoRA", "note", notice.removeprefix("lora: "))
    else:
        yield Finding("LoRA", "ok", "in float32 nothing of an adapter's effect is lost to rounding")
    with temporary_folder(has_own_ray=True):
        if config.env is not None:
            yield from _look_at_first_prompt(config)
        yield from _look_at_learner(folder, config, with_engine=with_engine)


def _look_at_first_prompt(config: Any) -> Iterator[Any]:
    from rllm_gym.cli.train.first_prompt import first_prompts
    from rllm_gym.cli.train.model_findings import Finding

    for spec, found in zip(config.all_environments, first_prompts(config), strict=False):
        if found.num_tokens is None:
            yield Finding("first prompt", "wrong", f"{spec.name}: {found.error}")
            continue
        needed = found.num_tokens + config.max_new_tokens
        text = f"{found.num_tokens:,} tokens of {spec.name}, and max_new_tokens {config.max_new_tokens}"
        if needed > config.max_model_len:
            text += f", beyond max_model_len {config.max_model_len:,}. Raise max_model_len or lower max_new_tokens."
        yield Finding("first prompt", "wrong" if needed > config.max_model_len else "ok", text)


# --- with the weights ---


def _look_at_learner(folder: Path, config: Any, *, with_engine: bool) -> Iterator[Any]:
    """Build the learner that a run would have, and look at what it can do."""
    import psutil

    from rllm_gym.cli.train.model_findings import Finding
    from rllm_gym.cli.train.sampler_memory import count_parameters, gib, machine_bytes

    room = min(psutil.virtual_memory().available, machine_bytes())
    needed = 3 * 4 * count_parameters(str(folder), config)  # two learners, one after the other, and a sampler
    if needed > room:
        text = f"packing, speed and engine want {gib(needed)} of memory, and {gib(room)} are free. Not checked."
        yield Finding("loaded model", "wrong" if with_engine else "note", text)
        return
    try:
        learner = _make_learner(config)
    except (RllmGymError, ValueError, RuntimeError, OSError) as error:
        yield Finding("loaded model", "wrong", " ".join(str(error).split())[:500])
        return
    yield _look_at_rows("packing", learner.packing_fault, "rows of a micro-batch hold several samples")
    yield _look_at_rows("sharing", learner.sharing_fault, "what samples begin with in common is read once")
    try:
        yield _look_at_speed(learner, config)
    except RuntimeError as error:  # a format that the model's own code does not take
        yield Finding(
            "number format", "wrong", f"the learner cannot read in both: {' '.join(str(error).split())[:200]}"
        )
    if with_engine:
        yield from _look_at_engine(folder, learner, config)


def _make_learner(config: Any, **changes: Any) -> Any:
    """Return a learner in this process; adapters are left out, which change neither rows nor a sync of weights."""
    from gymnasium.spaces import Discrete
    from ray.rllib.utils.spaces.repeated import Repeated

    from rllm_gym.cli.train.library_options import quiet
    from rllm_gym.types import DEFAULT_MODULE

    config = config.copy(copy_frozen=False)
    for name, value in {"num_learners": 0, "lora": None, "zero_stage": 0, **changes}.items():
        setattr(config, name, value)
    space = Repeated(Discrete(2), config.max_model_len)
    with quiet():
        spec = config.get_multi_rl_module_spec(spaces={DEFAULT_MODULE: (space, space)})
        learner = config.get_default_learner_class()(config=config, module_spec=spec)
        learner.build()
    return learner


def _look_at_rows(check: str, fault: str | None, good: str) -> Any:
    from rllm_gym.cli.train.model_findings import Finding

    return Finding(check, "note", f"off: {fault}") if fault else Finding(check, "ok", good)


def _look_at_speed(learner: Any, config: Any) -> Any:
    """Time a forward pass in both number formats, and say how far the shorter one is off."""
    import numpy as np

    from rllm_gym.cli.train.model_findings import Finding
    from rllm_gym.types import Sample

    rng, length = np.random.default_rng(0), min(MOST_TIMED, config.max_model_len)
    num_tokens = learner.module[next(iter(learner.sample_ids))].bare_lm.get_input_embeddings().num_embeddings
    samples = [Sample(rng.integers(0, num_tokens, length), np.ones(length, np.float32)) for _ in range(4)]
    other = "bfloat16" if config.weight_dtype == "float32" else "float32"
    speeds, logps = {}, {}
    for dtype, each in ((config.weight_dtype, learner), (other, _make_learner(config, dtype=other))):
        taken = []
        for _ in range(3):  # the first pass warms up, and other processes disturb
            start = time.perf_counter()
            logps[dtype] = _compute_logps(each, samples)
            taken.append(time.perf_counter() - start)
        speeds[dtype] = len(samples) * length / min(taken)
    quicker = max(speeds, key=lambda dtype: speeds[dtype])
    off = float(np.mean([np.abs(a[1:] - b[1:]).mean() for a, b in zip(*logps.values(), strict=True)]))
    told = ", ".join(f"{dtype} {speed:,.0f}" for dtype, speed in speeds.items())
    text = f"the learner reads, in tokens/s: {told}; {other} moves log-probabilities by {off:.2g} in the mean"
    if speeds[quicker] > CLEARLY * speeds[config.weight_dtype]:
        return Finding("number format", "note", f"{text}. dtype: {quicker} is quicker")
    return Finding("number format", "ok", text)


def _compute_logps(learner: Any, samples: list[Any]) -> list[Any]:
    scored = dict(learner.score(samples, [range(len(samples))], ["trainer_logp"]))
    return [scored[index]["trainer_logp"] for index in range(len(samples))]


def _look_at_engine(folder: Path, learner: Any, config: Any) -> Iterator[Any]:
    """Start the engine, and compare it with the trainer as loaded, and after weights that have changed reached it."""
    import torch

    from rllm_gym.cli.train.library_options import quiet
    from rllm_gym.cli.train.model_findings import Finding
    from rllm_gym.rollout.engines import engine_maker
    from rllm_gym.rollout.env_runner import probe_engine
    from rllm_gym.tokens import ChatTokenizer
    from rllm_gym.training.sync_check import measure_differences, probe_fault, probed_sample
    from rllm_gym.types import DEFAULT_MODULE

    trusts = {"trust_remote_code": True} if config.trust_remote_code else {}
    try:
        with quiet():
            engine: Any = engine_maker(config.engine)(
                str(folder),
                dtype=config.weight_dtype,
                max_model_len=config.max_model_len,
                max_num_seqs=4,
                options={**trusts, **config.engine_options},
            )
    except Exception as error:  # an engine's own
        yield Finding("engine", "wrong", f"{config.engine} does not start: {_with_way_out(error, config)}")
        return
    chat = ChatTokenizer(folder, **config.chat_options)
    lm = learner.module[DEFAULT_MODULE].bare_lm
    try:
        for what in ("as loaded", "after a sync of changed weights"):
            probe = probe_engine(engine, chat, config.sampling_params, config.max_model_len)
            sample = probed_sample(DEFAULT_MODULE, probe)
            [sample.trainer_logp] = _compute_logps(learner, [sample])
            off = measure_differences(probe, sample)
            fault = probe_fault(DEFAULT_MODULE, probe, sample, config)
            if fault:
                yield Finding("sampler against trainer", "wrong", f"{what}: {fault}")
                return
            text = f"{config.engine} {what}: log-probabilities differ by {off.max():.2g} at most, {off.mean():.2g} in"
            yield Finding("sampler against trainer", "ok", f"{text} the mean")
            generator = torch.Generator().manual_seed(0)
            with torch.no_grad():
                for weight in lm.parameters():
                    noise = torch.randn(weight.shape, generator=generator).to(weight)
                    weight.add_(noise * (NOISE * weight.abs().mean()))
            engine.load_weights(learner.module[DEFAULT_MODULE].inference_state(), 1)
            if what == "as loaded":
                yield _look_at_names(engine, config)
    except Exception as error:  # an engine's own
        yield Finding("sampler against trainer", "wrong", _with_way_out(error, config))
    finally:
        engine.close()


def _look_at_names(engine: Any, config: Any) -> Any:
    from rllm_gym.cli.train.model_findings import Finding

    loading, unloaded = getattr(engine, "loading", ""), getattr(engine, "unloaded", ())
    if unloaded:
        text = f"{len(unloaded)} parameters of {config.engine}'s are no weight's, first {unloaded[0]}"
        return Finding("names of weights", "wrong", f"{text}. Set engine: transformers.")
    if loading:
        return Finding("names of weights", "note", loading)
    return Finding("names of weights", "ok", f"{config.engine} has a place for each; new weights are copied there")


def _with_way_out(error: Exception, config: Any) -> str:
    text = " ".join(str(error).split())[:500]
    if isinstance(error, RllmGymError):
        return text
    way_out = ". Set engine: transformers." if config.engine == "vllm" else ""
    return f"{type(error).__name__}: {text.rstrip('.')}{way_out}"
