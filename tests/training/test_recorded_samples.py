"""Conversations as samples: the ids of transformers' rendering, whatever a chat template does with an answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from rllm_gym.data import Dialogue
from rllm_gym.tokens import ChatTokenizer
from rllm_gym.training.recorded_samples import SampleMaker

QWEN3 = (Path(__file__).parents[1] / "chat_templates" / "qwen3.jinja").read_text()


def template(content: str) -> str:
    return (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n"
        "{% if m.role == 'assistant' %}" + content + "{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )


STRIPS = template("{{ m.content | trim }}")
SPACES = template("{{ ' ' + m.content + ' ' }}")
FORGETS = template(
    "{% if loop.last %}{{ m.content }}{% else %}{{ m.content.split('</think>')[-1].lstrip() }}{% endif %}"
)
SAID = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "a?"},
    {"role": "assistant", "content": "  <think>hm</think>\n one\n"},
    {"role": "user", "content": "b?"},
    {"role": "assistant", "content": "two "},
]
# The samples' last messages, and what is learnt of each.
CASES = {
    "strips": (STRIPS, {5: "<think>hm</think>\n one<|im_end|>two<|im_end|>"}),
    "adds spaces": (SPACES, {5: "   <think>hm</think>\n one\n <|im_end|> two  <|im_end|>"}),
    "forgets thoughts": (FORGETS, {3: "  <think>hm</think>\n one\n<|im_end|>", 5: "two <|im_end|>"}),
    "qwen3": (
        QWEN3,
        {3: "<think>\nhm\n</think>\n\n one\n<|im_end|>", 5: "<think>\n\n</think>\n\ntwo <|im_end|>"},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_an_answer_is_learnt_as_transformers_renders_it(tiny_model, case):
    source, learnt = CASES[case]
    chat = ChatTokenizer(str(tiny_model), chat_template=source)
    dialogue = Dialogue(tuple(SAID), tuple(message["role"] == "assistant" for message in SAID))
    samples = SampleMaker(chat, 512).contexts_of_dialogue(dialogue)
    rendered = [
        chat.tokenizer.apply_chat_template(SAID[:k], chat_template=source, tokenize=False).removesuffix("\n")
        for k in learnt
    ]
    assert [chat.decode(sample.tokens) for sample in samples] == rendered
    assert [chat.decode(sample.tokens[sample.weight > 0]) for sample in samples] == list(learnt.values())
    for sample, text in zip(samples, rendered, strict=True):
        assert sample.tokens.tolist() == chat.tokenizer.encode(text, add_special_tokens=False)
