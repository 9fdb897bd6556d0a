"""Compares the sampler with the trainer after the first sync of weights: what plays must be what learns."""

from __future__ import annotations

from typing import Any

import numpy as np

from rllm_gym.types import Probe, Sample

# Right ones were up to 1e-4 off in float32 (linear attention), and 0.05 in the mean in bfloat16 (a dense model of 135M,
# where single tokens were up to 0.3 off); experts that vLLM had not loaded 0.7 to 13 (gpt-oss, Qwen3-MoE).
MOST_FLOAT32, MOST_MEAN_16_BITS = 0.02, 0.25


def sync_faults(algorithm: Any) -> list[str]:
    """Return how the samplers differ from the trainer, a line for each policy of an EnvRunner."""
    config = algorithm.config
    probes: list[tuple[str, Probe]] = [
        (module_id, probe)
        for of_runner in algorithm.samplers.probes()
        for module_id, probe in of_runner.items()
        if config.is_trained(module_id)
    ]
    if not probes:
        return []
    samples = [probed_sample(module_id, probe) for module_id, probe in probes]
    algorithm.score(samples, ["trainer_logp"])
    faults = [probe_fault(*probe, sample, config) for probe, sample in zip(probes, samples, strict=True)]
    return list(dict.fromkeys(filter(None, faults)))


def probed_sample(module_id: str, probe: Probe) -> Sample:
    """Return the sample that the trainer is to score."""
    sampled = probe.completion.token_ids
    tokens = np.concatenate([np.asarray(probe.prompt_ids, np.int64), sampled])
    weight = np.zeros(len(tokens), np.float32)
    weight[len(probe.prompt_ids) :] = 1.0
    return Sample(tokens, weight, module=module_id)


def measure_differences(probe: Probe, sample: Sample) -> Any:
    """Return how far each sampled token's log-probability is from the trainer's, float32 [T]."""
    assert sample.trainer_logp is not None
    return np.abs(sample.trainer_logp[len(probe.prompt_ids) :] - probe.completion.logp)


def probe_fault(module_id: str, probe: Probe, sample: Sample, config: Any) -> str | None:
    """Return how far an engine is from the trainer, in a line; None within the bound of the configuration's dtype."""
    is_exact = config.weight_dtype == "float32" and not config.has_autocast
    differences = measure_differences(probe, sample)
    off = float(differences.max() if is_exact else differences.mean())
    most = MOST_FLOAT32 if is_exact else MOST_MEAN_16_BITS
    if off <= most and not probe.unloaded:
        return None
    which = ""
    if probe.unloaded:
        number = len(probe.unloaded)
        which = f" vLLM leaves {number} of its parameters as they were, first {probe.unloaded[0]}."
    elif probe.loading:
        which = f" Its {probe.loading}."
    return (
        f"check_sync: the sampler of {module_id} must give the trainer's log-probabilities after a sync of weights, "
        f"{most:g} off at most {'for any token' if is_exact else 'in the mean'}; got {off:.2g}.{which} Set engine: "
        "transformers, or check_sync: warn to go on with a sampler that plays another model."
    )
