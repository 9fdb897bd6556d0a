"""Text to tokens and back: a chat template, rendered turn by turn so that no token is ever encoded twice."""

from __future__ import annotations

import re
from collections.abc import Sequence
from copy import deepcopy
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jinja2 import TemplateError

from rllm_gym.errors import ChatTemplateError, ConfigError, nearest
from rllm_gym.models import TINY_MODEL_DIR, resolve_base_model
from rllm_gym.types import Message, TokenIds

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

CHAT_TEMPLATE_DIR = Path(__file__).parent / "assets" / "chat_templates"

# Stands for an assistant turn whose ids are already in the stream: only what follows it in the rendering is of
# interest.
_SENTINEL = "assistant-turn-7f3a"
# Fences a placeholder. Any other character would do: its own occurrences in a text are replaced by placeholders too.
_FENCE = "\U0010fffd"

# Conversations on which every template must prove itself: user and assistant by turns. They hold what templates are
# known to rewrite: thoughts, white space at the edges, several line breaks.
_PROBE_SYSTEMS = ("", "Be brief.\nThink first.")
_PROBE_TURNS = (
    "Task: craft a stick.\n\nGo!",
    "<think>\nA plank first.\n</think>\n\nAction: get 1 oak planks",
    "  Got 1 oak planks \n",
    "Thought: it is done.\nAction: craft 4 stick",
    "Crafted 4 stick",
)


