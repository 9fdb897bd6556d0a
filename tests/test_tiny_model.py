"""The shipped tiny model, and the script that makes it."""

import itertools
import random
import re
import socket
import unicodedata

import gymnasium
import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from rllm_gym.algorithms.sft import SFT
from rllm_gym.envs.babyai.env import BabyAIEnv
from rllm_gym.envs.sciworld.env import SciWorldEnv
from rllm_gym.envs.searchqa.env import SearchQAEnv
from rllm_gym.envs.textcraft.env import TextCraftEnv
from rllm_gym.envs.wrappers import TokenEnv
from rllm_gym.errors import ConfigError
from rllm_gym.models import TINY_MODEL_DIR
from rllm_gym.rollout.engines.transformers import TransformersEngine
from rllm_gym.tokens import ChatTokenizer
from rllm_gym.training.recorded_samples import SampleMaker, read_samples_of_path
from tools.tiny_model import sources as sources_module
from tools.tiny_model import stages
from tools.tiny_model import train as training
from tools.tiny_model.episodes import ExpertEpisode, Plan
from tools.tiny_model.mistakes import textcraft_mistakes
from tools.tiny_model.renaming import item_words, rename_items
from tools.tiny_model.sources import EASY_TURNS, Sources, num_expert_turns
from tools.tiny_model.stages import ENV_WEIGHT, Settings, write_conversations
from tools.tiny_model.success_rates import MAX_NEW_TOKENS, TASK_SETS, Score, evaluate, pooled_success

EVAL_ITEMS = set(TextCraftEnv(split="eval").item_ids)


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(TINY_MODEL_DIR)


@pytest.fixture(scope="module")
def sources():
    """Without the environments that need Java or a browser; what they play is drawn from as from the others."""
    sources = Sources({"textcraft": 0.8, "babyai": 0.1, "searchqa": 0.1})
    yield sources
    sources.close()


