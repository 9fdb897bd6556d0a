"""What each method's learner computes from rewards and advantages, and that no partition of the work changes it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from rllm_gym.types import AGENT, Turn
from tests.learner.learner_helpers import (
    MODULE,
    change,
    distance,
    driver_of,
    gradient,
    largest,
    make_config,
    make_episodes,
    make_group,
    make_samples,
    update,
    weights,
)

pytestmark = [pytest.mark.slow, pytest.mark.promise]

UNCLIPPED = {"clip_low": 1e9, "clip_high": 1e9}
METHODS = {
    "reinforce_pp": ("ReinforcePP", {"gamma": 0.9, "kl_coeff": 0.1}),
    "reinforce_pp_baseline": ("ReinforcePP", {"baseline": "group"}),
    "rloo": ("RLOO", {"kl_coeff": 0.1}),
    "gspo": ("GRPO", {"ratio_level": "sequence", "loss_average": "sequences"}),
    "grpo_by_sequences": ("GRPO", {"loss_average": "sequences"}),
    "dr_grpo": ("GRPO", {"loss_average": "constant", "loss_constant": 100}),
}


def grouped_episodes(num=12):
    """Episodes with a reward on every turn, in groups of three."""
    rng = np.random.default_rng(7)
    episodes = make_episodes(num)
    for episode in episodes:
        for turn in turns_of(episode):
            turn.reward = float(rng.normal())
    return episodes


def turns_of(episode) -> list[Turn]:
    return episode.streams[AGENT].turns


def sampled_logps(lm, episode) -> torch.Tensor:
    """The log-probabilities of an episode's sampled tokens, by nothing but torch."""
    ids, mask = [], []
    for turn in turns_of(episode):
        ids += [*turn.observation_ids, *turn.action_ids]
        mask += [False] * len(turn.observation_ids) + [True] * len(turn.action_ids)
    ids = torch.tensor(ids)
    logp = torch.log_softmax(lm(input_ids=ids[None]).logits[0, :-1], -1).gather(-1, ids[1:, None])[:, 0]
    return logp[torch.tensor(mask[1:])]


def old_logps(episode) -> np.ndarray:
    return np.concatenate([turn.logp for turn in turns_of(episode)]).astype(float)


def token_rewards(episode, logp, kl_coeff) -> list[float]:
    """Each turn's reward at its last token, less what the sampler's log-probability is above the reference's."""
    rewards = []
    for turn in turns_of(episode):
        rewards += [0.0] * (len(turn.action_ids) - 1) + [turn.reward]
    return list(np.array(rewards) - kl_coeff * (old_logps(episode) - logp.detach().numpy()))


def group_of(k: int) -> list[int]:
    """Which episodes are compared with episode k: three of every task."""
    return [k - k % 3 + j for j in range(3)]


def token_advantages(name, episodes, logps) -> list[list[float]]:
    """Each sampled token's advantage, by loops; the reference is the model itself, as it is before the update."""
    kl_coeff = METHODS[name][1].get("kl_coeff", 0.0)
    rewards = [token_rewards(episode, logp, kl_coeff) for episode, logp in zip(episodes, logps, strict=True)]
    totals = [sum(of_episode) for of_episode in rewards]
    advantages = []
    for k, of_episode in enumerate(rewards):
        peers = [totals[j] for j in group_of(k)]
        if name == "rloo":
            advantage = totals[k] - (sum(peers) - totals[k]) / 2
        elif name == "reinforce_pp_baseline":
            advantage = totals[k] - np.mean(peers)
        else:
            advantage = (totals[k] - np.mean(peers)) / (np.std(peers, ddof=1) + 1e-6)
        returns = [advantage] * len(of_episode)
        if name == "reinforce_pp":
            returns = [sum(0.9**i * reward for i, reward in enumerate(of_episode[t:])) for t in range(len(of_episode))]
        advantages.append(returns)
    if not name.startswith("reinforce_pp"):
        return advantages
    everything = np.concatenate(advantages)
    return [list((np.array(a) - everything.mean()) / everything.std(ddof=1)) for a in advantages]


