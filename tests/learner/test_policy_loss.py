"""The whole policy loss on the learner, however it is averaged, against plain torch: one AdamW step, cut or not."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from rllm_gym.types import Sample
from tests import plain_reference
from tests.learner.learner_helpers import (
    MODULE,
    distance,
    make_config,
    make_group,
    make_samples,
    update,
    weights,
)

LR, KL_COEFF, ENTROPY_COEFF, CLIP_LOW, CLIP_HIGH, CONSTANT, CAP = 1e-3, 0.3, 0.2, 0.1, 0.3, 77, 1.2
EPSILON = 1e-4  # of AdamW: at 1e-8 a gradient that is nothing but rounding would still make a whole step
AVERAGES = ("tokens", "sequences", "episodes", "constant")
CORRECTIONS = [(level, mode) for level in ("token", "sequence") for mode in ("truncate", "mask")]

pytestmark = [pytest.mark.slow, pytest.mark.promise]


@pytest.fixture(scope="module")
def policy(tiny_model, tmp_path_factory):
    """The weights before the update: near the reference, which is the tiny model, but not it."""
    lm = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in lm.parameters():
            parameter += 0.01 * torch.randn(parameter.shape, generator=generator)
    folder = tmp_path_factory.mktemp("policy")
    lm.save_pretrained(folder)
    return folder


def read_logps(lm, sample) -> tuple[torch.Tensor, torch.Tensor]:
    """The log-probabilities of a sample's trained tokens, and the entropies of what they were drawn from."""
    ids, places = torch.tensor(sample.tokens), torch.tensor(sample.weight).nonzero()[:, 0]
    all_logp = torch.log_softmax(lm(input_ids=ids[None]).logits[0, places - 1], -1)
    return all_logp.gather(-1, ids[places][:, None])[:, 0], -(all_logp.exp() * all_logp).sum(-1)


def make_parts(policy, noise: float) -> list[Sample]:
    """Eight episodes in twelve samples, sampled by a policy whose log-probabilities are off by some noise."""
    samples, rng = make_samples(12), np.random.default_rng(11)
    lm = AutoModelForCausalLM.from_pretrained(policy, dtype=torch.float32)
    for k, sample in enumerate(samples):
        # Of four episodes two have two contexts, and two have two agents.
        sample.episode, sample.context_index, sample.agent = f"e{k % 8}", int(k in (8, 9)), "ab"[k >= 10]
        with torch.no_grad():
            logp = read_logps(lm, sample)[0].numpy()
        sample.old_logp[sample.weight != 0] = logp + noise * rng.normal(size=len(logp))
    return samples


def plain_loss(lm, reference, samples, *, average, correction) -> torch.Tensor:
    """The plain reference knows no correction: its weights are in the advantages here, and the ratios are 1."""
    rows: dict[tuple[str, str], plain_reference.Row] = {}
    columns, first = [], 0
    for sample in samples:
        at = sample.weight != 0
        logp, entropy = read_logps(lm, sample)
        with torch.no_grad():
            ref_logp, _ = read_logps(reference, sample)
        old_logp, advantage = torch.tensor(sample.old_logp[at]), torch.tensor(sample.advantage[at])
        if correction is not None:
            level, mode = correction
            log_weight = logp.detach() - old_logp
            weight = (log_weight if level == "token" else log_weight.sum().expand_as(log_weight)).exp()
            weight[weight > CAP] = CAP if mode == "truncate" else 0.0
            old_logp, advantage = logp.detach(), weight * advantage
        key, tokens = (sample.episode, sample.agent), range(first, first + len(logp))
        row = rows.setdefault(key, plain_reference.Row(episode=sample.episode, contexts=[], advantage={}))
        row.contexts.append(tokens)
        row.advantage |= zip(tokens, advantage.tolist(), strict=True)
        columns.append(torch.stack([logp, old_logp, ref_logp, entropy]))
        first += len(logp)
    options = {"loss_average": average, "loss_constant": CONSTANT, "ratio_level": "token", "kl_in": "loss"}
    options |= {"kl_coeff": KL_COEFF, "entropy_coeff": ENTROPY_COEFF, "clip_low": CLIP_LOW, "clip_high": CLIP_HIGH}
    return plain_reference.plain_loss(SimpleNamespace(**options), list(rows.values()), *torch.cat(columns, 1))


