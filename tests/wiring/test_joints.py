"""What passes from the runner to the learner and into the records is what was meant, number for number."""

from __future__ import annotations

import json
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from ray.rllib.callbacks.callbacks import RLlibCallback
from ray.tune.registry import register_env
from transformers import AutoModelForCausalLM

from rllm_gym.algorithms import policy_learner
from rllm_gym.callbacks.scaling_inter import ScalingInter
from rllm_gym.data import best_and_worst, read_episodes
from rllm_gym.errors import RllmGymError
from rllm_gym.training.recorded_samples import is_wanted
from tests import plain_reference
from tests.conftest import make_tokenizer
from tests.wiring.harness import Run, callback, run
from tests.wiring.maze import Maze

SGD = {"optimizer": {"type": "SGD", "params": {"lr": 1.0}}}
MANY_MICRO_BATCHES = {"tokens_per_micro_batch": 150, "grad_clip": None, "deepspeed": SGD}


@pytest.fixture(scope="module")
def restless_model(tmp_path_factory, tiny_model):
    """The tiny model with dropout everywhere, which no pass may use."""
    lm = AutoModelForCausalLM.from_pretrained(tiny_model, attention_dropout=0.5)
    folder = tmp_path_factory.mktemp("restless")
    lm.save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def reference_model(tmp_path_factory, tiny_model):
    """The tiny model after a step in some direction: a policy has a KL to it."""
    lm = AutoModelForCausalLM.from_pretrained(tiny_model)
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in lm.parameters():
            parameter += 0.02 * torch.randn_like(parameter)
    folder = tmp_path_factory.mktemp("reference")
    lm.save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return folder


def plain_loss(base_model, found: Run, config) -> tuple[torch.Tensor, torch.nn.Module]:
    """The loss of a train step, from its samples, by nothing but torch."""
    lm = AutoModelForCausalLM.from_pretrained(base_model, dtype=torch.float32).eval()
    reference = AutoModelForCausalLM.from_pretrained(config["reference"], dtype=torch.float32).eval()
    rows, columns, num_tokens = [], [], 0
    for sample in found.trained:
        ids = torch.as_tensor(sample.tokens)
        at = torch.as_tensor(sample.weight[1:] > 0)
        all_logp = torch.log_softmax(lm(input_ids=ids[None]).logits[0, :-1] / config["temperature"], -1)
        logp = all_logp.gather(-1, ids[1:, None])[:, 0][at]
        with torch.no_grad():
            ref = torch.log_softmax(reference(input_ids=ids[None]).logits[0, :-1] / config["temperature"], -1)
        entropy = -(all_logp.exp() * all_logp).sum(-1)[at]
        old, ref = torch.as_tensor(sample.old_logp[1:])[at], ref.gather(-1, ids[1:, None])[:, 0][at]
        columns.append(torch.stack([logp, old, ref, entropy]))
        tokens = range(num_tokens, num_tokens := num_tokens + len(logp))
        advantage = dict(zip(tokens, sample.advantage[1:][at.numpy()].tolist(), strict=True))
        rows.append(plain_reference.Row(episode=sample.episode, contexts=[tokens], advantage=advantage))
    of_run = SimpleNamespace(**config, kl_in="loss", ratio_level="token", loss_average="tokens", loss_constant=1)
    return plain_reference.plain_loss(of_run, rows, *torch.cat(columns, 1)), lm


