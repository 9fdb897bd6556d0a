"""Several agents in one environment: one stream each, by turns or at the same time."""

from __future__ import annotations

from typing import ClassVar

import pytest

from rllm_gym.rollout.engines.scripted import ScriptedEngine
from rllm_gym.rollout.loop import derive_seed
from rllm_gym.types import SamplingParams, TaskGroup

GROUP = TaskGroup((7, 0), "T", 1)


class ScriptedEnv:
    """Plays a list of RLlib-shaped steps and notes the actions it gets."""

    possible_agents = ("x", "y")

    def __init__(self, talk, first, *steps):
        self.stop_ids = (talk.END,)
        self._talk, self._first, self._steps = talk, first, list(steps)
        self.actions = []

    def reset(self, *, seed, options):
        return self._encode(self._first), {}

    def step(self, actions):
        self.actions.append({agent: self._talk.decode(ids) for agent, ids in actions.items()})
        texts, rewards, *ends = self._steps.pop(0)
        terminateds, truncateds = ({"__all__": False, **end} for end in (*ends, {}, {})[:2])
        infos = {
            agent: {"is_success": True, "messages": [{"role": "user", "content": text}]}
            for agent, text in texts.items()
        }
        return self._encode(texts), rewards, terminateds, truncateds, infos

    def close(self):
        pass

    def _encode(self, texts):
        return {agent: self._talk.encode(text) for agent, text in texts.items()}


@pytest.fixture
def play(talk, make_loop):
    def play(env, engines, module_of=lambda agent_id, episode: "main", **options):
        loop = make_loop(engines, lambda env_index: env, module_of=module_of, max_retries=0, **options)
        loop.submit([GROUP], max_episode_steps=None)
        (group,) = loop.finished_groups()
        return (group.episodes + group.failed)[0]

    return play


def stream_of(episode, agent_id, talk):
    stream = episode.streams[agent_id]
    turns = [(talk.decode(t.observation_ids), talk.decode(t.action_ids), t.reward, t.env_step) for t in stream.turns]
    return turns, talk.decode(stream.final_observation_ids)


def test_by_turns_each_agent_has_its_own_stream_and_waiting_agents_get_their_rewards(talk, play):
    env = ScriptedEnv(
        talk,
        {"x": "x0"},
        ({"x": "x1"}, {"x": 0.5, "y": 1.0}),  # y's rewards come before its first turn
        ({"y": "y0"}, {"y": 3.0}),
        ({"x": "x2"}, {"y": 0.25, "x": 1.0}),  # x's comes while it waits
        ({"x": "x3", "y": "y1"}, {"x": 0.125, "y": -1.0}, {"__all__": True}),
    )
    engine = ScriptedEngine([talk.encode("A|"), talk.encode("B|"), talk.encode("C|"), talk.encode("D|")])
    episode = play(env, engine)
    # x: P a E a E a F    y: P a F
    turns = [("x0", "A|", 0.5, 0), ("x1", "B|", 1.0, 1), ("x2", "D|", 0.125, 3)]
    assert stream_of(episode, "x", talk) == (turns, "x3")
    assert stream_of(episode, "y", talk) == ([("y0", "C|", 1.0 + 3.0 + 0.25 - 1.0, 2)], "y1")
    assert env.actions == [{"x": "A|"}, {"x": "B|"}, {"y": "C|"}, {"x": "D|"}]
    assert [talk.decode(r.prompt_ids) for r in engine.requests] == ["x0", "x0A|x1", "y0", "x0A|x1B|x2"]
    agents_and_turns = [(0, 0), (0, 1), (1, 0), (0, 2)]
    assert [r.seed for r in engine.requests] == [derive_seed(7, 0, 0, *parts) for parts in agents_and_turns]
    assert (episode.end_reason, episode.num_env_steps) == ("terminated", 4)
    assert episode.info == {"x": {"is_success": True}, "y": {"is_success": True}}
    assert episode.streams["y"].messages == [{"role": "user", "content": "y1"}]


def test_an_agents_last_turn_is_invalid_where_its_info_says_so(talk, play):
    class Marking(ScriptedEnv):
        marks: ClassVar = [{"y": False}, {"x": True}, {"x": False, "y": True}]

        def step(self, actions):
            *rest, infos = super().step(actions)
            for agent, is_invalid in self.marks[len(self.actions) - 1].items():
                infos.setdefault(agent, {})["is_invalid_action"] = is_invalid
            return (*rest, infos)

    # x acts and y is asked, who has not acted yet; y acts and x hears that its turn was invalid; x acts, and the last
    # word about y comes with the end.
    env = Marking(
        talk,
        {"x": "x0"},
        ({"y": "y0"}, {}),
        ({"x": "x1"}, {}),
        ({"x": "x2", "y": "y1"}, {}, {"__all__": True}),
    )
    episode = play(env, ScriptedEngine([talk.encode("A|"), talk.encode("B|"), talk.encode("C|")]))
    assert [turn.is_invalid_action for turn in episode.streams["x"].turns] == [True, False]
    assert [turn.is_invalid_action for turn in episode.streams["y"].turns] == [True]


