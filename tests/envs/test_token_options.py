"""An option of the token level does the same whoever makes the environment, and however many agents it has."""

import contextlib
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest

from rllm_gym import make_env, register_text_env
from rllm_gym.algorithms.grpo import GRPOConfig
from rllm_gym.envs import UnicodeText, wrap
from rllm_gym.envs.program.requests import ModelRequest
from rllm_gym.envs.token_level import CHAT_OPTIONS, TOKEN_OPTIONS
from rllm_gym.envs.tokens import to_tokens
from rllm_gym.errors import ConfigError, EnvError
from rllm_gym.games.questions import make_questions
from rllm_gym.options.table import list_options
from rllm_gym.rollout.environments import EnvironmentSpec, make_token_env
from rllm_gym.rollout.expert import ExpertPlayer
from rllm_gym.tokens import ChatTokenizer, chat_tokenizer
from rllm_gym.viewer import hub_worker
from tests.needs import skip_without
from tests.tokenizers import CHATML, make_tokenizer

DATED = CHATML.replace("{{- '<|im_start|>' ~ m.role", "{{- '<|im_start|>' ~ m.role ~ (mood or '') ~ strftime_now('%Y')")
# Of each option a value, and what is given beside it.
VALUES = {
    "tokenizer": (make_tokenizer("llama3"), {}),
    "chat_template": (DATED, {"tokenizer": make_tokenizer("chatml")}),
    "chat_template_kwargs": ({"mood": "glad"}, {"tokenizer": make_tokenizer("chatml"), "chat_template": DATED}),
    "template_date": ("1999-12-31", {"tokenizer": make_tokenizer("chatml"), "chat_template": DATED}),
    "max_tokens": (100, {}),
    "stop": (["door"], {}),
}
TASK = "There is a door. " * 40
ID = "rllm_gym_tests/Hall-v0"


def test_every_option_has_a_value_here():
    assert tuple(VALUES) == TOKEN_OPTIONS


class Hall(gymnasium.Env):
    """Says a long text at every turn, and writes down what it hears."""

    def __init__(self):
        self.observation_space = self.action_space = UnicodeText(1 << 16)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.heard = []
        return TASK, {}

    def step(self, text):
        self.heard.append(text)
        return TASK, 0.0, False, False, {}


class HallOfTwo:
    """The same for two agents, who take turns."""

    possible_agents = agents = ("x", "y")

    def reset(self, *, seed=None, options=None):
        self.heard = []
        return {"x": TASK}, {"x": {}}

    def step(self, said):
        self.heard += said.values()
        others = {"y" if agent == "x" else "x" for agent in said}
        return dict.fromkeys(others, TASK), {}, {}, {}, {}

    def close(self):
        pass


class Program(Hall):
    """The same for requests of a program, each of which goes on from the answer before."""

    tool_parser = None

    def _ask(self, own_turns=()):
        said = [{"role": "assistant", "content": text} for text in self.heard]
        messages = [{"role": "user", "content": TASK}]
        for turn in said:
            messages += [turn, {"role": "user", "content": TASK}]
        self.request = ModelRequest(messages, own_turns=dict(own_turns))
        self.check_request(self.request)

    def check_request(self, request):
        """The token level puts its own here."""

    def reset(self, *, seed=None, options=None):
        answer = super().reset(seed=seed, options=options)
        self._ask()
        return answer

    def step(self, text):
        answer = super().step(text)
        self._ask((2 * k + 1, k) for k in range(len(self.heard)))
        return answer


WRAPPED = {"one agent": Hall, "several agents": HallOfTwo, "a program": Program}


def transcript(env):
    """Return all that is read and heard in two turns, the second of which is long."""
    ids, _ = env.reset(seed=0)
    read = [ids]
    try:
        for text in ("Open the door now.", "Knock at it. " * 20):
            action = env.encode_action(text)
            action = action[: env.turn_length(action)]
            read.append(env.step(dict.fromkeys(ids, action) if isinstance(ids, dict) else action)[0])
    except (ValueError, EnvError) as error:
        read.append(str(error))
    return repr([read, env.unwrapped.heard])


@pytest.mark.parametrize("option", TOKEN_OPTIONS)
@pytest.mark.parametrize("kind", WRAPPED)
def test_an_option_changes_what_is_read_or_heard(kind, option):
    np.set_printoptions(threshold=100_000)
    value, given = VALUES[option]
    before = transcript(to_tokens(WRAPPED[kind](), **given))
    assert before == transcript(to_tokens(WRAPPED[kind](), **given))
    assert before != transcript(to_tokens(WRAPPED[kind](), **given, **{option: value}))


def of_a_run(env, env_config, options):
    """Return the environment as everyone makes it who plays in a run."""
    del options["tokenizer"], options["chat_template"], options["chat_template_kwargs"], options["template_date"]
    return make_token_env(EnvironmentSpec("hall", env, env_config), chat_tokenizer(None), **options)


