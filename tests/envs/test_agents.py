"""`AgentEnv`: plans, reflections, attempts, contexts and rewards, turn by turn, on an environment of four rooms."""

import copy
import pickle

import gymnasium
import numpy as np
import pytest

import rllm_gym  # noqa: F401  (registers the environments)
from rllm_gym.envs.agents import AgentEnv
from rllm_gym.envs.agents.context import Context, Said
from rllm_gym.envs.agents.env import ASK, ASK_AFTER_FAILURE
from rllm_gym.envs.base import StepResult, TextEnv
from rllm_gym.envs.wrappers import TokenEnv
from rllm_gym.errors import ConfigError, EnvError


class Rooms(TextEnv):
    """A room further for "on", and 0.25; the fourth ends with success, "trap" without. A reset draws a number."""

    name = "rooms"
    num_items = 8
    default_system_prompt = "Go on."

    def split_indices(self, split):
        return list(range(8))

    @property
    def category(self):
        return "rooms"

    def reset_item(self, index):
        self.room = 0
        return f"House {index}, number {self.np_random.integers(1_000_000)}."

    def act(self, action):
        if action not in ("on", "trap"):
            return StepResult("What?", 0.0, False, True)
        self.room += action == "on"
        self.is_success = self.room == 4
        reply = f"You are in room {self.room}." if action == "on" else "You fall."
        return StepResult(reply, 0.25 * (action == "on"), self.is_success or action == "trap", False)

    def expert_action(self):
        return "on"


def play(agent, *texts, seed=0):
    """Return (kind of each turn, reply, reward, terminated, truncated) after a reset."""
    env = AgentEnv(Rooms(), agent)
    first, info = env.reset(seed=seed)
    assert "rllm_gym/turn" not in info
    steps = [env.step(text) for text in texts]
    kinds = [step[4]["rllm_gym/turn"]["kind"] for step in steps]
    return env, first, kinds, [step[:4] for step in steps]


def test_without_options_nothing_changes():
    env, first, kinds, steps = play({}, "on", "left", "trap")
    plain = Rooms()
    assert first == plain.reset(seed=0)[0]
    assert steps == [plain.step(text)[:4] for text in ("on", "left", "trap")]
    assert (kinds, env.system_prompt) == (["action"] * 3, "Go on.")


def test_a_plan_is_a_turn_that_the_environment_does_not_see():
    env, first, kinds, steps = play({"plan": True}, "I shall trap", "on")
    assert first.endswith(f"\n\n{ASK['plan']}")
    assert kinds == ["plan", "action"]
    assert [step[1:] for step in steps] == [(0.0, False, False), (0.25, False, False)]
    assert env.unwrapped.room == 1


def test_reflections_come_after_every_nth_action_and_after_a_wrong_one():
    _, _, kinds, steps = play({"reflect": {"every": 2}}, "on", "on", "so far", "on", "on")
    assert kinds == ["action", "action", "reflection", "action", "action"]
    assert steps[1][0] == f"You are in room 2.\n\n{ASK['reflection']}"
    assert steps[-1][:3] == ("You are in room 4.", 0.25, True)  # the end asks for nothing

    _, _, kinds, steps = play({"reflect": "on_error"}, "on", "left", "my fault", "on", "right", "again", "on")
    assert kinds == ["action", "action", "reflection", "action", "action", "reflection", "action"]
    _, _, kinds, _ = play({"reflect": {"every": 3, "on_error": True}}, "on", "left", "a", "on", "b")
    assert kinds == ["action", "action", "reflection", "action", "reflection"]


def test_a_failed_attempt_is_reflected_on_and_the_same_task_begins_again():
    env, first, kinds, steps = play({"attempts": 2}, "on", "trap", "no traps", "on", "on", "on", "on", seed=None)
    assert kinds == ["action", "action", "reflection", *["action"] * 4]
    assert steps[1][0] == f"You fall.\n\n{ASK_AFTER_FAILURE}"
    assert steps[2][0] == f"Attempt 2 of 2.\n\n{first}"  # its random number, too, though no seed was given
    # 0.25 of the first attempt is taken back: the return is the last attempt's.
    assert [step[1] for step in steps] == [0.25, -0.25, 0.0, 0.25, 0.25, 0.25, 0.25]
    assert [step[2] for step in steps] == [False] * 6 + [True]
    assert env.unwrapped.is_success