def test_an_info_that_does_not_say_leaves_a_turn_as_it_was(talk, play):
    class Marking(ScriptedEnv):
        def step(self, actions):
            *rest, infos = super().step(actions)
            if len(self.actions) == 1:
                infos["x"] = {"is_invalid_action": True}
            else:
                infos["x"] = {"note": "still waiting"}
            return (*rest, infos)

    env = Marking(talk, {"x": "x0"}, ({"y": "y0"}, {}), ({"y": "y1"}, {}, {"__all__": True}))
    episode = play(env, ScriptedEngine([talk.encode("A|"), talk.encode("B|")]))
    assert [turn.is_invalid_action for turn in episode.streams["x"].turns] == [True]


def test_at_the_same_time_the_environment_steps_once_all_have_acted_in_the_environments_order(talk, play):
    env = ScriptedEnv(
        talk,
        {"x": "x0", "y": "y0"},
        ({"x": "x1", "y": "y1"}, {"x": 1.0, "y": 2.0}),
        ({"x": "x2", "y": "y2"}, {"x": 3.0, "y": 4.0}, {}, {"__all__": True}),
    )
    engine = ScriptedEngine(
        lambda prompt: talk.encode(f"{chr(prompt[0])}|"), num_steps=lambda prompt: 9 if prompt[0] == ord("x") else 1
    )
    episode = play(env, engine)
    assert [list(actions.items()) for actions in env.actions] == [[("x", "x|"), ("y", "y|")]] * 2
    assert stream_of(episode, "x", talk) == ([("x0", "x|", 1.0, 0), ("x1", "x|", 3.0, 1)], "x2")
    assert stream_of(episode, "y", talk) == ([("y0", "y|", 2.0, 0), ("y1", "y|", 4.0, 1)], "y2")
    assert episode.end_reason == "truncated"


class StrictEngine(ScriptedEngine):
    """Must not be stepped in vain: another module's turn would pay for it."""

    def step(self):
        assert self._running
        return super().step()


def test_each_agent_is_served_by_its_modules_engine_and_params(talk, play):
    env = ScriptedEnv(talk, {"x": "x0", "y": "y0"}, ({}, {"x": 1.0}, {"__all__": True}))
    engines = {"left": StrictEngine([talk.encode("L|")]), "right": StrictEngine([talk.encode("Right|")])}
    engines["right"].policy_version = 3
    params = {"left": SamplingParams(4, temperature=0.5), "right": SamplingParams(3)}
    module_of = lambda agent_id, episode: {"x": "left", "y": "right"}[agent_id]  # noqa: E731
    episode = play(env, engines, module_of=module_of, params=params)
    assert {a: (s.module_id, s.turns[0].policy_version) for a, s in episode.streams.items()} == {
        "x": ("left", 0),
        "y": ("right", 3),
    }
    assert env.actions == [{"x": "L|", "y": "Rig"}]
    assert {module_id: engine.requests[0].params for module_id, engine in engines.items()} == params


def test_an_agent_that_has_ended_is_not_asked_again_and_keeps_its_last_observation(talk, play):
    env = ScriptedEnv(
        talk,
        {"x": "x0", "y": "y0"},
        ({"x": "x1", "y": "bye"}, {}, {"y": True}),
        ({"x": "x2"}, {}, {"__all__": True}),
    )
    episode = play(env, ScriptedEngine(lambda prompt: talk.encode("a|")))
    assert env.actions == [{"x": "a|", "y": "a|"}, {"x": "a|"}]
    assert stream_of(episode, "y", talk) == ([("y0", "a|", 0.0, 0)], "bye")


def test_no_room_for_one_agent_truncates_the_episode_for_all(talk, play):
    env = ScriptedEnv(talk, {"x": "x0", "y": "y0"}, ({"x": "x" * 20, "y": "y1"}, {"y": 1.0}))
    episode = play(env, ScriptedEngine(lambda prompt: talk.encode("a|")), max_model_len=30)
    assert episode.end_reason == "context_limit"
    assert stream_of(episode, "x", talk) == ([("x0", "a|", 0.0, 0)], "x" * 20)
    assert stream_of(episode, "y", talk) == ([("y0", "a|", 1.0, 0)], "y1")


def test_a_first_prompt_without_room_fails_the_episode_also_when_others_have_acted(talk, play):
    env = ScriptedEnv(talk, {"x": "x0"}, ({"y": "y" * 30}, {}))
    episode = play(env, ScriptedEngine(lambda prompt: talk.encode("a|")), max_model_len=30)
    assert "a first prompt and one turn must fit in max_model_len = 30; got 30 + 8 tokens" in episode.error


def test_an_episode_that_goes_on_with_nobody_to_act_fails(talk, play):
    episode = play(ScriptedEnv(talk, {"x": "x0"}, ({}, {})), ScriptedEngine(lambda prompt: talk.encode("a|")))
    assert "an episode that goes on needs an agent to act" in episode.error
