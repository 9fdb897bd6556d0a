"""The web episodes of the tiny model's training data, from a real browser."""

import re
from pathlib import Path

import numpy as np
import pytest
import yaml

from rllm_gym.envs.miniwob.env import MiniWoBEnv
from rllm_gym.envs.miniwob.expert import EXPERTS
from rllm_gym.envs.webarena.embedded import load_tasks
from rllm_gym.envs.webarena.env import WebArenaEnv
from tools.tiny_model import web_tasks as web
from tools.tiny_model.episodes import Plan, play


def actions(episode):
    return [m["content"].rpartition("Action: ")[2] for m in episode.messages if m["role"] == "assistant"]


def test_only_training_tasks_that_have_an_expert_are_played():
    miniwob, webarena = MiniWoBEnv(split="train"), WebArenaEnv(split="train", task_set="embedded")
    assert set(web.miniwob_config()["item_ids"]) <= set(miniwob.item_ids)
    assert set(web.MINIWOB_TASKS) <= set(EXPERTS)
    assert set(web.webarena_config()["item_ids"]) <= set(webarena.item_ids)
    assert {task["intent_template"] for task in load_tasks()} >= set(web.WEBARENA_TEMPLATES)


def test_miniwobs_episodes_repeat_and_are_short(monkeypatch, needs_browser):
    monkeypatch.setattr(web, "MINIWOB_TASKS", ("enter-text", "click-button", "click-option"))
    monkeypatch.setattr(web, "NUM_MINIWOB_ROUNDS", 2)
    first, again = (web.miniwob_episodes(np.random.default_rng(3)) for _ in range(2))
    assert first == again
    assert [episode.item_id for episode in first] == 2 * [f"miniwob_{task}" for task in web.MINIWOB_TASKS]
    assert all(episode.num_chars < 1200 for episode in first)
    assert first[0].messages != first[3].messages  # another seed, another text


@pytest.fixture
def env(needs_browser):
    env = MiniWoBEnv(split="train", **web.miniwob_config())
    yield env
    env.close()


def test_a_mistake_is_a_legal_action_on_what_is_shown_and_the_expert_finds_on(env):
    episode = play(env, "miniwob_enter-text", np.random.default_rng(0), web.web_mistakes, Plan(mistake_rate=0.6))
    assert env.is_success
    assert True in episode.is_mistake[:-1]
    for number, (action, is_mistake) in enumerate(zip(actions(episode), episode.is_mistake, strict=True)):
        shown = episode.messages[2 * number]["content"]
        assert "ERROR" not in shown
        if is_mistake and action != "scroll [down]":
            assert f"{re.search(r'[[][0-9]+[]]', action)[0]} " in shown


def test_webarenas_episodes_are_solved_and_short(monkeypatch, needs_browser):
    monkeypatch.setattr(web, "WEBARENA_TEMPLATES", ("Show me {{list}}.",))
    monkeypatch.setattr(web, "NUM_WEBARENA_ROUNDS", 2)
    episodes = web.webarena_episodes(np.random.default_rng(0))
    assert len(episodes) >= 2
    for episode in episodes:
        assert actions(episode)[-1] == "stop []"
        assert episode.num_chars <= web.MAX_CHARS
        assert episode.messages[0]["content"].startswith("OBJECTIVE: Show me ")


def env_config_of(example):
    path = Path(__file__).parents[1] / "tuned_examples" / f"{example}_tiny.yaml"
    (experiment,) = yaml.safe_load(path.read_text()).values()
    return experiment["config"]["env_config"]


def test_miniwobs_sft_example_trains_on_what_the_tiny_model_has_seen():
    assert env_config_of("miniwob/sft") == web.miniwob_config()


@pytest.mark.parametrize("environment", ["miniwob", "webarena"])
def test_the_grpo_examples_train_on_some_of_it(environment):
    config, seen = env_config_of(f"{environment}/grpo"), getattr(web, f"{environment}_config")()
    assert config | {"item_ids": seen["item_ids"]} == seen
    assert set(config["item_ids"]) < set(seen["item_ids"])
