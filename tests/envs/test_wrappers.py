import copy
import pickle
import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Text
from gymnasium.utils.env_checker import check_env

from rllm_gym.envs.token_multi_agent import TokenMultiAgentEnv
from rllm_gym.envs.wrappers import TokenEnv
from rllm_gym.errors import ConfigError, EnvError
from rllm_gym.spaces import TokenSequence
from rllm_gym.tokens import ChatTokenizer
from tests.envs.toy_environments import SayTheWord
from tests.tokenizers import CHATML, make_tokenizer


class AnyText(Text):
    def __init__(self):
        super().__init__(1 << 16)

    def contains(self, x):
        return isinstance(x, str)


class Guess(gymnasium.Env):
    """Guess a number: "say N" until it is right. Says `noise` with every reply."""

    metadata = {"render_modes": []}  # noqa: RUF012
    system_prompt = "You guess numbers.\nBe brief."

    def __init__(self, noise="", render_mode=None):
        self.observation_space, self.action_space = AnyText(), AnyText()
        self.noise, self.render_mode = noise, render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        drawn = int(self.np_random.integers(1, 1000))
        self.number = (options or {}).get("item_id", drawn)
        return f"Guess a number. Hint: {self.number % 7}{self.noise}", {"item_id": self.number}

    def step(self, text):
        is_right = text == f"say {self.number}"
        reply = ("Right." if is_right else f"Wrong: {text}") + self.noise
        return reply, float(is_right), is_right, False, {"item_id": self.number, "is_success": is_right}

    def expert_action(self):
        return f"say {self.number}"


def make_guess(tokenizer=None, chat_template=None, **kwargs):
    return TokenEnv(Guess(**kwargs), tokenizer=tokenizer, chat_template=chat_template)


ID = "rllm_gym_tests/Guess-v0"


@pytest.fixture(autouse=True)
def registered():
    gymnasium.register(ID, entry_point=make_guess)
    yield
    del gymnasium.registry[ID]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("tokenizer")
    make_tokenizer("qwen2.5").save_pretrained(path)
    return str(path)


def play(env, texts, seed=0, options=None):
    """Return the token stream as lists by turn, and the last step's results."""
    observation, info = env.reset(seed=seed, options=options)
    stream, result = [observation.tolist()], (observation, 0.0, False, False, info)
    for text in texts:
        action = env.get_wrapper_attr("encode_action")(text)
        result = env.step(action)
        stream += [action.tolist(), result[0].tolist()]
    return stream, result


def rendered(env, messages, add_generation_prompt):
    chat = env.get_wrapper_attr("chat")
    return chat.tokenizer.apply_chat_template(
        messages, chat_template=chat.chat_template, add_generation_prompt=add_generation_prompt, return_dict=False
    )


@pytest.mark.parametrize("shape", ["qwen2.5", "llama3", "gemma"])
def test_a_played_episode_is_what_the_template_renders_for_its_messages(shape):
    env = gymnasium.make(ID, tokenizer=make_tokenizer(shape))
    stream, (_, reward, terminated, _, info) = play(env, ["say 1", "say 2", "say 42"], options={"item_id": 42})
    assert (reward, terminated) == (1.0, True)
    assert info["item_id"] == 42 and info["is_success"] is True
    assert [m["content"] for m in info["messages"]][-5:] == [
        "Wrong: say 1",
        "say 2",
        "Wrong: say 2",
        "say 42",
        "Right.",
    ]
    assert [i for part in stream for i in part] == rendered(env, info["messages"], add_generation_prompt=False)


def test_the_text_environment_and_its_expert_are_at_the_bottom():
    env = gymnasium.make(ID, tokenizer=make_tokenizer("chatml"))
    env.reset(seed=0)
    assert type(env.unwrapped) is Guess
    action = env.get_wrapper_attr("encode_action")(env.unwrapped.expert_action())
    assert action[-1] == env.get_wrapper_attr("end_of_turn_id") == env.get_wrapper_attr("stop_ids")[0]
    assert action in env.action_space
    assert env.step(action)[1:3] == (1.0, True)


def test_only_a_terminating_observation_lacks_the_generation_prompt():
    env = gymnasium.make(ID, tokenizer=make_tokenizer("chatml"), max_episode_steps=2)
    prompt = env.get_wrapper_attr("chat").tokenizer.encode("<|im_start|>assistant\n")
    stream, (*_, terminated, truncated, _) = play(env, ["say 1", "say 2"], options={"item_id": 42})
    assert (terminated, truncated) == (False, True)
    assert [part[-len(prompt) :] == prompt for part in stream[0::2]] == [True, True, True]
    stream, (*_, terminated, truncated, _) = play(env, ["say 1", "say 42"], options={"item_id": 42})
    assert terminated
    assert [part[-len(prompt) :] == prompt for part in stream[0::2]] == [True, True, False]


