"""The critic on the learner: its gradients against plain loops, and that no partition of the work changes them."""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
import pytest
import torch
from ray.rllib.core.learner.learner_group import LearnerGroup
from transformers import AutoModelForCausalLM

from rllm_gym.algorithms.ppo import PPOConfig
from rllm_gym.types import AGENT, Turn
from rllm_gym.weights.format import LORA_A, LORA_B
from tests.learner.learner_helpers import (
    MODULE,
    SGD,
    change,
    distance,
    largest,
    make_config,
    make_episodes,
    make_group,
    step,
    update,
)

CRITIC = f"{MODULE}_critic"
ADAM = {"deepspeed": {}, "critic_deepspeed": {}, "lr": 1e-3, "critic_lr": 1e-3}

pytestmark = pytest.mark.slow


def ppo_config(base_model, **options) -> PPOConfig:
    """Plain gradient descent for policy and critic, without clipping; truncated episodes bootstrap."""
    plain = {"critic_deepspeed": SGD, "clip_low": 1e9, "clip_high": 1e9, "gamma": 0.9, "lambda_": 0.8, "vf_clip": None}
    return make_config(base_model, "PPO", **{**plain, "bootstrap": "truncated", **options})


def ppo_group(config: PPOConfig, make_group: Callable = make_group, *, has_values: bool = True) -> LearnerGroup:
    """Learners whose value heads are not 0, so that every value differs."""
    group = make_group(config)
    if has_values:
        state = group.get_weights()
        of_critic = state[CRITIC if config.critic == "separate" else MODULE]
        of_critic["value_head.weight"] = value_weights()
        of_critic["value_head.bias"] = np.array([0.3], np.float32)
        group.set_weights(state)
    return group


def value_weights() -> np.ndarray:
    return np.random.default_rng(5).normal(size=(1, 64)).astype(np.float32) * 0.1


def ppo_episodes(num: int = 10, seed: int = 0) -> list:
    """Rewards on every turn; every other episode terminated."""
    rng, episodes = np.random.default_rng(seed), make_episodes(num, seed)
    for k, episode in enumerate(episodes):
        for turn in turns_of(episode):
            turn.reward = float(rng.normal())
        episode.end_reason = "horizon" if k % 2 else "terminated"
    return episodes


def turns_of(episode) -> list[Turn]:
    return episode.streams[AGENT].turns


def weights(group: LearnerGroup) -> dict[str, np.ndarray]:
    """All weights, those of the critic too."""
    state = group.get_weights()
    return {f"{module_id}/{name}": value.copy() for module_id in state for name, value in state[module_id].items()}


def gradient(group: LearnerGroup, episodes: list) -> dict[str, np.ndarray]:
    return step(group, episodes, weights)[0]


def synced(group: LearnerGroup) -> dict:
    """What the samplers get, as it is now."""
    state = group.get_state(components="learner/rl_module", inference_only=True)["learner"]["rl_module"]
    return copy.deepcopy(state)


# --- PPO by plain loops, one episode at a time, by nothing but torch ---


def plain_advantages(rewards, values, bootstrap: float, ends, gamma: float, lam: float, per: str) -> list[float]:
    """GAE over sampled tokens; `ends` says which are the last of a turn."""
    out, running, next_value = [], 0.0, bootstrap
    for reward, value, end in zip(reversed(rewards), reversed(values), reversed(ends), strict=True):
        g, decay = (gamma, gamma * lam) if per == "token" or end else (1.0, 1.0)
        running = reward + g * next_value - value + decay * running
        out.append(running)
        next_value = value
    return out[::-1]