class ChatTokenizer:
    """A Hugging Face tokenizer with a chat template that only ever appends.

    On construction the template proves on short conversations that the ids of `Conversation` are the ids that it
    renders for the same messages. Everything is read-only from then on: one object serves many conversations and
    threads.

    Args:
        tokenizer: a folder or a hub name; a Hugging Face tokenizer object; a `ChatTokenizer` (with another template, or
            as it is); None for the tokenizer of the shipped model.
        chat_template: Jinja source, a path to a .jinja file or the name of a shipped template, such as
            "qwen3_append_only". None takes the tokenizer's own.
        vocab_size: the model's, where it is larger than the tokenizer's: many models have more outputs than there are
            tokens, and sometimes sample one, which is no text.

    Attributes:
        tokenizer: the Hugging Face tokenizer.
        chat_template: the Jinja source in use.
        end_of_turn_id: the special token that the template writes after an assistant's content. `eos_token` is often
            another one.
        stop_ids: what ends a sampled turn: `end_of_turn_id`, then the tokenizer's `eos_token` where that differs.
        vocab_size: every id is smaller.

    Raises:
        ChatTemplateError: there is no template, or it cannot be used turn by turn.
    """

    def __init__(
        self,
        tokenizer: str | Path | PreTrainedTokenizerBase | ChatTokenizer | None = None,
        chat_template: str | Path | None = None,
        vocab_size: int = 0,
    ):
        self._args = (tokenizer, chat_template, vocab_size)
        if isinstance(tokenizer, ChatTokenizer):
            chat_template = chat_template or tokenizer.chat_template
            vocab_size = max(vocab_size, tokenizer.vocab_size)
        self.tokenizer: Any = _tokenizer_object(tokenizer)
        self.name = str(getattr(self.tokenizer, "name_or_path", "") or type(self.tokenizer).__name__)
        self.chat_template: str = _template_source(self.tokenizer, self.name, chat_template)

        # Own copies, one for each way to take special strings: the original's switches are flipped by whoever calls it.
        self._backend = deepcopy(self.tokenizer.backend_tokenizer)
        self._backend.no_truncation()
        self._backend.no_padding()
        self._plain_backend: Any = None

        added = self.tokenizer.added_tokens_decoder
        special = {token.content: (i, token) for i, token in added.items() if token.special}
        self._special_ids = {content: i for content, (i, _) in special.items()}
        self._special_split = re.compile(
            "|".join(f"({_pattern(token)})" for _, token in _longest_first(special)) or "(?!)"
        )
        self._protected = re.compile("|".join([re.escape(c) for c, _ in _longest_first(special)] + [_FENCE]))
        self._restore = re.compile(f"{_FENCE}(\\d+){_FENCE}")
        self.vocab_size: int = max(len(self.tokenizer), 1 + max(added, default=-1), vocab_size)

        try:
            self.has_system_role = self._find_system_role()
            self.end_of_turn_id = self._find_end_of_turn()
        except TemplateError as error:
            raise self._error(
                "must render a user's and an assistant's turn", f"{type(error).__name__}: {error}"
            ) from error
        self._end_of_turn = {i: content for content, i in self._special_ids.items()}[self.end_of_turn_id]
        eos = self.tokenizer.eos_token_id
        self.stop_ids = (self.end_of_turn_id,) + ((eos,) if eos not in (None, self.end_of_turn_id) else ())
        self._check_append_only()

    def encode_chat(self, messages: Sequence[Message], *, add_generation_prompt: bool) -> list[int]:
        """Return the ids that the template renders for `messages`, contents as plain text."""
        saved: list[str] = []
        return self._encode(self._render(messages, add_generation_prompt, saved), saved)

    def encode_reply(self, text: str, *, add_generation_prompt: bool) -> list[int]:
        """Return the ids from the end-of-turn token of an assistant turn to the end of a user turn that says `text`.

        What was said before does not matter: this is what append-only means, and why a turn costs the same at any
        length.
        """
        saved: list[str] = []
        messages = [_message("user", "?"), _message("assistant", _SENTINEL), _message("user", text)]
        rendered = self._render(messages, add_generation_prompt, saved)
        return self._encode(rendered.partition(_SENTINEL)[2], saved)

    def encode_action(self, text: str) -> list[int]:
        """Return the ids of a whole assistant turn: `text` and the end-of-turn token."""
        saved: list[str] = []
        # Encoded behind the generation prompt, since some tokenizers mark the beginning of a text.
        prompt = self._render([_message("user", "?")], True, [])
        prompt_ids = self._encode(prompt, [])
        ids = self._encode(prompt + self._protect(text, saved) + self._end_of_turn, saved)
        if ids[: len(prompt_ids)] != prompt_ids:  # prompt and text share a token, which no policy could sample
            ids = prompt_ids + self._encode(self._protect(text, saved := []) + self._end_of_turn, saved)
        return ids[len(prompt_ids) :]

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of `ids`, special tokens spelt out."""
        return self._backend.decode([int(i) for i in ids], skip_special_tokens=False)

    def decode_action(self, ids: Sequence[int]) -> str:
        """Return what an assistant's turn says.

        Decoded behind another token: the decoders of some tokenizers (Llama-2's) drop a space at the beginning.
        """
        before = [self.end_of_turn_id]
        return self.decode([*before, *ids])[len(self.decode(before)) :]

    def count_tokens(self, text: str) -> int:
        """Return how many tokens a plain text has on its own."""
        saved: list[str] = []
        return len(self._encode(self._protect(text, saved), saved))

    def opening(self, system_prompt: str, text: str) -> list[Message]:
        """Return the first messages; without a system role the system prompt heads the user's turn."""
        if not system_prompt:
            return [_message("user", text)]
        if not self.has_system_role:
            return [_message("user", f"{system_prompt}\n\n{text}")]
        return [_message("system", system_prompt), _message("user", text)]

    def _render(self, messages: Sequence[Message], add_generation_prompt: bool, saved: list[str]) -> str:
        """Render with placeholders for whatever in the contents could be mistaken for a special token."""
        return self.tokenizer.apply_chat_template(
            [_message(m["role"], self._protect(m["content"], saved)) for m in messages],
            chat_template=self.chat_template,
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
        )

    def _protect(self, text: str, saved: list[str]) -> str:
        def placeholder(match: re.Match[str]) -> str:
            saved.append(match[0])
            return f"{_FENCE}{len(saved) - 1}{_FENCE}"

        return self._protected.sub(placeholder, text)

    def _encode(self, text: str, saved: list[str]) -> list[int]:
        """Encode a rendered text; only the special tokens that the template itself wrote become special."""
        if not saved:
            return self._backend.encode(text, add_special_tokens=False).ids
        if self._plain_backend is None:
            plain_backend = deepcopy(self._backend)
            plain_backend.encode_special_tokens = True
            self._plain_backend = plain_backend
        ids: list[int] = []
        end = 0
        for match in [*self._special_split.finditer(text), None]:
            plain = text[end : match.start() if match else None]
            if plain:
                plain = self._restore.sub(lambda m: saved[int(m[1])], plain)
                ids += self._plain_backend.encode(plain, add_special_tokens=False).ids
            if match:
                ids.append(self._special_ids[match[0].strip()])
                end = match.end()
        return ids

    def _find_system_role(self) -> bool:
        try:
            return _SENTINEL in self._render([_message("system", _SENTINEL), _message("user", "?")], True, [])
        except TemplateError:
            return False

    def _find_end_of_turn(self) -> int:
        rendered = self._render([_message("user", "?"), _message("assistant", _SENTINEL)], False, [])
        after = rendered.partition(_SENTINEL)[2]
        match = self._special_split.match(after)
        if match is None:
            raise self._error(
                "must end an assistant's content with a special token", f"{after[:40]!r} after an assistant's content"
            )
        return self._special_ids[match[0].strip()]

    def _check_append_only(self) -> None:
        for system_prompt in _PROBE_SYSTEMS:
            conversation = Conversation(self, system_prompt)
            ids = list(conversation.open(_PROBE_TURNS[0]))
            for action, reply in zip(_PROBE_TURNS[1::2], _PROBE_TURNS[2::2], strict=True):
                action_ids = self.encode_action(action)
                conversation.act(action_ids)
                terminated = reply == _PROBE_TURNS[-1]
                ids = [*ids, *action_ids, *conversation.reply(reply, terminated=terminated)]
                expected = self.tokenizer.apply_chat_template(
                    conversation.messages,
                    chat_template=self.chat_template,
                    add_generation_prompt=not terminated,
                    return_dict=False,
                )
                if ids != list(expected):
                    at = next((k for k, (a, b) in enumerate(zip(ids, expected, strict=False)) if a != b), len(expected))
                    raise self._error(
                        "must be append-only: what it rendered for a turn must stay as it is when the next one comes",
                        f"{self.decode(expected[at : at + 8])!r} in place of {self.decode(ids[at : at + 8])!r} "
                        f"(Qwen3's, for one, drops the thoughts of earlier turns)",
                    )

    def _error(self, rule: str, got: str) -> ChatTemplateError:
        return ChatTemplateError(
            f"ChatTokenizer: the chat template of {self.name} {rule}; got {got}. "
            f"Give chat_template= one that does: Jinja source, a .jinja file, or a shipped one ({_shipped_names()})."
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return chat_tokenizer, self._args

    def __deepcopy__(self, memo: dict[int, Any]) -> ChatTokenizer:
        return self

    def __eq__(self, other: Any) -> bool:
        # Gymnasium compares the arguments of wrappers when it makes an environment anew from its spec.
        return isinstance(other, ChatTokenizer) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)

    @property
    def _identity(self) -> tuple[Any, ...]:
        return self.name, self.chat_template, self.vocab_size, tuple(self._special_ids.items())

    def __repr__(self) -> str:
        return f"ChatTokenizer({self.name!r}, vocab_size={self.vocab_size}, end_of_turn={self._end_of_turn!r})"


class Conversation:
    """One agent's conversation with an environment, in messages and in tokens.

    Calls come in the order open, act, reply, act, reply, ... The ids that they return or take, put in a row, are
    exactly what the chat template renders for `messages`, as long as the policy samples canonical encodings. Ids
    sampled otherwise stay as sampled; the text is the same.

    A template that has a default system prompt (Qwen2.5) writes it if `system_prompt` is empty, here as there.

    Attributes:
        messages: the conversation so far. Entries are only ever added.
    """

    def __init__(self, chat: ChatTokenizer, system_prompt: str = ""):
        self.chat = chat
        self.system_prompt = system_prompt
        self.messages: list[Message] = []
        self._awaits_action = False
        self._is_cut = False

    def open(self, text: str, *, terminated: bool = False) -> TokenIds:
        """Return the ids of the system prompt, the task and, unless all is over already, the generation prompt."""
        if self.messages:
            raise ValueError("Conversation: open comes first and once; got a second call. Make a new Conversation.")
        self.messages += self.chat.opening(self.system_prompt, text)
        self._awaits_action = not terminated
        return np.asarray(self.chat.encode_chat(self.messages, add_generation_prompt=not terminated), np.int64)

    def act(self, ids: Sequence[int] | TokenIds) -> str:
        """Record a sampled turn and return its text, without the end-of-turn token at its end.

        Other special tokens are spelt out. A turn without the end-of-turn token was cut; the next reply supplies it.
        """
        if not self._awaits_action:
            raise ValueError(
                "Conversation: the policy acts after a generation prompt; got an action without one. Reset first."
            )
        sampled = np.asarray(ids, np.int64).tolist()
        self._is_cut = not sampled or sampled[-1] != self.chat.end_of_turn_id
        text = self.chat.decode_action(sampled if self._is_cut else sampled[:-1])
        self.messages.append(_message("assistant", text))
        self._awaits_action = False
        return text

    def reply(self, text: str, *, terminated: bool) -> TokenIds:
        """Return the ids that the environment adds to the stream after an action.

        They are the end-of-turn token if the action lacked it, whatever the template writes after it, the user's turn,
        and, unless the episode has terminated, the generation prompt.
        """
        if self._awaits_action or not self.messages:
            raise ValueError("Conversation: a reply follows an action; got a reply without one. Call act before.")
        ids = self.chat.encode_reply(text, add_generation_prompt=not terminated)
        self.messages.append(_message("user", text))
        self._awaits_action = not terminated
        return np.asarray(ids if self._is_cut else ids[1:], np.int64)


def chat_tokenizer(
    tokenizer: str | Path | PreTrainedTokenizerBase | ChatTokenizer | None = None,
    chat_template: str | Path | None = None,
    vocab_size: int = 0,
) -> ChatTokenizer:
    """Return a `ChatTokenizer`, the same one for the same names: environments of one process share it."""
    if isinstance(tokenizer, ChatTokenizer) and chat_template is None:
        return tokenizer
    if tokenizer is None or isinstance(tokenizer, str | Path):
        return _shared_chat_tokenizer(tokenizer and str(tokenizer), chat_template and str(chat_template), vocab_size)
    return ChatTokenizer(tokenizer, chat_template, vocab_size)


@lru_cache(maxsize=8)
def _shared_chat_tokenizer(tokenizer: str | None, chat_template: str | None, vocab_size: int) -> ChatTokenizer:
    return ChatTokenizer(tokenizer, chat_template, vocab_size)


def _tokenizer_object(tokenizer: Any) -> Any:
    """Return a Hugging Face tokenizer from what the caller gave."""
    if isinstance(tokenizer, ChatTokenizer):
        return tokenizer.tokenizer
    if tokenizer is None or isinstance(tokenizer, str | Path):
        from transformers import AutoTokenizer

        path = TINY_MODEL_DIR if tokenizer in (None, "tiny") else Path(str(tokenizer)).expanduser()
        # A folder may hold a tokenizer alone, without the config.json of a model.
        is_folder = (path / "tokenizer.json").is_file() or (path / "tokenizer_config.json").is_file()
        tokenizer = AutoTokenizer.from_pretrained(path if is_folder else resolve_base_model(tokenizer or "tiny"))
    if getattr(tokenizer, "backend_tokenizer", None) is None:
        raise ConfigError(
            "ChatTokenizer: tokenizer must be a Hugging Face tokenizer with a `tokenizers` backend; "
            f"got {type(tokenizer).__name__}. Give a model's name or folder, or AutoTokenizer.from_pretrained(...)."
        )
    return tokenizer


def _template_source(tokenizer: Any, name: str, chat_template: str | Path | None) -> str:
    """Return Jinja source from what the caller gave: source, a path, a shipped name, or nothing."""
    if chat_template is None:
        if not tokenizer.chat_template:
            raise ChatTemplateError(
                f"ChatTokenizer: a tokenizer must have a chat template; {name} has none. "
                f"Give chat_template= Jinja source, a .jinja file, or a shipped one ({_shipped_names()})."
            )
        return tokenizer.get_chat_template()
    text = str(chat_template)
    if "{%" in text or "{{" in text:
        return text
    for path in (CHAT_TEMPLATE_DIR / f"{text}.jinja", Path(text).expanduser()):
        if path.is_file():
            return path.read_text(encoding="utf-8")
    raise ChatTemplateError(
        "ChatTokenizer: chat_template must be Jinja source, a .jinja file or the name of a shipped template; "
        f"got {text!r}. Did you mean {nearest(text, _shipped_names().split(', '))!r}?"
    )


def _shipped_names() -> str:
    return ", ".join(sorted(path.stem for path in CHAT_TEMPLATE_DIR.glob("*.jinja")))


def _message(role: str, content: str) -> Message:
    return {"role": role, "content": content}


def _longest_first(special: dict[str, Any]) -> list[tuple[str, Any]]:
    """One special token may begin with another; the longest match wins, as in the tokenizer."""
    return [(content, special[content][1]) for content in sorted(special, key=len, reverse=True)]


def _pattern(token: Any) -> str:
    """Return a pattern for a special token; some of them swallow the white space around them (Phi-3)."""
    return (r"\s*" if token.lstrip else "") + re.escape(token.content) + (r"\s*" if token.rstrip else "")
