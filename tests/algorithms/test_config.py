"""The configuration: one spelling everywhere, and one clear line for what is wrong."""

from __future__ import annotations

import pytest

from rllm_gym.algorithms import GRPO, GRPOConfig
from rllm_gym.algorithms.task_sampler import TaskSampler
from rllm_gym.callbacks.scaling_inter import HorizonSchedule, ScalingInter
from rllm_gym.errors import ConfigError


def validated(**options) -> GRPOConfig:
    config = GRPOConfig().environment("rllm_gym/TextCraft-v0").update_from_dict(options)
    config.validate()
    return config


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"group_sise": 8}, "GRPOConfig: no option has this name; got 'group_sise'. Did you mean 'group_size'?"),
        ({"model": "tiny"}, "got 'tiny'. Set base_model instead."),
        ({"group_size": 1}, "group_size must be at least 2, since one episode has no group mean; got 1."),
        ({"groups_per_step": 0}, "groups_per_step must be a number of at least 1; got 0."),
        ({"num_env_runners": 0}, "num_env_runners must be a number of at least 1; got 0."),
        ({"temperature": 0.0}, "training needs temperature above 0"),
        ({"max_new_tokens": 99, "max_model_len": 99}, "max_new_tokens must be below max_model_len"),
        ({"engine": "sglang"}, "engine must be one of vllm, transformers; got 'sglang'."),
        ({"zero_stage": 4}, "zero_stage must be one of 0, 1, 2, 3; got 4."),
        ({"importance_correction": "truncated"}, "Set old_logp: recompute."),
        ({"lr": [[0, 1e-4], [9, 1e-5]]}, "lr must be a number"),
        ({"kl_kind": "k9"}, "kl_kind must be one of k1, k2, k3; got 'k9'."),
        ({"clip_low": -1}, "clip_low must be a number of at least 0; got -1."),
        ({"max_episode_steps": 0}, "max_episode_steps must be a whole number of at least 1; got 0."),
        ({"scaling_inter": {"type": "stepwise", "horizons": []}}, "horizons must be a list of turns"),
        ({"scaling_inter": {"type": "wild", "horizons": [1]}}, "type must be fixed or stepwise; got 'wild'."),
        ({"scaling_inter": {"type": "fixed", "horizons": [1, 2]}}, "type fixed has one horizon; got [1, 2]."),
        ({"scaling_inter": {"type": "stepwise", "horizons": [1, 2]}}, "steps_per_stage must be a whole number"),
        ({"scaling_inter": {"type": "fixed", "horizons": [2.5]}}, "every horizon must be a whole number"),
        ({"scaling_inter": {"type": "fixed", "horizon": [2]}}, "unknown key 'horizon'"),
        ({"scaling_inter": {"type": "fixed", "horizons": [2]}, "max_episode_steps": 3}, "Remove one of the two."),
    ],
)
def test_what_is_wrong_is_said_in_one_line(options, message):
    with pytest.raises(ConfigError) as error:
        validated(**options)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_builder_methods_and_names_mean_the_same():
    built = GRPOConfig().training(clip_high=0.3, lr=1e-4).env_runners(group_size=4).rl_module(base_model="x")
    by_name = GRPOConfig().update_from_dict({"clip_high": 0.3, "lr": 1e-4, "group_size": 4, "base_model": "x"})
    for name in ("clip_high", "lr", "group_size", "base_model"):
        assert getattr(built, name) == getattr(by_name, name)


def test_a_configuration_survives_its_own_dictionary_and_state():
    config = validated(scaling_inter={"type": "stepwise", "horizons": [1, 2], "steps_per_stage": 3}, lr=1e-4)
    again = GRPO.get_default_config().update_from_dict(config.to_dict())
    assert again.horizon_schedule == config.horizon_schedule
    assert GRPOConfig.from_state(config.get_state()).lr == 1e-4


def test_the_horizon_callback_is_always_there_once_beside_the_users():
    from ray.rllib.callbacks.callbacks import RLlibCallback

    class Mine(RLlibCallback):
        pass

    config = GRPOConfig().environment("rllm_gym/TextCraft-v0").callbacks(callbacks_class=Mine)
    config.validate()
    config.validate()
    assert config.callbacks_class == [ScalingInter, Mine]


def test_the_horizon_rises_by_stages_and_stays_at_the_last():
    config = {"type": "stepwise", "horizons": [5, 10, 15], "steps_per_stage": 2}
    schedule = HorizonSchedule.from_config(config, None)
    assert [schedule.horizon(step) for step in range(8)] == [5, 5, 10, 10, 15, 15, 15, 15]
    assert schedule.last == 15
    assert HorizonSchedule.from_config({"type": "fixed", "horizons": [7]}, None).horizon(100) == 7
    assert HorizonSchedule.from_config(None, 4).horizon(9) == 4
    assert HorizonSchedule.from_config(None, None).horizon(0) is None


def test_tasks_come_in_epochs_shuffled_by_the_seed_and_need_no_memory():
    ids = [f"t_{k}" for k in range(5)]
    sampler = TaskSampler(ids, seed=3, group_size=4)
    dealt = [group.item_id for step in range(5) for group in sampler.groups(step, 2)]
    assert sorted(dealt[:5]) == sorted(dealt[5:]) == ids
    assert dealt[:5] != dealt[5:]
    again = TaskSampler(ids, seed=3, group_size=4).groups(4, 2)
    assert [group.item_id for group in again] == dealt[8:]
    assert [group.key for group in again] == [(3, 4, 0), (3, 4, 1)]
    assert [group.item_id for group in TaskSampler(ids, seed=4, group_size=4).groups(0, 5)] != dealt[:5]
    assert TaskSampler(None, seed=0, group_size=1).groups(0, 1)[0].item_id is None