class PlainEpisode:
    """An episode's text up to what a critic may read, its sampled positions, and what stands there."""

    def __init__(self, episode, *, bootstrap: str = "truncated") -> None:
        self.ids, self.positions, self.rewards, self.ends, self.old_logp = [], [], [], [], []
        for turn in turns_of(episode):
            self.ids += [*turn.observation_ids, *turn.action_ids]
            self.positions += range(len(self.ids) - len(turn.action_ids), len(self.ids))
            self.rewards += [0.0] * (len(turn.action_ids) - 1) + [turn.reward]
            self.ends += [False] * (len(turn.action_ids) - 1) + [True]
            self.old_logp += list(turn.logp)
        self.is_bootstrapped = bootstrap == "truncated" and episode.end_reason != "terminated"
        if self.is_bootstrapped:
            self.ids += [*episode.streams[AGENT].final_observation_ids]

    def values(self, backbone, head: torch.Tensor) -> tuple[torch.Tensor, float]:
        """Return the value before each sampled token, and the one after the last."""
        hidden = backbone(input_ids=torch.tensor(self.ids)[None]).last_hidden_state[0]
        value = hidden @ head[0] + 0.3
        return value[[p - 1 for p in self.positions]], value[-1].item() if self.is_bootstrapped else 0.0


def plain_ppo(base_model, episodes, *, per="token", bootstrap="truncated", vf_loss_coeff: float | None = None):
    """Return {name: gradient}; with `vf_loss_coeff` of one model with both losses, else of two."""
    policy, critic = (AutoModelForCausalLM.from_pretrained(base_model, dtype=torch.float32) for _ in range(2))
    head = torch.tensor(value_weights(), requires_grad=True)
    plain = [PlainEpisode(episode, bootstrap=bootstrap) for episode in episodes]
    if vf_loss_coeff is not None:
        critic = policy
    num_tokens = sum(len(episode.positions) for episode in plain)
    advantages, targets = [], []
    for episode in plain:
        with torch.no_grad():
            values, bootstrap = episode.values(critic.model, head)
        found = plain_advantages(episode.rewards, values.tolist(), bootstrap, episode.ends, 0.9, 0.8, per)
        advantages.append(torch.tensor(found))
        targets.append(advantages[-1] + values)
    pooled = torch.cat(advantages)
    loss = torch.zeros(())
    for episode, advantage, target in zip(plain, advantages, targets, strict=True):
        ids = torch.tensor(episode.ids)
        logits = policy(input_ids=ids[None]).logits[0, [p - 1 for p in episode.positions]]
        logp = torch.log_softmax(logits, -1).gather(-1, ids[episode.positions][:, None])[:, 0]
        ratio = (logp - torch.tensor(episode.old_logp)).exp()
        loss = loss - (ratio * (advantage - pooled.mean()) / pooled.std()).sum() / num_tokens
        values, _ = episode.values(critic.model, head)
        loss = loss + (vf_loss_coeff or 1.0) * 0.5 * ((values - target) ** 2).sum() / num_tokens
    loss.backward()
    if vf_loss_coeff is not None:
        of_policy = {f"{MODULE}/lm.{name}": p.grad.numpy() for name, p in policy.named_parameters()}
        return of_policy | {f"{MODULE}/value_head.weight": head.grad.numpy()}
    of_policy = {f"{MODULE}/lm.{name}": p.grad.numpy() for name, p in policy.named_parameters()}
    of_critic = {f"{CRITIC}/lm.{name}": p.grad.numpy() for name, p in critic.model.named_parameters()}
    return of_policy | of_critic | {f"{CRITIC}/value_head.weight": head.grad.numpy()}


def close(ours, plain, tolerance: float = 1e-5) -> bool:
    return distance(plain, {name: ours[name] for name in plain}) < tolerance * max(1.0, largest(plain))


@pytest.mark.parametrize(("per", "bootstrap"), [("token", "truncated"), ("turn", "truncated"), ("token", "never")])
def test_policy_and_critic_have_the_gradients_of_the_plain_losses(tiny_model, per, bootstrap):
    episodes = ppo_episodes()
    ours = gradient(ppo_group(ppo_config(tiny_model, gae_per=per, bootstrap=bootstrap)), episodes)
    assert close(ours, plain_ppo(tiny_model, episodes, per=per, bootstrap=bootstrap))


def test_a_shared_critic_adds_its_loss_to_the_policys(tiny_model):
    episodes = ppo_episodes()
    ours = gradient(ppo_group(ppo_config(tiny_model, critic="shared", vf_loss_coeff=0.5)), episodes)
    assert close(ours, plain_ppo(tiny_model, episodes, vf_loss_coeff=0.5))


