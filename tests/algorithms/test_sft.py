"""SFT: what is learnt of which source, that cutting the work changes no gradient, learning, resuming, evaluation."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from rllm_gym.algorithms.sft import SFT, SFTConfig
from rllm_gym.checkpoints import read_protocol
from rllm_gym.data import Dialogue, EpisodeRecord, TrajectoryWriter, TurnRecord
from rllm_gym.errors import ConfigError, TrajectoryError
from rllm_gym.evaluation.run import plan_evaluation
from rllm_gym.learner.batch import deal
from rllm_gym.learner.packing import Packing
from rllm_gym.tokens import ChatTokenizer
from rllm_gym.training.recorded_samples import SampleMaker, read_samples, read_samples_of_path
from tests.algorithms.algorithm_helpers import equal, module_weights, not_finite
from tests.algorithms.offline_helpers import make_samples, offline_config
from tests.learner.learner_helpers import distance, gradient, largest, make_config, make_group, step

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def chat(tiny_model):
    return ChatTokenizer(str(tiny_model))


# --- what is learnt ---


def talk(*texts):
    return tuple({"role": ("user", "assistant")[k % 2], "content": text} for k, text in enumerate(texts))


def learnt(chat, sample) -> str:
    return chat.decode(sample.tokens[sample.weight > 0])


def test_a_conversation_becomes_what_the_template_renders_and_only_the_assistant_is_learnt(chat):
    messages = ({"role": "system", "content": "Be brief."}, *talk("a?", "one", "b?", "two"))
    sample = SampleMaker(chat, 512).of_dialogue(Dialogue(messages, (False, False, True, False, True)))
    rendered = chat.tokenizer.apply_chat_template(list(messages), return_dict=False)
    assert sample.tokens.tolist() == rendered[: len(sample)]
    assert chat.decode(rendered[len(sample) :]) == "\n"
    assert learnt(chat, sample) == "one<|im_end|>two<|im_end|>"
    partly = SampleMaker(chat, 512).of_dialogue(Dialogue(messages, (False, False, False, False, True)))
    assert learnt(chat, partly) == "two<|im_end|>"
    assert partly.tokens.tolist() == sample.tokens.tolist()


def test_what_is_too_long_is_cut_after_a_whole_turn_and_nothing_to_learn_is_left_out(chat):
    messages = talk("a?", "one", "b?", "two")
    maker = SampleMaker(chat, 512)
    whole = maker.of_dialogue(Dialogue(messages, (False, True, False, True)))
    cut = SampleMaker(chat, len(whole) - 1).of_dialogue(Dialogue(messages, (False, True, False, True)))
    assert learnt(chat, cut) == "one<|im_end|>"
    assert maker.of_dialogue(Dialogue(messages, (False,) * 4)) is None
    assert (maker.num_cut, maker.num_left_out) == (0, 1)


def stored(chat, action_ids, text, **fields):
    observation = chat.encode_chat(list(talk("say")), add_generation_prompt=True)
    turn = TurnRecord(
        observation_ids=observation, action_ids=action_ids, logp=[0.0] * len(action_ids), reward=1.0, policy_version=0
    )
    given = {
        "env_id": "toy", "episode_id": "0", "seed": 0, "messages": list(talk("say", text)), "turns": [turn],
        "final_observation_ids": [], "end_reason": "terminated",
    }  # fmt: skip
    return EpisodeRecord(**{**given, **fields})


def test_stored_ids_are_taken_as_they_were_sampled(chat):
    ids = [chat.encode_action(letter)[0] for letter in "abc"]  # cut by a limit: no end of turn
    record = stored(chat, ids, "abc")
    [sample] = SampleMaker(chat, 512).of_record(record)
    assert sample.tokens.tolist() == [*record.turns[0].observation_ids, *ids]
    assert sample.weight.tolist() == [0.0] * len(record.turns[0].observation_ids) + [1.0] * 3
    [weighed] = SampleMaker(chat, 512, observation_weight=0.25).of_record(record)
    assert set(weighed.weight[:-3]) == {0.25}


def test_a_store_of_another_tokenizer_is_refused_unless_it_is_encoded_anew(chat):
    ids = chat.encode_action("xyz")
    record = stored(chat, ids, "abc")  # the ids say something else than the messages
    with pytest.raises(TrajectoryError, match=r"the tokenizer's of base_model.*Set retokenize: true"):
        SampleMaker(chat, 512).of_record(record)
    [anew] = SampleMaker(chat, 512, retokenize=True).of_record(record)
    assert learnt(chat, anew) == "abc<|im_end|>"


def test_failed_and_poor_episodes_are_left_out(chat, tmp_path):
    ids = chat.encode_action("a")
    poor = stored(chat, ids, "a").turns[0].model_copy(update={"reward": 0.25})
    records = [
        stored(chat, ids, "a"),
        stored(chat, ids, "a", end_reason="error", error="died"),
        stored(chat, ids, "a", turns=[poor]),
        stored(chat, ids, "a", turns=[]),
    ]
    with TrajectoryWriter(tmp_path) as writer:
        writer.append(records)
    assert len(list(read_samples_of_path(tmp_path, SampleMaker(chat, 512), min_return=None))) == 2
    assert len(list(read_samples_of_path(tmp_path, SampleMaker(chat, 512), min_return=0.5))) == 1


def own_samples(maker):
    yield maker.of_dialogue(Dialogue(talk("q", "yes"), (False, True)))
    yield None  # nothing to learn


def test_a_function_of_ones_own_may_make_the_samples(chat, monkeypatch):
    monkeypatch.setitem(sys.modules, "own_data", types.SimpleNamespace(own_samples=own_samples))
    [sample] = read_samples("own_data:own_samples", SampleMaker(chat, 512), min_return=None)
    assert learnt(chat, sample) == "yes<|im_end|>"
    with pytest.raises(ConfigError, match=r"must name a function as module:name; got 'own_data:other'"):
        list(read_samples("own_data:other", SampleMaker(chat, 512), min_return=None))


# --- the gradient ---


def plain_gradient(base_model, samples):
    """The gradient of the mean negative log-likelihood with whole logits, one sample at a time, by torch alone."""
    lm = AutoModelForCausalLM.from_pretrained(base_model, dtype=torch.float32)
    num_tokens = sum((sample.weight[1:] > 0).sum() for sample in samples)
    total = 0.0
    for sample in samples:
        ids, weights = torch.tensor(sample.tokens), torch.tensor(sample.weight)
        logp = torch.log_softmax(lm(input_ids=ids[None]).logits[0, :-1], -1).gather(-1, ids[1:, None])[:, 0]
        loss = -(logp * weights[1:]).sum() / float(num_tokens)
        loss.backward()
        total += loss.item()
    return {f"lm.{name}": parameter.grad.numpy() for name, parameter in lm.named_parameters()}, total


@pytest.mark.parametrize("packing", [True, False])
def test_the_gradient_is_that_of_the_mean_over_learnt_tokens_whatever_the_packing(tiny_model, packing):
    samples = make_samples(12)
    plain, loss = plain_gradient(tiny_model, samples)
    config = make_config(tiny_model, "SFT", packing=packing, tokens_per_micro_batch=100)
    ours, metrics = step(make_group(config), samples)
    assert distance(plain, {name: ours[name] for name in plain}) < 1e-5 * largest(plain)
    assert metrics["loss"] == pytest.approx(loss, rel=1e-5)
    assert metrics["gradient_norm"] == pytest.approx(
        np.sqrt(sum((value**2).sum() for value in plain.values())), rel=1e-4
    )


def test_a_model_that_does_not_keep_packed_sequences_apart_is_refused_or_given_one_a_row(tiny_model, monkeypatch):
    samples = make_samples(4)

    def all_before_it(self, *, by_blocks):
        assert by_blocks
        return torch.tensor([(row, 0, self.width, 0, self.width, 1) for row in range(self.num_rows)]).view(1, 1, -1, 6)

    monkeypatch.setattr(Packing, "attention_mask", all_before_it)
    with pytest.raises(ConfigError, match=r"must keep sequences apart.*Set packing: false"):
        make_group(make_config(tiny_model, "SFT", packing=True))
    fallen_back = make_group(make_config(tiny_model, "SFT"))
    [fault] = [r.get() for r in fallen_back.foreach_learner(lambda learner: learner.packing_fault)]
    assert "reads the one before it" in fault
    assert equal(
        gradient(fallen_back, samples), gradient(make_group(make_config(tiny_model, "SFT", packing=False)), samples)
    )


def test_the_temperature_of_sampling_changes_nothing_of_what_is_learnt(tiny_model):
    samples = make_samples(4)
    gradients = [gradient(make_group(make_config(tiny_model, "SFT", temperature=t)), samples) for t in (1.0, 0.5)]
    assert equal(*gradients)


def test_a_weight_scales_what_its_token_adds(tiny_model):
    one, other = make_samples(2)
    half = type(other)(other.tokens, other.weight * np.float32(0.5))

    def summed(*samples):
        """Return the gradient of the samples' sum: the loss is in nats per weighted token."""
        weight = sum(float(sample.weight.sum()) for sample in samples)
        mean = gradient(make_group(make_config(tiny_model, "SFT")), list(samples))
        return {name: value * weight for name, value in mean.items()}

    both, of_one, of_other = summed(one, half), summed(one), summed(other)
    expected = {name: of_one[name] + of_other[name] / 2 for name in both}
    assert distance(both, expected) < 1e-5 * largest(expected)


