"""GRPO's family, RLOO, REINFORCE++ and ReMax: their options, and the advantages that the driver hands out."""

from __future__ import annotations

import functools
import itertools

import numpy as np
import pytest
from ray.tune.registry import register_env

from rllm_gym.algorithms.policy_gradient import StepSamples
from rllm_gym.algorithms.registry import get_algorithm_class
from rllm_gym.envs.poker.env import KuhnPokerEnv
from rllm_gym.envs.textcraft.env import TextCraftEnv
from rllm_gym.errors import ConfigError
from rllm_gym.options.methods import PRESETS
from rllm_gym.training.advantage_rows import AdvantageRows
from rllm_gym.types import AGENT, EndReason, Episode, Sample, Stream, TaskGroup, Turn

HALF = 1 / np.sqrt(2)
NUMBERS = itertools.count()


def config_of(method: str, **options):
    config = get_algorithm_class(method).get_default_config().environment("rllm_gym/TextCraft-v0")
    return config.update_from_dict(options)


def algorithm(method: str, **options):
    """An algorithm without workers, for what it computes on the driver."""
    algo = object.__new__(get_algorithm_class(method))
    algo.config = config_of(method, **options)
    algo.config.validate()
    return algo


def sample_of(*turns, group: int = 0, episode: str = "", is_success: bool = False) -> Sample:
    """An episode of turns (observation id, reward); every observation and action is one token."""
    made = [
        Turn(np.array([seen]), np.array([1]), np.zeros(1, np.float32), 0, env_step, reward)
        for env_step, (seen, reward) in enumerate(turns)
    ]
    return Sample.of_turns(made, group=group, episode=episode or str(next(NUMBERS)), is_success=is_success)


def four_episodes() -> list[Sample]:
    """Returns 1 and 0 in group 0, 0.5 and 0.5 in group 5."""
    return [
        sample_of((1, 0.0), (2, 1.0), group=0, episode="a"),
        sample_of((1, 0.0), group=0, episode="b"),
        sample_of((1, 0.5), group=5, episode="c"),
        sample_of((1, 0.0), (3, 0.5), group=5, episode="d"),
    ]


def advantages(algo, samples) -> list[list[float]]:
    """What each sampled token gets, row by row."""
    rows = AdvantageRows(samples)
    rows.set_column("advantage", algo.advantage(rows))
    return [sample.advantage[sample.weight != 0].tolist() for sample in samples]


def dropped(algo, samples) -> set[int]:
    rows = AdvantageRows(samples)
    return algo._groups_to_drop(rows, algo.advantage(rows))


# Whitened: [.5, .5], [-.5], [0], [0, 0] have mean 1/12, sample variance (.75 - 6/144) / 5 = .141667, deviation .376386.
WHITE = [(x - 1 / 12) / 0.376386 for x in (0.5, -0.5, 0.0)]


@pytest.mark.parametrize(
    ("method", "options", "expected", "dropped_groups"),
    [
        ("GRPO", {}, [[HALF, HALF], [-HALF], [0.0], [0.0, 0.0]], {5}),
        ("GRPO", {"preset": "dr_grpo"}, [[0.5, 0.5], [-0.5], [0.0], [0.0, 0.0]], set()),
        ("GRPO", {"preset": "gspo"}, [[HALF, HALF], [-HALF], [0.0], [0.0, 0.0]], set()),
        ("RLOO", {}, [[1.0, 1.0], [-1.0], [0.0], [0.0, 0.0]], {5}),
        (
            "ReinforcePP",
            {"baseline": "group", "group_size": 2},
            [[WHITE[0]] * 2, [WHITE[1]], [WHITE[2]], [WHITE[2]] * 2],
            set(),
        ),
    ],
)
def test_returns_are_compared_within_groups(method, options, expected, dropped_groups):
    algo = algorithm(method, **options)
    found = advantages(algo, four_episodes())
    assert [pytest.approx(row, abs=1e-5) for row in expected] == found
    assert dropped(algo, four_episodes()) == dropped_groups