@pytest.mark.parametrize("critic", ["separate", "shared"])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_micro_batches_and_zero_stages_change_no_gradient(tiny_model, critic, stage):
    episodes = ppo_episodes()
    whole = gradient(ppo_group(ppo_config(tiny_model, critic=critic)), episodes)
    parts = {"zero_stage": stage, "tokens_per_micro_batch": 150}
    assert close(gradient(ppo_group(ppo_config(tiny_model, critic=critic, **parts)), episodes), whole)


@pytest.mark.parametrize(("critic", "stage"), [("separate", 2), ("separate", 3), ("shared", 3)])
def test_two_learners_whiten_together_and_change_no_gradient(tiny_model, two_learners, critic, stage):
    episodes = ppo_episodes()
    one_group = ppo_group(ppo_config(tiny_model, critic=critic))
    before = weights(one_group)
    first = update(one_group, episodes)
    one = change(before, weights(one_group))
    parts = {"zero_stage": stage, "tokens_per_micro_batch": 150}
    group = ppo_group(ppo_config(tiny_model, critic=critic, **parts), two_learners)
    before = weights(group)
    second = update(group, episodes)
    two = change(before, weights(group))
    assert close(two, one)
    for name in ("vf_loss", "value_mean", "explained_variance", "policy_loss"):
        assert second[name] == pytest.approx(first[name], abs=1e-4), name


def test_what_no_critic_may_see_changes_nothing(tiny_model):
    """An environment's last words after it terminated, and what lies beyond max_model_len."""
    episodes = ppo_episodes(4)
    first = gradient(ppo_group(ppo_config(tiny_model)), episodes)
    streams = [episode.streams[AGENT] for episode in episodes]
    for episode, stream in zip(episodes, streams, strict=True):
        if episode.end_reason == "terminated":
            stream.final_observation_ids = np.full(300, 7)
    assert distance(first, gradient(ppo_group(ppo_config(tiny_model)), episodes)) == 0.0
    longest = max(len(PlainEpisode(episode).ids) for episode in episodes)
    for stream in streams:
        stream.final_observation_ids = np.concatenate([stream.final_observation_ids, np.full(400, 7)])
    bounded = gradient(ppo_group(ppo_config(tiny_model, max_model_len=longest)), episodes)
    unbounded = gradient(ppo_group(ppo_config(tiny_model, max_model_len=2 * longest)), episodes)
    assert distance(bounded, unbounded) > 1e-4  # truncated episodes bootstrap from what is seen


def test_the_values_are_reported_as_they_were_before_the_update(tiny_model):
    episodes = ppo_episodes()
    backbone = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32).model
    values, targets = [], []
    with torch.no_grad():
        for episode in map(PlainEpisode, episodes):
            value, bootstrap = episode.values(backbone, torch.tensor(value_weights()))
            advantage = plain_advantages(episode.rewards, value.tolist(), bootstrap, episode.ends, 0.9, 0.8, "token")
            values += value.tolist()
            targets += (torch.tensor(advantage) + value).tolist()
    values, targets = np.array(values), np.array(targets)
    metrics = update(ppo_group(ppo_config(tiny_model)), episodes)
    assert metrics["value_mean"] == pytest.approx(values.mean(), abs=1e-5)
    assert metrics["vf_loss"] == pytest.approx(((values - targets) ** 2).mean() / 2, rel=1e-4)
    explained = 1 - np.var(targets - values) / np.var(targets)
    assert metrics["explained_variance"] == pytest.approx(explained, abs=1e-4)


@pytest.mark.parametrize(("critic", "explained"), [("separate", 0.3), ("shared", 0.1)])
def test_a_critic_learns_the_returns(tiny_model, critic, explained):
    """Values of the same episodes, with nothing but the value loss: a shared critic has only its head to learn with."""
    options = {**ADAM, "critic": critic, "zero_stage": 2, "vf_loss_coeff": 1.0, "gamma": 1.0, "lambda_": 1.0}
    group = ppo_group(ppo_config(tiny_model, critic_warmup_steps=100, grad_clip=1.0, **options), has_values=False)
    episodes = ppo_episodes(6)
    metrics = [update(group, episodes) for _ in range(40)]
    assert metrics[0]["value_mean"] == 0.0
    assert metrics[-1]["explained_variance"] > explained
    assert metrics[-1]["vf_loss"] < 0.9 * metrics[0]["vf_loss"]


