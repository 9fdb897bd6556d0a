"""TextMultiAgentEnv and its toy, against RLlib's own checks."""

import pickle

import pytest

from rllm_gym.envs.multi_agent import TextMultiAgentEnv
from rllm_gym.errors import ConfigError
from tests.envs.toy_multi_agent import PassTheWord, score


def word(observation):
    return observation.rpartition("Say: ")[2]


def play(env, seed):
    """Return the observations and rewards of an episode in which bob errs in his last letter."""
    observations, _ = env.reset(seed=seed)
    seen = [observations]
    while True:
        actions = {a: word(text)[:-1] + "?" if a == "bob" else word(text) for a, text in observations.items()}
        observations, rewards, terminateds, truncateds, infos = env.step(actions)
        assert set(infos) == set(observations) and not any(truncateds.values())
        seen += [observations, rewards]
        if terminateds["__all__"]:
            return seen, infos


def test_by_turns_one_agent_is_asked_at_a_time_and_hears_of_the_other():
    seen, _ = play(PassTheWord(num_rounds=2), seed=0)
    assert [list(observations) for observations in [seen[0], *seen[1::2]]] == [
        ["alice"],
        ["bob"],
        ["alice"],
        ["bob"],
        ["bob"],
    ]
    assert seen[1]["bob"].startswith("alice got 1.0. Say: ")
    assert seen[3]["alice"].startswith("bob got 0.7. Say: ")
    # Over two rounds alice gets 1/2 each time, bob 2/3 of it.
    assert [list(rewards.items()) for rewards in seen[2::2]] == [
        [("alice", 0.5)],
        [("bob", pytest.approx(1 / 3))],
        [("alice", 0.5)],
        [("bob", pytest.approx(1 / 3))],
    ]


def test_at_the_same_time_both_are_asked_and_paid_in_every_step():
    seen, infos = play(PassTheWord(is_simultaneous=True, num_rounds=2), seed=0)
    assert [set(observations) for observations in [seen[0], *seen[1::2]]] == [{"alice", "bob"}] * 3
    assert seen[2] == seen[4] == {"alice": 0.5, "bob": pytest.approx(1 / 3)}
    assert infos["alice"]["is_success"] is True and infos["bob"]["is_success"] is False


@pytest.mark.parametrize("is_simultaneous", [False, True])
def test_the_toy_repeats_by_seed_also_after_pickling(is_simultaneous):
    env = PassTheWord(is_simultaneous=is_simultaneous, num_rounds=3)
    first = play(env, 4)
    assert play(env, 5) != first
    assert play(pickle.loads(pickle.dumps(env)), 4) == first


def test_an_item_names_alices_first_word_and_leaves_the_rest_to_the_seed():
    env = PassTheWord(is_simultaneous=True)
    plain, _ = env.reset(seed=9)
    asked, _ = env.reset(seed=9, options={"item_id": 5})
    assert asked["alice"] == "Say: fox"
    assert plain["alice"] != asked["alice"]


def test_acting_out_of_turn_is_an_error():
    env = PassTheWord()
    env.reset(seed=0)
    with pytest.raises(ValueError, match="turn"):
        env.step({"bob": "cat"})


@pytest.mark.parametrize(
    ("text", "points"),
    [("cat", 1.0), ("cats", 1.0), ("", 0.0), ("?", 0.0), ("ca", 2 / 3), ("dog", 0.5), ("c?t", 2 / 3)],
)
def test_the_score_pays_in_part(text, points):
    assert score(text, "cat") == pytest.approx(points)


def test_the_base_describes_its_agents_as_rllib_wants_it():
    env = PassTheWord(system_prompts={"bob": "Be brief."})
    assert env.possible_agents == env.agents == ["alice", "bob"]
    assert env.system_prompts == {"alice": "", "bob": "Be brief."}
    observations, _ = env.reset(seed=0)
    assert all(observations[agent] in env.get_observation_space(agent) for agent in observations)
    assert env.get_action_space("bob").contains("caf\u00e9")
    assert env.num_agents == 2


@pytest.mark.parametrize(
    ("agents", "prompts", "message"),
    [
        ([], None, "one or more"),
        (["a", "a"], None, "different names"),
        (["alice"], {"alic": "x"}, "Did you mean 'alice'"),
    ],
)
def test_bad_agents_are_refused_in_one_line(agents, prompts, message):
    with pytest.raises(ConfigError, match=f"^TextMultiAgentEnv: [^\n]*{message}[^\n]*$"):
        TextMultiAgentEnv(agents, system_prompts=prompts)