def test_the_last_attempt_ends_the_episode():
    _, _, kinds, steps = play({"attempts": 2}, "trap", "hm", "trap")
    assert (kinds, [step[2:] for step in steps]) == (
        ["action", "reflection", "action"],
        [(False, False)] * 2 + [(True, False)],
    )
    # Where the environment never ends, an attempt has a bound of its own.
    _, _, kinds, steps = play({"attempts": 2, "attempt_turns": 2}, "on", "left", "hm", "on", "on")
    assert kinds == ["action", "action", "reflection", "action", "action"]
    assert [step[2:] for step in steps] == [(False, False)] * 4 + [(False, True)]
    assert sum(step[1] for step in steps) == 0.5
    # A success in the last turn that it may take is one.
    _, _, _, steps = play({"attempts": 2, "attempt_turns": 4}, "on", "on", "on", "on")
    assert steps[-1][1:] == (0.25, True, False)


def test_a_text_that_is_no_turn_of_the_format_never_reaches_the_environment():
    env = AgentEnv(Rooms(), {"format": "function_call"})
    env.reset(seed=0)
    reply, reward, terminated, truncated, info = env.step("trap")
    assert (reward, terminated, truncated, info["is_invalid_action"]) == (0.0, False, False, True)
    assert reply.startswith('Invalid. Write one JSON object {"thought"') and "names a function" in reply
    reply, reward, _, _, info = env.step(
        '{"name": "act", "arguments": {"action": "o\\u0011n"}}'
    )  # not a control character
    assert (reply, reward, info["is_invalid_action"]) == ("You are in room 1.", 0.25, False)
    assert env.system_prompt.startswith("Go on.\nEach turn, write one JSON object")
    assert AgentEnv(Rooms(system_prompt=""), {"format": "code"}).system_prompt == ""


# --- contexts ---


def contexts(agent, *texts):
    """Return the turns that the policy reads, after each turn."""
    env = AgentEnv(Rooms(), agent)
    env.reset(seed=0)
    return [env.step(text)[4]["rllm_gym/context_turns"] for text in texts]


def test_the_last_n_turns_stay_with_the_plan_and_what_followed():
    assert contexts({"context": {"last_n_turns": 2}}, *["on"] * 4) == [[0], [0, 1], [1, 2], [2, 3]]
    agent = {"plan": True, "reflect": {"every": 2}, "context": {"last_n_turns": 1}}
    # plan on on reflection on
    assert contexts(agent, "p", "on", "on", "r", "on") == [[0], [0, 1], [0, 2], [0, 2, 3], [0, 4]]


def test_after_a_summary_all_before_it_is_left_out():
    agent = {"context": {"summarize_observations": 2}}
    # on on summary left left summary on
    assert contexts(agent, "on", "on", "s", "left", "left", "s", "on") == [
        [0], [0, 1], [2], [2, 3], [2, 3, 4], [5], [5, 6],
    ]  # fmt: skip
    _, _, kinds, steps = play({**agent, "reflect": {"every": 2}}, "on", "on", "r", "s", "on")
    assert kinds == ["action", "action", "reflection", "summary", "action"]
    assert steps[2][0] == ASK["summary"]
    assert steps[3][0].endswith("\nYou are in room 2.")  # what it must act on is said again


def test_of_a_failed_attempt_the_reflection_stays():
    agent = {"plan": True, "attempts": 3, "context": {"last_n_turns": 2}}
    texts = ("plan", "on", "trap", "r1", "on", "trap", "r2", "on", "on", "on")
    assert contexts(agent, *texts)[3:] == [
        [0, 3], [0, 3, 4], [0, 3, 4, 5], [0, 3, 6], [0, 3, 6, 7], [0, 3, 6, 7, 8], [0, 3, 6, 8, 9],
    ]  # fmt: skip
    assert Context().kept([Said("action", 1), Said("reflection", 1), Said("action", 2)], 2) == [0, 1, 2]


def test_the_rewritten_prompt_is_the_opening_and_the_turns_that_stay_as_they_were():
    env = TokenEnv(AgentEnv(Rooms(), {"context": {"last_n_turns": 2}, "plan": True}))
    opening, _ = env.reset(seed=0)
    said = [env.encode_action(text) for text in ("I go on", "on", "left", "on", "on")]
    said[3] = said[3][:-1]  # cut by the limit of tokens: the reply closes the turn
    replies, prompts, infos = [], [], []
    for ids in said:
        observation, _, _, _, info = env.step(ids)
        repeated = info.get("rllm_gym/num_repeated_tokens", 0)
        replies.append(observation[repeated:])
        prompts.append(observation if repeated else None)
        infos.append(info)

    def joined(*turns):
        return np.concatenate([opening, *(ids for k in turns for ids in (said[k], replies[k]))]).tolist()

    assert [prompt is None for prompt in prompts] == [True, True, True, False, False]
    assert prompts[3].tolist() == joined(0, 2, 3)
    assert prompts[4].tolist() == joined(0, 3, 4)
    # They are what the template renders for the messages that stay, and all messages are kept.
    messages = infos[-1]["messages"]
    head, turns = messages[:2], messages[2:]
    assert [m["content"] for m in turns[::2]] == ["I go on", "on", "left", "on", "on"]
    kept = [*head, *(turns[2 * k + j] for k in (0, 3, 4) for j in (0, 1))]
    assert env.chat.encode_chat(kept, add_generation_prompt=True) == prompts[4].tolist()
    assert "rllm_gym/context_turns" not in infos[-1]
    env.reset(seed=1)
    assert "rllm_gym/num_repeated_tokens" not in env.step(said[0])[4]