def test_reinforce_pp_whitens_the_returns_to_go_of_all_tokens():
    # Returns to go 1, 1; 0; .5; .5, .5: mean 3.5 / 6, squares 2.75, variance (2.75 - 3.5 ** 2 / 6) / 5 = .141667.
    expected = [[0.41667 / 0.376386] * 2, [-0.58333 / 0.376386], [-0.08333 / 0.376386], [-0.08333 / 0.376386] * 2]
    algo = algorithm("ReinforcePP")
    assert [pytest.approx(row, abs=1e-4) for row in expected] == advantages(algo, four_episodes())
    assert dropped(algo, four_episodes()) == set()


def test_a_kl_in_the_reward_moves_the_returns_that_are_compared():
    algo = algorithm("RLOO", kl_coeff=0.5)
    samples = four_episodes()[:2]
    for sample, ref in zip(samples, (-0.2, -0.4), strict=True):
        sample.ref_logp = np.full(len(sample), ref, np.float32)
    rows = AdvantageRows(samples)
    algo.kl_coeff = {}
    rows.reward_NK = algo._kl_shaped_reward("default_policy", rows)
    # k1 = 0 - ref_logp = 0.2 for each of the first's two tokens, 0.4 for the second's one: returns 1 - 0.2 and 0 - 0.2.
    assert algo.advantage(rows).tolist() == pytest.approx([1.0, -1.0])
    algo.kl_coeff = {"default_policy": 1.0}  # it has followed its target
    rows = AdvantageRows(samples)
    rows.reward_NK = algo._kl_shaped_reward("default_policy", rows)
    assert rows.return_N.tolist() == pytest.approx([0.6, -0.4])


SUMMED_OTHERWISE = [(0.1,) * 10, (0.5, 0.5), (0.7, 0.1, 0.1, 0.1), (1.0,), (1e8, 0.1, -1e8, 0.9), (1e8, -1e8, 1.0)]


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("GRPO", {}),
        ("GRPO", {"preset": "dr_grpo"}),
        ("GRPO", {"preset": "gigpo"}),
        ("GRPO", {"advantage": "agent_turn", "step_gamma": 1.0}),
        ("GRPO", {"advantage": "joint"}),
        ("GRPO", {"overlong_buffer": 0.1}),
        ("RLOO", {}),
        ("RLOO", {"advantage": "joint"}),
        ("ReinforcePP", {"baseline": "group", "group_size": 2}),
    ],
)
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_the_same_return_summed_otherwise_is_no_advantage(method, options, scale):
    samples = [  # every state is met once
        sample_of(*((100 * n + k, scale * reward) for k, reward in enumerate(rewards)))
        for n, rewards in enumerate(SUMMED_OTHERWISE)
    ]
    if options.get("advantage") == "agent_turn":  # its turns earn the same, in sums of other rewards
        samples = [sample_of((0, scale * first), (1, scale * (1.0 - first))) for first in (0.1 + 0.2, 0.3)]
    for number, sample in enumerate(samples):  # and so of the other agents
        sample.others_return, sample.others_size = scale * ((0.1 + 0.2) if number % 2 else 0.3), scale * 0.3
    assert {value for row in advantages(algorithm(method, **options), samples) for value in row} == {0.0}


def test_returns_that_differ_by_more_than_rounding_are_compared_whatever_their_size():
    for size in (1e-7, 1.0, 1e9):
        first, second = advantages(algorithm("RLOO"), [sample_of((1, size)), sample_of((1, size * (1 + 1e-7)))])
        assert first == [pytest.approx(-size * 1e-7, rel=1e-5)] and second == [pytest.approx(size * 1e-7, rel=1e-5)]


def test_a_deviation_that_the_epsilon_lowers_is_said_once(caplog):
    algo = algorithm("GRPO")
    advantages(algo, [sample_of((1, 0.0)), sample_of((1, 1e-3))])
    assert not caplog.records
    first, _ = advantages(algo, [sample_of((1, 0.0)), sample_of((1, 1e-5))])
    # The deviation is 1e-5 / sqrt 2 = 7.07e-6, and the epsilon 1e-6: 12 % less than 1 / sqrt 2.
    assert first == [pytest.approx(-HALF * 7.07107 / 8.07107, abs=1e-5)]
    advantages(algo, [sample_of((1, 0.0)), sample_of((1, 1e-5))])
    [record] = caplog.records
    assert "returns of a group deviate by 7.1e-06, and the epsilon beside the deviation takes 12 %" in record.message
    assert "Make rewards larger, or set normalize_std: false." in record.message