DOORS = {
    "to_tokens": lambda options: to_tokens(Hall(), **options),
    "wrap": lambda options: wrap(Hall(), **options),
    "make_env": lambda options: make_env(Hall, **options),
    "gymnasium.make": lambda options: gymnasium.make(ID, **options),
    "make_token_env": lambda options: of_a_run(lambda config: Hall(), {}, options),
    "make_token_env, several agents": lambda options: of_a_run(lambda config: HallOfTwo(), {}, options),
    "make_token_env, by id": lambda options: of_a_run(ID, {}, options),
}


@pytest.fixture
def hall():
    register_text_env(ID, Hall)
    yield
    del gymnasium.registry[ID]


@pytest.mark.usefixtures("hall")
@pytest.mark.parametrize("door", DOORS)
def test_no_door_forgets_an_option(door):
    options = {name: value for name, (value, _) in VALUES.items() if name != "tokenizer"}
    options["tokenizer"] = make_tokenizer("chatml")
    env = DOORS[door](expected := dict(options))
    found = env.options if hasattr(env, "options") else env.get_wrapper_attr("options")
    assert {name: found[name] for name in expected} == expected and set(expected) >= {"max_tokens", "stop"}


@pytest.mark.parametrize("door", ["to_tokens", "wrap", "make_env"])
def test_an_unknown_option_is_refused_with_the_nearest(door):
    with pytest.raises(ConfigError, match="got 'stopp'"):
        DOORS[door]({"stopp": []})


def test_a_keyword_of_the_environment_is_no_option():
    class Bus(Hall):
        def __init__(self, stop):
            super().__init__()
            self.name_of_stop = stop

    assert make_env(Bus, stop="Main Street").unwrapped.name_of_stop == "Main Street"
    assert make_env(Bus, obs_type="text", stop="Main Street").name_of_stop == "Main Street"


def test_an_option_of_a_run_reaches_its_token_level():
    of_runs = list_options(GRPOConfig).keys() & set(TOKEN_OPTIONS)
    assert of_runs >= {*CHAT_OPTIONS, "stop"}  # those of the tokenizer are `chat_options`
    missing = of_runs - GRPOConfig().token_options.keys() - set(CHAT_OPTIONS)
    assert not missing, f"CommonOptions.token_options has none of {sorted(missing)}"


class NotMadeError(Exception):
    """It was asked for, and that is all."""


@pytest.fixture
def passed_on(monkeypatch):
    """Return the list that the options of each call of `make_token_env` are added to."""
    found = []

    def record(spec, chat, opponents=None, **options):
        found.append(options)
        raise NotMadeError

    for module in ("games.questions", "rollout.expert", "rollout.env_runner", "rollout.environments"):
        monkeypatch.setattr(f"rllm_gym.{module}.make_token_env", record)
    return found


OF_RUNS = {name: value for name, (value, _) in VALUES.items() if name not in ("tokenizer", *CHAT_OPTIONS)}


class Config(GRPOConfig):
    token_options = {**OF_RUNS, "in_process": True}  # noqa: RUF012


def by_sampler(config):
    from rllm_gym.rollout.env_runner import LLMEnvRunner

    spec = EnvironmentSpec("hall", lambda config: Hall())
    runner = SimpleNamespace(chat=ChatTokenizer(), _opponent_specs={}, _token_options=config.token_options)
    return LLMEnvRunner._make_token_env(runner, spec)


def by_expert(config):
    player = ExpertPlayer(
        [EnvironmentSpec("hall", lambda config: Hall())],
        ChatTokenizer(),
        horizons=[1],
        token_options=config.token_options,
    )
    return player._make_env(0)


def by_dry_run(config):
    from rllm_gym.cli.train.first_prompt import _first_prompt, _settings

    return _first_prompt(EnvironmentSpec("hall", lambda config: Hall()), ChatTokenizer(), _settings(config))


def by_hub(config):
    session = hub_worker._Session([], "rllm_gym/TextCraft-v0", {}, "a checkpoint", None)
    session._tokenizer = lambda: None
    try:
        return session._make_env()
    finally:
        session.close()


def by_game(config):
    from rllm_gym.games.measure import measure
    from rllm_gym.types import SamplingParams

    skip_without("open_spiel")
    options = {"params": SamplingParams(8), "token_options": config.token_options}
    measure("kuhn_poker", env_config={}, chat=ChatTokenizer(), **options)


@pytest.mark.parametrize("player", [by_sampler, by_expert, by_dry_run, by_hub, by_game])
def test_everyone_who_plays_in_a_run_has_its_options(passed_on, monkeypatch, player):
    config = Config()
    monkeypatch.setattr("rllm_gym.viewer.policies.is_checkpoint", lambda folder: True)
    monkeypatch.setattr("rllm_gym.checkpoints.read_config", lambda folder: (None, config))
    with contextlib.suppress(NotMadeError):
        player(config)
    [options] = passed_on
    assert {name: options[name] for name in OF_RUNS} == OF_RUNS


def test_a_question_says_what_ends_its_turn():
    skip_without("open_spiel")
    assert make_questions("kuhn_poker", {}, ChatTokenizer(), stop=["!"])[0].stop == ("!",)
