"""Tool calls as a model's family has them: read by vLLM's parser of the family, written by the chat template."""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import os
import re
import threading
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

from jinja2 import TemplateError

from rllm_gym.errors import ConfigError, nearest
from rllm_gym.thoughts import without_thoughts
from rllm_gym.tokens import ChatTokenizer, Conversation
from rllm_gym.types import Message

# What stands in a call that a chat template writes, and vLLM's name of the parser that reads such calls. The first one
# that is there is taken.
SYNTAX = (
    ("<|channel|>", "openai"),
    ("[TOOL_CALLS]", "mistral"),
    ("<tool_call>\n<function=", "qwen3_coder"),
    ("<arg_key>", "glm47"),
    ("<tool_call>", "hermes"),
    ("<|tool_call>call:", "gemma4"),
    ("<|tool_call_start|>", "lfm2"),
    ("function<\uff5ctool\u2581sep\uff5c>", "deepseek_v3"),
    ("<\uff5ctool\u2581sep\uff5c>", "deepseek_v31"),
    ("<atem:function_calls>", "muse_glimmer"),
    ('{"name": "', "llama3_json"),
)
_REPLY = "reply-7f3a"
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)


class Parsed(NamedTuple):
    """The words and the calls of a completion.

    Args:
        content: None where it only calls.
        calls: name and arguments, as JSON, of each.
        thought: where the family writes thoughts in a channel of their own.
    """

    content: str | None
    calls: list[tuple[str, str]]
    thought: str | None = None


class Parser(Protocol):
    """A tool parser of vLLM."""

    def extract_tool_calls(self, model_output: str, request: Any) -> Any: ...


def import_parsers() -> None:
    """Import vLLM's parsers, which takes seconds.

    Raises:
        ConfigError: vLLM is not installed.
    """
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    try:
        import vllm.tool_parsers  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            "tool_parser: tool calls are read by vLLM's parsers, and vLLM is not installed. "
            'pip install "rllm-gym[cpu]", or use no tools.'
        ) from error
    for part in ("tool_parsers", "parser"):  # they log with a traceback whatever a policy writes amiss
        logging.getLogger(f"vllm.{part}").setLevel(logging.CRITICAL)


def load_parser(name: str, tokenizer: Any, tools: Sequence[Mapping[str, Any]] = ()) -> Parser:
    """Return vLLM's parser of a name.

    Args:
        tokenizer: the Hugging Face tokenizer of the model.
        tools: for the parsers of families that write arguments without their types.

    Raises:
        ConfigError: vLLM is not installed, or has no such parser, or it is not for this tokenizer.
    """
    import_parsers()
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionToolsParam
    from vllm.tool_parsers import ToolParserManager

    known = [*ToolParserManager.tool_parsers, *ToolParserManager.lazy_parsers]
    if name not in known:
        raise ConfigError(
            f"tool_parser: must be one of vLLM's, {', '.join(sorted(known))}; got {name!r}. "
            f"Did you mean {nearest(name, known)!r}?"
        )
    declared = [ChatCompletionToolsParam.model_validate(tool) for tool in tools]
    try:
        if name == "openai":
            return _Harmony(tokenizer)
        return ToolParserManager.get_tool_parser(name)(tokenizer, declared)
    except Exception as error:  # each has its own way to say that it misses a token
        reason = " ".join(str(error).split())[:200]
        raise ConfigError(
            f"tool_parser: vLLM's parser {name} is not for this tokenizer: {reason} Set another one, or "
            "format: function_call."
        ) from error


def parse(parser: Parser, text: str) -> Parsed:
    """Return the words and the calls of a text; one that cannot be read is only said."""
    found = parser.extract_tool_calls(text, None)
    if not found.tools_called:
        return Parsed(text, [])
    calls = [(call.function.name, call.function.arguments) for call in found.tool_calls]
    return Parsed(found.content, calls, getattr(found, "reasoning", None))


def choose_parser(chat: ChatTokenizer) -> str | None:
    """Return the name of the parser for the calls that a chat template writes; None where it is not known."""
    function = {"name": "look_up", "description": "?", "parameters": {"type": "object", "properties": {}}}
    try:
        return _Template(chat, [function]).parser
    except ConfigError:
        return None