def test_an_environment_without_a_system_prompt_has_none(monkeypatch):
    env = make_guess(make_tokenizer("chatml"))
    monkeypatch.setattr(Guess, "system_prompt", "")
    assert [m["role"] for m in env.reset(seed=0)[1]["messages"]] == ["user"]
    monkeypatch.delattr(Guess, "system_prompt")
    assert [m["role"] for m in env.reset(seed=0)[1]["messages"]] == ["user"]


def test_earlier_messages_are_not_changed_by_later_steps():
    env = make_guess(make_tokenizer("chatml"))
    _, first = env.reset(seed=0)
    kept = copy.deepcopy(first["messages"])
    env.step(env.encode_action("say 1"))
    env.reset(seed=1)
    assert first["messages"] == kept


@pytest.mark.parametrize(
    ("action", "got"),
    [
        ([10**6], r"got \[1000000\]"),
        (np.array([3, -1]), r"got an array of shape \(2,\) and dtype int64, from -1 to 3"),
        (np.array([0.5]), r"got an array of shape \(1,\) and dtype float64"),
        ("say 1", "got 'say 1'"),
        ([1] * 65, "got 65 items, integers from 1 to 1"),
        (None, "got None"),
    ],
)
def test_actions_that_are_no_token_ids_are_refused_and_change_nothing(action, got):
    env = TokenEnv(Guess(), tokenizer=make_tokenizer("chatml"), max_tokens=64)
    env.reset(seed=0)
    with pytest.raises(ValueError, match=rf"at most 64 token ids in \[0, \d+\).*{got}"):
        env.step(action)
    assert env.step(env.encode_action("say 1"))[4]["messages"][-1]["content"] == "Wrong: say 1"


UNREADABLE = "a\x00b\x11\x1b[0m\x7f\x85\r\nc\td\ud800e\udfff"
READABLE = "ab[0m\nc\tde"


class Repeats(Guess):
    """Says what it heard and a text of its own; the system prompt is short."""

    system_prompt = "Hi."

    def __init__(self, said=""):
        super().__init__()
        self.said, self.heard = said, []

    def reset(self, *, seed=None, options=None):
        return self.said, {}

    def step(self, text):
        self.heard.append(text)
        return text + self.said, 0.0, False, False, {}


def test_control_characters_and_lone_surrogates_reach_neither_the_policy_nor_the_environment():
    env = TokenEnv(Repeats(UNREADABLE), tokenizer=make_tokenizer("chatml"))
    ids, info = env.reset(seed=0)
    assert info["messages"][-1]["content"] == READABLE
    said = UNREADABLE[:-1].replace("\ud800", "")
    sampled = env.encode_action(said)
    *_, info = env.step(sampled)
    assert env.unwrapped.heard == [READABLE]
    # What was sampled stays: the message renders to the very ids.
    assert [m["content"] for m in info["messages"][-2:]] == [said, READABLE + READABLE]
    assert env.chat.decode(ids).endswith(f"{READABLE}<|im_end|>\n<|im_start|>assistant\n")


def test_an_observation_beyond_max_tokens_is_cut_with_a_note():
    env = TokenEnv(Repeats(" x" * 300), tokenizer=make_tokenizer("chatml"), max_tokens=99)
    for ids, *_, info in (env.reset(seed=0), env.step(env.encode_action("go")), env.reset(seed=1)):
        text = info["messages"][-1]["content"]
        kept, _, note = text.partition("\n[... ")
        assert 80 < len(ids) <= 99 and ids in env.observation_space
        assert (" x" * 300).startswith(kept.removeprefix("go"))
        assert note == f"{600 - len(kept.removeprefix('go'))} more characters were cut off]"
    fits = []
    for length in range(1, 99):  # around what just fits
        env.unwrapped.said = "x" * length
        ids, info = env.reset(seed=0)
        opening = env.chat.opening("Hi.", "x" * length)
        fits.append(len(env.chat.encode_chat(opening, add_generation_prompt=True)) <= 99)
        assert (info["messages"][-1]["content"] == "x" * length) == fits[-1]
        assert len(ids) <= 99
    assert set(fits) == {True, False}


def test_a_text_that_is_far_too_long_is_cut_before_it_is_tokenized(monkeypatch):
    lengths = []
    env = TokenEnv(Repeats("no end " * 300_000), tokenizer=make_tokenizer("chatml"), max_tokens=500)
    encode_chat = ChatTokenizer.encode_chat

    def recording(chat, messages, **kwargs):
        lengths.append(sum(len(message["content"]) for message in messages))
        return encode_chat(chat, messages, **kwargs)

    monkeypatch.setattr(ChatTokenizer, "encode_chat", recording)
    ids, info = env.reset(seed=0)
    assert max(lengths) < 2100 and 400 < len(ids) <= 500
    assert info["messages"][-1]["content"].endswith("more characters were cut off]")


