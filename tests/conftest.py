"""Tiny random Qwen2 models over a byte-level ChatML tokenizer; one Ray for all tests; the order of the tests."""

from __future__ import annotations

import getpass
import logging
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rllm_gym.importing import uncollected
from rllm_gym.ray_token import ask_for_token
from tests.needs import skip_without

BEGUN_S = time.monotonic()
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def make_tokenizer():
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(SPECIAL)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<|im_end|>", pad_token="<|endoftext|>", chat_template=CHATML
    )


def make_model(seed: int, folder: Path, *, tie_word_embeddings: bool = True) -> Path:
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    tokenizer = make_tokenizer()
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        intermediate_size=96,
        max_position_embeddings=512,
        tie_word_embeddings=tie_word_embeddings,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
        pad_token_id=tokenizer.pad_token_id,
        initializer_range=0.3,  # wide enough that prompts matter: at the usual 0.02 every distribution is nearly flat
    )
    model = Qwen2ForCausalLM(config)
    # Nearly every token: an engine that obeyed this file, and not the request's stop_ids, would end every turn at once.
    model.generation_config.eos_token_id = list(range(len(tokenizer) - 1))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory) -> None:
    """What is made once for a user is made once for all tests, and not beside the user's own."""
    os.environ.setdefault("RLLM_GYM_CACHE", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory) -> Path:
    return make_model(0, tmp_path_factory.mktemp("tiny0"))


@pytest.fixture(scope="session")
def other_model(tmp_path_factory) -> Path:
    """The same architecture and names, other weights."""
    return make_model(1, tmp_path_factory.mktemp("tiny1"))


@pytest.fixture(scope="session")
def ray_cluster(tmp_path_factory, request):
    """One Ray for all tests that need one; its workers find the tests' own modules, as they start in this folder."""
    import ray
    from ray.tune import registry
    from ray.tune.trainable import trainable

    from rllm_gym import algorithms

    # Tune keeps the job's id of the first cluster that this process knew, under which no worker of this one looks.
    registry._global_registry._prefix = None
    # What tests' modules registered while they were imported goes to this cluster's store, and would end with it.
    registered = dict(registry._global_registry._to_flush)
    # Where an algorithm that nobody gave a place writes: else ~/ray_results.
    trainable.DEFAULT_STORAGE_PATH = str(tmp_path_factory.mktemp("ray_results"))
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    ask_for_token()
    ray.init(num_cpus=6, include_dashboard=False, object_store_memory=200 * 2**20, log_to_driver=False)
    # Another Ray that this process had may have got what was registered before, and nobody else.
    algorithms._register_with_tune()
    end_of_ray.append(partial(request._fixturedef.finish, request))  # of what has asked for it, first
    yield
    ray.shutdown()
    registry._global_registry._to_flush |= registered


@pytest.fixture(scope="session")
def two_learners(ray_cluster):
    """Make groups of two remote learners, of which the last made is the one to use."""
    from tests.learner.two_learners import TwoLearners

    made = TwoLearners()
    yield made
    made.shutdown()


@pytest.fixture(scope="session")
def engines():
    """What `in_this_process` takes engines from."""
    from tests.in_process import EnginePool

    return EnginePool()


@pytest.fixture(scope="session")
def needs_browser() -> None:
    skip_without("browser")


@pytest.fixture(scope="session")
def needs_java() -> None:
    skip_without("java")


