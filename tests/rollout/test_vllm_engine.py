"""vLLM against transformers, in this process: log-probs, seeds, weights, cache, two engines at once."""

from __future__ import annotations

import contextlib
import copy
import logging
import subprocess
import sys
from functools import partial
from types import ModuleType

import gymnasium
import llvmlite.binding  # noqa: F401  vLLM must start beside it: numba loads it
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

from rllm_gym.errors import ConfigError
from rllm_gym.rollout.engines import adapter_options
from rllm_gym.rollout.engines.vllm import LLMEngine, VLLMEngine
from rllm_gym.rollout.loop import RolloutLoop
from rllm_gym.types import AGENT, SamplingParams, TaskGroup
from rllm_gym.weights.format import LORA_A, LORA_B, AdaptedWeights, Tensors, difference
from rllm_gym.weights.placement import WeightPlan
from rllm_gym.weights.receiver import _Incoming
from tests.conftest import make_model, make_tokenizer
from tests.rollout.engine_helpers import check_early_end, forward_logp, make_request, run, until_something_ends

pytestmark = pytest.mark.xdist_group("vllm")  # they share engines

PROMPT = [(7 * i) % 200 + 20 for i in range(70)]  # two cache blocks of 32 and a bit
request = partial(make_request, prompt=PROMPT)


class _Lazy:
    """What some libraries leave in their modules: whatever one asks of it, it tries to import something."""

    def __getattribute__(self, name):
        raise ImportError(f"{name} needs a package that is not installed")


@pytest.fixture(scope="module", autouse=True)
def lazy_library():
    """What vLLM must start beside."""
    sys.modules["tests_lazy_library"] = ModuleType("tests_lazy_library")
    sys.modules["tests_lazy_library"].part = _Lazy()  # type: ignore[attr-defined]
    yield
    del sys.modules["tests_lazy_library"]


def make_engine(folder):
    return VLLMEngine(str(folder), max_model_len=256, max_num_seqs=8, options={"kv_cache_memory_bytes": 2**26})


@pytest.fixture(scope="module")
def models(tiny_model, other_model):
    return [AutoModelForCausalLM.from_pretrained(m, dtype=torch.float32).eval() for m in (tiny_model, other_model)]


@pytest.fixture(scope="module")
def shared_engine(tiny_model):
    engine = make_engine(tiny_model)
    yield engine
    engine.close()


@pytest.fixture
def engine(shared_engine, models):
    """The engine with model 0's weights and an empty cache, whatever the test before has done."""
    shared_engine.load_weights(dict(models[0].state_dict()), policy_version=0)
    return shared_engine


@pytest.mark.promise
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_logps_are_those_of_a_plain_forward(engine, models, temperature):
    requests = [request(f"p{n}-{temperature}", prompt=PROMPT[:n], seed=n, temperature=temperature) for n in (5, 40, 70)]
    for r, completion in zip(requests, run(engine, *requests), strict=True):
        expected = forward_logp(models[0], r.prompt_ids, completion.token_ids, temperature)
        np.testing.assert_allclose(completion.logp, expected, atol=1e-4)


def test_logps_are_of_the_distribution_that_top_k_leaves(engine, models):
    (completion,) = run(engine, request("top", top_k=3, seed=2))
    with torch.inference_mode():
        logits = models[0](torch.tensor([[*PROMPT, *completion.token_ids]])).logits[0, len(PROMPT) - 1 : -1]
    kept = logits.masked_fill(logits < logits.topk(3).values[:, -1:], -torch.inf).log_softmax(-1)
    expected = kept[torch.arange(8), torch.as_tensor(completion.token_ids)].numpy()
    np.testing.assert_allclose(completion.logp, expected, atol=1e-4)


def test_a_seed_repeats_whatever_else_is_running(engine):
    (alone,) = run(engine, request("alone", seed=3))
    others = [request(f"other{i}", prompt=PROMPT[: 9 + i], seed=i) for i in range(3)]
    *_, beside, other_seed = run(engine, *others, request("beside", seed=3), request("seed4", seed=4))
    assert alone.token_ids.tolist() == beside.token_ids.tolist() != other_seed.token_ids.tolist()