@pytest.mark.parametrize("critic", ["separate", "shared"])
def test_in_the_warm_up_the_policy_stands_still_and_the_critic_learns(tiny_model, critic):
    options = {**ADAM, "critic": critic, "zero_stage": 2, "weight_decay": 0.5}
    group = ppo_group(ppo_config(tiny_model, critic_warmup_steps=2, **options), has_values=False)
    start, sent = weights(group), synced(group)[MODULE]
    for k in range(2):
        metrics = update(group, ppo_episodes(6, seed=k), train_step=k)
        assert metrics["num_sampled_tokens_trained"] > 0
    after = weights(group)
    moved = {name for name in after if not np.array_equal(after[name], start[name])}
    assert moved and all(name.startswith(CRITIC) or "value_head" in name for name in moved)
    assert all(np.array_equal(value, synced(group)[MODULE][name]) for name, value in sent.items())
    assert group._learner._weights_seq_no == 0  # nothing new for the samplers
    update(group, ppo_episodes(6), train_step=2)
    assert any(not np.array_equal(value, synced(group)[MODULE][name]) for name, value in sent.items())
    assert group._learner._weights_seq_no == 1
    # The weight decay is back: it alone would take 0.5 * 1e-3 of every weight.
    [decays] = [decays for id_, decays in group._learner._weight_decays.items() if id_ == MODULE]
    assert decays == [g["weight_decay"] for g in group._learner.engines[MODULE].basic_optimizer.param_groups] == [0.5]


@pytest.mark.parametrize("critic", ["separate", "shared"])
@pytest.mark.parametrize("stage", [0, 3])
def test_samplers_get_the_policy_alone_under_hugging_face_names(tiny_model, critic, stage):
    group = ppo_group(ppo_config(tiny_model, critic=critic, zero_stage=stage))
    state = synced(group)
    lm = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32).state_dict()
    assert set(state) == {MODULE}
    assert set(state[MODULE]) == set(lm)
    assert all(np.array_equal(state[MODULE][name], value.numpy()) for name, value in lm.items())


def test_each_engine_has_its_own_rate_schedule_and_gradient_norm(tiny_model):
    schedule = {"type": "WarmupLR", "params": {"warmup_max_lr": 1e-2, "warmup_num_steps": 10, "warmup_type": "linear"}}
    options = {**ADAM, "deepspeed": {"scheduler": schedule}, "critic_lr": 3e-4, "grad_clip": 1.0, "zero_stage": 2}
    group = ppo_group(ppo_config(tiny_model, **options))
    metrics = update(group, ppo_episodes())
    rates = {
        module_id: engine.basic_optimizer.param_groups[0]["lr"] for module_id, engine in group._learner.engines.items()
    }
    assert rates[CRITIC] == 3e-4
    assert 0 <= rates[MODULE] < 1e-2
    assert metrics["gradient_norm"] > 0
    assert metrics["critic_gradient_norm"] > 0
    assert metrics["gradient_norm"] != metrics["critic_gradient_norm"]


def test_the_gradient_norms_are_those_of_the_gradients(tiny_model):
    episodes = ppo_episodes()
    group = ppo_group(ppo_config(tiny_model, zero_stage=2, grad_clip=1e9, tokens_per_micro_batch=150))
    before = weights(group)
    metrics = update(group, episodes)
    delta = change(before, weights(group))
    for module_id, name in ((MODULE, "gradient_norm"), (CRITIC, "critic_gradient_norm")):
        parts = [value for key, value in delta.items() if key.startswith(f"{module_id}/") and "lm_head" not in key]
        assert metrics[name] == pytest.approx(np.sqrt(sum(float((part**2).sum()) for part in parts)), rel=1e-4)


