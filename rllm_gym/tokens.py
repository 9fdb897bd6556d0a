"""Text to tokens and back: a chat template, rendered turn by turn so that no token is ever encoded twice."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from copy import deepcopy
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jinja2 import TemplateError
from tokenizers import AddedToken

from rllm_gym.chat_template import compile_any, find_arguments, find_template, renderer, role_markers, shipped_names
from rllm_gym.errors import ChatTemplateError, ConfigError, nearest
from rllm_gym.kept_spans import EncodedText, common_prefix, find_spans, first_token_at, sampled_tokens, splice
from rllm_gym.models import resolve_tokenizer
from rllm_gym.template_sandbox import TemplateBoundError
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
HISTORIES = ("auto", "append_only", "as_template")
# End a turn that calls a function: gpt-oss, GLM, Llama 3 and 4, Gemma 4. Their generation_config.json says so, too.
_ENDS_OF_CALLS = ("<|call|>", "<|observation|>", "<|eom_id|>", "<|eom|>", "<|tool_response>")
_OPENS_THOUGHT, _CLOSES_THOUGHT = "<think>", "</think>"


class ChatTokenizer:
    """A tokenizer with a chat template, for conversations that grow turn by turn.

    Most templates only ever append. On construction such a template proves on short conversations that the ids of
    `Conversation` are the ids that it renders for the same messages. Other templates rewrite what was said: they drop
    old thoughts, or open one in the generation prompt. With those (`history` is "as_template") every turn's prompt is
    what the template renders for the messages, with the ids that were sampled wherever their text is kept.
    Everything is read-only after the construction: one object serves many conversations and threads.

    A token in the list of added tokens ("special" or not) is written by the template or sampled by the policy. Text
    from an environment that spells one is encoded as ordinary characters.

    Args:
        tokenizer: a folder or a hub name; a Hugging Face tokenizer object; a `ChatTokenizer` (with another template, or
            as it is); None for the tokenizer of the shipped model.
        chat_template: Jinja source, a path to a .jinja file or the name of a shipped template, such as
            "qwen3_append_only". None takes the tokenizer's own.
        vocab_size: the model's, where it is larger than the tokenizer's: many models have more outputs than there are
            tokens, and sometimes sample one, which is no text.
        history: "append_only" refuses a template that rewrites what was said, "as_template" renders the whole
            conversation at every turn, "auto" does so where the template is not append-only.
        chat_template_kwargs: variables of the template, such as `enable_thinking`.
        template_date: the date that a template writes, as 2026-01-31; None is `TEMPLATE_DATE`.

    Attributes:
        chat_template: the Jinja source in use.
        history: "append_only" or "as_template".
        end_of_turn_id: the token that the template writes after an assistant's content: the marker of the next role,
            where it writes nothing else (GLM), and `eos_token` where it writes no token. `eos_token` is often another
            one.
        stop_ids: what ends a sampled turn: `end_of_turn_id`, then the tokenizer's `eos_token` and the `eos_token_id` of
            the model's generation_config.json, where these differ, and what ends a call of a function.
        role_markers: what the template writes before a content to say whose it is, as text.
        vocab_size: every id is smaller.

    Raises:
        ChatTemplateError: there is no template, or it cannot be used as `history` says.
    """

    def __init__(
        self,
        tokenizer: str | Path | PreTrainedTokenizerBase | ChatTokenizer | None = None,
        chat_template: str | Path | None = None,
        vocab_size: int = 0,
        history: str = "auto",
        chat_template_kwargs: Mapping[str, Any] | None = None,
        template_date: str | None = None,
    ):
        if history not in HISTORIES:
            raise ConfigError(
                f"history: must be one of {', '.join(HISTORIES)}; got {history!r}. Did you mean "
                f"{nearest(str(history), HISTORIES)!r}?"
            )
        if isinstance(tokenizer, ChatTokenizer):
            chat_template = chat_template or tokenizer.chat_template
            vocab_size = max(vocab_size, tokenizer.vocab_size)
            tokenizer, *_, kwargs, date = tokenizer._args
            chat_template_kwargs, template_date = chat_template_kwargs or kwargs, template_date or date
        self._args: tuple[Any, ...] = (
            tokenizer,
            chat_template,
            vocab_size,
            history,
            chat_template_kwargs,
            template_date,
        )
        parts = read_tokenizer(tokenizer)
        self.name = parts.name
        self._backend = parts.backend
        self._backend.post_processor = None  # it adds nothing here, and moves the offsets of tokens
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
        self._protected = compile_any([*self._added, _FENCE])
        self._restore = re.compile(f"{_FENCE}(\\d+){_FENCE}")
        is_normalized = any(token.normalized for _, token in self._added.values())
        self._normalizer = self._backend.normalizer if is_normalized else None
        self.vocab_size: int = max(self._backend.get_vocab_size(), 1 + max(decoder, default=-1), vocab_size)

        self._hard_ids = frozenset(i for i, _ in self._added.values())
        special = [content for content, (_, token) in self._added.items() if token.special]
        self._protected_in_actions = compile_any([*special, _FENCE])
        eos = self._backend.token_to_id(parts.special_tokens.get("eos_token", ""))
        # An ordinary token is part of what is said, whatever a file says of it; ends are among the added ones.
        added = self._backend.get_added_tokens_decoder()
        self._ordinary_ends = [i for i in parts.end_ids if i not in added and i < self.vocab_size]
        ends = ([] if eos is None else [eos]) + [i for i in parts.end_ids if i in added]
        ends = [i for i in ends if i < self.vocab_size]
        self._special_tokens = parts.special_tokens
        self._as_parts = False
        self.has_system_role = True
        self._end_of_turn = ""
        try:
            self._template = renderer(
                source, parts.special_tokens, template_kwargs=chat_template_kwargs or {}, template_date=template_date
            )
            self._as_parts = self._finds_parts()
            self.has_system_role = self._find_system_role()
            self.end_of_turn_id, ends_at_once = self._find_end_of_turn(ends)
            self._end_of_turn = self._text_of(self.end_of_turn_id)
            self._protected_in_actions = compile_any([*special, self._end_of_turn, _FENCE])
            ends_of_calls = [self._added[end][0] for end in _ENDS_OF_CALLS if end in source and end in self._added]
            self.stop_ids = tuple(dict.fromkeys([self.end_of_turn_id, *ends, *ends_of_calls]))
            self._lead, self._writes_lead = self._find_lead()
            self.history = self._choose_history(history, ends_at_once)
            bos = parts.special_tokens.get("bos_token", "")
            self.role_markers = role_markers(
                self._render_plainly, self._end_of_turn, bos, has_system_role=self.has_system_role
            )
        except TemplateError as error:
            raise self._error(
                "must render a user's and an assistant's turn",
                f"{type(error).__name__}: {' '.join(str(error).split())[:300]}",
            ) from error
        self._role_marker = compile_any(self.role_markers)

    @cached_property
    def tokenizer(self) -> Any:
        """The Hugging Face tokenizer, for what it alone does, such as saving itself. Loads transformers."""
        source = self._args[0]
        if source is None or isinstance(source, str | Path):
            return load_with_transformers(resolve_tokenizer(source or "tiny"))
        return source

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> list[int]:
        """Return the ids that the template renders for `messages` and `tools`, contents as plain text."""
        saved: list[str] = []
        return self._encode(self._render(messages, add_generation_prompt, saved, tools=tools), saved)

    def encode_reply(
        self,
        reply: str | Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> list[int]:
        """Return the ids from the end-of-turn token of an assistant turn to the end of what answers it.

        What was said before does not matter: this is what append-only means, and why a turn costs the same at any
        length.

        Args:
            reply: what a user says, or messages.
            tools: the functions that the template tells the policy of.
        """
        saved: list[str] = []
        answers = [_message("user", reply)] if isinstance(reply, str) else reply
        messages = [_message("user", "?"), _message("assistant", _SENTINEL), *answers]
        rendered = self._render(messages, add_generation_prompt, saved, tools=tools)
        return self._encode(rendered.partition(_SENTINEL)[2], saved)

    def encode_turns(
        self,
        messages: Sequence[Mapping[str, Any]],
        sampled: Mapping[int, Sequence[int]],
        *,
        add_generation_prompt: bool,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> tuple[list[int], int]:
        """Return the ids of a conversation in which turns that were sampled keep their ids wherever their text is kept.

        The text is what the template renders for `messages`; outside the sampled turns the ids are its tokens.

        Args:
            messages: role and content, and what else a template knows, such as `tool_calls`.
            sampled: of the messages, by their numbers, that were sampled: the ids without what ended the turn. A
                message with `tool_calls` is what they say, as the template knows it.
            tools: the functions that the template tells the policy of.

        Returns:
            The ids, and how many of them stand before what follows the last sampled turn.
        """
        sampled = {k: ids for k, ids in sampled.items() if _FENCE not in (messages[k]["content"] or "")}
        marked = [_marked(m, f"{_SENTINEL}-{k}-") if k in sampled else m for k, m in enumerate(messages)]
        as_said = [k for k in sampled if "tool_calls" not in messages[k]]
        saved: list[str] = []
        try:
            rendered = self._render(messages, add_generation_prompt, saved, as_said=as_said, tools=tools)
        except TemplateError:  # it refuses what the policy wrote (gpt-oss: a channel's marker), so that is plain text
            saved.clear()
            rendered = self._render(messages, add_generation_prompt, saved, tools=tools)
        saved_too: list[str] = []
        skeleton = self._restored(self._render(marked, add_generation_prompt, saved_too, tools=tools), saved_too)
        encoded = self._encode_text(rendered, saved)
        texts = [self.decode_action(ids) for ids in sampled.values()]
        found = find_spans(encoded.text, skeleton, [f"{_SENTINEL}-{k}-" for k in sampled], texts)
        kept = [
            tokens
            for spans, text, ids in zip(found, texts, sampled.values(), strict=True)
            for span in spans
            if (tokens := sampled_tokens(ids, text, span, self.decode_action)) is not None
        ]
        ids = splice(encoded, kept, lambda text: self._plain(saved).encode(text, add_special_tokens=False).ids)
        last = skeleton.rfind(f"{_SENTINEL}-") if sampled else -1
        num_after = len(skeleton) - last - len(f"{_SENTINEL}-{max(sampled, default=0)}-")
        after = sum(start >= len(encoded.text) - num_after for start in encoded.starts) if last >= 0 else 0
        return ids, max(1, len(ids) - after)

    def encode_action(self, text: str) -> list[int]:
        """Return the ids of a whole assistant turn: `text`, as the template writes it, and the end-of-turn token."""
        saved: list[str] = []
        has_thought = _CLOSES_THOUGHT in text and _CLOSES_THOUGHT in self._lead
        lead = "" if has_thought or text.startswith(self._lead) else self._lead
        protected = lead + self._protect(text, saved, self._protected_in_actions)
        # Encoded behind the generation prompt, since some tokenizers mark the beginning of a text.
        prompt = self._render([_message("user", "?")], True, [])
        prompt_ids = self._encode(prompt, [])
        is_added = self._end_of_turn in self._added
        end = self._end_of_turn if is_added else ""
        ids = self._encode(prompt + protected + end, saved)
        if ids[: len(prompt_ids)] != prompt_ids:  # prompt and text share a token, which no policy could sample
            ids = prompt_ids + self._encode(protected + end, saved)
        return ids[len(prompt_ids) :] + ([] if is_added else [self.end_of_turn_id])

    def encode_answer(self, messages: Sequence[Message]) -> list[int]:
        """Return the ids of a conversation's last message, an assistant's, as the template renders it there.

        They are what follows the generation prompt, up to the end-of-turn token: a template may strip the content, put
        something before or behind it, or leave a part out. Where the generation prompt opens a thought, it is
        `encode_action`'s.
        """
        saved: list[str] = []
        prompt, whole = self._render(messages[:-1], True, []), self._render(messages, False, saved)
        end = whole.find(self._end_of_turn, len(prompt)) if self._end_of_turn in self._added else -1
        if not whole.startswith(prompt) or end < 0:
            return self.encode_action(messages[-1]["content"])
        whole = whole[: end + len(self._end_of_turn)]
        prompt_ids, ids = self._encode(prompt, saved), self._encode(whole, saved)
        if ids[: len(prompt_ids)] != prompt_ids:  # prompt and text share a token, which no policy could sample
            return self._encode(whole[len(prompt) :], saved)
        return ids[len(prompt_ids) :]

    def encode_calls(
        self, message: Mapping[str, Any], answers: Sequence[Mapping[str, Any]], *, tools: Sequence[Mapping[str, Any]]
    ) -> tuple[list[int], str]:
        """Return an assistant's turn that calls functions, as the template writes it before their answers.

        Args:
            message: with its `tool_calls`.
            answers: in the tool role.

        Returns:
            Its ids with the token that ends it, and its text without.
        """
        user, saved = _message("user", "?"), list[str]()
        prompt = self._render([user], True, [], tools=tools)
        whole = self._render([user, message, *answers], True, saved, tools=tools)
        if whole.startswith(prompt):
            turn = whole[len(prompt) :]
        else:  # the prompt opens a thought, which the template leaves out of a turn without one
            said = self._render([user, _message("assistant", _SENTINEL), user], False, [], tools=tools)
            turn = whole[common_prefix(prompt, said.partition(_SENTINEL)[0]) :]
        end = compile_any([text for i in self.stop_ids if (text := self._text_of(i))]).search(turn)
        if end is None:
            raise self._error("must end a turn that calls a function with a special token", f"{turn[:80]!r}")
        turn = turn[: end.start()]
        if not whole.startswith(prompt):
            turn = self._lead + (turn.partition(_CLOSES_THOUGHT)[2] or turn).lstrip("\n")
        prompt_ids, ids = self._encode(prompt, []), self._encode(prompt + turn + end[0], saved)
        if ids[: len(prompt_ids)] != prompt_ids:
            ids = prompt_ids + self._encode(turn + end[0], saved)
        return ids[len(prompt_ids) :], self._restored(turn, saved)

    def without_end(self, ids: Sequence[int]) -> list[int]:
        """Return a sampled turn without the token that ended it, if one did."""
        listed = [int(i) for i in ids]
        return listed[:-1] if listed and listed[-1] in self.stop_ids else listed

    def length_up_to(self, ids: Sequence[int] | TokenIds, stop: Sequence[str]) -> int:
        """Return how many tokens of a sampled turn there are up to the one in which the first of some texts ends.

        All of them where there is none, or where nothing but the end of the turn follows.
        """
        listed = [int(i) for i in ids]
        text = self.decode_action(listed)
        end = end_of_first(text, stop)
        if end is None:
            return len(listed)
        length = first_token_at(listed, end, self.decode_action)
        return len(listed) if len(self.without_end(listed)) <= length else length

    def turn_length(self, ids: Sequence[int] | TokenIds, limits: tuple[Sequence[str], int | None]) -> int:
        """Return how many of the sampled tokens are the turn, see `length_up_to`.

        Args:
            limits: the texts that end a turn, and the most tokens that it may have.
        """
        stop, most = limits
        length = self.length_up_to(ids, stop) if stop else len(ids)
        return length if most is None else min(length, most)

    def early_end(self, limits: tuple[Sequence[str], int | None]) -> Callable[[Sequence[int]], bool] | None:
        """Return the test whether the tokens so far are a turn, see `turn_length`; None without limits."""
        stop, most = limits
        if not stop and most is None:
            return None
        num_last = max((len(text.encode()) for text in stop), default=0)  # a token has a byte at least

        def is_over(ids: Sequence[int]) -> bool:
            is_full = most is not None and len(ids) >= most
            return is_full or end_of_first(self.decode_action(ids[-num_last:]), stop) is not None

        return is_over

    def said(self, ids: Sequence[int]) -> str:
        """Return the text of a sampled turn for the other side, without the token that ended it.

        Where the template writes a marker before an answer (the final channel of gpt-oss), that is what follows it.
        White space that it writes there, and the policy with it (` ASSISTANT: `), is the template's, not the text's.
        """
        text = self.decode_action(self.without_end(ids))
        if not self._writes_lead:
            return text
        return text.rpartition(self._lead)[2] if self._lead.strip() else text.removeprefix(self._lead)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of `ids`, special tokens spelt out."""
        return self._backend.decode([int(i) for i in ids], skip_special_tokens=False)

    def decode_action(self, ids: Sequence[int]) -> str:
        """Return the text of an assistant's turn.

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

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> str:
        """Return the text that the template renders for `messages` and `tools`.

        Raises:
            jinja2.TemplateError: it refuses them.
        """
        return self._render_plainly(messages, add_generation_prompt, tools)

    def _render(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool,
        saved: list[str],
        as_said: Collection[int] = (),
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> str:
        """Render with placeholders for whatever in the contents could be mistaken for an added token.

        What an assistant said keeps those that are not special: a policy writes its thoughts between them. The messages
        `as_said` stay as they are.
        """
        protected = []
        for k, m in enumerate(messages):
            pattern = self._protected_in_actions if m["role"] == "assistant" else self._protected
            keep = k in as_said or m["content"] is None
            content = m["content"] if keep else self._protect(m["content"], saved, pattern)
            others = {key: self._protect_all(value, saved) for key, value in m.items() if key not in _message("", "")}
            protected.append({"role": m["role"], "content": content, **others})
        tools = self._protect_all(list(tools), saved)
        return self._render_plainly(protected, add_generation_prompt, tools)

    def _render_plainly(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool,
        tools: Sequence[Mapping[str, Any]] = (),
        **variables: Any,
    ) -> str:
        shaped = list(messages)
        if self._as_parts:
            shaped = [
                m if m["content"] is None else {**m, "content": [{"type": "text", "text": m["content"]}]}
                for m in messages
            ]
        known = {"tools": tools} if tools else {}
        return self._template(messages=shaped, add_generation_prompt=add_generation_prompt, **known, **variables)

    def _protect_all(self, value: Any, saved: list[str]) -> Any:
        """Protect every text in what a template may write as JSON."""
        if isinstance(value, str):
            return self._protect(value, saved, self._protected)
        if isinstance(value, Mapping):
            pairs = value.items()
            return {self._protect_all(key, saved): self._protect_all(one, saved) for key, one in pairs}
        return [self._protect_all(one, saved) for one in value] if isinstance(value, list) else value

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
        return [i for _, found in self._pieces(text, saved) for i in (found.ids if hasattr(found, "ids") else [found])]

    def _encode_text(self, text: str, saved: list[str]) -> EncodedText:
        """Encode a rendered text, and tell which of its characters each token stands for."""
        ids, starts, ends = [], [], []
        whole = ""
        for piece, found in self._pieces(text, saved):
            if hasattr(found, "ids"):
                ids += found.ids
                starts += [len(whole) + start for start, _ in found.offsets]
                ends += [len(whole) + end for _, end in found.offsets]
            else:
                ids.append(found)
                starts.append(len(whole))
                ends.append(len(whole) + len(piece))
            whole += piece
        return EncodedText(whole, ids, starts, ends, [k for k, i in enumerate(ids) if i in self._hard_ids])

    def _pieces(self, text: str, saved: list[str]) -> Iterator[tuple[str, Any]]:
        """Yield the pieces of a rendered text, placeholders restored: each with its encoding, or its id."""
        if not saved:
            yield text, self._backend.encode(text, add_special_tokens=False)
            return
        end = 0
        for match in [*self._split.finditer(text), None]:
            plain = text[end : match.start() if match else None]
            if plain:
                plain = self._restored(plain, saved)
                yield plain, self._plain(saved).encode(plain, add_special_tokens=False)
            if match:
                yield match[0], self._id_of(match[0])
                end = match.end()

    def _plain(self, saved: list[str]) -> Any:
        """Return the encoder of text between added tokens: where some are spelt out, one that makes none of them."""
        if not saved:
            return self._backend
        if self._plain_backend is None:
            plain_backend = deepcopy(self._backend)
            # Special ones can be switched off.
            plain_backend.add_special_tokens([AddedToken(content, special=True) for content in self._added])
            plain_backend.encode_special_tokens = True
            self._plain_backend = plain_backend
        return self._plain_backend

    def _restored(self, text: str, saved: list[str]) -> str:
        return self._restore.sub(lambda m: saved[int(m[1])], text) if saved else text

    def _text_of(self, token_id: int) -> str:
        return self._backend.get_added_tokens_decoder()[token_id].content if token_id in self._hard_ids else ""

    def _id_of(self, matched: str) -> int:
        """Return the id of an added token, which may have swallowed the white space around it."""
        return self._added[matched if matched in self._added else matched.strip()][0]

    def _find_system_role(self) -> bool:
        return self._says([_message("system", _SENTINEL), _message("user", "?")])

    def _finds_parts(self) -> bool:
        """Return whether the template wants contents as lists of parts, as those of models with images do."""
        messages = [_message("user", _SENTINEL)]
        if self._says(messages):
            return False
        self._as_parts = True
        try:
            return self._says(messages)
        finally:
            self._as_parts = False

    def _says(self, messages: Sequence[Mapping[str, Any]]) -> bool:
        """Return whether the template takes the messages and writes the sentinel that stands in them."""
        try:
            return _SENTINEL in self._render(messages, True, [])
        except TemplateBoundError:  # it would take as long with any others
            raise
        except TemplateError:
            return False

    def _find_end_of_turn(self, ends: Sequence[int]) -> tuple[int, bool]:
        """Return the token that ends an assistant's turn, and whether the template writes it right after the content.

        Args:
            ends: what ends a turn for the tokenizer and for the model.
        """
        for messages in ([], [_message("user", "?")]):  # at the end, or else before the next turn
            said = [_message("user", "?"), _message("assistant", _SENTINEL), *messages]
            _, is_said, after = self._render(said, False, []).partition(_SENTINEL)
            if not is_said:
                raise self._error("must render what an assistant says", "a rendering without it")
            if match := self._split.search(after):
                return self._id_of(match[0]), match.start() == 0
        if ends:
            return ends[0], False
        raise self._error(
            "must end an assistant's content with a special token, or the tokenizer must have an eos_token",
            f"{after[:40]!r} after an assistant's content",
        )

    def _find_lead(self) -> tuple[str, bool]:
        """Return the text between the generation prompt and a content, and whether the template writes it.

        Where the generation prompt opens a thought, it is what closes that.
        """
        user = _message("user", "?")
        prompt = self._render([user], True, [])
        before = self._render([user, _message("assistant", _SENTINEL), user], False, []).partition(_SENTINEL)[0]
        if before.startswith(prompt):
            return before[len(prompt) :], True
        if _CLOSES_THOUGHT not in prompt.rpartition(_OPENS_THOUGHT)[2] and _OPENS_THOUGHT in prompt:
            return f"\n{_CLOSES_THOUGHT}\n\n", False
        return "", False

    def _choose_history(self, history: str, ends_at_once: bool) -> str:
        if history == "as_template":
            return history
        self.history = "append_only"
        fault = self._append_only_fault() if ends_at_once else self._no_end()
        if fault and ends_at_once and self.has_system_role:  # some put the system prompt into the last user's turn
            self.has_system_role = False
            fault_without = self._append_only_fault()
            self.has_system_role = fault_without is not None
            fault = fault_without
        if history == "append_only":
            if fault:
                raise fault
            return history
        # A template that writes something before a content is followed exactly only by reading what was sampled.
        return "as_template" if fault or self._lead else "append_only"

    def _no_end(self) -> ChatTemplateError:
        said = [_message("user", "?"), _message("assistant", _SENTINEL), _message("user", "?")]
        after = self._render(said, False, []).partition(_SENTINEL)[2]
        return self._error(
            "must end an assistant's content with a special token", f"{after[:40]!r} after an assistant's content"
        )

    def _append_only_fault(self) -> ChatTemplateError | None:
        for system_prompt in _PROBE_SYSTEMS:
            conversation = Conversation(self, system_prompt)
            ids = list(conversation.open(_PROBE_TURNS[0]))
            for action, reply in zip(_PROBE_TURNS[1::2], _PROBE_TURNS[2::2], strict=True):
                action_ids = self.encode_action(action)
                conversation.act(action_ids)
                terminated = reply == _PROBE_TURNS[-1]
                ids = [*ids, *action_ids, *conversation.reply(reply, terminated=terminated)]
                whole = self._render_plainly(conversation.messages, not terminated)
                expected = self._encode(whole, [])
                if ids != expected:
                    at = next((k for k, (a, b) in enumerate(zip(ids, expected, strict=False)) if a != b), len(expected))
                    return self._error(
                        "must be append-only: what it rendered for a turn must stay as it is when the next one comes",
                        f"{self.decode(expected[at : at + 8])!r} in place of {self.decode(ids[at : at + 8])!r} "
                        f"(Qwen3's, for one, drops the thoughts of earlier turns)",
                    )
        return None

    def cost_of_history(self, num_turns: int = 5) -> tuple[int, float]:
        """Return the samples that an episode of so many turns gives, each with a thought, and the share of their tokens
        that more than one of them reads."""
        conversation = Conversation(self, _PROBE_SYSTEMS[1])
        num_tokens, num_repeated, num_samples = len(conversation.open(_PROBE_TURNS[0])), 0, 1
        for k in range(num_turns):
            action_ids = self.encode_action(_PROBE_TURNS[1])
            conversation.act(action_ids)
            added = conversation.reply(_PROBE_TURNS[2], terminated=False)
            if k < num_turns - 1:
                num_samples += bool(conversation.num_repeated)
                num_tokens += len(added)
                num_repeated += conversation.num_repeated
            num_tokens += len(action_ids)
        return num_samples, num_repeated / num_tokens

    @property
    def insists_on_append_only(self) -> bool:
        return self._args[3] == "append_only"

    @property
    def template_arguments(self) -> list[str]:
        """The template's own arguments, by name; `strftime_now` is among them where it writes the date."""
        return find_arguments(self.chat_template, self._special_tokens)

    @cached_property
    def takes_tools(self) -> bool:
        """Whether the template writes the tools that it is given."""
        function = {"name": _SENTINEL, "description": "?", "parameters": {"type": "object", "properties": {}}}
        tools = [{"type": "function", "function": function}]
        try:
            return _SENTINEL in self._render_plainly([_message("user", "?")], True, tools=tools)
        except TemplateError:
            return False

    def notes(self) -> list[str]:
        """Return the lines on the template and the ends of a turn that a run begins with; none where all is usual."""
        return [note for note in (self.note_on_history(), self.note_on_ends()) if note]

    def note_on_history(self) -> str:
        """Return the cost, in words, of a template that may rewrite what was said; "" where it only appends."""
        if self.history != "as_template":
            return ""
        num_samples, share = self.cost_of_history()
        if num_samples == 1:
            return "history: as_template: each prompt is rendered anew; five turns are one training sample all the same"
        return (
            "history: as_template: the chat template rewrites what was said, so that five turns with thoughts give "
            f"{num_samples} training samples, and {share:.0%} of their tokens are read more than once"
        )

    def note_on_ends(self) -> str:
        """Return a line on the ends of a turn where there are more than two, or ordinary tokens among them."""
        lines = []
        if len(self.stop_ids) > 2:
            lines.append(f"a turn ends with one of {', '.join(repr(self.decode([i])) for i in self.stop_ids)}")
        if self._ordinary_ends:
            lines.append(
                f"generation_config.json: eos_token_id names {len(self._ordinary_ends)} ordinary tokens, "
                "which end no turn"
            )
        return "; ".join(lines)

    def _error(self, rule: str, got: str) -> ChatTemplateError:
        return ChatTemplateError(f"ChatTokenizer: the chat template of {self.name} {rule}; got {got}. {self._advice()}")

    def _advice(self) -> str:
        """Return advice that works with this tokenizer."""
        _, chat_template, _, history, *_ = self._args
        if history == "append_only":
            fitting = [name for name in shipped_names().split(", ") if name != chat_template and self._takes(name)]
            shipped = f", or a shipped one ({', '.join(fitting)})" if fitting else ""
            return f"Leave history: auto, or give chat_template= one that does: Jinja source, a .jinja file{shipped}."
        return "Give chat_template= one that does, as Jinja source or a .jinja file."

    def _takes(self, chat_template: str) -> bool:
        source = find_template(chat_template)
        if not all(token in self._added for token in re.findall(r"<\|\w+\|>", source)):
            return False
        return ChatTokenizer(self._args[0], chat_template).history == "append_only"

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, self._args

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
            self.history,
            json.dumps([self._args[4] or {}, self._args[5]], sort_keys=True, default=repr),
            tuple((content, i) for content, (i, _) in self._added.items()),
        )

    def __repr__(self) -> str:
        return f"ChatTokenizer({self.name!r}, vocab_size={self.vocab_size}, end_of_turn={self._end_of_turn!r})"


