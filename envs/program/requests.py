"""A program's requests and what answers them, whatever the form that they come in."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from typing import Any, NamedTuple

MAX_STOPS = 16  # every answer is searched for each
MAX_DEPTH = 100  # of JSON: whoever walks down what is deeper may run out of Python's stack

Payload = dict[str, Any]


class RequestError(Exception):
    """A request that cannot be answered; the program gets it as the error of its SDK.

    Args:
        message: what was wrong, in one line.
        status: of HTTP. The SDKs try 408, 409, 429 and 5xx again.
        code: for programs.
    """

    def __init__(self, message: str, status: int = 400, code: str = "invalid_request") -> None:
        super().__init__(message)
        self.status, self.code = status, code


class ToolCall(NamedTuple):
    """A call of a tool; `arguments` are JSON."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class Choice:
    """One completion as a program gets it.

    Args:
        content: None where the model only calls tools.
        finish_reason: `stop`, `length` or `tool_calls`.
        stopped_by: the one of the request's texts that has ended it; "" for none.
        token_logps: text and log-probability of each token, with those of calls; None where they are not known.
    """

    content: str | None
    calls: tuple[ToolCall, ...] = ()
    finish_reason: str = "stop"
    stopped_by: str = ""
    token_logps: Sequence[tuple[str, float]] | None = None

    @property
    def message(self) -> Payload:
        """The assistant's message in the form of chat completions."""
        calls = [function_call(*call) for call in self.calls]
        return {"role": "assistant", "content": self.content, **({"tool_calls": calls} if calls else {})}


@dataclass(frozen=True)
class ModelRequest:
    """A program's request to the model.

    Args:
        messages: role and content, a text; an assistant's may have `tool_calls`, whose arguments are parsed, a tool's
            the `tool_call_id`.
        tools: the functions, as chat completions have them.
        stop: texts that end the answer; they are no part of it.
        max_tokens: of one answer; None is as many as the run allows.
        num_choices: completions to sample, each on its own.
        is_streamed: the answer goes out as server-sent events.
        replaced: the names of what it wants of sampling, which is the run's.
        options: of its form, for its answer.
        own_turns: of the messages, by their numbers, that the model has said: the number of the turn.
    """

    messages: Sequence[Payload]
    tools: Sequence[Payload] = ()
    stop: tuple[str, ...] = ()
    max_tokens: int | None = None
    num_choices: int = 1
    is_streamed: bool = False
    replaced: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    own_turns: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Form:
    """A form of requests and answers, such as that of chat completions.

    Args:
        read: body -> request; raises `RequestError`.
        answer: (request, choices, (tokens of the prompt, tokens of the answers)) -> body.
        events: the same as server-sent events: name and data of each; a name of None is none.
        error: error -> body.
    """

    read: Callable[[Payload], ModelRequest]
    answer: Callable[[ModelRequest, Sequence[Choice], tuple[int, int]], Payload]
    events: Callable[[ModelRequest, Sequence[Choice], tuple[int, int]], list[tuple[str | None, Any]]]
    error: Callable[[RequestError], Payload]


@dataclass(eq=False)
class Call:
    """A request that waits for its answer, in any thread. `is_gone`: its program waits no longer."""

    request: ModelRequest
    answer: Future[tuple[Sequence[Choice], tuple[int, int]]] = field(default_factory=Future)
    is_gone: bool = False

    def take(self, choices: Sequence[Choice], usage: tuple[int, int]) -> None:
        """Answer it with completions, and the numbers of tokens of the prompt and of these."""
        with contextlib.suppress(InvalidStateError):  # its client has gone
            self.answer.set_result((choices, usage))

    def refuse(self, error: RequestError) -> None:
        with contextlib.suppress(InvalidStateError):
            self.answer.set_exception(error)