def plain_gradient(name, base_model, episodes) -> dict[str, np.ndarray]:
    lm = AutoModelForCausalLM.from_pretrained(base_model, dtype=torch.float32)
    logps = [sampled_logps(lm, episode) for episode in episodes]
    advantages = token_advantages(name, episodes, logps)
    num_tokens = sum(len(logp) for logp in logps)
    loss = torch.zeros(())
    for episode, logp, advantage in zip(episodes, logps, advantages, strict=True):
        log_ratio = logp - torch.tensor(old_logps(episode), dtype=torch.float32)
        gain = torch.tensor(advantage, dtype=torch.float32) * log_ratio.exp()
        if name == "gspo":
            loss = loss - advantage[0] * log_ratio.mean().exp() / len(episodes)
        elif name == "grpo_by_sequences":
            loss = loss - gain.mean() / len(episodes)
        elif name == "dr_grpo":
            loss = loss - gain.sum() / len(episodes) / 100
        else:
            loss = loss - gain.sum() / num_tokens
    loss.backward()
    return {f"lm.{name}": parameter.grad.numpy() for name, parameter in lm.named_parameters()}


@pytest.mark.parametrize("name", METHODS)
def test_the_gradient_is_that_of_the_published_loss(tiny_model, name):
    method, options = METHODS[name]
    episodes = grouped_episodes()
    group = make_group(make_config(tiny_model, method, **UNCLIPPED, **options, tokens_per_micro_batch=150))
    ours, plain = gradient(group, episodes), plain_gradient(name, tiny_model, episodes)
    assert largest(plain) > 1e-3
    assert distance(plain, {key: ours[key] for key in plain}) < 2e-5 * max(1.0, largest(plain))


@pytest.mark.parametrize("name", ["reinforce_pp", "rloo", "gspo", "grpo_by_sequences"])
def test_two_learners_change_no_gradient(tiny_model, two_learners, name):
    method, options = METHODS[name]
    episodes = grouped_episodes()
    one = gradient(make_group(make_config(tiny_model, method, **options)), episodes)
    two = gradient(two_learners(make_config(tiny_model, method, **options, tokens_per_micro_batch=150)), episodes)
    assert distance(one, two) < 1e-5 * largest(one)


def test_the_kl_coefficient_follows_its_target(tiny_model):
    options = {"kl_coeff": 0.1, "kl_in": "loss", "kl_kind": "k2", "kl_target": 1e-9, "kl_rate": 0.5, "lr": 1e-3}
    group = make_group(make_config(tiny_model, "RLOO", **options, deepspeed={}))
    episodes, driver = grouped_episodes(), driver_of(group)

    def train(items):
        metrics = update(group, items, driver=driver)
        driver._follow_kl_target(driver.results)
        return metrics["ref_kl"], driver.kl_coeff[MODULE]

    # At first the policy is its own reference: KL 0, below the target: 0.1 (1 - 0.5 * 0.2); then above it: (1 + ...).
    assert train(episodes) == pytest.approx((0.0, 0.09), abs=1e-7)
    ref_kl, kl_coeff = train(episodes)
    assert ref_kl > 1e-6
    assert kl_coeff == pytest.approx(0.099)
    assert train([])[1] == pytest.approx(0.099)  # an empty step leaves it
    assert train(episodes)[1] == pytest.approx(0.1089)


def test_the_learner_weighs_the_kl_with_the_coefficient_of_the_train_step(tiny_model, other_model):
    """What the driver says, and not the configured one; every advantage is 0, so that only the KL is left."""
    samples = make_samples(6)
    for sample in samples:
        sample.advantage[:] = 0.0
    gradients = []
    for kl_coeff in ({}, {MODULE: 0.5}):
        group = make_group(make_config(tiny_model, kl_coeff=0.1))
        group.set_weights({MODULE: weights(make_group(make_config(other_model)))})
        driver = driver_of(group)
        driver.kl_coeff, before = kl_coeff, weights(group)
        update(group, samples, driver=driver)
        gradients.append(change(before, weights(group)))
    assert largest(gradients[0]) > 1e-3
    assert distance(gradients[1], {name: 5 * value for name, value in gradients[0].items()}) < 1e-4 * largest(
        gradients[1]
    )


def test_a_sequences_clip_fraction_counts_the_tokens_of_clipped_sequences(tiny_model):
    episodes = grouped_episodes()
    lm = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    logps = [sampled_logps(lm, episode).detach().numpy() for episode in episodes]
    ratios = [np.exp(np.mean(logp - old_logps(episode))) for logp, episode in zip(logps, episodes, strict=True)]
    sizes = np.array([len(logp) for logp in logps])
    clip = float(np.median(np.abs(np.array(ratios) - 1)))
    expected = sizes[np.abs(np.array(ratios) - 1) > clip].sum() / sizes.sum()
    options = {"ratio_level": "sequence", "loss_average": "sequences", "clip_low": clip, "clip_high": clip}
    group = make_group(make_config(tiny_model, **options))
    assert update(group, episodes)["clip_fraction"] == pytest.approx(expected, abs=1e-6)
    assert 0 < expected < 1