@pytest.mark.parametrize(
    "terms", [{}, {"entropy_coeff": 0.7}, {"kl_coeff": 0.9}, {"entropy_coeff": 0.3, "kl_coeff": 2.0}]
)
def test_the_loss_of_several_micro_batches_is_plain_torchs(
    ray_cluster, restless_model, reference_model, terms, monkeypatch
):
    # Another reference than the policy itself, to which the KL would be 0.
    load = policy_learner.load_language_model
    monkeypatch.setattr(policy_learner, "load_language_model", lambda _, dtype: load(str(reference_model), dtype))
    settings = {"clip_low": 0.05, "clip_high": 0.5, "temperature": 0.8, "kl_coeff": 0.0, "entropy_coeff": 0.0} | terms
    options = MANY_MICRO_BATCHES | settings | {"kl_kind": "k3"}
    with run(restless_model, **options) as found:
        assert len(found.batches) > 3
        assert found.metrics["clip_fraction"] > 0.2
        loss, lm = plain_loss(restless_model, found, settings | {"reference": reference_model})
        loss.backward()
        assert sum(found.losses) == pytest.approx(float(loss.detach()), abs=1e-5)
        after = found.weights
        for name, parameter in lm.named_parameters():
            if name in after and parameter.grad is not None:
                moved = after[name] - found.before[name]
                np.testing.assert_allclose(moved, -parameter.grad.numpy(), atol=2e-5, err_msg=name)


def test_the_trainers_log_probabilities_are_a_plain_forwards_also_where_the_model_has_dropout(
    ray_cluster, restless_model
):
    with run(restless_model, old_logp="recompute", num_epochs=2, lr=0.0) as found:
        lm = AutoModelForCausalLM.from_pretrained(restless_model, dtype=torch.float32).eval()
        for sample in found.trained:
            ids, at = torch.as_tensor(sample.tokens), sample.weight > 0
            with torch.no_grad():
                logp = torch.log_softmax(lm(input_ids=ids[None]).logits[0, :-1], -1).gather(-1, ids[1:, None])[:, 0]
            np.testing.assert_allclose(sample.trainer_logp[at], logp[at[1:]], atol=1e-5)
        assert found.metrics["kl"] == pytest.approx(0.0, abs=1e-9)
        assert found.metrics["clip_fraction"] == 0.0


def test_a_second_epoch_has_the_ratio_to_what_the_trainer_gave_before_the_first(ray_cluster, tiny_model):
    with run(tiny_model, old_logp="recompute", num_epochs=2, lr=1e-2) as found:
        assert found.metrics["kl"] > 1e-4
        assert found.metrics["clip_fraction"] > 0.0
        assert found.metrics["first_clip_fraction"] == 0.0  # in the first step it is 1


def test_an_evaluation_plays_all_tasks_of_its_split_and_no_other(ray_cluster, tiny_model):
    with run(tiny_model, steps=0) as found:
        for split, parity in (("eval", 1), ("train", 0)):
            metrics, episodes = found.algo.evaluation.split(split, 12, horizon=2, seed=3)
            played = Counter(episode.item_id for episode in episodes)
            assert played == {f"maze_{k}": 2 for k in range(12) if k % 2 == parity}
            assert metrics["num_episodes"] == 12
            assert {episode.num_env_steps for episode in episodes} <= {1, 2}
        # Every episode has a seed of its own.
        assert len({episode.seed for episode in episodes}) == 12


def test_a_runs_evaluations_are_stored_with_their_split_and_nobody_learns_from_them(ray_cluster, tiny_model):
    options = {"evaluation_interval": 1, "evaluation_duration": 4, "evaluation_splits": ["eval", "train"]}
    with run(tiny_model, steps=2, save_trajectories=True, evaluation_horizon=2, **options) as found:
        path = found.algo.trajectories_path
        records = list(read_episodes(path))
        assert len({record.episode_id for record in records}) == len(records)
        played = Counter((record.is_evaluation, record.split, record.train_step) for record in records)
        # Before the first train step (0), after it (0) and after the second (1).
        assert played == {
            (False, "train", 0): 12, (False, "train", 1): 12,
            (True, "eval", 0): 8, (True, "eval", 1): 4, (True, "train", 0): 8, (True, "train", 1): 4,
        }  # fmt: skip
        evaluated = [record for record in records if record.is_evaluation]
        assert {int(str(record.item_id).split("_")[1]) % 2 for record in evaluated if record.split == "eval"} == {1}
        assert {record.max_episode_steps for record in evaluated} == {2}
        assert not any(is_wanted(record, None) for record in evaluated)
        assert all(is_wanted(record, None) for record in records if not record.is_evaluation)
        places = best_and_worst(path, within="task", reward_gap=0.0, expert_threshold=None)
        assert places
        assert not any(records[place].is_evaluation for pair in places for place in pair)


