"""`protocol: agentgym` against AgentGym's own clients and servers, recorded by tools/record_agentgym_protocol.py."""

import json
from pathlib import Path

import gymnasium
import pytest

import rllm_gym  # noqa: F401  (registers the environments)
from rllm_gym.errors import ConfigError

NAMES = {
    "textcraft": "TextCraft-v0", "babyai": "BabyAI-v0", "sciworld": "SciWorld-v0", "searchqa": "SearchQA-v0",
    "webarena": "WebArena-v0",
}  # fmt: skip
NEEDS = {"babyai": "minigrid", "sciworld": "scienceworld", "searchqa": "bm25s", "webarena": "playwright"}
SLOW = ("sciworld", "webarena")


def golden(kind):
    path = Path(__file__).parents[1] / "golden" / f"agentgym_{kind}.json"
    return json.loads(path.read_text(encoding="utf-8"))


def make(kind, **options):
    if kind in NEEDS:
        pytest.importorskip(NEEDS[kind])
    return gymnasium.make(f"rllm_gym/{NAMES[kind]}", **{"protocol": "agentgym", "split": "all", **options})


@pytest.mark.parametrize("kind", [pytest.param(k, marks=pytest.mark.slow) if k in SLOW else k for k in NAMES])
def test_episodes_are_agentgyms_word_for_word(kind):
    recorded = golden(kind)
    env = make(kind, obs_type="text")
    assert [said for turn in env.unwrapped.preamble for said in turn] == recorded["conversation_start"]
    assert len(recorded["episodes"]) >= 20 and env.unwrapped.system_prompt == ""
    for episode in recorded["episodes"]:
        observation, _ = env.reset(seed=0, options={"item_id": episode["item_id"]})
        if kind == "textcraft":  # which other recipes are shown, and in which order, is drawn
            assert observation.rpartition("\n")[2] == episode["opening"].rpartition("\n")[2]
        else:
            assert observation == episode["opening"]
        total = 0.0
        for text, state, reward, done in episode["steps"]:
            observation, change, terminated, truncated, info = env.step(text)
            total += change
            assert (observation, terminated, truncated) == (state, done, False), (episode["item_id"], text)
            assert info["agentgym_reward"] == reward and total == pytest.approx(reward)
    env.close()


def test_the_first_tokens_are_the_instruction_ok_and_the_task():
    env = make("textcraft")
    ids, info = env.reset(seed=0, options={"item_id": "minecraft:beacon"})
    said = golden("textcraft")["conversation_start"]
    assert [message["role"] for message in info["messages"]] == ["user", "assistant", "user"]
    assert [message["content"] for message in info["messages"][:2]] == said
    assert info["messages"][2]["content"].endswith("Goal: craft beacon.")
    chat = env.get_wrapper_attr("chat")
    assert list(ids) == list(chat.encode_chat(info["messages"], add_generation_prompt=True))


@pytest.mark.parametrize("kind", ["textcraft", "babyai", "searchqa"])
def test_an_expert_solves_a_task_in_the_protocols_form(kind):
    env = make(kind, obs_type="text")
    env.reset(seed=0, options={"item_id": 3})
    for _ in range(40):
        text = env.unwrapped.expert_action()
        assert text.startswith("<think>" if kind == "searchqa" else "Thought:\n")
        _, _, terminated, _, info = env.step(text)
        if terminated:
            break
    assert info["is_success"] and info["agentgym_reward"] > 0.5


def test_agents_plan_and_reflect_in_the_protocol_but_have_no_other_format():
    env = make("textcraft", obs_type="text", agent={"plan": True, "reflect": "on_error"})
    observation, _ = env.reset(seed=0)
    assert "First write a plan" in observation
    env.step("I plan.")
    assert "reflect" in env.step("Action: fly")[0]
    for options, message in [
        (
            {"agent": {"format": "code"}},
            r"says itself how turns are written; got it together with agent: \{format: code",
        ),
        ({"protocol": "rllm"}, "must be native or agentgym; got 'rllm'"),
    ]:
        with pytest.raises(ConfigError, match=message):
            make("textcraft", **options)
    pytest.importorskip("miniwob")
    with pytest.raises(ConfigError, match=r"agentgym is for BabyAI, .* got it for .*MiniWoB"):
        gymnasium.make("rllm_gym/MiniWoB-v0", protocol="agentgym")