# --- rewards ---


def shout(turn):
    return float(turn.text.isupper())


def reply_length(turn):
    return len(turn.reply) if turn.kind == "action" else 0.0


def broken(turn):
    return {"on": float("nan"), "left": [1], "trap": turn.nothing}[turn.text]


def test_reward_functions_are_weighted_and_listed_one_by_one():
    rewards = [
        "environment",
        {"fn": shout, "weight": -2},
        {"fn": f"{__name__}:reply_length", "weight": 0.5, "name": "words"},
    ]
    env = AgentEnv(Rooms(), {"rewards": rewards, "plan": True})
    env.reset(seed=0)
    assert env.step("PLAN")[1] == -2.0
    _, reward, _, _, info = env.step("on")
    assert info["rllm_gym/turn"]["rewards"] == {"environment": 0.25, "shout": 0.0, "words": len("You are in room 1.")}
    assert reward == 0.25 + 0.5 * len("You are in room 1.")
    seen = []
    env = AgentEnv(
        Rooms(), {"rewards": [{"fn": lambda turn: seen.append(turn) or 0.0, "name": "spy"}], "format": "code"}
    )
    env.reset(seed=0)
    assert [env.step(text)[1] for text in ("trap", "act('trap')")] == [0.0, 0.0]
    assert [(turn.action, turn.is_over, turn.number, turn.reward) for turn in seen] == [
        (None, False, 0, 0.0),
        ("trap", True, 1, 0.0),
    ]


@pytest.mark.parametrize("text", ["on", "left", "trap"])
def test_a_reward_function_that_fails_is_an_error_and_no_reward(text):
    env = AgentEnv(Rooms(), {"rewards": [broken]})
    env.reset(seed=0)
    with pytest.raises(EnvError, match="the reward function broken"):
        env.step(text)


# --- the options, and Gymnasium ---


@pytest.mark.parametrize(
    ("agent", "message"),
    [
        ("react", "must be a mapping"),
        ({"fromat": "react"}, "unknown key 'fromat'; did you mean 'format'"),
        ({"format": "json"}, "format must be one of native, react, function_call, code, tools; got 'json'"),
        ({"plan": "yes"}, "plan must be true or false"),
        ({"attempts": 0}, "attempts must be a whole number of at least 1; got 0"),
        ({"attempts": True}, "attempts must be a whole number"),
        ({"attempt_turns": 3}, "attempt_turns is for several attempts"),
        ({"reflect": "always"}, "reflect must be on_error or a mapping"),
        ({"reflect": {"each": 2}}, "reflect must be on_error or a mapping"),
        ({"reflect": {"every": 0}}, "every of reflect must be a whole number"),
        ({"context": "short"}, "context must be one of full, last_n_turns, summarize_observations"),
        ({"context": {"full": 2}}, "context must be one of"),
        ({"context": {"last_n_turns": 0}}, "last_n_turns must be a whole number"),
        ({"rewards": "environment"}, "rewards must be a list"),
        ({"rewards": [{"weight": 1}]}, "needs fn"),
        ({"rewards": [{"fn": "environment", "wieght": 1}]}, "a reward has the keys fn, weight, name"),
        ({"rewards": [{"fn": "environment", "weight": "1"}]}, "the weight of a reward must be a number"),
        ({"rewards": ["environment", "environment"]}, "a name of its own; got 'environment' twice"),
        ({"rewards": ["rllm_gym.envs:nothing"]}, "must name a Python object"),
        ({"rewards": [3]}, "fn must be `environment`, a function"),
    ],
)
def test_a_wrong_option_is_one_clear_line(agent, message):
    with pytest.raises(ConfigError, match=message) as caught:
        gymnasium.make("rllm_gym/TextCraft-v0", agent=agent)
    assert "\n" not in str(caught.value)


def test_options_without_a_number_have_a_default():
    assert AgentEnv(Rooms(), {"context": "last_n_turns"}).agent.context == Context("last_n_turns", 5)
    assert AgentEnv(Rooms(), {"context": "summarize_observations"}).agent.context.num_turns == 5


def test_every_completion_is_a_turn_of_gymnasiums_horizon():
    agent = {"plan": True, "reflect": {"every": 1}}
    env = gymnasium.make("rllm_gym/TextCraft-v0", agent=agent, obs_type="text", max_episode_steps=3)
    env.reset(seed=0)
    assert [env.step("Action: inventory")[3] for _ in range(3)] == [False, False, True]