@pytest.mark.parametrize("stage", [2, 3])
def test_two_learners_change_no_gradient_and_no_held_out_loss(tiny_model, two_learners, stage):
    samples = make_samples(9)
    one = make_group(make_config(tiny_model, "SFT"))
    two = two_learners(make_config(tiny_model, "SFT", zero_stage=stage, tokens_per_micro_batch=80))
    losses = []
    for group, shards in ((one, [range(9)]), (two, deal(samples, 2))):
        found = group.foreach_learner(lambda learner, shards=shards: learner.evaluate(samples, shards))
        losses.append([result.get()["loss"] for result in found])
    assert losses[1] == pytest.approx(losses[0] * 2, rel=1e-5)
    whole = gradient(one, samples)
    assert distance(whole, gradient(two, samples)) < 1e-5 * largest(whole)


# --- the algorithm ---


def test_it_learns_the_expert_without_any_env_runner(tiny_model, build):
    algo = build(offline_config(SFTConfig(), tiny_model))
    assert not algo.env_runner_group
    results = [algo.train() for _ in range(30)]
    losses = [result["learners"]["default_policy"]["loss"] for result in results]
    print("losses", np.round(losses, 3))
    assert losses[-1] < 0.25 * losses[0]
    assert results[-1]["epoch"] == 30 * 16 / 40
    assert not [name for result in results for name in not_finite(result)]
    assert results[-1]["learners"]["default_policy"]["gradient_norm"] > 0


