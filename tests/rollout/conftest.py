"""Tiny random Qwen2 models over a byte-level ChatML tokenizer, and a toy world over bytes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import gymnasium
import pytest

from rllm_gym.rollout.loop import RolloutLoop
from rllm_gym.types import SamplingParams

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


# --- a token-level world over bytes: "|" is the end-of-turn token ---

END = 256


def encode(text: str) -> list[int]:
    return [END if char == "|" else ord(char) for char in text]


def decode(ids) -> str:
    return "".join("|" if token == END else chr(token) for token in ids)


class TalkEnv(gymnasium.Env):
    """Says "ITEM>" first and then its step number; "!" ends the episode with reward 1, and "?" truncates it."""

    stop_ids = (END,)

    def __init__(self):
        self.is_closed = False
        self.reset_seeds: list[int] = []

    def reset(self, *, seed=None, options=None):
        self.reset_seeds.append(seed)
        self.item, self.num_steps = (options or {}).get("item_id", "none"), 0
        self.messages = [{"role": "user", "content": f"{self.item}>"}]
        return encode(f"{self.item}>"), {"item_id": self.item, "messages": list(self.messages)}

    def step(self, action):
        self.num_steps += 1
        text = decode(action)
        self.messages += [{"role": "assistant", "content": text}, {"role": "user", "content": f"{self.num_steps}>"}]
        is_success = "!" in text
        info = {"is_success": is_success, "messages": list(self.messages)}
        return encode(f"{self.num_steps}>"), float(is_success), is_success, "?" in text, info

    def close(self):
        self.is_closed = True


@pytest.fixture
def talk():
    """The toy world and its codec, as one namespace."""
    return SimpleNamespace(Env=TalkEnv, encode=encode, decode=decode, END=END)


@pytest.fixture
def make_loop():
    """A loop over talk worlds and one engine; what it opens is closed at the end of the test."""
    loops = []

    def make(engine, make_env=lambda env_index: TalkEnv(), **options):
        engines = engine if isinstance(engine, dict) else {"main": engine}
        defaults = {"num_envs": 4, "params": SamplingParams(max_new_tokens=8), "max_model_len": 256}
        defaults["module_of"] = lambda agent_id, episode: "main"
        loops.append(RolloutLoop(make_env, engines, **{**defaults, **options}))
        return loops[-1]

    yield make
    for loop in loops:
        loop.close()