@pytest.fixture
def one_thread():
    """Several threads on busy cores wait for each other, and a run repeats for one number of threads only."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


def textcraft_episodes(sources, num, plan):
    rng = np.random.default_rng(0)
    return [sources.draw_from("textcraft", rng, plan) for _ in range(num)]


def read_samples(episodes, tmp_path, chat):
    """Return the samples that SFT learns of episodes."""
    write_conversations(tmp_path / "episodes.jsonl", episodes)
    maker = SampleMaker(chat, max_tokens=4096, observation_weight=ENV_WEIGHT)
    return list(read_samples_of_path(tmp_path / "episodes.jsonl", maker, min_return=None))


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
    assert 1_500_000 < model.num_parameters() < 4_500_000
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


def test_words_of_the_environments_are_short_in_tokens(sources, tokenizer):
    # Each token costs time on two cores.
    for env, most in (("textcraft", 0.32), ("babyai", 0.32), ("searchqa", 0.36)):
        rng = np.random.default_rng(0)
        texts = [m["content"] for _ in range(20) for m in sources.draw_from(env, rng, Plan()).messages]
        assert sum(len(tokenizer.encode(text)) for text in texts) < most * sum(map(len, texts)), env


# The training data.


def test_training_ids_are_what_the_token_environment_makes(sources, tmp_path):
    fresh = gymnasium.make("rllm_gym:rllm_gym/TextCraft-v0", system_prompt="")
    plan = Plan(mistake_rate=0.4, repeat_rate=0.5, max_turns=8)
    episodes = textcraft_episodes(sources, 12, plan)
    for episode, sample in zip(episodes, read_samples(episodes, tmp_path, ChatTokenizer()), strict=True):
        actions = [m["content"] for m in episode.messages if m["role"] == "assistant"]
        observation, _ = fresh.reset(seed=episode.seed, options={"item_id": episode.item_id})
        # (ids, weight): the task, then actions, with replies between them
        parts, reward = [(observation, ENV_WEIGHT)], 0.0
        for action in actions:
            ids = fresh.get_wrapper_attr("encode_action")(action)
            observation, reward, *_ = fresh.step(ids)
            parts += [(ids, 1.0), (observation, ENV_WEIGHT)]
        np.testing.assert_array_equal(sample.tokens, np.concatenate([part for part, _ in parts[:-1]]))
        weights = np.concatenate([np.full(len(part), weight, np.float32) for part, weight in parts[:-1]])
        np.testing.assert_array_equal(sample.weight, weights)
        assert len(actions) == len(episode.is_mistake)
        assert reward == 1.0 or len(actions) == plan.max_turns


def test_a_system_prompt_is_the_environments_own_and_part_of_the_first_observation(sources, tmp_path):
    episode = textcraft_episodes(sources, 1, Plan(system_prompt_rate=1.0))[0]
    env = TokenEnv(TextCraftEnv())
    observation, _ = env.reset(seed=episode.seed, options={"item_id": episode.item_id})
    [sample] = read_samples([episode], tmp_path, env.chat)
    np.testing.assert_array_equal(sample.tokens[: len(observation)], observation)
    assert sample.weight[len(observation)] == 1.0 and set(sample.weight[: len(observation)]) == {np.float32(ENV_WEIGHT)}


@pytest.mark.parametrize("env", ["textcraft", "babyai", "searchqa"])
def test_after_planted_mistakes_the_expert_still_gets_there(sources, env):
    rng, plan = np.random.default_rng(0), Plan(mistake_rate=0.3, repeat_rate=0.3, max_turns=40)
    num_mistakes = 0
    for _ in range(25):
        episode = sources.draw_from(env, rng, plan)
        num_mistakes += sum(episode.is_mistake)
        assert len(episode.is_mistake) < plan.max_turns, episode.item_id  # it ended by itself
        assert not episode.is_mistake[-1] or env == "babyai"  # a stroll may end at the goal
    assert num_mistakes > 10


def test_textcrafts_mistakes_are_legal_and_of_no_use(sources):
    env, rng = TextCraftEnv(), np.random.default_rng(0)
    kinds = set()
    items = [item_id for part in sources.textcraft_parts.values() for item_id in part]
    for number in range(60):
        item_id = items[rng.integers(len(items))]
        task, _ = env.reset(seed=number, options={"item_id": item_id})
        for _ in range(int(rng.integers(num_expert_turns(TextCraftEnv(), item_id)))):
            env.step(env.expert_action())
        right = env.expert_action()
        for text in textcraft_mistakes(env, task, ""):
            reply, reward, terminated, _, _ = env.step(text)
            kinds.add(re.match(r"Inventory: |Could not find enough items to craft |Got ", reply)[0])
            assert (reward, terminated) == (0.0, False)
            assert env.expert_action() == right, (item_id, text)
    assert len(kinds) == 3


def test_mistakes_come_and_repeat_as_often_as_asked(sources):
    clean = textcraft_episodes(sources, 20, Plan())
    assert not any(is_mistake for episode in clean for is_mistake in episode.is_mistake)
    # A mistake begins after none with chance 1/4; after one, it goes on with 1/2, or another one begins with 1/2 * 1/4.
    planted = textcraft_episodes(sources, 300, Plan(mistake_rate=0.25, repeat_rate=0.5))
    after_none = [b for e in planted for a, b in itertools.pairwise((False, *e.is_mistake)) if not a]
    after_one = [b for e in planted for a, b in itertools.pairwise(e.is_mistake) if a]
    assert 0.2 < np.mean(after_none) < 0.3
    assert 0.55 < np.mean(after_one) < 0.7


def test_a_part_of_textcraft_may_have_mistakes_of_its_own(sources):
    plan = Plan(mistakes_in={"depth_1": (0.5, 0.0)})
    of_part = {True: [], False: []}
    for episode in textcraft_episodes(sources, 80, plan):
        of_part[episode.item_id in sources.textcraft_parts["depth_1"]] += episode.is_mistake
    assert 0.3 < np.mean(of_part[True]) < 0.6 and not any(of_part[False])


def test_slow_environments_are_played_once_and_their_longest_episodes_left_out(monkeypatch):
    def play_all(rng):
        played.append(rng)
        return [ExpertEpisode(({"role": "user", "content": size * "a"},), (), str(size), 0) for size in (10, 20, 9000)]

    played = []
    monkeypatch.setattr(sources_module, "webarena_episodes", play_all)
    web, rng = Sources({"webarena": 1.0}), np.random.default_rng(0)
    assert {web.draw(rng, Plan(max_chars=15), 0.0).item_id for _ in range(20)} == {"10", "20"}
    assert len(played) == 1


def test_a_part_of_the_episodes_may_be_of_the_web_alone(monkeypatch):
    def play_all(rng):
        return [ExpertEpisode(({"role": "user", "content": "a page"},), (), "a task", 0)]

    monkeypatch.setattr(sources_module, "miniwob_episodes", play_all)
    sources, rng = Sources({"textcraft": 0.95, "miniwob": 0.05}), np.random.default_rng(0)
    drawn = [sources.draw(rng, Plan(), 0.0, web_rate=0.5).item_id for _ in range(200)]
    assert 0.4 < np.mean([item_id == "a task" for item_id in drawn]) < 0.65


def test_no_task_of_the_eval_split_is_in_the_training_data(sources):
    rng = np.random.default_rng(0)
    for env, cls in (("textcraft", TextCraftEnv), ("babyai", BabyAIEnv), ("searchqa", SearchQAEnv)):
        held_out = set(cls(split="eval").item_ids)
        drawn = {sources.draw_from(env, rng, Plan()).item_id for _ in range(150)}
        assert len(drawn) > 50 and not drawn & held_out
    assert not set().union(*sources.textcraft_parts.values()) & EVAL_ITEMS


def test_an_episode_under_other_names_is_what_an_environment_with_these_names_would_say(sources):
    rng = np.random.default_rng(0)
    for episode in textcraft_episodes(sources, 20, Plan(0.2)):
        renamed = rename_items(episode.messages, rng)
        true_words = {w for m in episode.messages for w in re.findall(r"[a-z]+", m["content"])} & set(item_words())
        texts = [" ".join(message["content"] for message in messages) for messages in (episode.messages, renamed)]
        pairs = list(zip(*(re.findall(r"[A-Za-z]+", text) for text in texts), strict=True))
        names = dict(pairs)
        assert all(names[old] == new for old, new in pairs)  # one name for one name, in every message
        changed = {old for old, new in pairs if old != new}
        assert changed <= true_words and len(changed) > len(true_words) / 2
        assert len({names[word] for word in true_words}) == len(true_words)  # two names stay two


def test_a_question_under_other_names_is_still_answered_by_its_passages(sources):
    rng = np.random.default_rng(0)
    for _ in range(20):
        episode = sources.draw_from("searchqa", rng, Plan(), 1.0)
        answer = re.search(r"<answer>(.*)</answer>", episode.messages[-1]["content"])[1]
        assert answer.lower() in episode.messages[-2]["content"].lower(), episode.messages
        question = episode.messages[0]["content"].lower()
        query = re.search(r"<search>(.*)</search>", episode.messages[1]["content"])[1]
        names = [word.lower() for word in query.split() if word[0].isupper()]
        assert all(name in question for name in names), episode.messages


# The first weights.


def test_wired_weights_look_at_the_previous_token_and_at_what_followed_the_present_one(tokenizer):
    model = training.make_model(tokenizer, seed=0)
    model.set_attn_implementation("eager")
    rng = np.random.default_rng(0)
    ids = torch.from_numpy(np.resize(rng.integers(3, len(tokenizer), 40), (1, 80)))
    with torch.no_grad():
        first, second, *_ = model(ids, output_attentions=True).attentions
    at = torch.arange(41, 80)
    assert first[0, 0, at, at - 1].mean() > 0.9
    # The token 39 places back followed the present token's other occurrence; an even look would give it 1/60.
    assert second[0, 0, at, at - 39].mean() > 0.2


# The script.


@pytest.mark.slow
def test_an_interrupted_training_does_not_go_on_with_other_settings(tmp_path):
    training.check_settings(tmp_path, Settings(lr=1e-3))
    training.check_settings(tmp_path, Settings(lr=1e-3))
    with pytest.raises(ConfigError, match=re.escape("lr 0.001; got 0.002. Give the same, or another OUT.")):
        training.check_settings(tmp_path, Settings(lr=2e-3))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_script_repeats_bit_for_bit_also_when_interrupted(tmp_path, monkeypatch, one_thread):
    class InterruptionError(Exception):
        pass

    def save_to_path(algo, path):
        written = save(algo, path)
        if f"{path.parent.name}/{path.name}" == interrupted_after:
            raise InterruptionError
        return written

    def run(folder):
        out = tmp_path / folder
        training.main(
            out,
            seed=3,
            reading_steps=4,
            practice_steps=4,
            mistakes_steps=5,
            web_steps=3,
            batch_size=2,
            warmup_steps=2,
            measure=False,
        )
        return load_file(out / "model.safetensors")

    monkeypatch.setattr(training, "Sources", lambda: Sources({"textcraft": 0.5, "searchqa": 0.5}))
    monkeypatch.setattr(training, "NUM_TOKENIZER_EPISODES", 5)
    monkeypatch.setattr(stages, "CHECKPOINT_EVERY", 1)
    save, interrupted_after = SFT.save_to_path, ""
    monkeypatch.setattr(SFT, "save_to_path", save_to_path)
    straight = run("straight")
    interrupted_after = "web_checkpoints/checkpoint_000002"
    with pytest.raises(InterruptionError):
        run("interrupted")
    interrupted_after = ""
    resumed = run("interrupted")
    for name, tensor in straight.items():
        assert torch.equal(tensor, resumed[name]), name

    # What is written: a small model that learnt something and loads as float32, and its card.
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "straight")
    untrained = training.make_model(AutoTokenizer.from_pretrained(tmp_path / "straight"), seed=3).state_dict()
    name = "model.layers.0.mlp.up_proj.weight"
    change = (model.state_dict()[name] - untrained[name]).abs()
    assert change.max() > Settings.lr / 2
    assert model.dtype == torch.float32
    assert (tmp_path / "straight" / "model.safetensors").stat().st_size < 2.2 * model.num_parameters()  # two bytes each
    assert (
        "--seed 3 --reading-steps 4 --practice-steps 4 --mistakes-steps 5 --web-steps 3"
        in (tmp_path / "straight" / "README.md").read_text()
    )
    assert ChatTokenizer(tmp_path / "straight").end_of_turn_id == model.config.eos_token_id
    assert not (tmp_path / "straight" / training.WORK).exists()


# What it can do.


@pytest.mark.slow
def test_the_model_solves_some_tasks_and_leaves_room(one_thread):
    engine = TransformersEngine(str(TINY_MODEL_DIR))
    score = evaluate(engine, TINY_MODEL_DIR, "TextCraft depth 1, train", max_tasks=12)
    assert score.num_episodes == 24
    assert 0.1 < score.success_rate < 0.9
    assert score.sampled_tokens_mean < MAX_NEW_TOKENS * score.num_turns_mean / 2  # it ends its turns itself


def test_task_sets_are_of_their_split_and_easy_ones_can_be_solved_in_time():
    assert len(TASK_SETS["TextCraft depth 1, eval"].item_ids()) == 31
    easy = TASK_SETS["TextCraft easy depth 2, eval"]
    env = TextCraftEnv(split="all")
    assert all(num_expert_turns(env, item, seed=1) <= EASY_TURNS < easy.horizon for item in easy.item_ids())
    for name, tasks in TASK_SETS.items():
        if tasks.env is not SciWorldEnv:  # its items are a matter of their numbers
            assert set(tasks.item_ids()) <= set(tasks.env(split=name.rpartition(" ")[2]).item_ids), name


def test_the_pooled_success_counts_each_task_once():
    def score(task_set, num_tasks, success_rate):
        return Score(task_set, num_tasks, 8, 6, success_rate, success_rate, 2.0, 20.0, 1.0)

    pool = [score("TextCraft depth 1, eval", 30, 0.5), score("TextCraft easy depth 2, train", 10, 0.1)]
    assert pooled_success([*pool, score("MiniWoB 15 easy tasks, train", 100, 1.0)]) == pytest.approx((15 + 1) / 40)