class Conversation:
    """One agent's conversation with an environment, in messages and in tokens.

    Calls come in the order open, act, reply, act, reply, ... The ids that they return or take, put in a row, are
    exactly what the chat template renders for `messages`, as long as the policy samples canonical encodings. Ids
    sampled otherwise stay as sampled; the text is the same, but for white space that a policy samples at the edges of a
    turn and the template would strip (Llama 3, Gemma).

    Where the template rewrites what was said, or turns are left out, a reply is a whole new prompt: then `num_repeated`
    is the number of ids at its beginning that stand for what was said before, else 0.

    A template that has a default system prompt (Qwen2.5) writes it if `system_prompt` is empty, here as there.
    `preamble` are turns before the task: what a user says, and what the policy is taken to have answered.

    Attributes:
        messages: the conversation so far. Entries are only ever added.
        context_messages: those that the policy reads.
        num_repeated: of the last reply.
    """

    def __init__(self, chat: ChatTokenizer, system_prompt: str = "", preamble: Sequence[tuple[str, str]] = ()):
        self.chat = chat
        self.system_prompt = system_prompt
        self.preamble = preamble
        self.tools: Sequence[Mapping[str, Any]] = ()
        self.history = chat.history
        self.messages: list[Message] = []
        self.num_repeated = 0
        self._opening: TokenIds = np.zeros(0, np.int64)
        self._num_opening = 0  # messages
        self._begins: list[int] = []  # of turns, among the messages
        self._actions: list[list[int]] = []
        self._replies: list[TokenIds] = []  # append-only: what each added
        self._kept: list[int] = []  # turns that the policy reads
        self._context: list[int] = []  # as_template: what it has read and written
        self._awaits_action = False

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
        self._num_opening = len(self.messages)
        self._awaits_action = not terminated
        ids = self.chat.encode_chat(self.messages, add_generation_prompt=not terminated, tools=self.tools)
        self._context = ids
        self._opening = np.asarray(ids, np.int64)
        return self._opening

    def act(self, ids: Sequence[int] | TokenIds) -> str:
        """Record a sampled turn and return its text, without the token that ended it.

        Other special tokens are spelt out. A turn without the end-of-turn token was cut; the next reply supplies it.
        """
        if not self._awaits_action:
            raise ValueError(
                "Conversation: the policy acts after a generation prompt; got an action without one. Reset first."
            )
        sampled = np.asarray(ids, np.int64).tolist()
        text = self.chat.said(sampled)
        self._begins.append(len(self.messages))
        self.messages.append(_message("assistant", text))
        self._kept = [*self._kept, len(self._actions)]
        self._actions.append(sampled)
        self._awaits_action = False
        return text

    def answers(self, text: str, replies: Sequence[str] = ()) -> list[Message]:
        """Return the messages in which the environment answers the last turn."""
        return [_message("user", text)]

    def reply(
        self, text: str, *, terminated: bool, kept: Sequence[int] | None = None, replies: Sequence[str] = ()
    ) -> TokenIds:
        """Return the ids that the environment adds to the stream after an action, or a whole new prompt.

        They are the end-of-turn token if the action lacked it, whatever the template writes after it, the user's turn,
        and, unless the episode has terminated, the generation prompt.

        Args:
            kept: the turns, counted from 0, that the policy reads on; None is all that it read before.
            replies: the parts of the text that answer the calls of the turn, where there are several.
        """
        if self._awaits_action or not self.messages:
            raise ValueError("Conversation: a reply follows an action; got a reply without one. Call act before.")
        answers = self.answers(text, replies)
        self.messages += answers
        self._awaits_action = not terminated
        is_cut_down = kept is not None and list(kept) != self._kept
        if kept is not None:
            self._kept = list(kept)
        if self.history == "as_template":
            return self._as_template(add_generation_prompt=not terminated)
        ids = self.chat.encode_reply(answers, add_generation_prompt=not terminated, tools=self.tools)
        is_ended = self._actions[-1][-1:] == ids[:1]
        added = np.asarray(ids[1:] if is_ended else ids, np.int64)
        self._replies.append(added)
        if not is_cut_down:
            self.num_repeated = 0
            return added
        turns = [np.concatenate([np.asarray(self._actions[k], np.int64), self._replies[k]]) for k in self._kept]
        prompt = np.concatenate([self._opening, *turns])
        self.num_repeated = len(prompt) - len(added)
        return prompt

    @property
    def is_told_of_calls(self) -> bool:
        """Whether the template reads calls of functions as such, and not as text."""
        return False

    @property
    def leaves_out_turns(self) -> bool:
        return len(self._kept) < len(self._actions)

    @property
    def context_messages(self) -> list[Message]:
        ends = [*self._begins[1:], len(self.messages)]
        turns = [self.messages[self._begins[k] : ends[k]] for k in self._kept]
        return [*self.messages[: self._num_opening], *(message for turn in turns for message in turn)]

    def rendered(self, *, add_generation_prompt: bool) -> tuple[list[int], int]:
        """Return the ids of what the policy reads, see `ChatTokenizer.encode_turns`."""
        said = self.context_messages
        places = [k for k in range(self._num_opening, len(said)) if said[k]["role"] == "assistant"]
        sampled = {place: self.chat.without_end(self._actions[k]) for place, k in zip(places, self._kept, strict=True)}
        return self.chat.encode_turns(said, sampled, add_generation_prompt=add_generation_prompt, tools=self.tools)

    def _as_template(self, *, add_generation_prompt: bool) -> TokenIds:
        prompt, num_before = self.rendered(add_generation_prompt=add_generation_prompt)
        read = self._context + self._actions[-1]
        self._context = prompt
        if prompt[: len(read)] == read:
            self.num_repeated = 0
            return np.asarray(prompt[len(read) :], np.int64)
        self.num_repeated = num_before
        return np.asarray(prompt, np.int64)