@pytest.mark.parametrize("critic", ["separate", "shared"])
def test_lora_trains_adapters_and_the_value_head_and_the_reference_has_no_adapter(tiny_model, critic):
    options = {**ADAM, "critic": critic, "lora": {"r": 4, "lora_alpha": 8}, "kl_coeff": 0.1, "zero_stage": 2}
    group = ppo_group(ppo_config(tiny_model, **options), has_values=False)
    start, episodes = weights(group), ppo_episodes(6)
    metrics = [update(group, episodes) for _ in range(3)]
    assert metrics[0]["ref_kl"] == pytest.approx(0.0, abs=1e-6)
    assert metrics[-1]["ref_kl"] > 0
    after = weights(group)
    moved = {name for name in after if not np.array_equal(after[name], start[name])}
    assert {name.split("/")[0] for name in moved} == {name.split("/")[0] for name in after}
    assert all(".lora_" in name or "value_head" in name for name in moved)
    lm = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32).state_dict()
    adapter = synced(group)[MODULE]
    assert {name.removesuffix(LORA_A).removesuffix(LORA_B) for name in adapter} <= set(lm)
    assert sum(name.endswith(LORA_A) for name in adapter) == sum(name.endswith(LORA_B) for name in adapter) > 0


def test_a_step_without_trainable_tokens_changes_nothing_and_still_reports_every_metric(tiny_model):
    group = ppo_group(ppo_config(tiny_model, **ADAM))
    full = update(group, ppo_episodes(4))
    before = weights(group)
    empty = update(group, [])
    assert distance(before, weights(group)) == 0.0
    assert set(full) - set(empty) == {"value_mean", "explained_variance"}  # of no values
    assert all(np.isfinite(value) for value in (*empty.values(), *full.values()))


def test_later_epochs_move_no_value_beyond_the_clip(tiny_model):
    """All returns are far above the values: past the clip one has no gradient, so six epochs do about what one does."""
    episodes = ppo_episodes()
    for episode in episodes:
        for turn in turns_of(episode):
            turn.reward = 50.0

    def values_after(num_epochs: int, clip: float | None) -> float:
        sgd = {"optimizer": {"type": "SGD", "params": {"lr": 1e-4}}}
        config = ppo_config(tiny_model, critic_deepspeed=sgd, vf_clip=clip, critic_epochs=num_epochs, num_epochs=2)
        group = ppo_group(config, has_values=False)
        assert update(group, episodes)["num_optimizer_steps"] == 2  # the policy's
        return update(group, episodes)["value_mean"]

    once = values_after(1, 1e-6)
    assert once > 1e-4
    assert values_after(6, 1e-6) == pytest.approx(once, rel=0.1)  # values that fell at first still move
    assert values_after(6, None) > 4 * once


def test_a_kl_penalty_in_the_reward_is_in_the_critics_targets(tiny_model):
    """The penalty is log(policy / reference) per token: of a sampler far surer than the reference, so large that every
    target sinks by at least its last token's."""
    episodes = ppo_episodes(6)
    for episode in episodes:
        for turn in turns_of(episode):
            turn.logp = np.zeros_like(turn.logp)
    options = {"kl_kind": "k1", "kl_coeff": 1.0}
    in_loss = update(ppo_group(ppo_config(tiny_model, kl_in="loss", **options), has_values=False), episodes)
    in_reward = update(ppo_group(ppo_config(tiny_model, kl_in="reward", **options), has_values=False), episodes)
    assert in_reward["vf_loss"] > 10 * in_loss["vf_loss"]


@pytest.mark.parametrize("critic", ["separate", "shared"])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_both_engines_resume_bit_for_bit(tiny_model, tmp_path, critic, stage):
    config = ppo_config(tiny_model, critic=critic, zero_stage=stage, **ADAM)
    group = ppo_group(config)
    update(group, ppo_episodes(4))
    path = group.save_to_path(str(tmp_path / "group"))
    group._learner.save_engines(str(tmp_path / "engines"))
    saved = weights(group)
    update(group, ppo_episodes(4, seed=1))
    straight = weights(group)

    again = ppo_group(config, has_values=False)
    again.restore_from_path(path)
    again._learner.load_engines(str(tmp_path / "engines"))
    assert distance(saved, weights(again)) == 0.0
    update(again, ppo_episodes(4, seed=1))
    assert distance(straight, weights(again)) == 0.0
    assert distance(straight, saved) > 1e-4