@pytest.fixture(scope="session")
def needs_textworld() -> None:
    skip_without("textworld")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Let what libraries drop into the temporary folder, in any process, go with the session.

    Pytest's own folder stays where it is, and so does what torch has compiled. With xdist every worker is a session.
    """
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", f"{tempfile.gettempdir()}/torchinductor_{getpass.getuser()}")
    # Short: sockets lie there, whose paths have 107 characters at most. So not within that of an xdist worker's master.
    folder = tempfile.mkdtemp(prefix="rg-", dir=os.environ["PYTEST_DEBUG_TEMPROOT"])
    os.environ["TMPDIR"] = tempfile.tempdir = folder
    config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))


@pytest.fixture(autouse=True)
def no_logger_is_muted() -> Iterator[None]:
    """Fail a test after which a logger of ours has another level: those that come later would read no warnings."""
    levels = _levels()
    yield
    changed = {name: level for name, level in _levels().items() if level != levels.get(name, logging.NOTSET)}
    for name in changed:
        logging.getLogger(name).setLevel(levels.get(name, logging.NOTSET))
    assert not changed, f"left at another level: {changed}"


def _levels() -> dict[str, int]:
    """Return the levels of our loggers."""
    loggers = logging.Logger.manager.loggerDict.items()
    return {name: one.level for name, one in loggers if name.startswith("rllm_gym") and isinstance(one, logging.Logger)}


@pytest.fixture(autouse=True)
def no_module_is_left() -> Iterator[None]:
    """Fail a test that leaves a module from a file of its own where other tests would import it."""
    before = set(sys.modules)
    yield
    own = os.path.join(os.environ["PYTEST_DEBUG_TEMPROOT"], "pytest-of-")
    left = [
        name
        for name in set(sys.modules) - before
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(own)
    ]
    for name in left:
        del sys.modules[name]
    assert not left, f"left in sys.modules: {', '.join(sorted(left))}"


# Tests of these come first among the slow ones: where time is short (`.ci/run`), the rest is left out.
SLOW_FIRST = (
    "tests/cli",
    "tests/algorithms",
    "tests/learner",
    "tests/rollout",
    "tests/data",
    "tests/training",
    "tests/kills",
    "tests/envs",
)
MOST_CPU_S = 5.0
UNTIL_S = "RLLM_GYM_SLOW_TESTS_S"  # after so many seconds no other test begins
TOO_LONG, LEFT_OUT = "too_long_s", "left_out"  # properties of a report, which xdist's workers send to their master
too_long: dict[str, float] = {}
left_out: list[str] = []
end_of_ray: list[Callable[[], None]] = []


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    """Import what stays without looking through it for garbage: a seventh of the time, in every worker."""
    with uncollected():
        return (yield)


@pytest.hookimpl(tryfirst=True)  # before xdist writes the groups into the names
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let cheap checks fail first; of a slow folder, those first that are given the most time.

    Those with the session's Ray stand together: a worker of xdist has them all, from the beginning, so that there is
    one Ray, and work for the others meanwhile; in one process they come last.
    """
    in_worker = "PYTEST_XDIST_WORKER" in os.environ
    rank = {folder: number for number, folder in enumerate(SLOW_FIRST)}

    def order(item: pytest.Item) -> tuple[bool, bool, int, float]:
        is_slow = item.get_closest_marker("slow") is not None
        folder = "/".join(item.nodeid.split("/")[:2]).partition("::")[0]
        timeout = item.get_closest_marker("timeout")
        longest_first = -timeout.args[0] if timeout is not None and is_slow else 0.0
        place = rank.get(folder, len(rank)) if is_slow else 0
        return wants_ray(item) != in_worker, is_slow, place, longest_first

    items.sort(key=order)
    for item in filter(wants_ray, items):
        item.add_marker(pytest.mark.xdist_group("ray"))


def wants_ray(item: pytest.Item) -> bool:
    return "ray_cluster" in item.fixturenames


def cpu_s() -> float:
    """Return the processor time of this process, and of those of its children that have ended."""
    return sum(os.times()[:4])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    begun_s = cpu_s()
    try:
        return (yield)
    finally:
        is_marked = any(item.get_closest_marker(name) for name in ("slow", "promise", "gpu"))
        if (seconds := cpu_s() - begun_s) > MOST_CPU_S and not is_marked:
            item.user_properties.append((TOO_LONG, seconds))


def pytest_runtest_setup(item: pytest.Item) -> None:
    while end_of_ray and not wants_ray(item):  # the last of them was before this test: it is not to find a Ray
        end_of_ray.pop()()
    until_s = float(os.environ.get(UNTIL_S, "inf"))
    if time.monotonic() - BEGUN_S > until_s:
        item.user_properties.append((LEFT_OUT, until_s))
        pytest.skip(f"left out: {until_s:.0f} s are over")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    for name, value in report.user_properties if report.when == "teardown" else ():
        if name == TOO_LONG:
            too_long[report.nodeid] = value
        elif name == LEFT_OUT:
            left_out.append(report.nodeid)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    for nodeid, seconds in too_long.items():
        terminalreporter.write_line(
            f"{nodeid}: took {seconds:.1f} s of processor time, more than {MOST_CPU_S:g}; mark it slow, or promise"
        )
    if left_out:
        terminalreporter.write_line(f"left out for time, {len(left_out)} tests:")
        for nodeid in left_out:
            terminalreporter.write_line(f"  {nodeid}")