def first_of(text: str, stop: Sequence[str]) -> tuple[int, int] | None:
    """Return where that of some texts begins and ends which is the first to end in another; None: there is none."""
    found = [(place, place + len(string)) for string in stop if (place := text.find(string)) >= 0]
    return min(found, key=lambda span: (span[1], span[0]), default=None)


def end_of_first(text: str, stop: Sequence[str]) -> int | None:
    """Return where the first of some texts ends in another; None where there is none."""
    span = first_of(text, stop)
    return None if span is None else span[1]


def chat_tokenizer(
    tokenizer: str | Path | PreTrainedTokenizerBase | ChatTokenizer | None = None,
    chat_template: str | Path | None = None,
    vocab_size: int = 0,
    **options: Any,
) -> ChatTokenizer:
    """Return a `ChatTokenizer`, the same one for the same names: environments of one process share it."""
    options = {name: value for name, value in options.items() if value is not None}
    if isinstance(tokenizer, ChatTokenizer) and chat_template is None and not options:
        return tokenizer
    if tokenizer is None or isinstance(tokenizer, str | Path):
        key = json.dumps(options, sort_keys=True, default=str)
        return _shared_chat_tokenizer(
            tokenizer and str(tokenizer), chat_template and str(chat_template), vocab_size, key
        )
    return ChatTokenizer(tokenizer, chat_template, vocab_size, **options)


