"""Chat templates of published models, as TRL carries them: every prompt is transformers' text, in its own ids."""

from __future__ import annotations

import importlib.util
import re
from datetime import date
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer
from transformers import PreTrainedTokenizerFast

from rllm_gym.tokens import ChatTokenizer, Conversation
from tests.tokenizers import make_tokenizer

pytestmark = [pytest.mark.slow, pytest.mark.interop]
SPEC = importlib.util.find_spec("trl")
FILES = sorted(Path(str(SPEC.origin)).parent.glob("chat_templates/*.jinja")) if SPEC else []
DATE = date(2026, 1, 31)
# What looks like a token of its own in a template: <|im_end|>, <end_of_turn>, </think>, [INST], DeepSeek's with \uff5c.
TOKENS = re.compile("<[|\uff5c]?/?[A-Za-z][\\w\u2581 -]*[|\uff5c]?>|\\[/?[A-Z_]+\\]")
# Ends of a turn that some templates leave to the model.
ENDS = (
    "<|end|>",
    "<|END_OF_TURN_TOKEN|>",
    "<end_of_turn>",
    "<turn|>",
    "<|im_end|>",
    "<|eot_id|>",
    "<end_of_utterance>",
    "<|user|>",
)


def tokenizer_for(source: str) -> PreTrainedTokenizerFast:
    """Return a byte-level tokenizer that has the template's tokens."""
    backend = Tokenizer.from_str(make_tokenizer("chatml").backend_tokenizer.to_str())
    found = sorted({token for token in TOKENS.findall(source) if not re.fullmatch(r"</?[a-z]{1,3}>", token)})
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in (*found, "<s>", "</s>")])
    end = next((token for token in ENDS if token in found), "</s>")
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token=end, chat_template=source)


@pytest.mark.parametrize("system_prompt", ["", "Be brief."])
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_five_turns_are_transformers_text_in_its_tokens(file, system_prompt):
    tokenizer = tokenizer_for(file.read_text(encoding="utf-8"))
    chat = ChatTokenizer(tokenizer, template_date=str(DATE))
    conversation = Conversation(chat, system_prompt)
    ids = conversation.open("Task: craft a stick.\n\nGo!").tolist()
    joins = True  # what was sampled goes on in no token of what stands before it
    for k in range(5):
        check(tokenizer, conversation, ids, joins)
        action = chat.encode_action(f"Step {k}: get {k} oak planks.")
        joins &= encode(tokenizer, chat.decode([*ids, *action])) == [*ids, *action]
        conversation.act(action)
        added = conversation.reply(f"Got {k} oak planks.", terminated=False).tolist()
        ids = added if conversation.num_repeated else [*ids, *action, *added]
    check(tokenizer, conversation, ids, joins)


def check(tokenizer, conversation, ids, joins):
    messages, chat = conversation.context_messages, conversation.chat
    if chat._as_parts:
        messages = [{**m, "content": [{"type": "text", "text": m["content"]}]} for m in messages]
    text = tokenizer.apply_chat_template(
        messages, tokenize=False, add_generation_prompt=True, strftime_now=DATE.strftime
    )
    assert chat.decode(ids) == text
    assert ids == encode(tokenizer, text) or not joins


def encode(tokenizer, text):
    return tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids


def test_there_are_thirty_and_more():
    if not FILES:
        pytest.skip("trl is not installed: make test-interop installs it")
    assert len(FILES) >= 30
