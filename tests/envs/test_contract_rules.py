"""Every rule of the contract finds an environment that breaks it, in one line."""

import random

import gymnasium
import numpy as np
import pytest

from rllm_gym.envs import StepResult, TextEnv, UnicodeText
from rllm_gym.envs.contract import RULES, ContractError, check_env, findings
from rllm_gym.errors import ConfigError


class Good(TextEnv):
    """Say the number of the item."""

    name = "good"
    num_items = 20
    category = "numbers"

    def split_indices(self, split):
        return {"train": range(15), "eval": range(15, 20), "all": range(20)}[split]

    def reset_item(self, index):
        return f"Say {index}."

    def act(self, action):
        self.is_success = action == str(self.index)
        return StepResult(action, float(self.is_success), self.is_success, is_invalid=not action.isdigit())

    def expert_action(self):
        return str(self.index)


class OddObservation(Good):
    def reset_item(self, index):
        return index


class NoBool(Good):
    def _info(self):
        return {**super()._info(), "is_success": 0}


class SolvedAtOnce(Good):
    def reset_item(self, index):
        self.is_success = True
        return super().reset_item(index)


class LostExpert(Good):
    def expert_action(self):
        return "0"


class MovingExpert(Good):
    num_asked = 0

    def expert_action(self):
        self.num_asked += 1
        return super().expert_action()


class Crashes(Good):
    def act(self, action):
        if action == "Action:":
            raise KeyError("no action")
        return super().act(action)


class Generous(Good):
    def act(self, action):
        return super().act(action)._replace(reward=0.5)


class Unseeded(Good):
    generator = np.random.default_rng()

    def reset_item(self, index):
        return f"Say {index}. {self.generator.random()}"


class OneTask(Good):
    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed, options={"item_id": 3})


class GlobalRandom(Good):
    def reset_item(self, index):
        random.random()
        return super().reset_item(index)


class OtherItem(Good):
    def _parse_item_id(self, item_id):
        return 0


class SharedItem(Good):
    def split_indices(self, split):
        return {"train": range(16), "eval": range(15, 20), "all": range(20)}[split]


class NoPicture(Good):
    metadata = {"render_modes": ["ansi", "rgb_array"], "render_fps": 4}  # noqa: RUF012


class TokenShy(Good):
    count_tokens = None  # what the token level sets

    def act(self, action):
        result = super().act(action)
        return result if self.count_tokens is None else result._replace(reward=0.25)


class ClosesOnce(Good):
    is_closed = False

    def close(self):
        assert not self.is_closed, "closed already"
        self.is_closed = True


class OwnGenerator(gymnasium.Env):
    def __init__(self):
        self.observation_space = self.action_space = UnicodeText(100)

    def reset(self, *, seed=None, options=None):
        self.number = np.random.default_rng(seed).integers(10)  # Gymnasium's own generator is never seeded
        return f"Say {self.number}.", {}

    def step(self, action):
        return action, 0.0, False, False, {}


FAULTS = {
    OddObservation: ("observations are in their space and steps have their types", r"\d+ is not in UnicodeText"),
    NoBool: (
        "observations are in their space and steps have their types",
        r"info\['is_success'\] must be a bool; got 0",
    ),
    SolvedAtOnce: ("info says whether the task is solved", "False at reset"),
    LostExpert: ("the expert succeeds and its last step terminates", "seed 0: the expert must end the episode"),
    MovingExpert: ("the expert changes nothing and answers in any state", "asking the expert has changed"),
    Crashes: ("nonsense is an ordinary turn without reward", "'Action:' raised KeyError: 'no action'"),
    Generous: ("nonsense is an ordinary turn without reward", "must not be rewarded; got 0.5"),
    Unseeded: ("the same seed gives the same episode in new and used environments", "seed 7, again in the same"),
    OneTask: ("different seeds give different tasks", "draw the task from self.np_random"),
    GlobalRandom: ("no randomness comes from outside the environment", "it draws from Python's random"),
    OtherItem: ("an item asked for by its id is the one that a seed draws", "with 'good_"),
    SharedItem: ("splits share no item and all holds both", "1 items are in train and in eval, like 'good_15'"),
    NoPicture: ("it renders what its metadata promise", "it raised NotImplementedError"),
    TokenShy: ("it plays alike with tokens", r"'\d+' brings \(0.25, True\); as text \(1.0, True\)"),
    ClosesOnce: ("it closes twice", "it raised AssertionError: closed already"),
    OwnGenerator: ("gymnasiums own check passes without a warning", "does not call `super\\(\\).reset\\(seed=seed\\)`"),
}


def test_an_environment_that_keeps_all_rules_is_silent():
    check_env(Good)
    assert not [found for found in findings(Good) if found.broken or found.not_checked]


@pytest.mark.parametrize("env", FAULTS, ids=lambda env: env.__name__)
def test_a_broken_rule_is_one_line(env):
    rule, message = FAULTS[env]
    with pytest.raises(ContractError, match=rf"(?m)^{rule}: .*{message}"):
        check_env(env)


def test_every_rule_is_broken_by_some_fault():
    assert {rule.__name__.replace("_", " ") for rule in RULES} == {rule for rule, _ in FAULTS.values()}


class Bare(gymnasium.Env):
    """Somebody else's: no items, no expert, no is_success."""

    def __init__(self):
        self.observation_space = self.action_space = UnicodeText(100)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return "hello", {}

    def step(self, action):
        return "bye", 0.0, False, False, {}


def test_what_an_environment_need_not_have_is_not_checked_and_says_what_it_is_good_for():
    check_env(Bare)
    reasons = [found.not_checked for found in findings(Bare) if found.not_checked]
    assert len(reasons) == 7
    assert any("SFT has no data" in reason for reason in reasons)


def test_an_environment_that_is_not_of_text_is_refused():
    with pytest.raises(ConfigError, match=r"^check_env: env must be a text environment"):
        check_env(lambda: gymnasium.make("CartPole-v1"))


def test_hooks_under_their_former_names_still_work_and_are_warned_of():
    with pytest.warns(FutureWarning, match="Former: _act is the former name of act") as warned:

        class Former(TextEnv):
            name, num_items, category = "former", 2, "any"

            def _split_indices(self, split):
                return range(2)

            def _reset_item(self, index):
                return f"task {index}"

            def _act(self, action):
                return StepResult("done", 1.0, True, False)

    assert sorted(str(w.message).split(" is ")[0] for w in warned) == [
        "Former: _act", "Former: _reset_item", "Former: _split_indices",
    ]  # fmt: skip
    env = Former()
    assert env.reset(options={"item_id": 1})[0] == "task 1"
    assert env.step("x")[:3] == ("done", 1.0, True)
