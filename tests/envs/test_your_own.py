"""The page on users' own environments: what it shows is run as it stands. And what `wrap` refuses."""

import re
import sys
import warnings
from pathlib import Path

import gymnasium
import pytest
from gymnasium.spaces import Discrete, Text
from gymnasium.utils.env_checker import check_env
from typer.testing import CliRunner

from rllm_gym import make_env, register_text_env
from rllm_gym.cli.main import make_rllib_app
from rllm_gym.envs import UnicodeText, wrap
from rllm_gym.envs.token_level import MAX_TOKENS
from rllm_gym.envs.wrappers import TokenEnv
from rllm_gym.errors import ConfigError, EnvError
from rllm_gym.rollout.engines.scripted import ScriptedEngine
from rllm_gym.rollout.loop import RolloutLoop, derive_seed
from rllm_gym.spaces import TokenSequence
from rllm_gym.types import SamplingParams, TaskGroup

app = make_rllib_app()

PAGE = (Path(__file__).parents[2] / "docs" / "environments" / "your_own.md").read_text(encoding="utf-8")
BLOCKS = {kind: re.findall(rf"```{kind}\n(.*?)```", PAGE, re.DOTALL) for kind in ("python", "yaml", "bash")}
ID = "my_env:me/Guess-v0"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with the page's `my_env.py`, on the path; forgets what the page registers."""
    (tmp_path / "my_env.py").write_text(BLOCKS["python"][0], encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    before = dict(gymnasium.registry)
    yield tmp_path
    sys.modules.pop("my_env", None)
    for key in gymnasium.registry.keys() - before.keys():
        del gymnasium.registry[key]


def play(env, texts, seed=0):
    """Return what a text or token environment says, as text, with the rest of each step."""
    is_token = isinstance(env.action_space, TokenSequence)
    decode = env.get_wrapper_attr("chat").decode if is_token else str
    encode = env.get_wrapper_attr("encode_action") if is_token else str
    seen = [decode(env.reset(seed=seed)[0])]
    for text in texts:
        observation, *rest, info = env.step(encode(text))
        seen.append((decode(observation), *rest, info.get("is_success")))
    return seen


def test_the_example_is_about_twenty_lines():
    assert len([line for line in BLOCKS["python"][0].splitlines() if line.strip()]) <= 20


def test_every_python_block_of_the_page_runs_in_order(folder, capsys):
    names = {}
    for block in BLOCKS["python"][1:]:
        exec(compile(block, "your_own.md", "exec"), names)
    printed = capsys.readouterr().out
    assert "'content': 'What is your guess?'" in printed and "'role': 'assistant', 'content': '7'" in printed
    assert names["env"].action_space.max_length == 2048
    env = names["SumEnv"](split="eval")
    assert env.item_ids == [f"sum_{i}" for i in range(90, 100)]
    env.reset(options={"item_id": "sum_9"})
    reply, *_, info = env.step("Action: twelve")
    assert (reply, info["is_success"], info["is_invalid_action"]) == ("Wrong.", False, True)
    assert env.step("Action: 13")[4]["is_invalid_action"] is False
    assert env.step(env.expert_action())[:4] == ("Right.", 1.0, True, False)


def test_the_example_plays_alike_at_both_levels(folder):
    text = play(gymnasium.make(ID, obs_type="text", max_episode_steps=3), ["x", " 9 "])
    assert text[0] == "What is your guess?"
    assert text[1] == ("No, it is not x.", 0.0, False, False, False)
    assert text[2] == ("Right.", 1.0, True, False, True)
    token = play(gymnasium.make(ID, max_episode_steps=3), ["x", " 9 "])
    assert token[0].count("Guess a number from 1 to 10.") == 1 and "What is your guess?" in token[0]
    assert [step[1:] for step in token[1:]] == [step[1:] for step in text[1:]]
    assert all(mine[0] in theirs[0] for mine, theirs in zip(text[1:], token[1:], strict=True))


@pytest.mark.parametrize("obs_type", ["text", "token"])
def test_the_example_passes_gymnasiums_check(folder, obs_type):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=".*is different from the unwrapped version.*")
        check_env(gymnasium.make(ID, obs_type=obs_type))


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_the_example_can_be_vectorised(folder, mode):
    envs = gymnasium.make_vec(ID, num_envs=2, vectorization_mode=mode)
    try:
        chat = wrap(Echo()).chat
        observations, _ = envs.reset(seed=0)
        assert all("What is your guess?" in chat.decode(ids) for ids in observations)
        replies, rewards, *_ = envs.step([chat.encode_action("9"), chat.encode_action("it is 4")])
        assert "Right." in chat.decode(replies[0]) and "not it is 4" in chat.decode(replies[1])
        assert rewards.tolist() == [1.0, 0.0]
    finally:
        envs.close()