def test_a_bound_without_room_for_the_template_is_a_failure_of_the_environment():
    env = TokenEnv(Guess(), tokenizer=make_tokenizer("chatml"), max_tokens=30)
    with pytest.raises(EnvError, match=r"must leave room in max_tokens=30; got \d+ tokens\. Raise max_tokens"):
        env.reset(seed=0)


def test_an_environment_of_other_observations_is_refused():
    with pytest.raises(ConfigError, match="must be a text environment"):
        TokenEnv(gymnasium.make("CartPole-v1"), tokenizer=make_tokenizer("chatml"))


def test_a_step_before_reset_is_refused():
    with pytest.raises(gymnasium.error.ResetNeeded, match="Call reset"):
        make_guess(make_tokenizer("chatml")).step([1])


@pytest.mark.parametrize("kind", ["object", "folder"])
def test_gymnasiums_own_check_passes(folder, kind):
    tokenizer = folder if kind == "folder" else make_tokenizer("llama3")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=".*is different from the unwrapped version.*")
        check_env(gymnasium.make(ID, tokenizer=tokenizer))


def test_an_environment_is_made_anew_from_its_spec(folder):
    for kwargs in ({"tokenizer": folder}, {"tokenizer": make_tokenizer("llama3"), "chat_template": CHATML_LLAMA}):
        env = gymnasium.make(ID, max_episode_steps=3, noise="!", **kwargs)
        twin = gymnasium.make(env.spec)
        assert play(twin, ["say 1", "say 2", "say 3"])[0] == play(env, ["say 1", "say 2", "say 3"])[0]
        assert play(twin, ["say 1", "say 2", "say 3"])[1][3] is True
        assert twin.observation_space == env.observation_space


CHATML_LLAMA = CHATML.replace("im_start", "start_header_id").replace("im_end", "eot_id")


def test_a_wrapper_put_on_by_hand_is_in_the_spec():
    gymnasium.register("rllm_gym_tests/TextGuess-v0", entry_point=Guess)
    try:
        chat = ChatTokenizer(make_tokenizer("llama3"))
        env = TokenEnv(gymnasium.make("rllm_gym_tests/TextGuess-v0"), tokenizer=chat, max_tokens=500)
        twin = gymnasium.make(env.spec)
        assert twin.observation_space == TokenSequence(chat.vocab_size, 500)
        assert play(twin, ["say 1"])[0] == play(env, ["say 1"])[0]
    finally:
        del gymnasium.registry["rllm_gym_tests/TextGuess-v0"]


@pytest.mark.parametrize("kind", ["object", "folder"])
def test_copies_and_pickles_go_on_alike_also_from_the_middle_and_after_close(folder, kind):
    env = make_guess(folder if kind == "folder" else make_tokenizer("llama3"))
    env.reset(seed=3)
    env.step(env.encode_action("say 1"))
    twins = [copy.deepcopy(env), pickle.loads(pickle.dumps(env))]
    expected = env.step(env.encode_action("say 2"))
    for twin in twins:
        result = twin.step(twin.encode_action("say 2"))
        assert result[0].tolist() == expected[0].tolist() and result[4] == expected[4]
    env.close()
    env.close()
    again = pickle.loads(pickle.dumps(env))
    assert play(again, ["say 1"], seed=5)[0] == play(env, ["say 1"], seed=5)[0]


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_vectorised_environments_say_what_single_ones_say(folder, mode):
    single = gymnasium.make(ID, tokenizer=folder)
    expected = [play(single, ["say 1", "a longer thing to say", "x"], seed=7 + k)[0] for k in range(2)]
    envs = gymnasium.make_vec(ID, num_envs=2, vectorization_mode=mode, tokenizer=folder)
    try:
        observations = [envs.reset(seed=7)[0]]
        for turn in (1, 3, 5):
            observation, *_, infos = envs.step([np.array(stream[turn]) for stream in expected])
            observations.append(observation)
        assert [[part.tolist() for part in obs] for obs in observations] == [
            [stream[turn] for stream in expected] for turn in (0, 2, 4, 6)
        ]
        assert observations[-1] in envs.observation_space
        assert infos["messages"][1][-1] == {"role": "user", "content": "Wrong: x"}
    finally:
        envs.close()


