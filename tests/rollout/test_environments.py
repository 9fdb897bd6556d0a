"""Which tasks an evaluation may play: none that is trained on, unless the split is `train`."""

from __future__ import annotations

import sys
import time

import gymnasium
import pytest
from ray.tune import registry
from ray.tune.registry import register_env

from rllm_gym import register_text_env
from rllm_gym.algorithms import GRPOConfig, SFTConfig
from rllm_gym.envs import UnicodeText
from rllm_gym.errors import ConfigError, EnvError
from rllm_gym.rollout import environments
from rllm_gym.rollout.environments import (
    EnvironmentSpec,
    ask_text_env,
    check_evaluation,
    list_item_ids,
    make_text_env,
    read_environments,
)
from tests.envs.toy_environments import SayTheWord

TEXTCRAFT = "rllm_gym/TextCraft-v0"


class OtherWords(SayTheWord):
    """An environment whose items have the same names, but are others."""

    num_items = 6


class Guess(gymnasium.Env):
    """An environment of a user's own, which numbers no tasks and takes no keyword."""

    def __init__(self) -> None:
        self.observation_space = self.action_space = UnicodeText(100)


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    """Register four for a test, and leave what other modules of tests registered at their import."""
    monkeypatch.setattr(registry._global_registry, "_to_flush", dict(registry._global_registry._to_flush))
    register_env("guess", lambda config: Guess(**config))
    register_env("words", lambda config: SayTheWord(**config))
    register_env("other_words", lambda config: OtherWords(**config))
    register_env("deaf", lambda config: SayTheWord())  # takes what it is given, and draws from `train` all the same


def run(env, env_config=None, splits=("eval",), config_class=GRPOConfig, **options):
    config = config_class().environment(env, env_config=env_config or {})
    options = {"evaluation_interval": 5, "evaluation_splits": list(splits), **options}
    for name, value in options.items():
        setattr(config, name, value)
    return config


def refusal(config) -> str:
    with pytest.raises(ConfigError) as error:
        check_evaluation(config)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("splits", [["eval"], ["train", "eval"], ["all"]])
def test_a_list_of_items_and_evaluation_on_another_split_name_splits(splits):
    message = refusal(run(TEXTCRAFT, {"item_ids": [3, 4, 6, 17]}, splits))
    assert message == (
        "TextCraft-v0: item_ids in env_config hold for every split, so that evaluation would play what is trained on; "
        f"got them with evaluation on {splits[-1]}. Use splits: {{train: ..., eval: ...}} in place of item_ids, or "
        "evaluate on train."
    )


def test_a_list_of_items_may_be_trained_and_evaluated_on_alike():
    check_evaluation(run(TEXTCRAFT, {"item_ids": [3, 4, 6, 17]}, ["train"]))
    check_evaluation(run(TEXTCRAFT, {"item_ids": [3, 4, 6, 17]}, ["eval"], evaluation_interval=None))
    spec = EnvironmentSpec("craft", TEXTCRAFT, {"item_ids": [3, 6]})
    # 6 is of the environment's own eval; what is trained on is the list, all of it.
    assert list_item_ids(spec, "train") == list_item_ids(spec, None) == ["textcraft_3", "textcraft_6"]


def test_splits_of_the_users_are_played_where_they_are_asked_for():
    spec = EnvironmentSpec("craft", TEXTCRAFT, {"splits": {"train": [3, 17], "eval": [6], "hard": [2]}})
    check_evaluation(run(TEXTCRAFT, spec.env_config, ["train", "eval", "hard", "all"]))
    assert list_item_ids(spec, None) == list_item_ids(spec, "train") == ["textcraft_3", "textcraft_17"]
    assert list_item_ids(spec, "eval") == ["textcraft_6"]
    assert list_item_ids(spec, "hard") == ["textcraft_2"]
    assert len(list_item_ids(spec, "all")) == 544


@pytest.mark.parametrize(
    ("env_config", "splits", "message"),
    [
        ({"splits": {"train": [3, 6]}}, ["eval"], "TextCraftEnv: splits must keep what is trained on apart; got "
         "'textcraft_6' both in train and in eval."),
        ({"splits": {"hard": [2]}}, ["hrd"], "split must be one of train, eval, all, hard; got 'hrd'. Did you mean "
         "'hard'?"),
        ({"split": "all", "depth": 4}, ["eval"], "TextCraft-v0: evaluation must play no task that is trained on; got "
         "'textcraft_535', the first of 3 tasks, in the split 'eval' and in TextCraft-v0's training. Say in splits "
         "what each split holds, or evaluate on train."),
        ({"split": "hard", "splits": {"hard": [2]}}, ["hard"], "got 'textcraft_2' in the split 'hard' and in"),
    ],
)  # fmt: skip
def test_what_is_trained_on_is_not_evaluated_on_under_another_name(env_config, splits, message):
    assert message in refusal(run(TEXTCRAFT, env_config, splits))


