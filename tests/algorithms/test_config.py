"""The configuration: one spelling everywhere, and one clear line for what is wrong."""

from __future__ import annotations

import dis
import io

import numpy as np
import pytest

from rllm_gym.algorithms import GRPO, GRPOConfig
from rllm_gym.algorithms.registry import get_algorithm_class
from rllm_gym.callbacks.horizon_schedules import AdaptiveSchedule, Stage, parse_schedules
from rllm_gym.callbacks.scaling_inter import ScalingInter
from rllm_gym.errors import ConfigError
from rllm_gym.options.methods import METHODS
from rllm_gym.training.task_sampler import TaskSampler


def validated(**options) -> GRPOConfig:
    config = GRPOConfig().environment("rllm_gym/TextCraft-v0").update_from_dict(options)
    config.validate()
    return config


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"group_sise": 8}, "GRPOConfig: no option has this name; got 'group_sise'. Did you mean 'group_size'?"),
        ({"model": "tiny"}, "model is not used here; the language model is `base_model`"),
        ({"group_size": 1}, "group_size must be at least 2, since one episode has no group mean; got 1."),
        (
            {"screening_size": 8},
            "screening_size must be below group_size, or no episode is left to play after; got 8 of 8.",
        ),
        ({"screening_size": 1}, "screening_size must be a whole number of at least 2"),
        ({"screening_size": 2, "advantage": "role"}, "nothing is compared within a group here; got 2. Leave it out."),
        ({"groups_per_step": 0}, "groups_per_step must be a whole number of at least 1; got 0."),
        ({"num_env_runners": 0}, "num_env_runners must be at least 1; got 0."),
        *[
            ({"env_timeout_s": value}, f"env_timeout_s must be a number above 0; got {value!r}.")
            for value in (0, -1, float("inf"), float("nan"), "120", None, True)
        ],
        ({"temperature": 0.0}, "training needs temperature above 0"),
        ({"max_new_tokens": 99, "max_model_len": 99}, "max_new_tokens must be below max_model_len"),
        ({"engine": "sglang"}, "engine: must be one of openai, scripted, transformers, vllm, or"),
        (
            {"engine": "transformers", "engine_options": {"seed": 1}},
            "engine_options: the engine transformers takes device; got 'seed'. Did you mean 'device'?",
        ),
        ({"zero_stage": 4}, "zero_stage must be one of 0, 1, 2, 3 or null; got 4."),
        ({"importance_correction": "token"}, "Set old_logp: recompute."),
        ({"lr": [[0, 1e-4], [9, 1e-5]]}, "lr must be a number"),
        ({"kl_kind": "k9"}, "kl_kind must be one of k1, k2, k3, low_variance; got 'k9'."),
        ({"clip_low": -1}, "clip_low must be a number of at least 0; got -1."),
        ({"max_episode_steps": 0}, "max_episode_steps must be a whole number of at least 1; got 0."),
        ({"scaling_inter": {"type": "stepwise", "horizons": []}}, "horizons must be a list of turns"),
        ({"scaling_inter": {"type": "wild", "horizons": [1]}}, "type must be fixed, stepwise or adaptive; got 'wild'."),
        ({"scaling_inter": {"type": "fixed", "horizons": [1, 2]}}, "type fixed has one horizon; got [1, 2]."),
        ({"scaling_inter": {"type": "stepwise", "horizons": [1, 2]}}, "steps_per_stage must be a whole number"),
        ({"scaling_inter": {"type": "fixed", "horizons": [2.5]}}, "every horizon must be a whole number"),
        ({"scaling_inter": {"type": "fixed", "horizon": [2]}}, "unknown key 'horizon'"),
        ({"scaling_inter": {"type": "fixed", "horizons": [2]}, "max_episode_steps": 3}, "Remove one of the two."),
        ({"scaling_inter": {"type": "adaptive", "horizons": [2, 3]}}, "min_steps_per_stage must be a whole number"),
        (
            {"scaling_inter": {"type": "adaptive", "horizons": [2], "steps_per_stage": 3}},
            "unknown key 'steps_per_stage' with type adaptive.",
        ),
        ({"scaling_inter": {"TextKraft-v0": {"type": "fixed", "horizons": [2]}}}, "did you mean 'TextCraft-v0'?"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(options, message):
    with pytest.raises(ConfigError) as error:
        validated(**options)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_difficulty_needs_several_episodes_of_a_task():
    config = get_algorithm_class("PPO").get_default_config().environment("rllm_gym/TextCraft-v0")
    config.update_from_dict({"task_sampling": "difficulty"})
    with pytest.raises(ConfigError, match="difficulty compares the episodes of a task, so that group_size must be at "):
        config.validate()
    config.update_from_dict({"group_size": 2}).validate()


def test_builder_methods_and_names_mean_the_same():
    built = GRPOConfig().training(clip_high=0.3, lr=1e-4).env_runners(group_size=4).rl_module(base_model="x")
    by_name = GRPOConfig().update_from_dict({"clip_high": 0.3, "lr": 1e-4, "group_size": 4, "base_model": "x"})
    for name in ("clip_high", "lr", "group_size", "base_model"):
        assert getattr(built, name) == getattr(by_name, name)


def test_a_configuration_survives_its_own_dictionary_and_state():
    config = validated(scaling_inter={"type": "stepwise", "horizons": [1, 2], "steps_per_stage": 3}, lr=1e-4)
    again = GRPO.get_default_config().update_from_dict(config.to_dict())
    assert again.horizon_schedules == config.horizon_schedules
    assert GRPOConfig.from_state(config.get_state()).lr == 1e-4


@pytest.mark.parametrize("name", METHODS)
def test_every_option_of_every_method_can_be_set_by_its_name(name):
    algorithm = get_algorithm_class(name)
    options = algorithm.get_default_config().to_dict()
    assert algorithm.get_default_config().update_from_dict(options).to_dict() == options


def test_the_horizon_callback_is_always_there_once_beside_the_users():
    from ray.rllib.callbacks.callbacks import RLlibCallback

    class Mine(RLlibCallback):
        pass

    config = GRPOConfig().environment("rllm_gym/TextCraft-v0").callbacks(callbacks_class=Mine)
    config.validate()
    config.validate()
    first, *_, last = config.callbacks_class
    assert (first, last) == (ScalingInter, Mine) and len(set(config.callbacks_class)) == len(config.callbacks_class)


def schedule_of(scaling_inter, max_episode_steps=None):
    return parse_schedules(scaling_inter, max_episode_steps, ["environment"])["environment"]


def test_the_horizon_rises_by_stages_and_stays_at_the_last():
    schedule = schedule_of({"type": "stepwise", "horizons": [5, 10, 15], "steps_per_stage": 2})
    assert [schedule.horizon(step) for step in range(8)] == [5, 5, 10, 10, 15, 15, 15, 15]
    assert schedule.last == 15
    assert schedule_of({"type": "fixed", "horizons": [7]}).horizon(100) == 7
    assert schedule_of(None, 4).horizon(9) == 4
    assert schedule_of(None).horizon(0) is None


def raised_after(schedule: AdaptiveSchedule, success_rates, truncated=0.0) -> int | None:
    """Return the train steps until the schedule leaves its first stage."""
    stage = Stage()
    for step, rate in enumerate(success_rates, start=1):
        stage.success_rates.append(rate)
        stage.truncated_failures.append(truncated)
        if schedule.reason_to_raise(stage):
            return step
    return None


def test_an_adaptive_horizon_rises_when_success_has_stopped_rising_and_never_too_early():
    schedule = AdaptiveSchedule((2, 4), min_steps_per_stage=8, window=2, min_improvement=0.04)
    rising = [0.1 * k for k in range(10)]
    assert raised_after(schedule, rising) is None
    assert raised_after(schedule, [*rising, 0.9, 0.9, 0.9, 0.9]) == 13  # 0.9 0.9 against 0.9 0.9; 12: against .8 .9
    assert raised_after(schedule, [0.5] * 20) == 8
    assert raised_after(AdaptiveSchedule((2, 4), min_steps_per_stage=1, window=2), [0.5] * 20) == 4  # two windows
    assert raised_after(AdaptiveSchedule((2,), min_steps_per_stage=1, window=2), [0.5] * 20) is None


def test_an_adaptive_horizon_rises_when_it_cuts_off_most_failures():
    schedule = AdaptiveSchedule((2, 4), min_steps_per_stage=3, window=2, max_truncated_failures=0.8)
    rising = [0.1 * k for k in range(10)]
    assert raised_after(schedule, rising, truncated=0.9) == 3
    assert raised_after(schedule, rising, truncated=0.7) is None


def test_every_environment_may_have_a_schedule_of_its_own():
    given = {
        "a": {"type": "fixed", "horizons": [3]},
        "b": {"type": "stepwise", "horizons": [1, 2], "steps_per_stage": 4},
    }
    schedules = parse_schedules(given, None, ["a", "b"])
    assert [(schedules["a"].horizon(step), schedules["b"].horizon(step)) for step in (0, 4)] == [(3, 1), (3, 2)]
    assert set(parse_schedules(given["a"], None, ["a", "b"]).values()) == {schedules["a"]}
    with pytest.raises(ConfigError, match="the environment 'b' has no schedule"):
        parse_schedules({"a": given["a"]}, None, ["a", "b"])


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ([], "a list must name at least one environment"),
        (["rllm_gym/TextCraft-v0"], "env[0]: must be a mapping with an id"),
        ([{"id": "rllm_gym/TextKraft-v0"}], "rllm_gym/TextCraft-v0"),
        ([{"id": "rllm_gym/TextCraft-v0", "wait": 2}], "env[0]: unknown key 'wait'; did you mean 'weight'?"),
        ([{"id": "rllm_gym/TextCraft-v0", "weight": 0}], "weight must be a number above 0; got 0."),
        ([{"id": "rllm_gym/TextCraft-v0"}] * 2, "got 'TextCraft-v0' 2 times. Set `name:` in these entries."),
    ],
)
def test_a_wrong_mixture_of_environments_is_named(env, message):
    config = GRPOConfig().environment(env)
    with pytest.raises(ConfigError) as error:
        config.validate()
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_environments_of_a_mixture_take_the_common_keywords_and_their_own():
    env = [
        {"id": "TextCraft-v0", "name": "easy", "weight": 2, "env_config": {"depth": 1}},
        {"id": "rllm_gym:rllm_gym/TextCraft-v0"},
    ]
    easy, any_depth = GRPOConfig().environment(env, env_config={"split": "eval", "depth": 2}).environments
    assert (easy.name, easy.weight, dict(easy.env_config)) == ("easy", 2.0, {"split": "eval", "depth": 1})
    assert (any_depth.name, any_depth.weight) == ("TextCraft-v0", 1.0)
    assert easy.env == any_depth.env and easy.env.endswith("rllm_gym/TextCraft-v0")


