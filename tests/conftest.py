"""Tiny random Qwen2 models over a byte-level ChatML tokenizer; one Ray for all tests; the order of the tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.needs import skip_without

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


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory) -> Path:
    return make_model(0, tmp_path_factory.mktemp("tiny0"))


@pytest.fixture(scope="session")
def other_model(tmp_path_factory) -> Path:
    """The same architecture and names, other weights."""
    return make_model(1, tmp_path_factory.mktemp("tiny1"))


@pytest.fixture(scope="session")
def ray_cluster():
    """One Ray for all tests that need one; its workers find the tests' own modules, as they start in this folder."""
    import ray

    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    ray.init(num_cpus=6, include_dashboard=False, object_store_memory=200 * 2**20, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.fixture(scope="session")
def needs_browser() -> None:
    skip_without("browser")


@pytest.fixture(scope="session")
def needs_java() -> None:
    skip_without("java")


@pytest.fixture(scope="session")
def needs_textworld() -> None:
    skip_without("textworld")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let cheap checks fail first. Those with a Ray of their own session come last: no other test runs beside it."""
    items.sort(key=lambda item: ("ray_cluster" in item.fixturenames, item.get_closest_marker("slow") is not None))