def test_it_is_made_by_gymnasium_at_both_levels_and_anew_from_its_spec():
    agent = {"format": "code", "context": {"last_n_turns": 1}}
    env = gymnasium.make("rllm_gym:rllm_gym/TextCraft-v0", agent=agent)
    ids, _ = env.reset(seed=0)
    assert ids in env.observation_space
    assert "write one call of a Python function" in env.get_wrapper_attr("chat").decode(ids)
    again = gymnasium.make(env.spec)
    assert again.reset(seed=0)[0].tolist() == ids.tolist()


@pytest.mark.parametrize(
    "clone", [copy.deepcopy, lambda env: pickle.loads(pickle.dumps(env))], ids=["deepcopy", "pickle"]
)
def test_a_copy_goes_on_alike(clone):
    env = TokenEnv(AgentEnv(Rooms(), {"plan": True, "context": {"last_n_turns": 1}, "attempts": 2, "rewards": [shout]}))
    env.reset(seed=0)
    env.step(env.encode_action("plan"))
    other = clone(env)
    for text in ("on", "trap", "hm", "on"):
        mine, theirs = env.step(env.encode_action(text)), other.step(env.encode_action(text))
        assert (mine[0].tolist(), mine[1:]) == (theirs[0].tolist(), theirs[1:])


def test_the_expert_answers_what_it_is_asked():
    agent = {"plan": True, "format": "function_call", "reflect": {"every": 2}, "context": {"summarize_observations": 3}}
    env = AgentEnv(Rooms(), agent)
    env.reset(seed=0)
    kinds, texts = [], []
    while True:
        texts.append(env.expert_action())
        _, _, terminated, _, info = env.step(texts[-1])
        kinds.append(info["rllm_gym/turn"]["kind"])
        if terminated:
            break
    assert info["is_success"]
    assert kinds == ["plan", "action", "action", "reflection", "action", "summary", "action"]
    assert texts[5] == "Done so far: on; on; on. The next step: on"


def test_a_bound_cuts_the_environments_words_and_never_what_the_agent_is_asked_for():
    class Long(TextEnv):
        name, num_items, category = "long", 1, "any"

        def split_indices(self, split):
            return range(1)

        def reset_item(self, index):
            return "word " * 2_000

        def act(self, action):
            return StepResult("more " * 2_000, 0.0, False, True)

    env = TokenEnv(AgentEnv(Long(), {"plan": True, "reflect": "on_error"}), max_tokens=300)
    opening, info = env.reset(seed=0)
    assert len(opening) <= 300 and "rllm_gym/request" not in info
    assert info["messages"][-1]["content"].endswith(f"more characters were cut off]\n\n{ASK['plan']}")
    env.step(env.encode_action("I plan."))
    observation, *_, info = env.step(env.encode_action("nonsense"))
    assert len(observation) <= 300
    assert info["messages"][-1]["content"].endswith(f"more characters were cut off]\n\n{ASK['reflection']}")


GO = '{"name": "act", "arguments": {"action": "on"}}'
FALL = '{"name": "act", "arguments": {"action": "trap"}}'
WHAT = '{"name": "act", "arguments": {"action": "left"}}'


def test_several_calls_of_a_turn_are_made_in_order_up_to_the_end_of_the_episode():
    agent = {"format": "function_call"}
    env, _, _, [(reply, reward, terminated, _)] = play(agent, f"[{GO}, {WHAT}, {GO}]")
    assert (reply, reward, terminated) == ("You are in room 1.\nWhat?\nYou are in room 2.", 0.5, False)
    assert reply in env.observation_space
    _, _, _, [(reply, reward, terminated, _)] = play(agent, f"{GO}{FALL}{GO}")
    assert (reply, reward, terminated) == ("You are in room 1.\nYou fall.", 0.25, True)


def test_an_invalid_call_among_others_makes_the_turn_invalid():
    env = AgentEnv(Rooms(), {"format": "function_call"})
    env.reset(seed=0)
    assert env.step(f"{WHAT}{GO}")[4]["is_invalid_action"]
    assert not env.step(f"{GO}{GO}")[4]["is_invalid_action"]


def test_parallel_calls_may_be_refused_and_the_policy_is_told():
    env = AgentEnv(Rooms(), {"format": "function_call", "parallel_calls": "refuse"})
    env.reset(seed=0)
    reply, reward, _, _, info = env.step(f"{GO}{GO}")
    assert "it has 2 calls; at most 1 may stand in a turn" in reply
    assert (reward, info["is_invalid_action"], env.unwrapped.room) == (0.0, True, 0)
    assert env.step(GO)[0] == "You are in room 1."
    with pytest.raises(ConfigError, match="parallel_calls must be one of run, refuse; got 'no'"):
        AgentEnv(Rooms(), {"parallel_calls": "no"})