def test_a_rollout_plays_the_example(folder):
    env = gymnasium.make(ID)
    say = env.get_wrapper_attr("encode_action")
    engine = ScriptedEngine([say("3").tolist(), say("9").tolist()])
    params = SamplingParams(max_new_tokens=16)
    loop = RolloutLoop(
        lambda index: env,
        {"policy": engine},
        module_of=lambda agent, episode: "policy",
        num_envs=1,
        params=params,
        max_model_len=1024,
    )
    # The seed that the group's key gives draws a number; the second answer is right only for the seed that draws 9.
    key = next((0, 0, k) for k in range(100) if _draws(env, (0, 0, k), 9))
    loop.submit([TaskGroup(key, None, 1)], max_episode_steps=5)
    [group] = loop.finished_groups()
    [episode] = group.episodes
    assert (episode.end_reason, episode.info) == ("terminated", {"is_success": True})
    [stream] = episode.streams.values()
    assert [turn.reward for turn in stream.turns] == [0.0, 1.0]
    assert [message["content"] for message in stream.messages][1:] == [
        "What is your guess?",
        "3",
        "No, it is not 3.",
        "9",
        "Right.",
    ]
    loop.close()


def _draws(env, key, number):
    env.reset(seed=derive_seed(*key))
    return env.unwrapped.number == number


def test_the_pages_experiment_passes_the_pages_dry_run(folder, monkeypatch):
    monkeypatch.chdir(folder)
    Path("guess.yaml").write_text(BLOCKS["yaml"][0], encoding="utf-8")
    command = BLOCKS["bash"][1].partition("#")[0].split()
    assert command[0] == "rllib"
    done = CliRunner().invoke(app, command[1:])
    assert done.exit_code == 0, done.output
    assert f"env: {ID}" in done.output


class Echo(gymnasium.Env):
    """Somebody else's environment: Gymnasium's own Text, no system prompt, no item ids, no is_success."""

    def __init__(self, observation_space=None, action_space=None):
        self.observation_space = observation_space or Text(100)
        self.action_space = action_space or Text(100)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return "hello", {}

    def step(self, action):
        return f"you said {action}", 0.5, action == "bye", False, {}


def test_wrap_gives_any_text_environment_tokens():
    env = wrap(Echo())
    (ids, info) = env.reset(seed=0)
    assert info == {"messages": [{"role": "user", "content": "hello"}]}
    assert ids in env.observation_space and env.observation_space.max_length == MAX_TOKENS
    ids, reward, terminated, _, info = env.step(env.encode_action("bye"))
    assert (env.chat.decode(ids).count("you said bye"), reward, terminated) == (1, 0.5, True)
    assert env.unwrapped.__class__ is Echo and "is_success" not in info