def test_no_environment_of_a_run_evaluates_on_what_another_trains_on():
    def mixture(hard):
        return [
            {"id": TEXTCRAFT, "name": "easy", "env_config": {"splits": {"train": [3, 4], "eval": [6]}}},
            {"id": TEXTCRAFT, "name": "hard", "env_config": {"splits": hard}},
        ]

    check_evaluation(run(mixture({"train": [17], "eval": [2]})))
    message = refusal(run(mixture({"train": [17], "eval": [4]})))
    assert message.startswith("hard: evaluation must play no task that is trained on; got 'textcraft_4' in the split ")
    assert "in easy's training." in message
    assert "easy: " in refusal(run(mixture({"train": [17, 6], "eval": [2]})))


def test_equal_ids_of_other_tasks_are_no_leak():
    def mixture(second):
        return [
            {"id": "words", "env_config": {"splits": {"train": [0], "eval": [1]}}},
            {"id": second, "name": "second", "env_config": {"splits": {"train": [1], "eval": [0]}}},
        ]

    check_evaluation(run(mixture("other_words")))
    assert "got 'say_the_word_1' in the split 'eval' and in second's" in refusal(run(mixture("words")))


def test_an_evaluation_may_have_an_environment_of_its_own():
    config = run(TEXTCRAFT, {"depth": 2}, evaluation_config={"env": "words", "env_config": {"splits": {"eval": [1]}}})
    assert config.evaluation_environments == [EnvironmentSpec("words", "words", {"splits": {"eval": [1]}})]
    assert [spec.name for spec in config.all_environments] == ["TextCraft-v0", "words"]
    check_evaluation(config)
    # Without another one, and of the same one, keys are added.
    for env in ({}, {"env": "TextCraft-v0"}):
        same = run(TEXTCRAFT, {"depth": 2, "split": "train"}, evaluation_config={**env, "env_config": {"depth": 3}})
        assert same.evaluation_environments == [
            EnvironmentSpec("TextCraft-v0", TEXTCRAFT, {"depth": 3, "split": "train"})
        ]
        assert len(same.all_environments) == 2
    unchanged = run(TEXTCRAFT, {"depth": 2}, evaluation_config={"explore": False})
    assert unchanged.all_environments == unchanged.environments == unchanged.evaluation_environments


def test_what_is_trained_on_is_not_evaluated_on_in_an_environment_of_its_own():
    leak = {"env_config": {"splits": {"train": [0], "eval": [3]}}}
    message = refusal(run(TEXTCRAFT, {"splits": {"train": [3, 4]}}, evaluation_config=leak))
    assert "TextCraft-v0: evaluation must play no task that is trained on; got 'textcraft_3'" in message
    check_evaluation(run(TEXTCRAFT, {"item_ids": [3]}, evaluation_config={"env": "words"}))
    no_ids = refusal(run("words", evaluation_config={"env": "guess"}))
    assert no_ids.startswith("guess: evaluation on another split than train needs item_ids")


def test_the_horizon_of_what_is_only_evaluated_is_the_longest():
    mixture = [{"id": "words"}, {"id": "other_words"}]
    schedules = {name: {"type": "fixed", "horizons": [turns]} for name, turns in (("words", 7), ("other_words", 3))}
    config = run(
        mixture, scaling_inter=schedules, evaluation_config={"env": [{"id": "other_words"}, {"id": TEXTCRAFT}]}
    )
    assert config.last_horizons == {"other_words": 3, "TextCraft-v0": 7}
    assert run("words", evaluation_config={"env": TEXTCRAFT}).last_horizons == {"TextCraft-v0": None}


def test_building_an_algorithm_checks_its_evaluation_first():
    with pytest.raises(ConfigError, match="item_ids in env_config hold for every split"):
        run(TEXTCRAFT, {"item_ids": [3, 4, 6, 17]}).build_algo()


def test_every_environment_of_a_run_must_know_the_split():
    env = [{"id": TEXTCRAFT, "env_config": {"splits": {"hard": [2]}}}, {"id": "rllm_gym/BabyAI-v0"}]
    assert "BabyAIEnv: split must be one of train, eval, all; got 'hard'." in refusal(run(env, splits=["hard"]))


