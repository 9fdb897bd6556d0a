"""Small local tokenizers whose special tokens and chat templates have the shape of real ones."""

from __future__ import annotations

from functools import cache

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from tools.packaged_models import GEMMA_TURNS

# The split that Llama-3 and Qwen use before byte-level BPE: words take a leading space, line breaks stick together.
WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CORPUS = [
    "user\nCrafting commands:\ncraft 4 oak planks using 1 oak logs\n\nGoal: craft oak planks.\n",
    "assistant\nThought: I need oak logs.\nAction: get 1 oak logs\n",
    "Got 1 oak logs. Could not find oak logs. You craft things in a world of blocks. Be brief.\n\n\n",
    "system\nYou are a helpful assistant. Inventory: [oak planks] (4)  [stick] (2)\n",
] * 4

CHATML = """\
{%- for m in messages %}
{{- '<|im_start|>' ~ m.role ~ '\\n' ~ m.content ~ '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- endif %}"""

# Qwen2.5: a system turn of its own unless the conversation brings one.
QWEN25 = (
    """\
{%- if messages[0].role != 'system' %}
{{- '<|im_start|>system\\nYou are Qwen, a helpful assistant.<|im_end|>\\n' }}
{%- endif %}
"""
    + CHATML
)

# Llama-3: begin-of-text, role headers, contents trimmed, nothing between <|eot_id|> and the next header.
LLAMA3 = """\
{{- bos_token }}
{%- for m in messages %}
{{- '<|start_header_id|>' ~ m.role ~ '<|end_header_id|>\\n\\n' ~ (m.content | trim) ~ '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}"""

# Qwen3: thoughts are dropped from every assistant turn before the last user turn.
QWEN3 = """\
{%- set ns = namespace(last=-1) %}
{%- for m in messages %}{%- if m.role == 'user' %}{%- set ns.last = loop.index0 %}{%- endif %}{%- endfor %}
{%- for m in messages %}
{%- set text = m.content %}
{%- if m.role == 'assistant' and loop.index0 < ns.last and '</think>' in text %}
{%- set text = text.split('</think>')[-1].lstrip('\\n') %}
{%- endif %}
{{- '<|im_start|>' ~ m.role ~ '\\n' ~ text ~ '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- endif %}"""

# Phi-3: its special tokens swallow the white space after them.
PHI3 = """\
{%- for m in messages %}
{{- '<|' ~ m.role ~ '|>\\n' ~ m.content ~ '<|end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|assistant|>\\n' }}
{%- endif %}"""

# name: (template, special tokens, plain added tokens, begin-of-text, end-of-text)
SHAPES: dict[str, tuple[str, list[str], list[str], str | None, str]] = {
    "chatml": (CHATML, ["<|endoftext|>", "<|im_start|>", "<|im_end|>"], [], None, "<|im_end|>"),
    "qwen2.5": (QWEN25, ["<|endoftext|>", "<|im_start|>", "<|im_end|>"], [], None, "<|im_end|>"),
    "qwen3": (QWEN3, ["<|endoftext|>", "<|im_start|>", "<|im_end|>"], ["<think>", "</think>"], None, "<|im_end|>"),
    "llama3": (
        LLAMA3,
        ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"],
        [],
        "<|begin_of_text|>",
        "<|end_of_text|>",
    ),
    "gemma": (GEMMA_TURNS, ["<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"], [], "<bos>", "<eos>"),
    "phi3": (
        PHI3,
        ["<|endoftext|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"],
        [],
        None,
        "<|endoftext|>",
    ),
}


@cache
def make_tokenizer(shape: str):
    """Return a byte-level BPE tokenizer, trained on a few lines, with the special tokens and template of `shape`."""
    from transformers import PreTrainedTokenizerFast

    template, special, added, bos, eos = SHAPES[shape]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_special_tokens(
        [AddedToken(t, special=True, normalized=False, rstrip=shape == "phi3") for t in special]
    )
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t in added])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=bos, eos_token=eos, pad_token=eos, chat_template=template
    )