def test_wrap_takes_an_environment_that_gymnasium_made_with_its_horizon():
    gymnasium.register("rllm_gym_tests/Echo-v0", entry_point=Echo, disable_env_checker=True)
    try:
        env = wrap(gymnasium.make("rllm_gym_tests/Echo-v0", max_episode_steps=2))
        assert [step[1:4] for step in play(env, ["a", "b"])[1:]] == [(0.5, False, False), (0.5, False, True)]
    finally:
        del gymnasium.registry["rllm_gym_tests/Echo-v0"]


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (Echo(observation_space=Discrete(3)), r"Text for observation_space; got Discrete\(3\)"),
        (Echo(action_space=Discrete(3)), r"Text for action_space; got Discrete\(3\)"),
        (gymnasium.Env(), "Text for observation_space; got None"),
        (Echo, "must be a gymnasium.Env.*got <class"),
        ("me/Echo-v0", "must be a gymnasium.Env.*got 'me/Echo-v0'"),
    ],
)
def test_wrap_refuses_what_is_no_text_environment_in_one_line(env, message):
    with pytest.raises(ConfigError, match=f"^wrap: [^\n]*{message}[^\n]*$"):
        wrap(env)


def test_wrap_refuses_tokens_around_tokens():
    with pytest.raises(ConfigError, match=r"^wrap: .*got TokenSequence\(\d+, 32768\)"):
        wrap(wrap(Echo()))


@pytest.mark.parametrize("obs_type", ["text", "token"])
def test_a_registered_environment_must_speak_text(obs_type):
    with pytest.raises(ConfigError, match=r"^make_env: .*Text for action_space; got Discrete\(2\)"):
        make_env(lambda: Echo(action_space=Discrete(2)), obs_type=obs_type)


@pytest.mark.parametrize("env", [Echo(), "my_env", "my_env/Echo", None])
def test_only_a_class_or_its_name_can_be_registered(env):
    with pytest.raises(ConfigError, match=r'^register_text_env: env must be a class, a function or "module:Class"'):
        register_text_env("me/Echo-v0", env)
    assert "me/Echo-v0" not in gymnasium.registry


def test_max_tokens_is_set_through_gymnasium_and_kept_in_the_spec(folder):
    env = gymnasium.make(ID, max_tokens=77)
    for made in (env, gymnasium.make(env.spec)):
        assert made.observation_space.max_length == made.action_space.max_length == 77
    with pytest.raises(EnvError, match="must leave room in max_tokens=5"):
        gymnasium.make(ID, max_tokens=5).reset()
    with pytest.raises(ConfigError, match="max_tokens belongs to the token level; got 5"):
        gymnasium.make(ID, max_tokens=5, obs_type="text")
    with pytest.raises(ConfigError, match="max_tokens must be a positive integer; got 0"):
        gymnasium.make(ID, max_tokens=0)


def test_options_of_the_token_level_do_not_reach_the_environment(folder):
    with pytest.raises(ConfigError, match=r"^GuessEnv: takes the keywords \(none\); got 'sise'"):
        gymnasium.make(ID, sise=3)
    assert isinstance(gymnasium.make(ID, tokenizer=wrap(Echo()).chat.tokenizer, max_tokens=9).env.env, TokenEnv)


def test_unicode_text_lets_any_character_through_both_levels():
    env = wrap(Echo(UnicodeText(100), UnicodeText(100)))
    assert play(env, ["caf\u00e9 \U0001f332"])[1][0].count("you said caf\u00e9 \U0001f332") == 1


def test_an_environment_that_says_something_else_than_text_is_named():
    env = Echo()
    env.reset = lambda seed=None, options=None: (5, {})
    with pytest.raises(TypeError, match=r"Echo.*: an observation must be a string; got 5\. Put it into words\."):
        wrap(env).reset()


def test_an_environment_without_an_info_or_a_result_is_named(monkeypatch):
    env = Echo()
    env.reset = lambda seed=None, options=None: ("Say it.", None)
    with pytest.raises(TypeError, match=r"Echo.*: an info must be a dictionary; got None\. Return one\."):
        wrap(env).reset()
    crafting = gymnasium.make("rllm_gym:rllm_gym/TextCraft-v0", obs_type="text")
    crafting.reset(seed=0)
    monkeypatch.setattr(crafting.unwrapped, "act", lambda action: None)
    with pytest.raises(TypeError, match=r"TextCraft.*: act must return a StepResult; got None\. Return one\."):
        crafting.step("inventory")
