"""The shipped tiny model, and the script that makes it."""

import random
import re
import socket
import unicodedata

import gymnasium
import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from rllm_gym.envs.textcraft.env import TextCraftEnv
from rllm_gym.envs.wrappers import TokenEnv
from rllm_gym.models import TINY_MODEL_DIR
from rllm_gym.rollout.engines.transformers import TransformersEngine
from rllm_gym.tiny import data
from rllm_gym.tiny import train as training
from rllm_gym.tiny.evaluate import evaluate, task_items
from rllm_gym.tokens import ChatTokenizer

EVAL_ITEMS = set(TextCraftEnv(split="eval").item_ids)


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(TINY_MODEL_DIR)


@pytest.fixture(scope="module")
def env():
    return TokenEnv(data.training_world())


@pytest.fixture(scope="module")
def items():
    return data.training_items()


@pytest.fixture
def one_thread():
    """Several threads on busy cores wait for each other, and a run repeats for one number of threads only."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


def episodes_of(env, items, num, mistake_rate):
    rng = np.random.default_rng(0)
    return [data.play(env, data.draw_item(items, rng), rng, mistake_rate) for _ in range(num)]


# The shipped files.


def test_the_folder_is_complete_and_under_10_mb():
    sizes = {path.name: path.stat().st_size for path in TINY_MODEL_DIR.iterdir()}
    needed = {"README.md", "config.json", "generation_config.json", "model.safetensors", "tokenizer.json"}
    assert needed <= sizes.keys()
    assert sum(sizes.values()) < 10_000_000


def test_model_and_tokenizer_load_and_run_without_a_network(monkeypatch, one_thread):
    def refuse(*args):
        raise AssertionError(f"asked the network: {args}")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    tokenizer = AutoTokenizer.from_pretrained(TINY_MODEL_DIR)
    model = AutoModelForCausalLM.from_pretrained(TINY_MODEL_DIR)
    chat = [{"role": "user", "content": "Crafting commands:\ncraft 4 stick using 2 bamboo\n\nGoal: craft stick."}]
    prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    ids = model.generate(**prompt, max_new_tokens=48, do_sample=False)[0, prompt["input_ids"].shape[1] :]
    assert ids[-1] == tokenizer.eos_token_id  # generation_config.json ends the turn
    assert re.fullmatch(r"Thought: .+\nAction: .+<\|im_end\|>", tokenizer.decode(ids))


def test_the_configuration_is_as_documented(tokenizer):
    model = AutoModelForCausalLM.from_pretrained(TINY_MODEL_DIR)
    config = model.config
    assert config.model_type == "qwen2"
    assert config.max_position_embeddings == tokenizer.model_max_length == 16384
    assert config.tie_word_embeddings and model.lm_head.weight is model.model.embed_tokens.weight
    assert 1_500_000 < model.num_parameters() < 2_500_000
    assert model.dtype == torch.float32
    assert config.vocab_size == len(tokenizer)
    assert tokenizer.convert_ids_to_tokens([config.eos_token_id, config.pad_token_id]) == [
        "<|im_end|>",
        "<|endoftext|>",
    ]
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id == config.eos_token_id


# The tokenizer.


def test_the_template_renders_chatml_and_nothing_implicit(tokenizer):
    chat = [{"role": "user", "content": " a\n"}, {"role": "assistant", "content": "b"}]
    rendered = tokenizer.apply_chat_template(chat, tokenize=False)
    assert rendered == "<|im_start|>user\n a\n<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n"
    assert tokenizer.apply_chat_template(chat[:1], tokenize=False, add_generation_prompt=True) == (
        "<|im_start|>user\n a\n<|im_end|>\n<|im_start|>assistant\n"
    )


@pytest.mark.parametrize("action", ["Action: get 1 stick", "Action: inventory\n", " 12 ", "<think>\n</think>\n", ""])
def test_the_template_is_append_only_in_tokens(tokenizer, action):
    chat = ChatTokenizer()  # proves itself on probes of its own, too
    head = [{"role": "user", "content": "\n 1 task "}]
    whole = [*head, {"role": "assistant", "content": action}, {"role": "user", "content": " \nreply"}]
    stream = chat.encode_chat(head, add_generation_prompt=True) + chat.encode_action(action)
    stream += chat.encode_reply(" \nreply", add_generation_prompt=True)[1:]
    assert stream == tokenizer.apply_chat_template(whole, add_generation_prompt=True, return_dict=False)


def test_any_unicode_text_round_trips_up_to_normalisation(tokenizer):
    rng = random.Random(0)
    points = [p for p in range(0x110000) if not 0xD800 <= p < 0xE000]
    texts = ["".join(chr(p) for p in rng.choices(points, k=50)) for _ in range(200)]
    texts += [bytes(range(128)).decode(), "nai\u0308ve \U0001f469\u200d\U0001f680 12\u00bd\r\n\t \x00  x  ", "\n" * 9]
    for text in texts:
        assert tokenizer.decode(tokenizer.encode(text)) == unicodedata.normalize("NFC", text)


def test_each_digit_is_a_token_of_its_own(tokenizer):
    words = [tokenizer.decode([i]) for i in tokenizer.encode("get 128 oak logs\nGoal: 64")]
    assert [word for word in words if re.search(r"[0-9]", word)] == ["1", "2", "8", "6", "4"]


def test_the_tokenizer_is_the_same_however_it_is_loaded(tokenizer):
    # AutoTokenizer rebuilds the split of a Qwen2 tokenizer; the file must agree with that, for those who read it alone.
    from_file = Tokenizer.from_file(str(TINY_MODEL_DIR / "tokenizer.json"))
    text = "Thought: I need 12 oak logs.\nAction: get 12 oak logs<|im_end|>\n\n  na\u00efve:x minecraft:oak_planks\r\n"
    assert tokenizer.encode(text) == from_file.encode(text).ids


def test_words_of_textcraft_are_short_in_tokens(env, items):
    rng = np.random.default_rng(0)
    lengths = [len(data.play(env, item, rng).ids) for item in items["depth_1"]]
    assert np.mean(lengths) < 170  # each token costs time on two cores


# The training data.


@pytest.mark.parametrize("mistake_rate", [0.0, 0.5])
def test_training_ids_are_what_the_token_environment_makes(env, items, mistake_rate, tokenizer):
    fresh = gymnasium.make("rllm_gym:rllm_gym/TextCraft-v0", system_prompt="")
    for episode in episodes_of(env, items, 10, mistake_rate):
        text = tokenizer.decode(episode.ids)
        actions = re.findall(r"<\|im_start\|>assistant\n(.*?)<\|im_end\|>", text, re.DOTALL)
        observation, _ = fresh.reset(seed=episode.seed, options={"item_id": episode.item_id})
        # (ids, weight): the task, then actions, with replies between them
        parts = [(observation, data.PROMPT_WEIGHT)]
        for action in actions:
            ids = fresh.get_wrapper_attr("encode_action")(action)
            observation, reward, *_ = fresh.step(ids)
            parts += [(ids, 1.0), (observation, 0.0)]
        ids = np.concatenate([part for part, _ in parts[:-1]])
        weights = np.concatenate([np.full(len(part), weight, np.float32) for part, weight in parts[:-1]])
        np.testing.assert_array_equal(episode.ids, ids)
        np.testing.assert_array_equal(episode.weights, weights)
        assert len(actions) == len(episode.is_mistake)
        assert reward == 1.0 or len(ids) >= data.MAX_TOKENS


def test_planted_mistakes_are_legal_and_of_no_use(items):
    world, rng = data.training_world(), np.random.default_rng(0)
    kinds = set()
    for number in range(60):
        item_id = data.draw_item(items, rng)
        plan = data.expert_texts(world, item_id, seed=number)
        turn = int(rng.integers(len(plan)))
        task, _ = world.reset(seed=number, options={"item_id": item_id})
        for kind in data.mistakes(world, task, plan, turn):
            for text in kind:
                world.reset(seed=number, options={"item_id": item_id})
                for done in plan[:turn]:
                    world.step(done)
                reply, reward, terminated, _, _ = world.step(text)
                kinds.add(re.match(r"Inventory: |Could not find enough items to craft |Got ", reply)[0])
                assert (reward, terminated) == (0.0, False)
                rest = []
                while not world.is_success:
                    rest.append(world.expert_action())
                    world.step(rest[-1])
                assert rest == plan[turn:], (item_id, text)
    assert len(kinds) == 3


def test_the_share_of_mistakes_is_the_rate(env, items):
    clean = [is_mistake for e in episodes_of(env, items, 20, 0.0) for is_mistake in e.is_mistake]
    planted = [is_mistake for e in episodes_of(env, items, 100, 0.5) for is_mistake in e.is_mistake]
    assert not any(clean)
    assert 0.42 < np.mean(planted) < 0.58  # about 500 turns, cut episodes among them


def test_no_task_of_the_eval_split_is_in_the_training_data(items):
    train_items = set().union(*items.values())
    assert len(train_items) == 444 and not train_items & EVAL_ITEMS
    goals = set()
    world = TextCraftEnv(split="eval")
    for item_id in EVAL_ITEMS:
        goals.add(world.reset(seed=0, options={"item_id": item_id})[0].rpartition("\n")[2])
    texts = list(data.tokenizer_texts(num_rounds=1))
    assert sum("Goal: craft " in text for text in texts) == 444
    assert not goals & {text.rpartition("\n")[2] for text in texts}


# The script.


def test_loss_and_gradient_are_the_weighted_mean_whatever_the_micro_batches(
    env, items, monkeypatch, tokenizer, one_thread
):
    episodes = episodes_of(env, dict.fromkeys(items, items["depth_1"]), 3, 0.0)
    model = training.make_model(tokenizer, seed=0)
    total = weight = 0.0
    for episode in episodes:  # one at a time, without padding
        ids = torch.from_numpy(episode.ids)[None]
        logp = model(ids).logits[0, :-1].log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]
        total -= (logp * torch.from_numpy(episode.weights[1:])).sum()
        weight += episode.weights[1:].sum()
    (total / weight).backward()
    expected = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    monkeypatch.setattr(training, "MICRO_BATCH", 2)
    assert training.backward(model, episodes, use_bf16=False) == pytest.approx((total / weight).item(), rel=1e-5)
    for parameter, grad in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, grad, atol=1e-5, rtol=1e-4)


def test_the_script_repeats_bit_for_bit_and_writes_a_model_with_its_card(tmp_path, one_thread):
    states = []
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        training.main(tmp_path / name, seed=seed, clean_steps=1, mistake_steps=1, batch_size=2, measure=False)
        states.append(AutoModelForCausalLM.from_pretrained(tmp_path / name).state_dict())
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])
    assert not torch.equal(states[0]["model.norm.weight"], states[2]["model.norm.weight"])
    assert ChatTokenizer(tmp_path / "a").end_of_turn_id == ChatTokenizer().end_of_turn_id
    assert "--seed 0 --clean-steps 1 --mistake-steps 1" in (tmp_path / "a" / "README.md").read_text()


def test_the_model_solves_some_tasks_and_leaves_room(one_thread):
    engine = TransformersEngine(str(TINY_MODEL_DIR))
    score = evaluate(engine, TINY_MODEL_DIR, "depth 1, train", max_tasks=6)
    assert score.num_episodes == 24
    assert 0.1 < score.success_rate < 0.7
    assert score.sampled_tokens_mean < 48 * score.num_turns_mean / 2  # it ends its turns itself


def test_task_sets_are_of_their_split_and_easy_ones_can_be_solved_in_time():
    assert len(task_items("depth 1, eval")) == 31 and set(task_items("depth 1, eval")) <= EVAL_ITEMS
    assert not set(task_items("depth 2, train")) & EVAL_ITEMS
    world = TextCraftEnv(split="all")
    assert all(len(data.expert_texts(world, item, seed=1)) <= 6 for item in task_items("easy depth 2, eval"))