@lru_cache(maxsize=8)
def _shared_chat_tokenizer(
    tokenizer: str | None, chat_template: str | None, vocab_size: int, options: str
) -> ChatTokenizer:
    return ChatTokenizer(tokenizer, chat_template, vocab_size, **json.loads(options))


def _unpickled(
    tokenizer: Any, chat_template: Any, vocab_size: int, history: str, kwargs: Any, date: Any
) -> ChatTokenizer:
    options = {"history": None if history == "auto" else history, "chat_template_kwargs": kwargs, "template_date": date}
    return chat_tokenizer(tokenizer, chat_template, vocab_size, **options)


def _message(role: str, content: str) -> Message:
    return {"role": role, "content": content}


def _marked(message: Mapping[str, Any], mark: str) -> Mapping[str, Any]:
    """Return a message with a mark for what it says: for its content, or for what its calls name."""
    if "tool_calls" not in message:
        return _message(message["role"], mark)
    [call, *_] = message["tool_calls"]
    function = {**call["function"], "name": mark}
    return {**message, "content": message["content"] and "", "tool_calls": [{**call, "function": function}]}


def _pattern(token: AddedToken) -> str:
    """Return a pattern for an added token; some of them swallow the white space around them (Phi-3)."""
    content = re.escape(token.content)
    if token.single_word:
        content = rf"(?<!\w){content}(?!\w)"
    return (r"\s*" if token.lstrip else "") + content + (r"\s*" if token.rstrip else "")