def test_the_models_own_end_tokens_do_not_end_a_turn_unasked(engine, models):
    assert models[0].generation_config.eos_token_id == list(range(258))
    (completion,) = run(engine, request("free"))
    assert len(completion.token_ids) == 8


def test_a_turn_ends_with_its_stop_token_included(engine):
    (free,) = run(engine, request("free", seed=1))
    stop = int(free.token_ids[3])
    (stopped,) = run(engine, request("stopped", seed=1, stop_ids=(stop,)))
    assert stopped.token_ids.tolist() == free.token_ids[: free.token_ids.tolist().index(stop) + 1].tolist()
    assert len(stopped.logp) == len(stopped.token_ids)


def test_a_turn_ends_with_the_token_that_a_stop_text_ends_in(engine):
    check_early_end(engine, PROMPT)
    assert not engine._is_over


def test_new_weights_give_the_new_models_output_and_nothing_cached_of_the_old(engine, models):
    (before,) = run(engine, request("before", seed=5))
    (again,) = run(engine, request("again", seed=5))
    engine.load_weights({n: t.numpy() for n, t in models[1].state_dict().items()}, policy_version=4)
    (after,) = run(engine, request("after", seed=5))
    assert [c.num_cached_tokens for c in (before, again, after)] == [0, 64, 0]
    assert engine.policy_version == 4
    assert after.token_ids.tolist() != before.token_ids.tolist() == again.token_ids.tolist()
    np.testing.assert_allclose(after.logp, forward_logp(models[1], PROMPT, after.token_ids), atol=1e-4)


def test_a_request_that_is_running_goes_on_with_the_new_weights_alone(engine, models):
    engine.submit(request("midway", seed=6))
    engine.step()
    engine.step()
    engine.load_weights(dict(models[1].state_dict()), policy_version=1)
    [midway] = until_something_ends(engine)
    token_ids, logp = midway.token_ids, midway.logp
    old, new = (forward_logp(model, PROMPT, token_ids) for model in models)
    switch = next(i for i in range(8) if abs(logp[i] - old[i]) > 1e-3)
    assert 1 <= switch <= 2
    np.testing.assert_allclose(logp[:switch], old[:switch], atol=1e-4)
    np.testing.assert_allclose(logp[switch:], new[switch:], atol=1e-4)
    assert midway.policy_versions.tolist() == [0] * switch + [1] * (8 - switch)
    assert run(engine, request("after"))[0].policy_versions is None


def test_the_prefix_cache_can_be_emptied(engine):
    run(engine, request("fill"))
    assert run(engine, request("hit"))[0].num_cached_tokens == 64
    engine.reset_prefix_cache()
    assert run(engine, request("miss"))[0].num_cached_tokens == 0


class Lengthening(gymnasium.Env):
    """Five turns with 40 new tokens before each."""

    stop_ids = ()

    def reset(self, *, seed=None, options=None):
        self.rng, self.num_steps = np.random.default_rng(seed), 0
        return self.observation(), {}

    def step(self, action):
        self.num_steps += 1
        return self.observation(), 0.0, self.num_steps == 5, False, {}

    def observation(self):
        return self.rng.integers(20, 200, 40).tolist()