def test_the_split_that_only_an_expert_plays_is_checked_too():
    options = {"config_class": SFTConfig, "evaluation_interval": None}
    leak = {"splits": {"train": [3, 6]}}
    check_evaluation(run(TEXTCRAFT, leak, **options))
    assert "'textcraft_6' both" in refusal(run(TEXTCRAFT, leak, evaluation_data="expert", **options))
    check_evaluation(run(TEXTCRAFT, leak, ["train", "eval"], evaluation_data="expert", **options))  # the first counts
    check_evaluation(run(None, evaluation_data="expert", **options))


def test_an_environment_without_item_ids_is_evaluated_on_what_it_trains_on_alone():
    assert refusal(run("guess")) == (
        "guess: evaluation on another split than train needs item_ids, by which its tasks are played; got 'eval', and "
        "an environment without item_ids. Give it some, or evaluate on train."
    )
    check_evaluation(run("guess", splits=["train"]))  # makes it without a keyword that it would not know
    assert list_item_ids(EnvironmentSpec("guess", "guess"), "train") is None


def test_an_environment_that_ignores_the_split_is_noticed():
    assert "got 'say_the_word_0', the first of 4 tasks, in the split 'eval'" in refusal(run("deaf"))
    assert "got 'say_the_word_0'" in refusal(run("deaf", {"splits": {"train": [0], "eval": [1]}}))


class Parrot(gymnasium.Env):
    """No `TextEnv`: it has nothing but two spaces."""

    observation_space = action_space = UnicodeText(1000)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return "Speak.", {}

    def step(self, action):
        return f"You said {action}.", 0.0, False, False, {}


def test_an_agent_is_made_of_every_kind_of_environment_and_each_of_a_list_has_its_own():
    register_env("parrot", lambda config: Parrot(**config))
    register_text_env("test/Shy-v0", Parrot, agent={"format": "code"})
    agent = {"format": "function_call"}
    said = {"function_call": '{"name": "act", "arguments": {"action": "hi"}}', "code": "act('hi')", "native": "hi"}
    try:
        for env in (lambda config: Parrot(), "parrot", "test/Shy-v0"):
            made = make_text_env(EnvironmentSpec("x", env, {"agent": agent}))
            made.reset(seed=0)
            assert made.step(said["function_call"])[0] == "You said hi."
            assert made.get_wrapper_attr("system_prompt").startswith("Each turn, write one JSON object")
        shy = make_text_env(EnvironmentSpec("x", "test/Shy-v0", {}))  # what it was registered with
        shy.reset(seed=0)
        assert shy.step(said["code"])[0] == "You said hi."
    finally:
        del gymnasium.registry["test/Shy-v0"]
    entries = [{"id": TEXTCRAFT, "name": "plain", "env_config": {"agent": None}}, {"id": TEXTCRAFT, "name": "mine"}]
    plain, mine = map(make_text_env, read_environments(entries, {"agent": {"plan": True}}))
    assert "write a plan" not in plain.reset(seed=0)[0]
    assert "write a plan" in mine.reset(seed=0)[0]
    assert [spec.rewrites_history for spec in read_environments("x", {})] == [False]
    assert read_environments("x", {"agent": {"context": {"last_n_turns": 2}}})[0].rewrites_history


def test_an_agent_is_for_environments_of_one():
    from tests.envs.toy_multi_agent import PassTheWord

    with pytest.raises(ConfigError, match="agent is for an environment of one agent; got one of several"):
        make_text_env(EnvironmentSpec("pass", lambda config: PassTheWord(**config), {"agent": {"plan": True}}))


class Stubborn(SayTheWord):
    """One whose making or closing fails in a way of `how`."""

    def __init__(self, env_config):
        super().__init__()
        self._how = env_config["how"]
        if self._how == "sleeps when made":
            time.sleep(1e9)
        if self._how == "exits when made":
            sys.exit(3)

    def close(self) -> None:
        if self._how == "sleeps when closed":
            time.sleep(1e9)
        if self._how == "raises when closed":
            raise RuntimeError("no")


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("how", "said"),
    [("sleeps when made", "making stubborn must return within 0.2 s"), ("exits when made", "stubborn: 3")],
)
def test_an_environment_that_cannot_be_made_is_an_error_soon(how, said, monkeypatch):
    monkeypatch.setattr(environments, "MAKE_TIMEOUT_S", 0.2)
    with pytest.raises(EnvError, match=said):
        ask_text_env(EnvironmentSpec("stubborn", Stubborn, {"how": how}), lambda env: None)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("how", ["sleeps when closed", "raises when closed"])
def test_an_environment_that_cannot_be_closed_has_answered_all_the_same(how, monkeypatch, caplog):
    monkeypatch.setattr(environments, "CLOSE_TIMEOUT_S", 0.2)
    assert ask_text_env(EnvironmentSpec("stubborn", Stubborn, {"how": how}), lambda env: 5) == 5
    assert "closing stubborn failed" in caplog.text