class _Harmony:
    """Reads gpt-oss's turns: vLLM's tool parser of that name only points to this one of its own."""

    def __init__(self, tokenizer: Any) -> None:
        from vllm.entrypoints.openai.parser.harmony_utils import get_encoding
        from vllm.parser.harmony import HarmonyParser
        from vllm.reasoning.gptoss_reasoning_parser import GptOssReasoningParser
        from vllm.tool_parsers.gptoss_tool_parser import GptOssToolParser

        class Reader(HarmonyParser):
            reasoning_parser_cls = GptOssReasoningParser
            tool_parser_cls = GptOssToolParser

        self._encoding, self._parser = get_encoding(), Reader(tokenizer)

    def extract_tool_calls(self, model_output: str, request: Any) -> Any:
        from vllm.entrypoints.generate.base.protocol import ExtractedToolCallInformation, ToolCall

        ids = self._encoding.encode(model_output, allowed_special="all")
        thought, content, calls = self._parser.parse(model_output, request, True, ids)
        tool_calls = [ToolCall(function=call) for call in calls or ()]
        found = ExtractedToolCallInformation(tools_called=bool(tool_calls), tool_calls=tool_calls, content=content)
        object.__setattr__(found, "reasoning", thought)
        return found


class _Template:
    """How a chat template writes calls of functions.

    Args:
        functions: in JSON Schema, each with its name, description and parameters.

    Attributes:
        tools: the functions, as templates take them.
        parser: vLLM's name of the parser that reads its calls; None where it is not known.

    Raises:
        ConfigError: the template has no tools, or no way to write a call.
    """

    def __init__(self, chat: ChatTokenizer, functions: Sequence[Mapping[str, Any]]) -> None:
        self.chat = chat
        self.tools = [{"type": "function", "function": dict(function)} for function in functions]
        richest = max(functions, key=lambda function: len(function["parameters"]["properties"]))
        kinds = richest["parameters"]["properties"]
        arguments = {name: 2 if kind["type"] == "integer" else "some text" for name, kind in kinds.items()}
        self.example = (str(richest["name"]), json.dumps(arguments))
        self.takes_text, self.empty = self._find_shape(arguments)
        ids, self.written = self.encode(Parsed(None, [self.example]))
        self.end_id = ids[-1]
        self.parser = next((name for mark, name in SYNTAX if mark in self.written), None)

    def message(self, parsed: Parsed, number: int = 0) -> dict[str, Any]:
        """Return the message of an assistant that calls functions.

        Args:
            number: of the first of its calls, for their ids.
        """
        calls = [
            {
                "id": _id_of(number + k),
                "type": "function",
                "function": {"name": name, "arguments": text if self.takes_text else json.loads(text)},
            }
            for k, (name, text) in enumerate(parsed.calls)
        ]
        thinking = {"thinking": parsed.thought} if parsed.thought else {}
        return {"role": "assistant", "content": parsed.content or self.empty, **thinking, "tool_calls": calls}

    def answers(self, parsed: Parsed, replies: Sequence[str], number: int = 0) -> list[dict[str, Any]]:
        """Return the messages that answer its calls, in order."""
        called = zip(parsed.calls, replies, strict=False)
        return [_answer(name, reply, _id_of(number + k)) for k, ((name, _), reply) in enumerate(called)]

    def encode(self, parsed: Parsed) -> tuple[list[int], str]:
        """Return an assistant's turn as the template writes it: its ids, and its text without what ends it."""
        replies = [_REPLY] * len(parsed.calls)
        return self.chat.encode_calls(self.message(parsed), self.answers(parsed, replies), tools=self.tools)

    def _find_shape(self, arguments: Mapping[str, Any]) -> tuple[bool, str | None]:
        """Return whether the template takes arguments as text, and the content of a message that only calls."""
        reason = "a rendering without the call or its answer"
        for self.takes_text, self.empty in itertools.product((False, True), ("", None)):
            parsed = Parsed(None, [self.example])
            messages = [{"role": "user", "content": "?"}, self.message(parsed), *self.answers(parsed, [_REPLY])]
            try:
                rendered = self.chat.render(messages, add_generation_prompt=True, tools=self.tools)
            except TemplateError as error:
                reason = " ".join(str(error).split())[:200]
                continue
            if _REPLY in rendered and all(str(value) in rendered for value in arguments.values()):
                return self.takes_text, self.empty
        raise ConfigError(
            f"agent: format: tools needs a chat template that writes tools, calls and their answers; that of "
            f"{self.chat.name} does not: {reason}. Take format: function_call, or give a chat_template that does."
        )


