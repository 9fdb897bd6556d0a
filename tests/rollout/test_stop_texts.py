"""Texts that end a turn: what is sampled behind them is neither kept nor read."""

import gymnasium
import pytest

from rllm_gym.envs import UnicodeText, wrap
from rllm_gym.errors import ConfigError
from rllm_gym.rollout.engines.scripted import ScriptedEngine
from rllm_gym.rollout.loop import RolloutLoop
from rllm_gym.types import Sample, SamplingParams, TaskGroup


class Library(gymnasium.Env):
    """Writes down what it reads."""

    stop = ("</search>",)

    def __init__(self):
        self.observation_space = self.action_space = UnicodeText(1000)
        self.heard = []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return "Find it.", {}

    def step(self, action):
        self.heard.append(action)
        return "Paris.", 1.0, len(self.heard) == 2, False, {}


def played(stop, said):
    from rllm_gym.envs.tokens import to_tokens

    library = Library()
    env = to_tokens(library, stop=stop)
    reply = env.chat.encode_action(said)
    loop = RolloutLoop(
        lambda index: env, {"default_policy": ScriptedEngine(lambda prompt: reply)},
        module_of=lambda agent, episode: "default_policy", num_envs=1, params=SamplingParams(200), max_model_len=4096,
    )  # fmt: skip
    loop.submit([TaskGroup((0, 0, 0), None, 1)], max_episode_steps=2)
    [group] = loop.finished_groups()
    loop.close()
    [stream] = group.episodes[0].streams.values()
    return library.heard, stream.turns, env.chat


def test_what_a_model_invents_behind_a_stop_text_is_neither_kept_nor_read():
    heard, turns, chat = played(None, "<search>x</search>Lyon. <search>y</search>")
    assert heard == ["<search>x</search>"] * 2
    assert [len(turn.action_ids) for turn in turns] == [len(turn.logp) for turn in turns]
    sample = Sample.of_turns(turns)
    assert "Lyon" not in chat.decode(sample.tokens)
    assert turns[1].observation_ids[0] == chat.end_of_turn_id  # the environment's part supplies it
    assert "</search>" in chat.decode(turns[0].action_ids)


@pytest.mark.parametrize(("stop", "said"), [([], "a</search>b"), (["</x>"], "a</search>b"), (None, "a</search>")])
def test_a_turn_without_anything_behind_a_stop_text_stays_whole(stop, said):
    heard, turns, chat = played(stop, said)
    assert heard == [said] * 2 and turns[0].action_ids.tolist() == chat.encode_action(said)


def test_a_request_tells_the_engine_in_which_token_a_stop_text_ends():
    from rllm_gym.envs.tokens import to_tokens

    env = to_tokens(Library())
    is_over, ids = env.early_end(), env.chat.encode_action("<search>x</search>Lyon.")
    ends = [is_over(ids[:k]) for k in range(len(ids) + 1)]
    assert ends.index(True) == env.turn_length(ids)
    assert to_tokens(Library(), stop=[]).early_end() is None
    engine = ScriptedEngine(lambda prompt: ids)
    loop = RolloutLoop(
        lambda index: env, {"default_policy": engine},
        module_of=lambda agent, episode: "default_policy", num_envs=1, params=SamplingParams(200), max_model_len=4096,
    )  # fmt: skip
    loop.submit([TaskGroup((0, 0, 0), None, 1)], max_episode_steps=1)
    list(loop.finished_groups())
    loop.close()
    [request] = engine.requests
    assert [request.is_over(ids[:k]) for k in range(len(ids) + 1)] == ends


@pytest.mark.parametrize("stop", ["</search>", [""], [7]])
def test_stop_texts_that_cannot_be_are_refused(stop):
    with pytest.raises(ConfigError, match="stop: must be a list of texts"):
        wrap(Library(), tokenizer=None) and played(stop, "a")