@pytest.mark.parametrize(("num_turns", "least"), [(1, 0.9), (2, 0.4)])
def test_it_is_evaluated_in_the_environment_and_on_held_out_samples(tiny_model, build, num_turns, least):
    options = {"env_config": {"num_turns": num_turns}, "evaluation_interval": 30, "evaluation_splits": ["train"]}
    algo = build(offline_config(SFTConfig(), tiny_model, **options))
    for _ in range(30):
        result = algo.train()
    before, after = result["evaluation_on_start"], result["evaluation"]
    print("held-out loss", before["loss"], after["loss"], "return", after["train"]["episode_return_mean"])
    # Two turns, seeds 0 to 4: held-out loss 9 -> 0.47 0.38 0.46 0.49 0.66; mean return 0.03 -> 0.62 0.74 0.64 .66 .66.
    assert after["loss"] < 0.15 * before["loss"]
    assert after["train"]["num_episodes"] == 16
    # The samplers hold what was learnt: with one turn nearly every letter is right.
    assert after["train"]["episode_return_mean"] > least > before["train"]["episode_return_mean"]
    assert result["num_samples"] == 40 - 8
    assert not not_finite(result)


def test_a_restored_run_goes_on_in_the_middle_of_an_epoch_bit_for_bit(tiny_model, build, tmp_path):
    algo = build(offline_config(SFTConfig(), tiny_model))
    for _ in range(2):  # 32 of 40
        algo.train()
    path = algo.save_to_path(str(tmp_path / "checkpoint"))
    expected = algo.train()
    straight = module_weights(algo)
    restored = SFT.from_checkpoint(path)
    try:
        assert not equal(straight, module_weights(restored))
        resumed = restored.train()
        assert equal(straight, module_weights(restored))
    finally:
        restored.stop()
    assert resumed["epoch"] == expected["epoch"] == 48 / 40
    algo.restore_from_path(path)
    algo.train()
    assert equal(straight, module_weights(algo))