class ToolCalls:
    """The calls of an environment's functions, in the syntax of a model's family.

    Where the template renders a turn that was sampled as it renders the calls in it, a turn stays as it was said. Other
    templates are told of the calls, and write them as they do (Mistral's adds ids, gpt-oss's drops thoughts).

    Args:
        functions: in JSON Schema, each with its name, description and parameters.
        parser: vLLM's name of a parser; None is the one for what the template writes.

    Attributes:
        parser: its name.
        tools: the functions, as templates take them.
        history: of conversations with them, see `ChatTokenizer`.

    Raises:
        ConfigError: the template has no tools, or no parser reads its calls.
    """

    def __init__(self, chat: ChatTokenizer, functions: Sequence[Mapping[str, Any]], parser: str | None = None) -> None:
        if not chat.takes_tools:
            raise ConfigError(
                f"agent: format: tools needs a chat template that takes tools; that of {chat.name} takes none. "
                "Take format: function_call, which lists the functions in the system prompt."
            )
        self.chat = chat
        self.template = _Template(chat, functions)
        self.tools = self.template.tools
        name = parser or self.template.parser
        if name is None:
            raise ConfigError(
                f"agent: it is not known how to read the calls that the chat template of {chat.name} writes, like "
                f"{self.template.written!r:.100}. Set tool_parser to one of vLLM's, or format: function_call."
            )
        self.parser = name
        self._parser = load_parser(name, chat.tokenizer, self.tools)
        self._lock = threading.Lock()  # parsers keep state
        self._check()
        self.keeps_text = self._keeps_text()
        self.history = self._choose_history()

    def read(self, text: str) -> Parsed:
        """Return the words and the calls of a turn; a call inside a thought is none. Texts may have raw line breaks."""
        said = without_thoughts(text)
        with self._lock:
            found = parse(self._parser, said)
            if not found.calls and "{" in said:
                found = parse(self._parser, _with_escaped_breaks(said))
        calls = []
        for name, arguments in found.calls:
            with contextlib.suppress(ValueError, RecursionError):
                if isinstance(value := json.loads(arguments, strict=False), dict):
                    calls.append((name, json.dumps(value, ensure_ascii=False)))
        return Parsed(found.content, calls, found.thought) if len(calls) == len(found.calls) else Parsed(text, [])

    def write(self, thought: str, name: str, arguments: Mapping[str, Any]) -> str:
        """Return the turn that calls a function, as the template writes it."""
        call = name, json.dumps(arguments, ensure_ascii=False)
        has_channel = self.parser == "openai"
        parsed = Parsed(None, [call], thought) if has_channel else Parsed(thought, [call])
        return self.template.encode(parsed)[1]

    def encode_action(self, text: str) -> list[int]:
        """Return the ids of an assistant's turn with the token that ends it, see `ChatTokenizer.encode_action`."""
        parsed = self.with_thought(text)
        return self.template.encode(parsed)[0] if parsed.calls else self.chat.encode_action(text)

    def with_thought(self, text: str) -> Parsed:
        """Return a turn's words and calls, its thoughts in the words where the family has no channel for them."""
        parsed, said = self.read(text), without_thoughts(text)
        if not parsed.calls or parsed.thought is not None or not text.endswith(said):
            return parsed
        content = text[: len(text) - len(said)] + (parsed.content or "")
        return parsed._replace(content=content.rstrip() if not content.strip() else content.rstrip("\n"))

    def _check(self) -> None:
        parsed = self.read(self.template.written)
        name, arguments = self.template.example
        expected = [(name, {key: str(value) for key, value in json.loads(arguments).items()})]
        found = [(name, {key: str(value) for key, value in json.loads(text).items()}) for name, text in parsed.calls]
        if found != expected:
            raise ConfigError(
                f"tool_parser: {self.parser} must read what the chat template of {self.chat.name} writes; got "
                f"{found or 'no call'} of {self.template.written!r:.200}. Set another one, or format: function_call."
            )

    def _keeps_text(self) -> bool:
        """Return whether the template renders what was said as it renders the calls in it."""
        written, ids = self.template.written, self.template.encode(Parsed(None, [self.template.example]))[0][:-1]
        renderings = []
        for is_told in (True, False):
            messages: list[dict[str, Any]] = [{"role": "user", "content": "?"}]
            sampled = {}
            for number in (0, 1):
                parsed = Parsed(None, [self.template.example])
                said = {"role": "assistant", "content": written}
                sampled[len(messages)] = ids
                messages.append(self.template.message(parsed, number) if is_told else said)
                messages += self.template.answers(parsed, [_REPLY], number)
            try:
                rendered, _ = self.chat.encode_turns(messages, sampled, add_generation_prompt=True, tools=self.tools)
            except TemplateError:
                return False
            renderings.append(rendered)
        return renderings[0] == renderings[1]

    def _choose_history(self) -> str:
        """Return "append_only" where a conversation with calls proves itself so."""
        self.history = self.chat.history
        if self.chat.history == "append_only" and self.keeps_text and self._is_append_only():
            return "append_only"
        if self.chat.insists_on_append_only:
            raise ConfigError(
                f"history: append_only cannot be with format: tools: the chat template of {self.chat.name} rewrites a "
                "conversation with calls. Leave history: auto, or take format: function_call."
            )
        return "as_template"

    def _is_append_only(self) -> bool:
        call, text = self.template.encode(Parsed(None, [self.template.example]))[0], self.chat.encode_action("Hm.")
        conversation = ToolConversation(self, "Be brief.")
        ids = conversation.open("Go!").tolist()
        for action in (call, call, text, call):
            conversation.act(action)
            ids += [*action, *conversation.reply(_REPLY, terminated=False).tolist()]
        try:
            return ids == conversation.rendered(add_generation_prompt=True)[0]
        except TemplateError:
            return False


