"""Text to tokens and back: a chat template, rendered turn by turn so that no token is ever encoded twice."""

from __future__ import annotations

import re
from collections.abc import Sequence
from copy import deepcopy
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jinja2 import TemplateError
from tokenizers import AddedToken

from rllm_gym.chat_template import any_of, find_template, renderer, role_markers, shipped_names
from rllm_gym.errors import ChatTemplateError
from rllm_gym.models import resolve_tokenizer
from rllm_gym.tokenizer_files import load_with_transformers, read_tokenizer
from rllm_gym.types import Message, TokenIds

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

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
    """A tokenizer with a chat template that only ever appends.

    On construction the template proves on short conversations that the ids of `Conversation` are the ids that it
    renders for the same messages. Everything is read-only from then on: one object serves many conversations and
    threads.

    A token in the list of added tokens ("special" or not) is written by the template or sampled by the policy. Text
    from an environment that spells one is encoded as ordinary characters.

    Args:
        tokenizer: a folder or a hub name; a Hugging Face tokenizer object; a `ChatTokenizer` (with another template, or
            as it is); None for the tokenizer of the shipped model.
        chat_template: Jinja source, a path to a .jinja file or the name of a shipped template, such as
            "qwen3_append_only". None takes the tokenizer's own.
        vocab_size: the model's, where it is larger than the tokenizer's: many models have more outputs than there are
            tokens, and sometimes sample one, which is no text.

    Attributes:
        chat_template: the Jinja source in use.
        end_of_turn_id: the token that the template writes after an assistant's content. `eos_token` is often another
            one.
        stop_ids: what ends a sampled turn: `end_of_turn_id`, then the tokenizer's `eos_token` where that differs.
        role_markers: what the template writes before a content to say whose it is, as text.
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
        if isinstance(tokenizer, ChatTokenizer):
            chat_template = chat_template or tokenizer.chat_template
            vocab_size = max(vocab_size, tokenizer.vocab_size)
            tokenizer = tokenizer._args[0]
        self._args: tuple[Any, str | Path | None, int] = (tokenizer, chat_template, vocab_size)
        parts = read_tokenizer(tokenizer)
        self.name = parts.name
        self._backend = parts.backend
        self._plain_backend: Any = None
        source = parts.chat_template if chat_template is None else find_template(chat_template)
        if source is None:
            raise ChatTemplateError(
                f"ChatTokenizer: a tokenizer must have a chat template; {self.name} has none. "
                f"Give chat_template= Jinja source, a .jinja file, or a shipped one ({shipped_names()})."
            )
        self.chat_template: str = source

        decoder = self._backend.get_added_tokens_decoder()
        # Some tokenizers add runs of spaces or line breaks, which nothing can be forged with.
        self._added = {token.content: (i, token) for i, token in decoder.items() if token.content.strip()}
        patterns = [_pattern(self._added[content][1]) for content in sorted(self._added, key=len, reverse=True)]
        self._split = re.compile("|".join(patterns) or "(?!)")
        self._protected = any_of([*self._added, _FENCE])
        self._restore = re.compile(f"{_FENCE}(\\d+){_FENCE}")
        is_normalized = any(token.normalized for _, token in self._added.values())
        self._normalizer = self._backend.normalizer if is_normalized else None
        self.vocab_size: int = max(self._backend.get_vocab_size(), 1 + max(decoder, default=-1), vocab_size)

        special = [content for content, (_, token) in self._added.items() if token.special]
        self._protected_in_actions = any_of([*special, _FENCE])
        try:
            self._template = renderer(source, parts.special_tokens)
            self.has_system_role = self._find_system_role()
            self.end_of_turn_id = self._find_end_of_turn()
        except TemplateError as error:
            raise self._error(
                "must render a user's and an assistant's turn", f"{type(error).__name__}: {error}"
            ) from error
        self._end_of_turn = decoder[self.end_of_turn_id].content
        self._protected_in_actions = any_of([*special, self._end_of_turn, _FENCE])
        eos = self._backend.token_to_id(parts.special_tokens.get("eos_token", ""))
        self.stop_ids = (self.end_of_turn_id,) + ((eos,) if eos not in (None, self.end_of_turn_id) else ())
        self._check_append_only()
        bos = parts.special_tokens.get("bos_token", "")
        self.role_markers = role_markers(self._template, self._end_of_turn, bos, has_system_role=self.has_system_role)
        self._role_marker = any_of(self.role_markers)

    @cached_property
    def tokenizer(self) -> Any:
        """The Hugging Face tokenizer, for what it alone does, such as saving itself. Loads transformers."""
        source = self._args[0]
        if source is None or isinstance(source, str | Path):
            return load_with_transformers(resolve_tokenizer(source or "tiny"))
        return source

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
        protected = self._protect(text, saved, self._protected_in_actions)
        # Encoded behind the generation prompt, since some tokenizers mark the beginning of a text.
        prompt = self._render([_message("user", "?")], True, [])
        prompt_ids = self._encode(prompt, [])
        ids = self._encode(prompt + protected + self._end_of_turn, saved)
        if ids[: len(prompt_ids)] != prompt_ids:  # prompt and text share a token, which no policy could sample
            ids = prompt_ids + self._encode(protected + self._end_of_turn, saved)
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
        return len(self._encode(self._protect(text, saved, self._protected), saved))

    def count_role_markers(self, text: str) -> int:
        """Return how often a text spells what the template writes at the beginning of a turn."""
        return len(self._role_marker.findall(text))

    def opening(self, system_prompt: str, text: str) -> list[Message]:
        """Return the first messages; without a system role the system prompt heads the user's turn."""
        if not system_prompt:
            return [_message("user", text)]
        if not self.has_system_role:
            return [_message("user", f"{system_prompt}\n\n{text}")]
        return [_message("system", system_prompt), _message("user", text)]

    def _render(self, messages: Sequence[Message], add_generation_prompt: bool, saved: list[str]) -> str:
        """Render with placeholders for whatever in the contents could be mistaken for an added token.

        What an assistant said keeps those that are not special: a policy writes its thoughts between them.
        """
        protected = []
        for m in messages:
            pattern = self._protected_in_actions if m["role"] == "assistant" else self._protected
            protected.append(_message(m["role"], self._protect(m["content"], saved, pattern)))
        return self._template(messages=protected, add_generation_prompt=add_generation_prompt)

    def _protect(self, text: str, saved: list[str], pattern: re.Pattern[str]) -> str:
        def placeholder(match: re.Match[str]) -> str:
            saved.append(match[0])
            return f"{_FENCE}{len(saved) - 1}{_FENCE}"

        # Some tokens are looked for in the normalized text, where other characters may have become theirs.
        if self._normalizer is not None and pattern.search(self._normalizer.normalize_str(text)):
            saved.append(text)
            return f"{_FENCE}{len(saved) - 1}{_FENCE}"
        return pattern.sub(placeholder, text)

    def _encode(self, text: str, saved: list[str]) -> list[int]:
        """Encode a rendered text; in what is saved, nothing becomes an added token."""
        if not saved:
            return self._backend.encode(text, add_special_tokens=False).ids
        if self._plain_backend is None:
            plain_backend = deepcopy(self._backend)
            # Special ones can be switched off.
            plain_backend.add_special_tokens([AddedToken(content, special=True) for content in self._added])
            plain_backend.encode_special_tokens = True
            self._plain_backend = plain_backend
        ids: list[int] = []
        end = 0
        for match in [*self._split.finditer(text), None]:
            plain = text[end : match.start() if match else None]
            if plain:
                plain = self._restore.sub(lambda m: saved[int(m[1])], plain)
                ids += self._plain_backend.encode(plain, add_special_tokens=False).ids
            if match:
                ids.append(self._id_of(match[0]))
                end = match.end()
        return ids

    def _id_of(self, matched: str) -> int:
        """Return the id of an added token, which may have swallowed the white space around it."""
        return self._added[matched if matched in self._added else matched.strip()][0]

    def _find_system_role(self) -> bool:
        try:
            return _SENTINEL in self._render([_message("system", _SENTINEL), _message("user", "?")], True, [])
        except TemplateError:
            return False

    def _find_end_of_turn(self) -> int:
        rendered = self._render([_message("user", "?"), _message("assistant", _SENTINEL)], False, [])
        after = rendered.partition(_SENTINEL)[2]
        match = self._split.match(after)
        if match is None:
            raise self._error(
                "must end an assistant's content with a special token", f"{after[:40]!r} after an assistant's content"
            )
        return self._id_of(match[0])

    def _check_append_only(self) -> None:
        for system_prompt in _PROBE_SYSTEMS:
            conversation = Conversation(self, system_prompt)
            ids = list(conversation.open(_PROBE_TURNS[0]))
            for action, reply in zip(_PROBE_TURNS[1::2], _PROBE_TURNS[2::2], strict=True):
                action_ids = self.encode_action(action)
                conversation.act(action_ids)
                terminated = reply == _PROBE_TURNS[-1]
                ids = [*ids, *action_ids, *conversation.reply(reply, terminated=terminated)]
                whole = self._template(messages=conversation.messages, add_generation_prompt=not terminated)
                expected = self._encode(whole, [])
                if ids != expected:
                    at = next((k for k, (a, b) in enumerate(zip(ids, expected, strict=False)) if a != b), len(expected))
                    raise self._error(
                        "must be append-only: what it rendered for a turn must stay as it is when the next one comes",
                        f"{self.decode(expected[at : at + 8])!r} in place of {self.decode(ids[at : at + 8])!r} "
                        f"(Qwen3's, for one, drops the thoughts of earlier turns)",
                    )

    def _error(self, rule: str, got: str) -> ChatTemplateError:
        return ChatTemplateError(
            f"ChatTokenizer: the chat template of {self.name} {rule}; got {got}. "
            f"Give chat_template= one that does: Jinja source, a .jinja file, or a shipped one ({shipped_names()})."
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
        return (
            self.name,
            self.chat_template,
            self.vocab_size,
            tuple((content, i) for content, (i, _) in self._added.items()),
        )

    def __repr__(self) -> str:
        return f"ChatTokenizer({self.name!r}, vocab_size={self.vocab_size}, end_of_turn={self._end_of_turn!r})"


class Conversation:
    """One agent's conversation with an environment, in messages and in tokens.

    Calls come in the order open, act, reply, act, reply, ... The ids that they return or take, put in a row, are
    exactly what the chat template renders for `messages`, as long as the policy samples canonical encodings. Ids
    sampled otherwise stay as sampled; the text is the same.

    A template that has a default system prompt (Qwen2.5) writes it if `system_prompt` is empty, here as there.
    `preamble` are turns before the task: what a user says, and what the policy is taken to have answered.

    Attributes:
        messages: the conversation so far. Entries are only ever added.
    """

    def __init__(self, chat: ChatTokenizer, system_prompt: str = "", preamble: Sequence[tuple[str, str]] = ()):
        self.chat = chat
        self.system_prompt = system_prompt
        self.preamble = preamble
        self.messages: list[Message] = []
        self._awaits_action = False
        self._is_cut = False

    def opening(self, text: str) -> list[Message]:
        """Return the messages up to the first one that the policy answers, `text`."""
        first, *rest = [*(said for turn in self.preamble for said in turn), text]
        messages = self.chat.opening(self.system_prompt, first)
        return messages + [_message(("assistant", "user")[k % 2], said) for k, said in enumerate(rest)]

    def open(self, text: str, *, terminated: bool = False) -> TokenIds:
        """Return the ids of the system prompt, the task and, unless all is over already, the generation prompt."""
        if self.messages:
            raise ValueError("Conversation: open comes first and once; got a second call. Make a new Conversation.")
        self.messages += self.opening(text)
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


def _message(role: str, content: str) -> Message:
    return {"role": role, "content": content}


def _pattern(token: AddedToken) -> str:
    """Return a pattern for an added token; some of them swallow the white space around them (Phi-3)."""
    content = re.escape(token.content)
    if token.single_word:
        content = rf"(?<!\w){content}(?!\w)"
    return (r"\s*" if token.lstrip else "") + content + (r"\s*" if token.rstrip else "")
