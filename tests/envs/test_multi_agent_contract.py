"""What every registered environment of several agents promises, driven by its own experts."""

import functools

import gymnasium
import pytest

import rllm_gym
from rllm_gym.envs.contract import check_env, findings
from rllm_gym.envs.contract_findings import ContractError, NotApplicableError, check_rule
from rllm_gym.envs.multi_agent_contract import RULES
from rllm_gym.registration import MULTI_AGENT_FACTORY
from tests.envs.toy_multi_agent import AGENTS, PassTheWord
from tests.needs import OF_ENVIRONMENTS, skip_without

IDS = sorted(
    key
    for key, spec in gymnasium.registry.items()
    if key.startswith("rllm_gym/") and spec.entry_point == MULTI_AGENT_FACTORY
)

# What may be said is without number.
NOT_CHECKED = {(f"rllm_gym/{name}-v0", "legal_actions_are_legal") for name in ("TextArenaDuel", "TextCraftDuo")}


@pytest.mark.promise
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
@pytest.mark.parametrize("env_id", IDS)
def test_it_keeps_the_rule(env_id, rule):
    skip_without(OF_ENVIRONMENTS.get(env_id))
    found = check_rule(rule, functools.partial(rllm_gym.make_multi_agent, env_id))
    assert not found.broken
    if (env_id, rule.__name__) not in NOT_CHECKED:
        assert not found.not_checked


@pytest.mark.parametrize("is_simultaneous", [False, True])
def test_the_rules_hold_for_an_environment_of_ones_own(is_simultaneous):
    make = functools.partial(PassTheWord, is_simultaneous=is_simultaneous, num_rounds=3)
    broken = {found.rule: found.broken for found in findings(make) if found.broken}
    assert list(broken) == ["nonsense is an ordinary turn without reward"]  # it pays for letters


class Forgetful(PassTheWord):
    """Breaks a rule in each of its methods."""

    def reset(self, *, seed=None, options=None):
        observations, infos = super().reset(seed=None)
        return observations, {**infos, "carol": {}}

    def step(self, action_dict):
        observations, rewards, terminateds, truncateds, infos = super().step(action_dict)
        return observations, {**rewards, "alice": 1.0}, terminateds, truncateds, infos

    def close(self):
        del self._words

    @property
    def rotates_seats(self):
        return True

    @property
    def item_ids(self):
        return ["cat"]

    def expert_action(self, agent):
        return str(self.np_random.random())


BROKEN = {
    "observations_are_in_their_spaces_and_steps_have_their_types": "infos are for {'",
    "an_expert_changes_nothing_and_answers_alike_when_it_is_asked_twice": "changed the environment",
    "nonsense_is_an_ordinary_turn_without_reward": "must not be rewarded",
    "the_same_seed_gives_the_same_episode_in_new_and_used_environments": "seed 7, again",
    "an_item_asked_for_by_its_id_is_the_one_that_a_seed_draws": "",
    "everyone_plays_from_every_seat": "seating 1",
    "it_closes_twice": "AttributeError",
}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_a_broken_rule_is_named(rule):
    found = check_rule(rule, Forgetful)
    assert bool(found.broken) == (rule.__name__ in BROKEN)
    assert BROKEN.get(rule.__name__, "") in found.broken


def test_check_env_says_all_that_is_broken():
    with pytest.raises(ContractError) as error:
        check_env(Forgetful)
    assert len(str(error.value).splitlines()) == len(BROKEN)


def test_what_an_environment_need_not_have_is_not_checked():
    rules = {rule.__name__: rule for rule in RULES}
    for name in (
        "legal_actions_are_legal",
        "everyone_plays_from_every_seat",
        "splits_share_no_item_and_all_holds_both",
    ):
        with pytest.raises(NotApplicableError):
            rules[name](PassTheWord)
    with pytest.raises(NotApplicableError, match="same time"):
        rules["acting_out_of_turn_is_an_error"](functools.partial(PassTheWord, is_simultaneous=True))
    assert AGENTS == ("alice", "bob")