class Yard(Maze):
    """Another place, with tasks of its own."""

    name = "yard"
    num_items = 6


def test_an_evaluation_plays_the_environment_of_its_own(ray_cluster, tiny_model):
    register_env("yard", lambda config: Yard(**config))
    other = {"env": "yard", "env_config": {"reward": 2.0, "system_prompt": "Find the gate."}}
    options = {"evaluation_interval": 1, "evaluation_duration": 6, "evaluation_config": other}
    options |= {
        "max_episode_steps": None,
        "scaling_inter": {"maze": {"type": "stepwise", "horizons": [1, 2], "steps_per_stage": 1}},
    }
    created = []
    options["callbacks_on_environment_created"] = lambda *, env_context, **_: created.append(dict(env_context))
    with run(tiny_model, save_trajectories=True, **options) as found:
        evaluated = found.results[-1]["evaluation"]["eval"]
        assert evaluated["by_env"]["yard"]["num_episodes"] == evaluated["num_episodes"] == 6
        assert (list(evaluated["by_env"]), evaluated["horizon"]) == (["yard"], 2)
        assert "by_env" not in found.env_metrics
        assert found.env_metrics["num_episodes"] == 12
        records = list(read_episodes(found.algo.trajectories_path))
    played = {(record.is_evaluation, record.env_id, record.split, record.max_episode_steps) for record in records}
    assert played == {(False, "Maze", "train", 1), (True, "Yard", "eval", 2)}
    tasks = {record.item_id for record in records if record.is_evaluation}
    assert tasks == {"yard_1", "yard_3", "yard_5"}
    assert {record.messages[0]["content"][:13] for record in records if record.is_evaluation} == {"Find the gate"}
    assert {env_context.get("reward") for env_context in created} == {None, 2.0}


def test_what_ended_an_episode_reaches_the_learner(ray_cluster, tiny_model):
    with run(tiny_model, max_model_len=100, filter_groups="off") as found:
        ends = Counter(episode.end_reason for episode in found.algo.sampled.played)
        assert ends["terminated"] > 1
        assert ends["horizon"] + ends["context_limit"] > 1
        by_id = {episode.episode_id: episode for episode in found.algo.sampled.played}
        for sample in found.samples:
            end_reason = by_id[sample.episode].end_reason
            assert sample.is_terminated == (end_reason == "terminated")
            assert sample.is_overlong == (end_reason == "context_limit")
            assert sample.is_success == bool(by_id[sample.episode].info["is_success"])


def test_rewards_and_advantages_are_stored_as_they_were_trained_on(ray_cluster, tiny_model):
    with run(tiny_model, save_trajectories=True, old_logp="recompute", num_epochs=2) as found:
        samples = {sample.episode: sample for sample in found.samples}
        records = list(read_episodes(found.algo.trajectories_path))
        assert len(records) == len(samples) == 12
        for record in records:
            sample = samples[record.episode_id]
            at = sample.weight > 0
            stored = [np.concatenate([getattr(turn, name) for turn in record.turns]) for name in ("advantage", "logp")]
            np.testing.assert_allclose(stored[0], sample.advantage[at], atol=1e-6)
            np.testing.assert_allclose(stored[1], sample.old_logp[at], atol=1e-6)
            assert sum(turn.reward for turn in record.turns) == pytest.approx(float(sample.reward.sum()))
        best = max(records, key=lambda record: sum(turn.reward for turn in record.turns))
        assert np.concatenate([turn.advantage for turn in best.turns]).mean() > 0


def test_every_request_for_episodes_begins_with_an_empty_prefix_cache(ray_cluster, tiny_model):
    with run(tiny_model, steps=0) as found:
        before = found.engine.num_cache_resets
        found.algo.evaluation.split("eval", 2, horizon=1, seed=0)
        assert found.engine.num_cache_resets == before + 1