def test_agentgyms_conversations_mark_the_checkpoint_and_playing_it_natively_warns(tiny_model, build, tmp_path, caplog):
    said = [("human", "Craft.", None), ("gpt", "OK. I'll try.", False), ("human", "Goal.", None), ("gpt", "get", True)]
    talk = [{"from": who, "value": value, "loss": loss} for who, value, loss in said]
    (tmp_path / "data.json").write_text(json.dumps([{"item_id": "textcraft_1", "conversations": talk}] * 8))
    options = {"data": str(tmp_path / "data.json"), "env": None, "samples_per_step": 8}
    algo = build(offline_config(SFTConfig(), tiny_model, **options))
    algo.train()
    path = algo.save_to_path(str(tmp_path / "checkpoint"))
    assert read_protocol(Path(path)) == "agentgym"
    native, agentgym = ({"depth": 1, **more} for more in ({}, {"protocol": "agentgym"}))
    for env_config, warns in ((native, True), (agentgym, False)):
        caplog.clear()
        plan_evaluation(path, envs=[("TextCraft-v0", env_config)], horizon=4, num_tasks=2, out=tmp_path / "out")
        assert ("trained in AgentGym's protocol and plays TextCraft-v0 in the native one" in caplog.text) is warns


def test_expert_workers_change_no_sample(tiny_model, build, toy_environments):
    batches = []
    for num_workers in (0, 2):
        algo = build(offline_config(SFTConfig(), tiny_model, num_expert_workers=num_workers))
        algo.prepare()
        batches.append(algo.samples.fingerprint)
        assert len(algo.samples) == 40
    assert batches[0] == batches[1]


def test_with_lora_only_adapters_are_trained(tiny_model, build, tmp_path):
    data = tmp_path / "talk.json"
    data.write_text(json.dumps([{"messages": talk(f"say {word}", word)} for word in ("cat", "dog", "sun", "owl") * 6]))
    config = offline_config(
        SFTConfig(), tiny_model, env=None, data=str(data), lora={"r": 4}, lr=1e-2, evaluation_interval=20
    )
    algo = build(config)
    before = module_weights(algo)
    for _ in range(20):
        result = algo.train()
    after = module_weights(algo)
    assert {name for name in before if not np.array_equal(before[name], after[name])} == {
        name for name in before if "lora_" in name
    }
    assert result["evaluation"]["loss"] < 0.8 * result["evaluation_on_start"]["loss"]


# --- what is refused ---


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"data": None}, "data must be `expert` or a path; got none"),
        ({"data": "no/such/path"}, "data: must be `expert` or a path that exists; got 'no/such/path'"),
        ({"env": None}, "data: expert needs an environment; got none"),
        ({"num_minibatches": 17}, "num_minibatches must be at most samples_per_step, 16; got 17"),
        ({"samples_per_step": 0}, "samples_per_step must be a whole number of at least 1; got 0"),
        ({"observation_weight": -1}, "observation_weight must be a number of at least 0"),
    ],
)
def test_what_cannot_work_is_said_before_anything_starts(tiny_model, options, message):
    with pytest.raises(ConfigError, match=message):
        offline_config(SFTConfig(), tiny_model, **options).validate()


def test_pairs_are_refused(tiny_model, tmp_path):
    path = tmp_path / "pairs.json"
    path.write_text(json.dumps([{"prompt": "q", "chosen": "a", "rejected": "b"}]))
    with pytest.raises(ConfigError, match="pairs of answers are for DPO"):
        offline_config(SFTConfig(), tiny_model, data=str(path)).validate()