@pytest.mark.promise
def test_contexts_stay_in_a_cache_that_holds_few(tiny_model, monkeypatch):
    """Without the loop's regard for the cache each turn reads most of its context again."""
    engine = VLLMEngine(
        str(tiny_model), max_model_len=256, max_num_seqs=32, options={"kv_cache_memory_bytes": 3 * 2**18}
    )

    def share_of_prompts_read():
        loop = RolloutLoop(
            lambda index: Lengthening(), {"main": engine}, module_of=lambda agent_id, episode: "main",
            num_envs=32, params=SamplingParams(max_new_tokens=2), max_model_len=256,
        )  # fmt: skip
        engine.reset_prefix_cache()
        with contextlib.closing(loop):
            loop.submit([TaskGroup((0, 0, k), None, 1) for k in range(48)], max_episode_steps=None)
            turns = [turn for group in loop.finished_groups() for turn in group.episodes[0].streams[AGENT].turns]
        num_tokens = [42 * (k % 5 + 1) - 2 for k in range(len(turns))]
        return 1 - sum(turn.num_cached_tokens for turn in turns) / sum(num_tokens)

    try:
        assert engine.num_cache_tokens == 1536  # a fifth of 32 episodes
        with_regard = share_of_prompts_read()
        monkeypatch.setattr(VLLMEngine, "num_cache_tokens", None)
        assert with_regard < 0.5 < 0.8 < share_of_prompts_read()
    finally:
        engine.close()


def test_an_engine_that_sleeps_is_awake_before_its_weights_are_touched(engine, models, monkeypatch):
    # On a CPU vLLM's sleep frees no memory; all else of it is the same.
    monkeypatch.setattr(engine._engine.vllm_config.model_config, "enable_sleep_mode", True)
    awake, load = [], engine.load
    monkeypatch.setattr(engine, "load", lambda weights: (awake.append(not engine._engine.is_sleeping()), load(weights)))
    run(engine, request("fill"))
    for _ in range(2):  # twice in a row is once
        engine.sleep()
        assert engine._engine.is_sleeping()
    engine.load_weights(dict(models[1].state_dict()), policy_version=1)
    assert awake == [True]
    run(engine, request("fill again"))
    engine.sleep()
    (after,) = run(engine, request("after"))
    assert after.num_cached_tokens == 0  # keys and values were dropped
    np.testing.assert_allclose(after.logp, forward_logp(models[1], PROMPT, after.token_ids), atol=1e-4)


def test_an_engine_that_may_not_sleep_stays_awake(engine):
    engine.sleep()
    assert not engine._engine.is_sleeping()


@pytest.mark.parametrize("way", ["plan", "reload"])
def test_weights_that_come_once_are_read_once(engine, models, monkeypatch, way):
    if way == "reload":
        monkeypatch.setattr(engine, "load", engine.reload)
    coming = {("policy", name): weight for name, weight in models[1].state_dict().items()}
    engine.load_weights(_Incoming(coming).by_module()["policy"], policy_version=1)
    (after,) = run(engine, request("after"))
    np.testing.assert_allclose(after.logp, forward_logp(models[1], PROMPT, after.token_ids), atol=1e-4)


def is_planned(engine):
    return isinstance(getattr(engine.load, "__self__", None), WeightPlan)


def outcome(engine, name):
    """What is sampled with several prompts, bit for bit, and how much of them was cached."""
    done = run(engine, *(request(f"{name}{n}", prompt=PROMPT[:n], seed=n) for n in (5, 40, 70)))
    return [(c.token_ids.tolist(), c.logp.tolist()) for c in done], [c.num_cached_tokens for c in done]


def copied_and_reloaded(engine, state):
    """The outcome after `load_weights`, and after vLLM's own loading of the same."""
    engine.load_weights({name: value.numpy() for name, value in state.items()}, 1)
    found, cached = outcome(engine, "copied")
    engine.reload(Tensors(state))
    engine.reset_prefix_cache()
    return found, outcome(engine, "reloaded")[0], cached


@pytest.mark.promise
def test_copied_weights_are_those_that_vllm_loads_bit_for_bit(engine, models):
    assert is_planned(engine)
    (before, _), (copied, reloaded, cached) = outcome(engine, "a"), copied_and_reloaded(engine, models[1].state_dict())
    assert copied == reloaded != before
    assert cached[0] == cached[1] == 0  # the first request that could have found a block of another's is the third
    again, reloaded, _ = copied_and_reloaded(engine, models[0].state_dict())
    assert again == reloaded == before