def test_an_adaptive_horizon_sees_the_success_of_each_train_step(ray_cluster, tiny_model):
    schedule = {"type": "adaptive", "horizons": [2, 3], "min_steps_per_stage": 50}
    with run(tiny_model, steps=3, scaling_inter=schedule, max_episode_steps=None) as found:
        [stage] = callback(found.algo, ScalingInter).stages.values()
        assert stage.success_rates == [result["env_runners"]["success_rate"] for result in found.results]
        assert any(stage.success_rates)
        assert any(stage.truncated_failures)


RESUMED = {
    "kl_coeff": 0.3,
    "screening_size": 2,
    "kl_target": 1e-3,
    "lr": 1e-2,
    "num_minibatches": 2,
    "scaling_inter": {"type": "adaptive", "horizons": [2, 3], "min_steps_per_stage": 50},
    "max_episode_steps": None,
}


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("GRPO", RESUMED),
        ("GRPO", {"task_sampling": "difficulty", "min_probability": 0.01}),
        ("PPO", {"critic_lr": 1e-2, "lr": 1e-2}),
        ("PPO", {"critic_lr": 1e-2, "lr": 1e-2, "lora": {"r": 2, "lora_alpha": 4}}),
    ],
)
def test_a_resumed_run_takes_the_same_next_step(ray_cluster, tiny_model, tmp_path, method, options):
    options = dict(options)
    with run(tiny_model, method=method, steps=2, **options) as straight:
        path = straight.algo.save_to_path(str(tmp_path / "checkpoint"))
        result = straight.algo.train()
        loaded: list[int] = []
        options["callbacks_on_checkpoint_loaded"] = lambda algorithm, **_: loaded.append(algorithm.training_iteration)
        with run(tiny_model, method=method, steps=0, **options) as resumed:
            resumed.algo.restore_from_path(path)
            assert loaded == [2]
            again = resumed.algo.train()
            assert {name: value.tobytes() for name, value in resumed.weights.items()} == {
                name: value.tobytes() for name, value in straight.weights.items()
            }
            assert resumed.losses == straight.losses[-len(resumed.losses) :]
            assert callback(resumed.algo, ScalingInter).stages == callback(straight.algo, ScalingInter).stages
            if "task_sampling" in options:
                assert resumed.algo.task_difficulty.get_state() == straight.algo.task_difficulty.get_state()
            for name in ("num_env_steps_sampled_lifetime", "num_episodes_lifetime", "success_rate"):
                assert again["env_runners"][name] == result["env_runners"][name]
            learner, before = again["learners"]["default_policy"], result["learners"]["default_policy"]
            assert {k: v for k, v in learner.items() if not k.endswith("_s")} == {
                k: v for k, v in before.items() if not k.endswith("_s")
            }


@pytest.mark.parametrize("zero_stage", [0, 2])
def test_a_resumed_run_takes_the_options_that_it_is_given_now(ray_cluster, tiny_model, tmp_path, zero_stage):
    with run(tiny_model, zero_stage=zero_stage) as first:
        path = first.algo.save_to_path(str(tmp_path / "checkpoint"))
    changed = {"lr": 5e-3, "weight_decay": 0.3, "adam_betas": [0.5, 0.6]}
    with run(tiny_model, zero_stage=zero_stage, steps=0, **changed) as resumed:
        resumed.algo.restore_from_path(path)
        before = resumed.weights
        resumed.algo.train()
        assert (resumed.optimizer["lr"], resumed.optimizer["weight_decay"]) == (5e-3, 0.3)
        assert tuple(resumed.optimizer["betas"]) == (0.5, 0.6)
        after = resumed.weights
        # Adam moves most weights by about its learning rate.
        assert max(float(np.abs(after[name] - before[name]).max()) for name in after) > 3e-3


def test_the_module_of_a_policy_is_at_hand_with_its_weights(ray_cluster, tiny_model):
    with run(tiny_model) as found:
        module = found.algo.get_module()
        state = {name: torch.as_tensor(value) for name, value in module.get_state().items()}
        assert state.keys() == found.weights.keys()
        assert all(np.array_equal(value.float().numpy(), found.weights[name]) for name, value in state.items())
        assert found.algo.get_module("nobody") is None