def test_groups_are_dropped_by_advantage_by_success_or_not_at_all():
    samples = [
        sample_of((1, 1.0), group=0, episode="a", is_success=True),
        sample_of((1, 0.9), group=0, episode="b", is_success=True),
        sample_of((1, 0.5), group=1, episode="c", is_success=True),
        sample_of((1, 0.5), group=1, episode="d"),
    ]
    assert dropped(algorithm("GRPO"), samples) == {1}
    assert dropped(algorithm("GRPO", filter_groups="success"), samples) == {0}
    assert dropped(algorithm("GRPO", preset="dapo"), samples) == {0}
    assert dropped(algorithm("GRPO", filter_groups="off"), samples) == set()


def test_step_groups_give_every_turn_its_own_advantage():
    # Group 0 at gamma 0.5: episodes 1, 0 -> 0.5, -0.5; turns that saw 1: 0.5, 0 -> 0.25, -0.25; the one that saw 2 is
    # alone. Group 5: equal returns, but turns that saw 1: 0.5 at once, or 0.25 discounted: 0.125, -0.125.
    algo = algorithm("GRPO", preset="gigpo", step_gamma=0.5, normalize_std=False)
    assert advantages(algo, four_episodes()) == [[0.75, 0.5], [-0.75], [0.125], [-0.125, 0.0]]


@pytest.mark.parametrize("preset", PRESETS)
def test_only_dapo_drops_groups_before_the_averages(preset):
    """Group 5 has equal returns, one of them a success."""
    samples = four_episodes()
    samples[0].is_success = samples[2].is_success = True
    assert dropped(algorithm("GRPO", preset=preset), samples) == set()
    samples[2].is_success = False
    assert dropped(algorithm("GRPO", preset=preset), samples) == ({5} if preset == "dapo" else set())


def test_two_policies_that_change_seats_need_groups_of_more_than_two():
    def config(group_size, policies):
        made = get_algorithm_class("RLOO").get_default_config().environment("rllm_gym/KuhnPoker-v0")
        return made.multi_agent(policies=policies).update_from_dict({"group_size": group_size})

    config(2, ["player_0"]).validate()  # one policy has both seats of a task in each of two episodes
    config(4, ["player_0", "player_1"]).validate()
    with pytest.raises(ConfigError, match=r"of group_size: 2 each policy, .* Set group_size: 4, or more"):
        config(2, ["player_0", "player_1"]).validate()


def make_kuhn(env_config):
    return KuhnPokerEnv(**env_config)


@pytest.mark.parametrize("env", ["kuhn_by_name", KuhnPokerEnv, make_kuhn, functools.partial(make_kuhn)])
def test_players_change_seats_in_environments_of_ones_own_too(env):
    register_env("kuhn_by_name", make_kuhn)
    register_env("alone", lambda env_config: TextCraftEnv(**env_config))

    def config(env):
        made = get_algorithm_class("RLOO").get_default_config().environment(env)
        return made.multi_agent(policies=["player_0", "player_1"]).update_from_dict({"group_size": 2})

    with pytest.raises(ConfigError, match=r"of group_size: 2 each policy, .* Set group_size: 4, or more"):
        config(env).validate()
    config("alone").validate()


def test_long_episodes_are_worth_less_with_a_buffer():
    # max_model_len 10, buffer 0.5 of it: 4 tokens cost nothing, 8 cost (8 - 5) / 5 = 0.6.
    options = {"max_model_len": 10, "max_new_tokens": 2, "overlong_buffer": 0.5, "normalize_std": False}
    samples = [sample_of((1, 0.0), (2, 1.0)), sample_of((1, 0.0), (2, 0.0), (3, 0.0), (4, 1.0))]
    first, second = advantages(algorithm("GRPO", **options), samples)
    assert first == pytest.approx([0.3] * 2) and second == pytest.approx([-0.3] * 4)
    first, second = advantages(algorithm("GRPO", **options, step_weight=1.0, step_gamma=1.0), samples)
    # Both were in states 1 and 2, where their step returns are 1 and 0.4, too; states 3 and 4 were met once.
    assert first == pytest.approx([0.6, 0.6], abs=1e-6)
    assert second == pytest.approx([-0.6, -0.6, -0.3, -0.3], abs=1e-6)


