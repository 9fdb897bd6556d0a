"""The tiny model's tokenizer: a byte-level BPE of a few words, and a ChatML template that only ever appends."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import Qwen2Tokenizer

END_OF_TEXT, START_OF_TURN, END_OF_TURN = SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")

# ChatML and nothing implicit: no default system prompt, no trimming, no date.
CHAT_TEMPLATE = """\
{%- for message in messages %}
{{- '<|im_start|>' ~ message.role ~ '\\n' ~ message.content ~ '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- endif %}"""


def train_tokenizer(texts: Iterable[str], *, vocab_size: int = 2048, max_length: int = 16384) -> Qwen2Tokenizer:
    """Return a tokenizer trained on `texts`; all 256 bytes are in it, so that any text can be encoded.

    Texts are split into words as Qwen2 does it, each digit alone, and normalised to NFC: `AutoTokenizer` loads whatever
    lies beside a Qwen2 model as a `Qwen2Tokenizer`, which brings its own split and takes only the vocabulary and merges
    from tokenizer.json. A tokenizer with another split would be changed by that, in silence.

    Args:
        vocab_size: an upper bound; a small corpus has fewer words to merge.
        max_length: what the tokenizer reports as the model's context length.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    from transformers import Qwen2Tokenizer

    shape = Qwen2Tokenizer().backend_tokenizer
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer, tokenizer.pre_tokenizer = shape.normalizer, shape.pre_tokenizer
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    return Qwen2Tokenizer(
        vocab=model["vocab"],
        merges=[tuple(pair) for pair in model["merges"]],  # type: ignore[misc]
        eos_token=END_OF_TURN,
        pad_token=END_OF_TEXT,
        unk_token=None,  # type: ignore[arg-type]
        extra_special_tokens=[START_OF_TURN],
        chat_template=CHAT_TEMPLATE,
        model_max_length=max_length,
        clean_up_tokenization_spaces=False,
    )
