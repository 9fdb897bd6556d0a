"""GRPO's family, RLOO, REINFORCE++ and ReMax: their options, and the advantages that the driver hands out."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from ray.rllib.env.single_agent_episode import SingleAgentEpisode

from rllm_gym.algorithms.grpo import PRESETS
from rllm_gym.algorithms.registry import get_algorithm_class
from rllm_gym.errors import ConfigError
from rllm_gym.learner.connectors import ADVANTAGE, GROUP
from rllm_gym.types import Episode, TaskGroup

HALF = 1 / np.sqrt(2)


def config_of(method: str, **options):
    config = get_algorithm_class(method).get_default_config().environment("rllm_gym/TextCraft-v0")
    return config.update_from_dict(options)


def algorithm(method: str, **options):
    """An algorithm without workers, for what it computes on the driver."""
    algo = object.__new__(get_algorithm_class(method))
    algo.config = config_of(method, **options)
    algo.config.validate()
    return algo


def stream_of(*turns, group: int = 0) -> SingleAgentEpisode:
    """An episode of turns (observation id, reward); every observation and action is one token."""
    episode = SingleAgentEpisode(
        observations=[np.array([seen]) for seen, _ in turns] + [np.array([99])],
        actions=[np.array([1])] * len(turns),
        rewards=[reward for _, reward in turns],
        terminated=True,
        len_lookback_buffer=0,
    )
    task = TaskGroup((0, 0, group), f"task {group}", 1)
    episode.custom_data["episode"] = Episode(f"{group}", task, 0, 0, item_id=task.item_id)
    return episode


def advantages_of(expected):
    return [value if value is None else pytest.approx(value, abs=1e-5) for value in expected]


STREAMS = [stream_of((1, 0.0), (2, 1.0)), stream_of((1, 0.0)), stream_of((1, 0.5)), stream_of((1, 0.0), (3, 0.5))]
GROUPS = [0, 0, 5, 5]  # returns 1, 0 and 0.5, 0.5


@pytest.mark.parametrize(
    ("method", "options", "expected"),
    [
        ("GRPO", {}, [HALF, -HALF, None, None]),
        ("GRPO", {"preset": "dr_grpo"}, [0.5, -0.5, None, None]),
        ("GRPO", {"preset": "gspo"}, [HALF, -HALF, None, None]),
        ("RLOO", {}, [1.0, -1.0, None, None]),
        ("ReinforcePP", {}, [0.0] * 4),  # whitened by the learners, from the rewards
        ("ReinforcePP", {"baseline": "group", "group_size": 2}, [0.5, -0.5, 0.0, 0.0]),  # whitened with the zeros
        # With the KL in the reward only the learners know the returns; no group is dropped.
        ("GRPO", {"kl_in": "reward", "kl_coeff": 0.1}, [0.0] * 4),
        ("RLOO", {"kl_coeff": 0.1}, [0.0] * 4),
    ],
)
def test_the_driver_compares_returns_within_groups(method, options, expected):
    assert algorithm(method, **options).compute_advantages(STREAMS, GROUPS) == advantages_of(expected)


@pytest.mark.parametrize(
    ("method", "options", "is_stored"),
    [
        ("GRPO", {}, True),
        ("RLOO", {"kl_coeff": 0.1}, False),  # the learners compare what the KL has left of the returns
        ("ReMax", {}, True),
        ("ReinforcePP", {}, False),
        ("ReinforcePP", {"baseline": "group", "group_size": 2, "kl_in": "loss", "kl_coeff": 0.1}, True),
        ("PPO", {}, False),
    ],
)
def test_only_advantages_that_the_driver_made_are_stored(method, options, is_stored):
    algo, stored = algorithm(method, **options), []
    [episode] = played = [stream_of((1, 1.0))]
    episode.custom_data.update({ADVANTAGE: 0.5, GROUP: 0})
    algo._iteration, algo.max_episode_steps, algo.num_empty_steps = 3, 2, 0
    algo._sample_groups = lambda step: (played, [], 1)
    algo.store = lambda step, episodes, with_advantages: stored.append((step, with_advantages))
    algo.update = algo.sync_weights = lambda *args: None
    algo.log_episodes = lambda *args: {"num_sampled_tokens": 1}
    algo.metrics = SimpleNamespace(log_dict=lambda *args, **kwargs: None)
    algo.training_step()
    assert stored == [(3, played if is_stored else [])]


def test_step_groups_give_every_turn_its_own_advantage():
    # Group 0 at gamma 0.5: episodes 1, 0 -> 0.5, -0.5; turns that saw 1: 0.5, 0 -> 0.25, -0.25; the one that saw 2 is
    # alone. Group 5: equal returns, but turns that saw 1: 0.5 at once, or 0.25 discounted: 0.125, -0.125.
    algo = algorithm("GRPO", preset="gigpo", step_gamma=0.5, normalize_std=False)
    expected = [[0.75, 0.5], [-0.75], [0.125], [-0.125, 0.0]]
    assert algo.compute_advantages(STREAMS, GROUPS) == advantages_of(expected)
    nothing = [stream_of((1, 0.0)), stream_of((1, 0.0))]
    assert algo.compute_advantages(nothing, [0, 0]) == [None, None]


def test_long_episodes_are_worth_less_with_a_buffer():
    # max_model_len 10, buffer 0.5 of it: 4 tokens cost nothing, 8 cost (8 - 5) / 5 = 0.6.
    short, long = stream_of((1, 0.0), (2, 1.0)), stream_of((1, 0.0), (2, 0.0), (3, 0.0), (4, 1.0))
    options = {"max_model_len": 10, "max_new_tokens": 2, "overlong_buffer": 0.5, "normalize_std": False}
    assert algorithm("GRPO", **options).compute_advantages([short, long], [0, 0]) == advantages_of([0.3, -0.3])
    by_turns = algorithm("GRPO", **options, step_weight=1.0, step_gamma=1.0)
    first, second = by_turns.compute_advantages([short, long], [0, 0])
    # Both were in states 1 and 2, where their step returns are 1 and 0.4, too; states 3 and 4 were met once.
    assert first == pytest.approx([0.6, 0.6], abs=1e-6)
    assert second == pytest.approx([-0.6, -0.6, -0.3, -0.3], abs=1e-6)


def test_remax_compares_with_the_greedy_episode_of_the_task_and_drops_tasks_without_one():
    algo = algorithm("ReMax")
    algo.max_episode_steps = 3
    streams = [stream_of((1, 1.0), group=4), stream_of((1, 0.0), group=7), stream_of((1, 0.5), group=9)]
    asked = []

    def sample(groups, *, max_episode_steps, greedy):
        asked.append(([(group.key, group.item_id, group.size) for group in groups], max_episode_steps, greedy))
        return [stream_of((1, 0.5), group=9), stream_of((1, 0.25), group=4)], []  # group 7's environment failed

    algo.sample = sample
    assert algo.compute_advantages(streams, [0, 1, 2]) == advantages_of([0.75, None, None])  # 9: equal, no signal
    tasks = [((0, 0, 4), "task 4", 1), ((0, 0, 7), "task 7", 1), ((0, 0, 9), "task 9", 1)]
    assert asked == [(tasks, 3, True)]


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_sets_its_options_and_those_beside_it_win_in_any_order(preset):
    config = config_of("GRPO", preset=preset)
    config.validate()
    for name, value in PRESETS[preset].items():
        assert getattr(config, name) == value
    for options in ({"clip_high": 0.5, "preset": preset}, {"preset": preset, "clip_high": 0.5}):
        assert config_of("GRPO", **options).clip_high == 0.5
    assert config_of("GRPO").training(clip_high=0.5, preset=preset).clip_high == 0.5
    again = config_of("GRPO").update_from_dict(config_of("GRPO", preset=preset, clip_high=0.5).to_dict())
    assert (again.clip_high, again.preset) == (0.5, preset)


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        ("GRPO", {"preset": "dr_gspo"}, "GRPOConfig: no preset has this name; got 'dr_gspo'. Did you mean"),
        ("GRPO", {"ratio_level": "sequence"}, "loss_average: sequences and importance_correction: off"),
        ("GRPO", {"preset": "gigpo", "kl_in": "reward", "kl_coeff": 0.1}, "Set kl_in: loss"),
        ("GRPO", {"loss_average": "words"}, "loss_average must be one of tokens, sequences, constant; got 'words'."),
        ("GRPO", {"overlong_buffer": 2}, "overlong_buffer must be between 0 and 1; got 2."),
        ("RLOO", {"group_size": 1}, "RLOOConfig: group_size must be at least 2"),
        ("RLOO", {"kl_in": "prompt"}, "kl_in must be one of loss, reward; got 'prompt'."),
        ("RLOO", {"kl_target": 0.1}, "kl_target and the kl_coeff to begin with must be above 0; got 0.1 and 0.0."),
        ("ReinforcePP", {"baseline": "group"}, "ReinforcePPConfig: group_size must be at least 2"),
        ("ReinforcePP", {"baseline": "critic"}, "baseline must be one of none, group; got 'critic'."),
        ("ReinforcePP", {"gamma": 1.5}, "gamma must be at most 1; got 1.5."),
        ("ReinforcePP", {"baseline": "group", "group_size": 2, "gamma": 0.9}, "not discounted; got gamma: 0.9."),
        ("ReMax", {"kl_in": "reward"}, "kl_in must be loss; got 'reward'."),
    ],
)
def test_what_is_wrong_is_said_in_one_line(method, options, message):
    with pytest.raises(ConfigError) as error:
        config_of(method, **options).validate()
    assert message in str(error.value)
    assert "\n" not in str(error.value)