class Dialogue:
    """Turn-based: alice asks, bob answers, alice judges and ends it. bob hears nothing before alice has spoken."""

    possible_agents = ["alice", "bob"]  # noqa: RUF012
    agents = possible_agents
    system_prompts = {"alice": "You ask."}  # noqa: RUF012

    def reset(self, *, seed=None, options=None):
        self.num_steps = 0
        return {"alice": "Ask bob."}, {"alice": {"item_id": 5}, "bob": {}}

    def step(self, actions):
        self.num_steps += 1
        if self.num_steps == 1:
            texts, done = {"bob": f"alice: {actions['alice']}"}, False
        elif self.num_steps == 2:
            texts, done = {"alice": f"bob: {actions['bob']}"}, False
        else:
            texts, done = {"alice": "Over.", "bob": f"Over: {actions['alice']}"}, True
        rewards = {agent: float(done) for agent in texts}
        infos = {agent: {"is_success": done} for agent in texts}
        return texts, rewards, {"__all__": done}, {"__all__": False}, infos

    def close(self):
        self.closed = True


def test_every_agent_has_its_own_stream_and_messages():
    env = TokenMultiAgentEnv(Dialogue(), tokenizer=make_tokenizer("llama3"))
    streams = {"alice": [], "bob": []}

    def record(observations):
        for agent, ids in observations.items():
            assert ids in env.observation_spaces[agent]
            streams[agent].append(ids.tolist())

    def act(agent, text):
        action = env.encode_action(text)
        streams[agent].append(action.tolist())
        return {agent: action}

    observations, infos = env.reset(seed=0)
    record(observations)
    assert set(observations) == {"alice"} and infos["alice"]["item_id"] == 5 and infos["bob"] == {}
    for agent, text in [("alice", "Why?"), ("bob", "So."), ("alice", "Good.")]:
        observations, rewards, terminateds, _, infos = env.step(act(agent, text))
        record(observations)
    assert terminateds["__all__"] and rewards == {"alice": 1.0, "bob": 1.0}
    assert infos["bob"]["messages"] == [
        {"role": "user", "content": "alice: Why?"},
        {"role": "assistant", "content": "So."},
        {"role": "user", "content": "Over: Good."},
    ]
    for agent, stream in streams.items():
        expected = env.chat.tokenizer.apply_chat_template(infos[agent]["messages"], return_dict=False)
        assert [i for part in stream for i in part] == expected
    assert env.chat.decode(streams["alice"][0]).count("You ask.") == 1
    env.close()
    assert env.unwrapped.closed


def test_only_the_agents_of_the_last_observations_act():
    env = TokenMultiAgentEnv(Dialogue(), tokenizer=make_tokenizer("chatml"))
    env.reset(seed=0)
    for actions in ({}, {"bob": env.encode_action("x")}, dict.fromkeys(["alice", "bob"], env.encode_action("x"))):
        with pytest.raises(ValueError, match=r"those of the last observations, \['alice'\]; got actions of"):
            env.step(actions)
    with pytest.raises(ValueError, match=r"agent 'alice': an action must be .* token ids in \[0, 386\)"):
        env.step({"alice": [386]})
    assert set(env.step({"alice": env.encode_action("x")})[0]) == {"bob"}


def test_ids_that_a_model_has_beyond_its_tokenizer_are_no_text():
    small = ChatTokenizer(make_tokenizer("chatml"))
    padding = small.vocab_size + 5
    chat = pickle.loads(pickle.dumps(ChatTokenizer(make_tokenizer("chatml"), vocab_size=small.vocab_size + 64)))
    env = TokenEnv(SayTheWord(), tokenizer=chat)
    env.reset(seed=0)
    word = chat.tokenizer.encode(env.unwrapped.expert_action(), add_special_tokens=False)
    action = np.array([padding, *word, padding, chat.end_of_turn_id])
    assert env.step(action)[1] == 1.0
    strict = TokenEnv(SayTheWord(), tokenizer=small)
    strict.reset(seed=0)
    with pytest.raises(ValueError, match="token ids in"):
        strict.step(action)


def test_agents_are_cleaned_and_cut_like_one():
    class Pair:
        possible_agents = ("x", "y")

        def reset(self, *, seed=None, options=None):
            return {"x": UNREADABLE}, {}

        def step(self, actions):
            self.heard = actions
            return {"y": "long " * 1000}, {}, {}, {}, {}

    env = TokenMultiAgentEnv(Pair(), tokenizer=make_tokenizer("chatml"), max_tokens=99)
    _, infos = env.reset()
    assert infos["x"]["messages"][-1]["content"] == READABLE
    observations, *_, infos = env.step({"x": env.encode_action("a\x00b")})
    assert env.unwrapped.heard == {"x": "ab"}
    assert len(observations["y"]) <= 99 and infos["y"]["messages"][-1]["content"].endswith("were cut off]")
