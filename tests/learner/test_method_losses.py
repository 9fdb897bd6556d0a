"""What each method's learner computes from rewards and advantages, and that no partition of the work changes it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.learner.learner_helpers import (
    distance,
    gradient,
    largest,
    make_config,
    make_episodes,
    make_group,
    update,
)

pytestmark = pytest.mark.slow

UNCLIPPED = {"clip_low": 1e9, "clip_high": 1e9}
METHODS = {
    "reinforce_pp": ("ReinforcePP", {"gamma": 0.9, "kl_coeff": 0.1}),
    "reinforce_pp_baseline": ("ReinforcePP", {"baseline": "group"}),
    "rloo": ("RLOO", {"kl_coeff": 0.1}),
    "gspo": ("GRPO", {"ratio_level": "sequence", "loss_average": "sequences"}),
    "grpo_by_sequences": ("GRPO", {"loss_average": "sequences"}),
    "dr_grpo": ("GRPO", {"loss_average": "constant", "max_model_len": 100}),
}


def grouped_episodes(num=12):
    """Episodes with a reward on every turn, in groups of three."""
    rng = np.random.default_rng(7)
    episodes = make_episodes(num)
    for k, episode in enumerate(episodes):
        episode.rewards.data[:] = rng.normal(size=len(episode.rewards.data)).tolist()
        episode.custom_data["stream_group"] = k // 3
    return episodes


def sampled_logps(lm, episode) -> torch.Tensor:
    """The log-probabilities of an episode's sampled tokens, by nothing but torch."""
    ids, mask = [], []
    for observation, action in zip(episode.get_observations(), episode.get_actions(), strict=False):
        ids += [*observation, *action]
        mask += [False] * len(observation) + [True] * len(action)
    ids = torch.tensor(ids)
    logp = torch.log_softmax(lm(input_ids=ids[None]).logits[0, :-1], -1).gather(-1, ids[1:, None])[:, 0]
    return logp[torch.tensor(mask[1:])]


def old_logps(episode) -> np.ndarray:
    return np.concatenate(episode.get_extra_model_outputs("action_logp")).astype(float)


def token_rewards(episode, logp, kl_coeff) -> list[float]:
    """Each turn's reward at its last token, less what the sampler's log-probability is above the reference's."""
    rewards = []
    for action, reward in zip(episode.get_actions(), episode.get_rewards(), strict=True):
        rewards += [0.0] * (len(action) - 1) + [reward]
    return list(np.array(rewards) - kl_coeff * (old_logps(episode) - logp.detach().numpy()))


def token_advantages(name, episodes, logps) -> list[list[float]]:
    """Each sampled token's advantage, by loops; the reference is the model itself, as it is before the update."""
    if not name.startswith(("reinforce_pp", "rloo")):
        return [[e.custom_data["advantage"]] * len(logp) for e, logp in zip(episodes, logps, strict=True)]
    rewards = [token_rewards(episode, logp, 0.1) for episode, logp in zip(episodes, logps, strict=True)]
    if name == "rloo":
        totals = [sum(of_episode) for of_episode in rewards]
        others = [
            np.mean([totals[j] for j in range(len(episodes)) if j // 3 == k // 3 and j != k])
            for k in range(len(episodes))
        ]
        return [[totals[k] - others[k]] * len(logp) for k, logp in enumerate(logps)]
    advantages = []
    for episode, of_episode in zip(episodes, rewards, strict=True):
        total, returns = 0.0, []
        for reward in reversed(of_episode):
            total = reward + 0.9 * total
            returns.insert(0, total)
        baseline_form = [episode.custom_data["advantage"]] * len(returns)
        advantages.append(baseline_form if name.endswith("baseline") else returns)
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
def test_two_learners_change_no_gradient(tiny_model, ray_cluster, name):
    method, options = METHODS[name]
    episodes = grouped_episodes()
    one = gradient(make_group(make_config(tiny_model, method, **options)), episodes)
    group = make_group(make_config(tiny_model, method, **options, num_learners=2, tokens_per_micro_batch=150))
    try:
        two = gradient(group, episodes)
    finally:
        group.shutdown()
    assert distance(one, two) < 1e-5 * largest(one)


def test_the_kl_coefficient_follows_its_target_and_is_restored(tiny_model):
    options = {"kl_coeff": 0.1, "kl_in": "loss", "kl_kind": "k2", "kl_target": 1e-9, "kl_rate": 0.5, "lr": 1e-3}
    config = make_config(tiny_model, "RLOO", **options, deepspeed={})
    group = make_group(config)
    episodes = grouped_episodes()
    seen = [update(group, episodes) for _ in range(2)]
    # At first the policy is its own reference: KL 0, below the target: 0.1 (1 - 0.5 * 0.2); then above it: (1 + ...).
    assert [metrics["kl_coeff"] for metrics in seen] == pytest.approx([0.1, 0.09])
    assert seen[1]["ref_kl"] > 1e-6
    assert update(group, [])["kl_coeff"] == pytest.approx(0.099)  # an empty step leaves it
    other = make_group(config)
    other.set_state(group.get_state())
    assert update(other, episodes)["kl_coeff"] == pytest.approx(0.099)


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