@pytest.mark.slow
def test_a_head_of_its_own_is_copied_too(tmp_path):
    engine = make_engine(make_model(0, tmp_path, tie_word_embeddings=False))
    state = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).state_dict()
    try:
        engine.load_weights(state, 0)
        assert is_planned(engine)
        before, _ = outcome(engine, "before")
        for name in ("lm_head.weight", "model.embed_tokens.weight"):
            state[name] = state[name].flip(1)
            copied, reloaded, _ = copied_and_reloaded(engine, state)
            assert copied == reloaded != before
            before = copied
    finally:
        engine.close()


@pytest.mark.slow
def test_a_model_whose_weights_have_no_place_is_loaded_by_vllm_and_says_so_once(tmp_path, caplog):
    torch.manual_seed(0)
    tokenizer = make_tokenizer()
    tokenizer.save_pretrained(tmp_path)
    config = GPT2Config(vocab_size=len(tokenizer), n_embd=64, n_layer=2, n_head=2, n_positions=512)
    lm = GPT2LMHeadModel(config).eval()
    lm.save_pretrained(tmp_path)
    engine = make_engine(tmp_path)
    try:
        with caplog.at_level(logging.WARNING, logger="rllm_gym"):
            for scale in (1.0, 3.0):
                with torch.no_grad():
                    lm.transformer.ln_f.weight.fill_(scale)
                engine.load_weights(dict(lm.state_dict()), 1)
                (completion,) = run(engine, request(f"{scale}"))
                np.testing.assert_allclose(completion.logp, forward_logp(lm, PROMPT, completion.token_ids), atol=1e-4)
    finally:
        engine.close()
    assert not is_planned(engine)
    [line] = [record.getMessage() for record in caplog.records if record.name.startswith("rllm_gym")]
    assert "weights are loaded by vLLM" in line and "c_attn.weight of shape (192, 64) is not [(64, 192)]" in line


@pytest.mark.slow
def test_a_plan_that_puts_weights_elsewhere_is_found_out(tiny_model, models, monkeypatch, caplog):
    engine = make_engine(tiny_model)
    [model] = engine._live.apply_model(lambda model: model)
    monkeypatch.setitem(model.packed_modules_mapping, "gate_up_proj", ["up_proj", "gate_proj"])
    try:
        with caplog.at_level(logging.WARNING, logger="rllm_gym"):
            engine.load_weights(dict(models[1].state_dict()), 1)
        (completion,) = run(engine, request("right"))
    finally:
        engine.close()
    assert not is_planned(engine) and "the same weights give other log-probabilities" in caplog.text
    np.testing.assert_allclose(completion.logp, forward_logp(models[1], PROMPT, completion.token_ids), atol=1e-4)


def test_weights_without_the_tied_head_are_refused(engine, models):
    state = dict(models[1].named_parameters())
    with pytest.raises(ConfigError, match=r"1 missing, first 'lm_head.weight'. Pass the items of state_dict\(\)"):
        engine.load_weights(state, 1)


def test_an_aborted_request_never_finishes(engine):
    engine.submit(request("dropped"))
    engine.submit(request("kept"))
    engine.step()
    engine.abort("dropped")
    engine.abort("unknown")
    assert [c.request_id for c in until_something_ends(engine)] == ["kept"]
    assert engine.step() == []


def test_two_engines_in_one_process_keep_their_own_weights_also_after_one_is_closed(engine, models, other_model):
    second = make_engine(other_model)
    for model, e, name in ((models[0], engine, "first"), (models[1], second, "second")):
        (completion,) = run(e, request(name))
        np.testing.assert_allclose(completion.logp, forward_logp(model, PROMPT, completion.token_ids), atol=1e-4)
    second.close()
    second.close()
    with pytest.raises(RuntimeError, match="cannot be used after close"):
        second.step()
    (completion,) = run(engine, request("still"))
    np.testing.assert_allclose(completion.logp, forward_logp(models[0], PROMPT, completion.token_ids), atol=1e-4)


