"""Ids, levels and keywords of registered environments."""

import sys
import types

import gymnasium
import pytest

from rllm_gym import make_env, normalize_env_id, register_text_env
from rllm_gym.envs.base import StepResult, TextEnv
from rllm_gym.envs.textcraft.env import TextCraftEnv
from rllm_gym.errors import ConfigError

TEXTCRAFT = "rllm_gym:rllm_gym/TextCraft-v0"


class Echo(TextEnv):
    """Answers what was said."""

    name = "echo"
    num_items = 1

    def __init__(self, *, suffix="!", **kwargs):
        self.suffix = suffix
        super().__init__(**kwargs)

    category = "echo"

    def split_indices(self, split):
        return [0]

    def reset_item(self, index):
        return "hello"

    def act(self, action):
        return StepResult(action + self.suffix, 0.0, is_over=False, is_invalid=False)


@pytest.fixture
def registry():
    """Forgets what a test registers."""
    before = dict(gymnasium.registry)
    yield gymnasium.registry
    for key in gymnasium.registry.keys() - before.keys():
        del gymnasium.registry[key]


@pytest.mark.parametrize("id", ["TextCraft-v0", "rllm_gym/TextCraft-v0", "rllm_gym:TextCraft-v0", TEXTCRAFT])
def test_every_spelling_of_an_id_means_the_one_that_works_in_any_process(id):
    assert normalize_env_id(id) == TEXTCRAFT


def test_ids_of_other_modules_are_kept_after_importing_them(registry, monkeypatch):
    module = types.ModuleType("other_environments")
    monkeypatch.setitem(sys.modules, "other_environments", module)
    register_text_env("Echo-v0", Echo)
    assert normalize_env_id("other_environments:Echo-v0") == "other_environments:Echo-v0"
    assert normalize_env_id("Echo-v0") == "Echo-v0"


@pytest.mark.parametrize(
    ("id", "message"),
    [
        ("TextCraf-v0", "Did you mean 'rllm_gym:rllm_gym/TextCraft-v0'"),
        ("rllm_gym:rllm_gym/TextCraft-v9", "Did you mean 'rllm_gym:rllm_gym/TextCraft-v0'"),
        ("gymnasium:Cartpole-v1", "Did you mean 'gymnasium:CartPole-v1'"),
        ("no_such_module:X-v0", "No module named 'no_such_module'"),
        ("", "Did you mean"),
    ],
)
def test_an_unknown_id_is_refused_with_the_nearest_known_one(id, message):
    with pytest.raises(ConfigError, match=f"^env: [^\n]*got '{id}'[^\n]*{message}[^\n]*$"):
        normalize_env_id(id)


def test_a_bare_name_that_means_two_environments_is_refused(registry):
    register_text_env("TextCraft-v0", Echo)
    with pytest.raises(ConfigError, match="must mean one environment"):
        normalize_env_id("TextCraft-v0")
    assert normalize_env_id("rllm_gym/TextCraft-v0") == TEXTCRAFT


def test_a_registered_environment_has_both_levels_and_its_defaults(registry):
    register_text_env("Echo-v0", Echo, suffix="?", max_episode_steps=2)
    env = gymnasium.make("Echo-v0", obs_type="text")
    assert env.reset()[0] == "hello"
    assert env.step("hi")[:4] == ("hi?", 0.0, False, False)
    assert env.step("hi")[:4] == ("hi?", 0.0, False, True)
    assert gymnasium.make("Echo-v0", obs_type="text", suffix=".").unwrapped.suffix == "."
    registry["Echo-v0"].kwargs["obs_type"] = "text"
    assert gymnasium.make("Echo-v0").reset()[0] == "hello"


def test_an_environments_spec_makes_it_again_and_goes_through_json():
    env = gymnasium.make(TEXTCRAFT, obs_type="text", split="eval", depth=2, max_episode_steps=5)
    for spec in (env.spec, gymnasium.envs.registration.EnvSpec.from_json(env.spec.to_json())):
        again = gymnasium.make(spec)
        assert again.unwrapped.item_ids == env.unwrapped.item_ids
        assert again.spec.max_episode_steps == 5


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"obs_type": "txt"}, 'obs_type must be "token" or "text"; got \'txt\''),
        ({"obs_type": "text", "tokenizer": "gpt2"}, "tokenizer belongs to the token level; got 'gpt2'"),
        ({"obs_type": "text", "chat_template": "x"}, "chat_template belongs to the token level"),
        ({"obs_type": "text", "template_date": "2026-02-03"}, "template_date belongs to the token level"),
        ({"obs_type": "text", "splt": "eval"}, "got 'splt'. Did you mean 'split'"),
        ({"obs_type": "token", "dept": 1}, "got 'dept'. Did you mean 'depth'"),
    ],
)
def test_bad_keywords_are_refused_in_one_line(kwargs, message):
    with pytest.raises(ConfigError, match=f"^[^\n]*{message}[^\n]*$"):
        gymnasium.make(TEXTCRAFT, **kwargs)


def test_the_factory_takes_a_class_or_its_name():
    assert isinstance(make_env(TextCraftEnv, obs_type="text"), TextCraftEnv)
    assert isinstance(make_env("rllm_gym.envs.textcraft.env:TextCraftEnv", obs_type="text"), TextCraftEnv)


def test_arguments_and_date_of_the_template_are_keywords_of_gymnasium_make():
    template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{{ mood }} {{ strftime_now('%d.%m.') }}{% endif %}"
    )
    options = {"chat_template": template, "chat_template_kwargs": {"mood": "glad"}, "template_date": "2026-02-03"}
    env = gymnasium.make(TEXTCRAFT, **options)
    ids, _ = env.reset(seed=0)
    assert env.get_wrapper_attr("chat").decode(ids).endswith("assistant\nglad 03.02.")
    again = gymnasium.make(env.spec)
    assert again.get_wrapper_attr("chat") == env.get_wrapper_attr("chat")
