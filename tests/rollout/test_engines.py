"""One registry: an engine goes by name, by "module:name", or as it is, and all are made by the same call."""

from __future__ import annotations

import pytest

from rllm_gym.algorithms import GRPOConfig
from rllm_gym.errors import ConfigError
from rllm_gym.rollout.engines import ENGINES, check_engine, engine_maker
from rllm_gym.rollout.engines.scripted import ScriptedEngine
from rllm_gym.rollout.engines.transformers import TransformersEngine
from rllm_gym.types import CompletionRequest, SamplingParams

ARGUMENTS = {"dtype": "float32", "max_model_len": 64, "max_num_seqs": 2}


class Parrot(ScriptedEngine):
    """An engine of a user's own."""

    def __init__(self, model, *, dtype, max_model_len, max_num_seqs, options):
        self.arguments = {"dtype": dtype, "max_model_len": max_model_len, "max_num_seqs": max_num_seqs}
        self.model, self.options = model, options
        super().__init__([], max_context_tokens=max_model_len)


class OldParrot(ScriptedEngine):
    """An engine with a constructor of another form."""


def make_parrot(model, **arguments):
    return Parrot(model, **arguments)


def say_twice(prompt_ids):
    return [*prompt_ids, *prompt_ids]


def said(engine, *prompts):
    """Return the completions' ids, one prompt after the other."""
    replies = []
    for k, prompt in enumerate(prompts):
        engine.submit(CompletionRequest(str(k), prompt, (0,), SamplingParams(8), seed=0))
        while not (done := engine.step()):
            pass
        replies.append(done[0].token_ids.tolist())
    return replies


@pytest.mark.parametrize("engine", [Parrot, make_parrot, f"{__name__}:Parrot", f"{__name__}:make_parrot"])
def test_an_engine_of_ones_own_is_called_like_any_other(engine):
    options = {"anything": object()}
    check_engine(engine, options)  # which it takes unchecked
    made = engine_maker(engine)("folder", **ARGUMENTS, options=options)
    assert (made.model, made.arguments, made.options) == ("folder", ARGUMENTS, options)
    assert made.max_context_tokens == 64
    config = GRPOConfig().environment("rllm_gym/TextCraft-v0").env_runners(engine=engine, engine_options=options)
    config.validate()
    assert config.engine is engine


def test_an_engine_of_this_package_goes_by_name(tiny_model):
    assert engine_maker("transformers") is TransformersEngine
    made = engine_maker("transformers")(str(tiny_model), **ARGUMENTS, options={"device": "cpu"})
    assert made.max_context_tokens == 64


def test_a_scripted_engine_by_name_says_its_replies_again_and_again():
    def make(replies, **options):
        return engine_maker("scripted")("", **ARGUMENTS, options={"replies": replies, **options})

    assert said(make([[5, 6], [7]]), [1], [1], [1]) == [[5, 6], [7], [5, 6]]
    for replies in (say_twice, f"{__name__}:say_twice"):
        assert said(make(replies), [3], [4, 5]) == [[3, 3], [4, 5, 4, 5]]


@pytest.mark.parametrize(
    ("engine", "options", "message"),
    [
        ("vlm", {}, "must be one of openai, scripted, transformers, vllm, or \"module:name\"; got 'vlm'. Did you mean "
         "'vllm'?"),
        (f"{__name__}:Parot", {}, f"Did you mean '{__name__}:Parrot'?"),
        (5, {}, "engine: must be a class or a function that makes an engine; got 5."),
        (OldParrot, {}, "engine: must be called as (model, *, dtype, max_model_len, max_num_seqs, options); got"),
        (dict, {}, "engine: must have the methods of rllm_gym.types.Engine; got <class 'dict'> without submit, step,"),
        ("transformers", {"devise": "cpu"}, "engine transformers takes device; got 'devise'. Did you mean 'device'?"),
        ("scripted", {"reply": []}, "engine scripted takes replies, num_steps; got 'reply'. Did you mean 'replies'?"),
        ("scripted", {}, "the engine scripted needs replies, a list of token ids for each; got none."),
    ],
)  # fmt: skip
def test_what_is_no_engine_is_said_in_one_line(engine, options, message):
    with pytest.raises(ConfigError) as error:
        check_engine(engine, options)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    config = GRPOConfig().environment("rllm_gym/TextCraft-v0").env_runners(engine=engine, engine_options=options)
    with pytest.raises(ConfigError, match="engine"):
        config.validate()


def test_a_missing_vllm_is_named(monkeypatch):
    monkeypatch.setitem(ENGINES, "vllm", "vllm_that_is_not_there:VLLMEngine")
    with pytest.raises(ConfigError, match=r'engine: vllm cannot be imported .* pip install "rllm-gym\[cpu\]"'):
        engine_maker("vllm")