def played_episode(task: TaskGroup, reward: float) -> Episode:
    turn = Turn(np.array([1]), np.array([1]), np.zeros(1, np.float32), 0, 0, reward)
    return Episode(
        "x", task, 0, 0, streams={AGENT: Stream(AGENT, "default_policy", [turn])}, end_reason=EndReason.TERMINATED
    )


def test_remax_compares_with_the_greedy_episode_of_the_task_and_drops_tasks_without_one():
    algo = algorithm("ReMax")
    tasks = [TaskGroup((0, 0, k), f"task {k}", 8) for k in (4, 7, 9)]
    algo.sampled = StepSamples(tasks=tasks)
    samples = [sample_of((1, reward), group=group) for group, reward in enumerate((1.0, 0.0, 0.5))]
    asked = []

    def sample(groups, *, params):
        asked.append(([(g.key, g.item_id, g.size) for g in groups], params.temperature))
        return [played_episode(tasks[2], 0.5), played_episode(tasks[0], 0.25)], []  # task 7's environment failed

    algo.sample = sample
    assert algo.advantage(AdvantageRows(samples)).tolist() == [0.75, 0.0, 0.0]  # 9: equal, no signal
    played = [((0, 0, 4), "task 4", 1), ((0, 0, 7), "task 7", 1), ((0, 0, 9), "task 9", 1)]
    assert asked == [(played, 0.0)]  # at the present horizon


def test_an_episode_like_the_greedy_one_has_remaxs_advantage_0():
    """With its penalties, and however its return was summed."""
    task = TaskGroup((0, 0, 0), "task", 1)

    def episode(*rewards):
        turns = [
            Turn(np.array([1]), np.array([1]), np.zeros(1, np.float32), 0, k, reward, is_invalid_action=k == 0)
            for k, reward in enumerate(rewards)
        ]
        return Episode(
            "x", task, 0, 0, streams={AGENT: Stream(AGENT, "default_policy", turns)}, end_reason="terminated"
        )

    algo = algorithm("ReMax", invalid_action_penalty=0.1)
    algo._max_tokens_to_bootstrap, algo._only_playing = None, set()
    for greedy, sampled in (((0.0, 1.0), (0.0, 1.0)), ((1 / 3, 1 / 3), (1 / 3, 1 / 3)), ((0.0, 1.0), (0.7, 0.1, 0.2))):
        algo.sampled, algo.sample = StepSamples(), lambda *_, greedy=greedy, **__: ([episode(*greedy)], [])
        rows = AdvantageRows(algo._samples_of([episode(*sampled)]))
        advantage_N = algo.advantage(rows)
        assert advantage_N.tolist() == [0.0]
        assert algo._groups_to_drop(rows, advantage_N) == {0}


def test_overlong_episodes_are_left_out_of_the_loss_but_count_in_their_group():
    algo = algorithm("GRPO", overlong_filter=True)
    task = TaskGroup((0, 0, 0), "task", 2)
    episodes = [played_episode(task, 1.0), played_episode(task, 0.0)]
    episodes[0].episode_id, episodes[1].episode_id, episodes[1].end_reason = "a", "b", "context_limit"
    algo.sampled, algo.metrics = StepSamples(), _Metrics()
    algo._scores_for_advantage, algo._max_tokens_to_bootstrap, algo._only_playing = [], None, set()
    algo._assess(episodes)
    assert [(sample.episode, sample.advantage.max()) for sample in algo.sampled.trained] == [
        ("a", pytest.approx(HALF, abs=1e-5))
    ]
    assert len(algo.sampled.samples) == 2


class _Metrics:
    def log_dict(self, *args, **kwargs):
        pass


def test_an_invalid_action_costs_its_turn_the_penalty():
    algo = algorithm("GRPO", preset="gigpo", kl_coeff=0.0)
    task = TaskGroup((0, 0, 0), "task", 2)
    episode = played_episode(task, 1.0)
    episode.streams[AGENT].turns[0].is_invalid_action = True
    algo.sampled, algo._max_tokens_to_bootstrap, algo._only_playing = StepSamples(), None, set()
    [sample] = algo._samples_of([episode])
    assert sample.reward.tolist() == pytest.approx([0.0, 0.9])
    assert episode.streams[AGENT].turns[0].reward == 1.0  # what is stored is what the environment gave