class OwnTurns:
    """Which of the messages that a program sends are what the model has answered to the very messages before them."""

    def __init__(self) -> None:
        self._turns: dict[bytes, tuple[int, str]] = {}
        self.newest = b""  # the key of the last one

    def add(self, messages: Sequence[Payload], choice: Choice, turn: int, said: str) -> None:
        """Remember an answer.

        Args:
            messages: of its request, as they came.
            turn: its number.
            said: the text that was sampled, of which the choice is what was read out of it.
        """
        *_, key = prefix_keys([*messages, _parsed(choice.message)])
        self._turns[key] = turn, said
        self.newest = key

    def last_in(self, keys: Sequence[bytes]) -> int:
        """Return the place of the last of some messages' keys (see `prefix_keys`) that is one's own; -1 for none."""
        return max((k for k, key in enumerate(keys) if key in self._turns), default=-1)

    def found_in(self, messages: Sequence[Payload]) -> tuple[list[Payload], dict[int, int]]:
        """Return the messages, those that the model said as it said them, and the turns of these by their numbers."""
        shown, turns = list(messages), {}
        for k, key in enumerate(prefix_keys(messages)):
            if messages[k]["role"] == "assistant" and key in self._turns:
                turns[k], said = self._turns[key]
                shown[k] = {"role": "assistant", "content": said}
        return shown, turns


def prefix_keys(messages: Sequence[Payload]) -> list[bytes]:
    """Return a key of each message with all before it."""
    key, keys = b"", []
    for message in messages:
        calls = [[call["id"], *call["function"].values()] for call in message.get("tool_calls", ())]
        compared = [message["role"], message["content"] or "", calls, message.get("tool_call_id")]
        key = hashlib.sha256(key + json.dumps(compared, sort_keys=True).encode()).digest()
        keys.append(key)
    return keys


def _parsed(message: Payload) -> Payload:
    calls = [
        {**call, "function": {**call["function"], "arguments": parse_arguments(call["function"]["arguments"])}}
        for call in message.get("tool_calls", ())
    ]
    return {**message, "content": message["content"] or "", "tool_calls": calls}


def parse_arguments(arguments: Any) -> Any:
    """Return a call's arguments as values, which chat templates write as JSON; a text that is none stays one."""
    try:
        found = json.loads(arguments) if isinstance(arguments, str) else arguments
    except (ValueError, RecursionError):
        return arguments
    return arguments if is_deep(found) else found


def is_deep(value: Any) -> bool:
    """Return whether a value has more than `MAX_DEPTH` levels of lists and objects."""
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(MAX_DEPTH):
        below = [inner for outer in level for inner in (outer.values() if isinstance(outer, dict) else outer)]
        level = [inner for inner in below if isinstance(inner, dict | list)]
    return bool(level)


def function_call(id_: Any, name: str, arguments: Any) -> Payload:
    """Return a call of a tool in the form of chat completions."""
    return {"id": str(id_), "type": "function", "function": {"name": name, "arguments": arguments}}


def validate(what: str, type_: Any, value: Any) -> None:
    """Hold a value against an SDK's type, as a TypeAdapter; `RequestError` with the first fault where it is another."""
    from pydantic import ValidationError

    try:
        type_.validate_python(value)
    except ValidationError as error:
        first = error.errors()[0]
        place = "".join(f"{part}: " for part in [".".join(map(str, first["loc"]))] if part)
        raise RequestError(f"{what}: {place}{first['msg']}; got {first['input']!r:.100}.") from error


def function_tool(name: str, description: Any, parameters: Any) -> Payload:
    """Return a tool in the form of chat completions; `RequestError` where its parameters are no schema."""
    if not isinstance(parameters, dict | None):
        raise RequestError(f"tools: the parameters of {name!r:.100} must be an object; got {parameters!r:.100}.")
    function = {"name": name, "description": description or "", "parameters": parameters or {}}
    return {"type": "function", "function": function}