def pairs_file(path, count):
    """Write as many pairs as SFT would have samples of half as many."""
    pairs = [{"prompt": f"say {k}", "chosen": "a" * (k + 1), "rejected": "b"} for k in range(count)]
    path.write_text(json.dumps(pairs))
    return str(path)


@pytest.mark.parametrize(("asked", "counted"), [(64, 3), (2, 2)])
def test_dpos_evaluation_data_count_pairs(ray_cluster, tiny_model, tmp_path, asked, counted):
    options = {"data": pairs_file(tmp_path / "train.json", 4), "evaluation_data": pairs_file(tmp_path / "held.json", 3)}
    with run(tiny_model, method="DPO", num_evaluation_samples=asked, samples_per_step=4, **options) as found:
        algo = found.algo
        assert (len(algo.training_items), len(algo.evaluation_items)) == (4, counted)
        held_out = algo.samples_at(algo.evaluation_samples, algo.evaluation_items)
        assert [sample.pair for sample in held_out] == [k for k in range(counted) for _ in range(2)]
        # As many tokens are learnt of the chosen one of pair k: k + 1 letters and the end.
        assert [int((sample.weight > 0).sum()) for sample in held_out[::2]] == [k + 2 for k in range(counted)]
        assert found.metrics["num_optimizer_steps"] == 1


@pytest.mark.parametrize("restarts", [True, False])
def test_agent_evols_schedule_begins_anew_with_each_generation_or_goes_on(ray_cluster, tiny_model, restarts):
    schedule = {"type": "WarmupLR", "params": {"warmup_min_lr": 0.0, "warmup_max_lr": 1e-3, "warmup_type": "linear"}}
    schedule["params"]["warmup_num_steps"] = 100
    options = {
        "data": "expert",
        "num_expert_episodes": 6,
        "samples_per_step": 4,
        "groups_per_step": 1,
        "threshold": 9.0,
    }
    with run(
        tiny_model,
        method="AgentEvol",
        steps=2,
        restart_from_base=restarts,
        deepspeed={"scheduler": schedule},
        **options,
    ) as found:
        # Six samples are two steps: of cloning, and of each generation, since nothing that was played is kept.
        assert [result["num_updates"] for result in found.results] == [2, 2]
        # The first step's rate is 0, and each next one's is 1e-5 more.
        assert found.optimizer["lr"] == pytest.approx(1e-5 * (1 if restarts else 5))


class Created(RLlibCallback):
    """Looks at each environment that is made."""

    def on_environment_created(self, **_):
        pass


@pytest.mark.parametrize("option", ["callbacks_class", "callbacks_on_environment_created"])
def test_an_environment_in_another_process_is_no_callbacks(ray_cluster, tiny_model, option):
    value = Created if option == "callbacks_class" else Created().on_environment_created
    refused = pytest.raises(RllmGymError, match=r"env_process: on_environment_created gets .* Leave one of them out\.")
    with refused, run(tiny_model, steps=0, env_process=True, **{option: value}):
        pass


def test_what_is_held_out_is_not_trained_on(ray_cluster, tiny_model):
    options = {"data": "expert", "num_expert_episodes": 8, "num_evaluation_samples": 3, "samples_per_step": 5}
    with run(tiny_model, method="SFT", evaluation_interval=1, evaluation_duration=1, **options) as found:
        algo = found.algo
        assert (len(algo.training_items), len(algo.evaluation_items)) == (5, 3)
        assert sorted([*algo.training_items, *algo.evaluation_items]) == list(range(8))


def test_an_expert_plays_what_the_run_would_let_a_policy_say(ray_cluster, tiny_model):
    options = {"data": "expert", "num_expert_episodes": 4, "samples_per_step": 4}
    with run(tiny_model, method="SFT", stop=["open"], **options) as found:
        chat = found.algo.sample_maker().chat
        assert {chat.decode(sample.tokens[sample.weight > 0]) for sample in found.algo.samples} == {"open"}