def test_tasks_come_in_epochs_shuffled_by_the_seed_and_need_no_memory():
    ids = [f"t_{k}" for k in range(5)]
    sampler = TaskSampler([ids], [1.0], seed=3, group_size=4)
    dealt = [group.item_id for step in range(5) for group in sampler.groups(step, 2)]
    assert sorted(dealt[:5]) == sorted(dealt[5:]) == ids
    assert dealt[:5] != dealt[5:]
    again = TaskSampler([ids], [1.0], seed=3, group_size=4).groups(4, 2)
    assert [group.item_id for group in again] == dealt[8:]
    assert [group.key for group in again] == [(3, 4, 0), (3, 4, 1)]
    assert [group.item_id for group in TaskSampler([ids], [1.0], seed=4, group_size=4).groups(0, 5)] != dealt[:5]
    assert TaskSampler([None], [1.0], seed=0, group_size=1).groups(0, 1)[0].item_id is None


def test_groups_are_dealt_by_weight_and_each_environments_tasks_in_epochs():
    ids = [[f"a_{k}" for k in range(6)], [f"b_{k}" for k in range(3)], None]
    sampler = TaskSampler(ids, [3.0, 1.5, 0.5], seed=0, group_size=2)
    groups = [group for step in range(10) for group in sampler.groups(step, 3)]
    for length in range(1, 31):  # at any time, not only at the end
        counts = [sum(group.env_index == k for group in groups[:length]) for k in range(3)]
        assert all(abs(count - length * w / 5) < 1 for count, w in zip(counts, (3.0, 1.5, 0.5), strict=True))
    of_a = [group.item_id for group in groups if group.env_index == 0]
    assert sorted(of_a[:6]) == sorted(of_a[6:12]) == ids[0]
    assert sorted(group.item_id for group in groups if group.env_index == 1)[:3] == ["b_0"] * 3
    again = TaskSampler(ids, [3.0, 1.5, 0.5], seed=0, group_size=2).groups(9, 3)
    assert again == groups[27:]
    refilled = sampler.refill(9, 0, 300)
    assert len({group.key for group in [*refilled, *groups]}) == 330
    assert {group.key for group in sampler.refill(9, 1, 300)}.isdisjoint(group.key for group in refilled)
    assert 0.5 < np.mean([group.env_index == 0 for group in refilled]) < 0.7


def test_a_configuration_that_only_plays_travels_to_the_algorithm_as_a_dictionary():
    config = GRPOConfig()
    config.trains = False  # as `rllib evaluate` sets it
    assert GRPOConfig().update_from_dict(config.to_dict()).trains is False


@pytest.mark.parametrize("name", METHODS)
def test_ray_reads_a_methods_class_to_its_end(name):
    # As Ray does with the class of an actor: it goes through all classes that a class names.
    dis.dis(get_algorithm_class(name), file=io.StringIO(), depth=2)
    assert type(get_algorithm_class(name).get_default_config())().algo_class is get_algorithm_class(name)


@pytest.mark.parametrize(("epochs", "minibatches", "is_scored"), [(1, 1, False), (2, 1, True), (1, 2, True)])
def test_log_probabilities_are_recomputed_where_an_optimizer_step_comes_before_another(epochs, minibatches, is_scored):
    config = GRPOConfig().training(old_logp="recompute", num_epochs=epochs, num_minibatches=minibatches, kl_coeff=0.0)
    assert config.scores_for_loss == ["trainer_logp"] * is_scored
