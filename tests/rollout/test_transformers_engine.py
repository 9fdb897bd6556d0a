"""The reference engine against plain forwards of the same model."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from rllm_gym.errors import ConfigError
from rllm_gym.rollout.engines.transformers import TransformersEngine, sampled_logp
from rllm_gym.types import SamplingParams
from tests.rollout.engine_helpers import check_early_end, forward_logp, make_request, run, until_something_ends

PROMPT = list(range(60, 80))
request = partial(make_request, prompt=PROMPT)


@pytest.fixture(scope="module")
def model(tiny_model):
    return AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32).eval()


@pytest.fixture
def engine(tiny_model):
    return TransformersEngine(str(tiny_model))


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_logps_are_those_of_a_plain_forward(engine, model, temperature):
    requests = [request(str(n), prompt=PROMPT[:n], seed=n, temperature=temperature) for n in (5, 12, 20)]
    for r, completion in zip(requests, run(engine, *requests), strict=True):
        expected = forward_logp(model, r.prompt_ids, completion.token_ids, temperature)
        np.testing.assert_allclose(completion.logp, expected, atol=1e-4)


def test_a_turn_ends_with_the_token_that_a_stop_text_ends_in(engine):
    check_early_end(engine, PROMPT)


def test_greedy_takes_the_likeliest_token_and_reports_the_models_own_logp(engine, model):
    (completion,) = run(engine, request("g", temperature=0.0))
    with torch.inference_mode():
        logits = model(torch.tensor([[*PROMPT, *completion.token_ids]])).logits[0]
    assert completion.token_ids.tolist() == logits[len(PROMPT) - 1 : -1].argmax(-1).tolist()
    np.testing.assert_allclose(completion.logp, forward_logp(model, PROMPT, completion.token_ids), atol=1e-4)


def test_the_sampled_distribution_is_cut_and_renormalised():
    logits = torch.log(torch.tensor([0.1, 0.4, 0.3, 0.2]))
    p = lambda **kw: sampled_logp(logits, SamplingParams(1, **kw)).exp().tolist()  # noqa: E731
    assert p(top_k=2) == pytest.approx([0, 4 / 7, 3 / 7, 0])
    # 0.4 is below 0.6, so 0.3 joins; with both 0.6 is reached.
    assert p(top_p=0.6) == pytest.approx([0, 4 / 7, 3 / 7, 0])
    assert p(top_p=0.0) == pytest.approx([0, 1, 0, 0])
    # T = 1/2 squares: 1, 16, 9, 4 of 30; top-p acts after it, and 16/30 alone is above 0.5.
    assert p(temperature=0.5) == pytest.approx([1 / 30, 16 / 30, 9 / 30, 4 / 30])
    assert p(temperature=0.5, top_p=0.5) == pytest.approx([0, 1, 0, 0])


def test_a_seed_repeats_whatever_else_is_running(engine):
    (alone,) = run(engine, request("a", seed=3))
    others = [request(f"o{i}", prompt=PROMPT[: 4 + i], seed=i) for i in range(3)]
    *_, beside, other_seed = run(engine, *others, request("b", seed=3), request("c", seed=4))
    assert alone.token_ids.tolist() == beside.token_ids.tolist() != other_seed.token_ids.tolist()
    assert alone.logp.tolist() == beside.logp.tolist()


def test_a_turn_ends_with_its_stop_token_included(engine):
    (free,) = run(engine, request("free", seed=1))
    stop = int(free.token_ids[2])
    (stopped,) = run(engine, request("stopped", seed=1, stop_ids=(stop,)))
    first = free.token_ids.tolist().index(stop)
    assert stopped.token_ids.tolist() == free.token_ids.tolist()[: first + 1]


def test_new_weights_give_the_other_models_output_also_for_what_is_running(engine, other_model):
    other = TransformersEngine(str(other_model))
    (expected,) = run(other, request("o", seed=5))
    (before,) = run(engine, request("before", seed=5))
    state = AutoModelForCausalLM.from_pretrained(other_model, dtype=torch.float32).state_dict()
    engine.submit(request("midway", temperature=0.0))
    engine.step()
    engine.load_weights({name: tensor.numpy() for name, tensor in state.items()}, policy_version=7)
    (midway,) = until_something_ends(engine)
    (after,) = run(engine, request("after", seed=5))
    assert engine.policy_version == 7
    assert midway.policy_versions.tolist() == [0] + [7] * (len(midway.token_ids) - 1)
    assert after.policy_versions is None
    assert after.token_ids.tolist() == expected.token_ids.tolist() != before.token_ids.tolist()
    # Its first token is the old model's; the rest is what the new model says to that, with nothing cached of the old.
    first = midway.token_ids[:1].tolist()
    np.testing.assert_allclose(
        midway.logp[1:], forward_logp(other._model, PROMPT + first, midway.token_ids[1:]), atol=1e-4
    )


def test_weights_without_the_tied_head_or_with_strange_names_are_refused(engine, model):
    state = dict(model.state_dict())
    head = state.pop("lm_head.weight")
    with pytest.raises(ConfigError, match=r"1 missing, first 'lm_head.weight'. Pass the items of state_dict\(\)"):
        engine.load_weights(state, 1)
    with pytest.raises(ConfigError, match=r"1 unknown, first 'lm_head.weigth'. Did you mean 'lm_head.weight'"):
        engine.load_weights({**state, "lm_head.weight": head, "lm_head.weigth": head}, 1)
    assert engine.policy_version == 0


def test_an_aborted_request_never_finishes(engine):
    engine.submit(request("a"))
    engine.submit(request("b"))
    engine.step()
    engine.abort("a")
    engine.abort("unknown")
    assert [c.request_id for c in until_something_ends(engine)] == ["b"]
    assert engine.step() == []


def test_a_prompt_without_room_is_refused(tiny_model):
    engine = TransformersEngine(str(tiny_model), max_model_len=24)
    with pytest.raises(ConfigError, match="must fit in 24 tokens; got 28"):
        engine.submit(request("long"))
    with pytest.raises(ConfigError, match="at most max_position_embeddings, 512; got 4096"):
        TransformersEngine(str(tiny_model), max_model_len=4096)