def checked(
    body: Payload,
    *,
    used: Sequence[str],
    replaced: Sequence[str],
    without_effect: Sequence[str],
    neutral: Mapping[str, Any],
) -> tuple[Payload, tuple[str, ...]]:
    """Return the body without what is null, and the names of what is replaced.

    Args:
        used: the names that are read.
        replaced: those of sampling, which is the run's.
        without_effect: those that change no answer.
        neutral: of what is not supported, the value that asks for nothing.

    Raises:
        RequestError: it asks for something else.
    """
    body = {name: value for name, value in body.items() if value is not None}
    for name, value in body.items():
        if name in (*used, *replaced, *without_effect) or (name in neutral and value == neutral[name]):
            continue
        raise RequestError(f"{name} is not supported here; got {value!r:.100}. Leave it out.", code="unsupported")
    return body, tuple(name for name in replaced if name in body)


def tool_choice(choice: Any, replaced: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """Return `auto` or `none`, and what is replaced: nothing makes the policy call a tool, so `required` is `auto`.

    Raises:
        RequestError: it names a tool.
    """
    if choice == "required":
        return "auto", (*replaced, "tool_choice")
    if choice not in ("auto", "none"):
        raise RequestError(
            f"tool_choice must be auto, none or required; got {choice!r:.100}. Leave it out.", code="unsupported"
        )
    return choice, replaced


def parallel_tool_calls(body: Payload, replaced: tuple[str, ...]) -> tuple[str, ...]:
    """Return the replaced parameters, with `parallel_tool_calls` among them where one call at most is asked for.

    Nothing keeps the policy from several.

    Raises:
        RequestError: it is neither true nor false.
    """
    value = body.get("parallel_tool_calls", True)
    if not isinstance(value, bool):
        raise RequestError(f"parallel_tool_calls must be true or false; got {value!r:.100}.")
    return replaced if value or not body.get("tools") else (*replaced, "parallel_tool_calls")


def some(name: str, value: Any) -> list[Any]:
    """Return a list that is not empty; `RequestError` where it is something else."""
    if not isinstance(value, list) or not value:
        raise RequestError(f"{name} must be a list that holds one at least; got {value!r:.100}.")
    return value


def listed(name: str, value: Any) -> list[Any]:
    """Return a list; `RequestError` where it is something else."""
    if not isinstance(value, list):
        raise RequestError(f"{name} must be a list; got {value!r:.100}.")
    return value


def whole(name: str, value: Any, most: int | None = None) -> int:
    """Return a whole number from 1 on; `RequestError` where it is none."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1 or (most is not None and value > most):
        rule = "a whole number from 1 on" if most is None else f"a whole number from 1 to {most}"
        raise RequestError(f"{name} must be {rule}; got {value!r:.100}.")
    return value


def texts(name: str, value: Any) -> tuple[str, ...]:
    """Return one text or several, at most `MAX_STOPS`, none of them empty; `RequestError` for something else."""
    found = (value,) if isinstance(value, str) else value
    if not isinstance(found, list | tuple) or not all(isinstance(text, str) and text for text in found):
        raise RequestError(f"{name} must be a text or a list of texts; got {value!r:.100}.")
    if len(found) > MAX_STOPS:
        raise RequestError(f"{name} may have {MAX_STOPS} texts; got {len(found)}.")
    return tuple(found)


def text_of(where: str, content: Any, kinds: Sequence[str]) -> str:
    """Return the text of a content: a text, or a list of parts that are all text; `RequestError` for other parts.

    Args:
        kinds: the `type` of such parts.
    """
    if content is None or isinstance(content, str):
        return content or ""
    parts = content if isinstance(content, list) else [content]
    for part in parts:
        kind = part.get("type") if isinstance(part, dict) else part
        if kind not in kinds or not isinstance(part.get("text"), str):
            raise RequestError(
                f"{where}: a content may hold text alone; got {part if kind in kinds else kind!r:.100}.",
                code="unsupported",
            )
    return "".join(part["text"] for part in parts)