def plain_step(policy, tiny_model, samples, **settings) -> tuple[dict[str, np.ndarray], float]:
    """Return the weights after one AdamW step of torch, and the norm of the gradient."""
    lm, reference = (AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32) for path in (policy, tiny_model))
    optimizer = torch.optim.AdamW(lm.parameters(), lr=LR, weight_decay=0.0, eps=EPSILON)
    plain_loss(lm, reference, samples, **settings).backward()
    norm = math.sqrt(sum(float((parameter.grad.double() ** 2).sum()) for parameter in lm.parameters()))
    optimizer.step()
    return {f"lm.{name}": value.detach().numpy() for name, value in lm.named_parameters()}, norm


def learners_step(policy, tiny_model, samples, *, average, correction, tokens_per_micro_batch):
    """Return the weights after one step of the learner, and its metrics."""
    adamw = {"type": "AdamW", "params": {"lr": LR, "eps": EPSILON, "weight_decay": 0.0, "torch_adam": True}}
    options = {"kl_coeff": KL_COEFF, "entropy_coeff": ENTROPY_COEFF, "clip_low": CLIP_LOW, "clip_high": CLIP_HIGH}
    options |= {"loss_average": average, "loss_constant": CONSTANT, "kl_kind": "k3", "kl_in": "loss"}
    if correction is not None:
        level, mode = correction
        options |= {"old_logp": "recompute", "importance_correction": level, "importance_mode": mode}
        options |= {"importance_cap": CAP}
    group = make_group(
        make_config(
            tiny_model, **options, deepspeed={"optimizer": adamw}, tokens_per_micro_batch=tokens_per_micro_batch
        )
    )
    start = AutoModelForCausalLM.from_pretrained(policy, dtype=torch.float32).state_dict()
    group.set_weights({MODULE: {f"lm.{name}": value.numpy() for name, value in start.items()}})
    counts = []
    learner, step = group._learner, group._learner._step
    learner._step = lambda id_, batch: (counts.append(len(list(learner.micro_batches(id_, batch)))), step(id_, batch))
    metrics = update(group, samples)
    return weights(group), metrics, counts


def check(policy, tiny_model, samples, **settings) -> dict[str, float]:
    """Compare the learner's step, whole and cut to pieces, with the plain one."""
    plain, norm = plain_step(policy, tiny_model, samples, **settings)
    assert norm > 0.1
    for tokens_per_micro_batch, is_cut in ((8192, False), (150, True)):
        ours, metrics, [count] = learners_step(
            policy, tiny_model, samples, **settings, tokens_per_micro_batch=tokens_per_micro_batch
        )
        assert count >= 4 if is_cut else count == 1
        assert distance(plain, {name: ours[name] for name in plain}) < 1e-5
        assert metrics["gradient_norm"] == pytest.approx(norm, rel=1e-5)
    return metrics


@pytest.mark.parametrize("average", AVERAGES)
def test_one_step_is_that_of_the_plain_loss_with_two_clip_values_kl_and_entropy(policy, tiny_model, average):
    metrics = check(policy, tiny_model, make_parts(policy, noise=0.3), average=average, correction=None)
    assert 0.2 < metrics["clip_fraction"] < 0.8
    assert metrics["ref_kl"] > 1e-3


@pytest.mark.parametrize("average", AVERAGES)
@pytest.mark.parametrize("correction", CORRECTIONS, ids="-".join)
def test_one_step_is_that_of_the_plain_loss_with_an_importance_correction(policy, tiny_model, average, correction):
    noise = 0.3 if correction[0] == "token" else 0.1
    metrics = check(policy, tiny_model, make_parts(policy, noise=noise), average=average, correction=correction)
    assert 0.3 < metrics["importance_weight"] < 1.0  # some were above the cap
    assert metrics["clip_fraction"] == 0.0  # before the first step the ratio is 1


def test_the_ways_to_average_differ(policy, tiny_model):
    """Else any of them would pass for all."""
    samples = make_parts(policy, noise=0.3)
    lm, reference = (AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32) for path in (policy, tiny_model))
    losses = [plain_loss(lm, reference, samples, average=average, correction=None).item() for average in AVERAGES]
    assert min(abs(a - b) for k, a in enumerate(losses) for b in losses[:k]) > 1e-3
