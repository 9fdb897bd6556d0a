"""Roles: advisers write before the actor acts, each reads what it must, and all get the environment's reward."""

import functools

import pytest

import rllm_gym
from rllm_gym.envs.contract import findings
from rllm_gym.envs.token_multi_agent import TokenMultiAgentEnv
from rllm_gym.errors import ConfigError
from rllm_gym.rollout.environments import EnvironmentSpec, list_item_ids, make_text_env

ROLES = ["planner", "actor"]
MAKE = functools.partial(rllm_gym.make_multi_agent, "TextCraft-v0", roles=ROLES)


def test_a_turn_is_a_plan_and_an_action():
    env, plain = MAKE(), rllm_gym.make_env("rllm_gym.envs.textcraft.env:TextCraftEnv", obs_type="text")
    task, _ = plain.reset(seed=3)
    observations, infos = env.reset(seed=3)
    assert observations == {"planner": task} and infos["planner"]["role"] == "planner"
    observations, rewards, terminateds, _, infos = env.step({"planner": " Get 1 stick. \n"})
    assert observations == {"actor": f"{task}\n\nThe planner: Get 1 stick."} and infos["actor"]["role"] == "actor"
    assert rewards == {"planner": 0.0, "actor": 0.0} and not terminateds["__all__"]
    observations, *_, infos = env.step({"actor": "Thought: a secret.\nAction: get 1 stone"})
    reply = plain.step("Action: get 1 stone")[0]
    assert observations == {"planner": f"The actor: get 1 stone\n{reply}"}
    assert infos["planner"]["is_invalid_action"] is False


def test_a_planner_is_never_blamed_for_the_actors_action():
    env = MAKE()
    env.reset(seed=0)
    env.step({"planner": "?"})
    infos = env.step({"actor": "fly"})[4]
    assert infos["planner"]["is_invalid_action"] is False
    assert env.step({"planner": "?"})[4]["actor"]["is_invalid_action"] is True


def test_at_the_end_both_get_the_reward_and_read_what_came_of_it():
    env = MAKE()
    observations, _ = env.reset(seed=3)
    while True:
        actions = {agent: env.expert_action(agent) for agent in observations}
        observations, rewards, terminateds, truncateds, infos = env.step(actions)
        if terminateds["__all__"]:
            break
    assert rewards == {"planner": 1.0, "actor": 1.0} and set(observations) == set(ROLES)
    assert observations["planner"].startswith("The actor: craft") and "The actor" not in observations["actor"]
    assert all(info["is_success"] for info in infos.values()) and not truncateds["__all__"]


@pytest.mark.parametrize("roles", [ROLES, ["critic", "planner", "actor"]])
def test_it_keeps_the_contract(roles):
    broken = {found.rule: found.broken for found in findings(functools.partial(MAKE, roles=roles)) if found.broken}
    assert not broken


def test_each_is_told_what_it_is_for():
    env = rllm_gym.make_multi_agent("TextCraft-v0", roles=["planner", "critic", "actor"])
    plain = rllm_gym.make_env("rllm_gym.envs.textcraft.env:TextCraftEnv", obs_type="text").system_prompt
    assert env.system_prompts["actor"] == plain
    assert (
        env.system_prompts["planner"].startswith(plain) and "You do not act yourself" in env.system_prompts["planner"]
    )
    assert "what was wrong" in env.system_prompts["critic"]


def test_in_an_experiment_roles_are_a_keyword_of_the_environment():
    spec = EnvironmentSpec("TextCraft-v0", "rllm_gym:rllm_gym/TextCraft-v0", {"roles": ROLES, "depth": 1})
    env = make_text_env(spec)
    assert env.possible_agents == ROLES and env.spec.id == "rllm_gym/TextCraft-v0"
    alone = EnvironmentSpec("TextCraft-v0", "rllm_gym:rllm_gym/TextCraft-v0", {"depth": 1})
    assert list_item_ids(spec, "eval") == list_item_ids(alone, "eval")
    assert set(TokenMultiAgentEnv(env).reset(seed=0)[0]) == {"planner"}


@pytest.mark.parametrize(
    ("env", "config", "message"),
    [
        ("TextCraft-v0", {"roles": ["plannr", "actor"]}, "got 'plannr'. Did you mean 'planner'?"),
        ("TextCraft-v0", {"roles": ["planner"]}, "must be different advisers and then actor; got ['planner']"),
        ("TextCraft-v0", {"roles": ["actor", "planner"]}, "got 'actor'"),
        ("TextCraft-v0", {"roles": ROLES, "agent": {"plan": True}}, "agent and roles exclude each other"),
        ("TextCraft-v0", {"roles": ROLES, "protocol": "agentgym"}, "begins with turns of its own"),
        ("KuhnPoker-v0", {"roles": ROLES}, "are for an environment of one agent"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(env, config, message):
    with pytest.raises(ConfigError) as error:
        make_text_env(EnvironmentSpec(env, f"rllm_gym:rllm_gym/{env}", config))
    assert message in str(error.value) and "\n" not in str(error.value)