def test_an_engine_leaves_the_processs_torch_as_it_was(engine):
    num_threads = torch.get_num_threads()
    torch.set_num_threads(num_threads + 1)
    assert torch.get_num_threads() == num_threads + 1
    torch.set_num_threads(num_threads)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gpu_memory_utilisation": 0.5}, "got 'gpu_memory_utilisation'. Did you mean 'gpu_memory_utilization'"),
        ({"logprobs_mode": "raw_logits"}, "must leave 'logprobs_mode' alone"),
    ],
)
def test_unknown_and_reserved_engine_options_are_refused(tiny_model, options, message):
    with pytest.raises(ConfigError, match=message):
        VLLMEngine(str(tiny_model), max_model_len=256, options=options)


def test_a_package_that_vllm_misses_is_named(tiny_model, monkeypatch):
    def lacks(args):
        raise ModuleNotFoundError("No module named 'flashinfer.decode'", name="flashinfer.decode")

    monkeypatch.setattr(LLMEngine, "from_engine_args", lacks)
    with pytest.raises(ConfigError, match=r"not installed: flashinfer\.decode\. Install it"):
        make_engine(tiny_model)


@pytest.mark.slow
def test_looking_at_what_is_deprecated_warns_nobody():
    code = (
        "import torch.distributed, warnings; from rllm_gym.rollout.engines import vllm; "
        "old = torch.distributed.reduce_op; vllm._vars(old), vllm._hasattr(old, 'x'); "
        "warnings.warn('mine', FutureWarning)"
    )
    done = subprocess.run([sys.executable, "-W", "always", "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "reduce_op" not in done.stderr and "FutureWarning: mine" in done.stderr


def adapter_of(model, seed, rank=4):
    """A random adapter of all linear layers, as a module hands it over."""
    generator, out = torch.Generator().manual_seed(seed), {}
    for name, layer in model.named_modules():
        if isinstance(layer, torch.nn.Linear) and name != "lm_head":
            scale = 0.3 / layer.in_features**0.5
            out[f"{name}.weight{LORA_A}"] = torch.randn(rank, layer.in_features, generator=generator) * scale
            out[f"{name}.weight{LORA_B}"] = torch.randn(layer.out_features, rank, generator=generator)
    return out


def adapted(model, adapter):
    other = copy.deepcopy(model)
    other.load_state_dict(dict(AdaptedWeights(model.state_dict(), adapter)))
    return other


@pytest.mark.slow
def test_an_adapter_is_another_policy_on_the_same_engine(tiny_model, models):
    mine, theirs, later = (adapter_of(models[0], seed) for seed in (1, 2, 3))
    engine = VLLMEngine(
        str(tiny_model), max_model_len=256, max_num_seqs=8,
        options={"kv_cache_memory_bytes": 2**26, **adapter_options(4, 1)},
    )  # fmt: skip
    try:
        learner, opponent = adapted(models[0], mine), engine.with_adapter()
        engine.load_weights(dict(AdaptedWeights(models[0].state_dict(), mine)), 3)
        for number, adapter in enumerate((theirs, later)):
            opponent.load_weights(difference(adapter, mine), policy_version=number)
            asked = [request(f"{number}-{k}", seed=k) for k in range(4)]
            for k, each in enumerate(asked):  # in one batch
                (opponent if k % 2 else engine).submit(each)
            done = {}
            while len(done) < 4:
                done |= {c.request_id: c for c in opponent.step()}
            for k, each in enumerate(asked):
                model = adapted(models[0], adapter) if k % 2 else learner
                completion = done[each.request_id]
                expected = forward_logp(model, each.prompt_ids, completion.token_ids)
                np.testing.assert_allclose(completion.logp, expected, atol=2e-4)
            assert (engine.policy_version, opponent.policy_version) == (3, number)
        opponent.close()
    finally:
        engine.close()