class ToolConversation(Conversation):
    """A conversation whose policy calls functions: an answer to a call comes in the tool role.

    `messages` have turns as they were said. Where the template is told of the calls, `context_messages` have them.
    """

    def __init__(self, calls: ToolCalls, system_prompt: str = "", preamble: Sequence[tuple[str, str]] = ()) -> None:
        super().__init__(calls.chat, system_prompt, preamble)
        self.calls = calls
        self.tools = calls.tools
        self.history = calls.history
        self._parsed: list[Parsed] = []

    def act(self, ids: Any) -> str:
        text = super().act(ids)
        self._parsed.append(self.calls.with_thought(text))
        return text

    def answers(self, text: str, replies: Sequence[str] = ()) -> list[Message]:
        parsed = self._parsed[-1]
        if not parsed.calls:
            return super().answers(text)
        joined = "\n".join(replies[:-1])
        is_whole = 1 < len(replies) <= len(parsed.calls) and text.startswith("\n".join(replies))
        parts = [*replies[:-1], text[len(joined) + 1 :]] if is_whole else [text]
        return self.calls.template.answers(parsed, parts, self._number(len(self._parsed) - 1))

    @property
    def is_told_of_calls(self) -> bool:
        """Whether the template reads calls of this conversation as such."""
        return not self.calls.keeps_text and any(parsed.calls for parsed in self._parsed)

    @property
    def context_messages(self) -> list[Message]:
        messages = super().context_messages
        if not self.is_told_of_calls:
            return messages
        turns = iter(self._kept)
        preamble = self._num_opening
        for k, message in enumerate(messages):
            if k >= preamble and message["role"] == "assistant" and self._parsed[turn := next(turns)].calls:
                messages[k] = self.calls.template.message(self._parsed[turn], self._number(turn))
        return messages

    def _number(self, turn: int) -> int:
        return sum(len(parsed.calls) for parsed in self._parsed[:turn])


@lru_cache(maxsize=32)
def _shared(chat: ChatTokenizer, functions: str, parser: str | None) -> ToolCalls:
    return ToolCalls(chat, json.loads(functions), parser)


def tool_calls(chat: ChatTokenizer, functions: Sequence[Mapping[str, Any]], parser: str | None = None) -> ToolCalls:
    """Return the `ToolCalls` of some functions, the same ones for the same functions."""
    return _shared(chat, json.dumps(list(functions)), parser)


def _id_of(number: int) -> str:
    return f"call{number % 100_000:05d}"  # nine letters and digits, as Mistral's template wants them


def _answer(name: str, reply: str, call_id: str) -> dict[str, Any]:
    return {"role": "tool", "content": reply, "name": name, "tool_call_id": call_id}


def _with_escaped_breaks(text: str) -> str:
    """Return a text in which line breaks and tabs inside JSON's strings are escaped."""
    start = text.find("{")
    escaped = _STRING.sub(lambda match: match[0].replace("\n", "\\n").replace("\t", "\\t"), text[start:])
    return text[:start] + escaped