@pytest.mark.parametrize(
    ("options", "tokens"),
    [
        ({"max_model_len": 2048, "max_new_tokens": 64, "max_episode_steps": 4}, 256),
        ({"max_model_len": 200, "max_new_tokens": 64, "max_episode_steps": 4}, 200),
        ({"max_model_len": 2048, "max_new_tokens": 64}, 2048),
        ({"max_new_tokens": 64, "scaling_inter": {"type": "stepwise", "horizons": [2, 6], "steps_per_stage": 9}}, 384),
        ({"loss_constant": 1000}, 1000),
    ],
)
def test_a_constant_average_divides_by_what_an_episode_can_sample(options, tokens):
    assert config_of("GRPO", preset="dr_grpo", **options).num_loss_tokens == tokens


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
        ("GRPO", {"ratio_level": "sequence"}, "ratio_level: sequence needs loss_average: sequences or episodes"),
        ("GRPO", {"loss_average": "words"}, "must be one of tokens, sequences, episodes, constant; got 'words'."),
        ("GRPO", {"importance_correction": "token"}, "got old_logp: rollout. Set old_logp: recompute."),
        ("GRPO", {"importance_veto": 1e-4}, "importance_veto goes with an importance_correction; got off."),
        ("GRPO", {"dual_clip": 0.5}, "dual_clip must be a number of at least 1 or null; got 0.5."),
        ("PPO", {"bootstrap": "always"}, "bootstrap must be one of never, truncated; got 'always'."),
        ("PPO", {"top_p": 0.9}, "top_p and top_k must be off (1.0 and 0) in training"),
        ("RLOO", {"top_k": 50}, "of another distribution than the trainer's; got 1.0 and 50."),
        ("GRPO", {"overlong_buffer": 2}, "overlong_buffer must be a number of at least 0 and at most 1; got 2."),
        ("RLOO", {"group_size": 1}, "RLOOConfig: group_size must be at least 2"),
        ("RLOO", {"kl_in": "prompt"}, "kl_in must be one of loss, reward; got 'prompt'."),
        ("RLOO", {"kl_target": 0.1}, "kl_target and the kl_coeff to begin with must be above 0; got 0.1 and 0.0."),
        ("ReinforcePP", {"baseline": "group"}, "ReinforcePPConfig: group_size must be at least 2"),
        ("ReinforcePP", {"baseline": "critic"}, "baseline must be one of none, group; got 'critic'."),
        ("ReinforcePP", {"gamma": 1.5}, "gamma must be a number of at least 0 and at most 1; got 1.5."),
        ("ReinforcePP", {"baseline": "group", "group_size": 2, "gamma": 0.9}, "not discounted; got gamma: 0.9."),
        ("GRPO", {"overlong_buffer": 0.1, "max_model_len": 640}, "got 0.1 of 640 and 64. Raise it, or lower max_new"),
        ("GRPO", {"overlong_buffer": 0.2, "advantage": "joint"}, "advantage: joint gives a team one advantage"),
        (
            "GRPO",
            {"env": "rllm_gym/KuhnPoker-v0", "opponents": {"player_1": "random"}, "group_size": 2},
            "in KuhnPoker-v0 players change seats from episode to episode",
        ),
        (
            "GRPO",
            {"env": KuhnPokerEnv, "opponents": {"player_1": "random"}, "group_size": 2},
            "in KuhnPokerEnv players change seats from episode to episode",
        ),
        ("ReMax", {"kl_in": "reward"}, "kl_in must be loss; got 'reward'."),
        ("PPO", {"filter_groups": "advantage"}, "filter_groups: advantage drops groups in which all returns are equal"),
        ("ReinforcePP", {"filter_groups": "advantage"}, "Set filter_groups: off."),
        ("GRPO", {"screening_size": 2, "advantage": "agent_turn"}, "with advantage: agent_turn these teach something"),
        ("GRPO", {"screening_size": 2, "overlong_buffer": 0.2}, "with overlong_buffer these teach something, too"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(method, options, message):
    with pytest.raises(ConfigError) as error:
        config_of(method, **options).validate()
    assert message in str(error.value)
    assert "\n" not in str(error.value)
