"""The formats of a turn: what the system prompt asks for, how a model's text is read, and how an expert writes."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from rllm_gym.envs.agents.functions import REACT, BadCallError, Language, listing, names
from rllm_gym.errors import ConfigError
from rllm_gym.thoughts import without_thoughts

if TYPE_CHECKING:
    from rllm_gym.tool_calls import ToolCalls  # which needs tokenizers

MAX_CALL_CHARS = 8_000  # of what is parsed; deeper nesting than that allows is nobody's call
_FENCE = re.compile(r"```[a-zA-Z]*\n(.*?)```", re.DOTALL)
_TOOL_CALL, _END_OF_TOOL_CALL = "<tool_call>", "</tool_call>"
_ACTION = re.compile(r"^[ \t]*Action:", re.MULTILINE)
_AFTER_ACTION = re.compile(r"^[ \t]*(?:Thought|Observation):", re.MULTILINE)
MAX_CALLS = 10  # of a turn
_MAX_OBJECTS = 20  # places at which a JSON object is looked for


class Format(Protocol):
    """A way to write a turn."""

    # What a turn must be, for the answer to one that is not.
    rule: str

    def system_prompt(self, language: Language) -> str:
        """Return the instruction in place of the environment's own, for its default one."""

    def read(self, text: str, language: Language) -> list[str]:
        """Return the calls of a turn in order, each as a turn in the environment's own form.

        A call inside a thought (`<think>`) is none.

        Raises:
            BadCallError: the text is no turn of this format.
        """

    def write(self, text: str, language: Language) -> str:
        """Return an expert's text, which has the environment's form, in this one."""


class Native:
    """The environment's own format, word for word."""

    rule = ""

    def system_prompt(self, language: Language) -> str:
        return language.system_prompt

    def read(self, text: str, language: Language) -> list[str]:
        return [text]

    def write(self, text: str, language: Language) -> str:
        return text


class React:
    """`Thought: ...` and `Action: ...`; without "Action:" the whole text is the action.

    Several lines that begin with "Action:" are several actions.

    Source: Yao et al. 2022 (ReAct), arXiv:2210.03629.
    """

    rule = "Write `Thought:` and `Action:`"

    def system_prompt(self, language: Language) -> str:
        if language.turn_form == REACT:
            return language.system_prompt
        task = "Each turn, write one thought and one action:\nThought: what to do next and why\nAction: one of these"
        return _joined(language.introduction, f"{task}\n{listing(language.functions, 'form')}")

    def read(self, text: str, language: Language) -> list[str]:
        said = without_thoughts(text)
        thought, *actions = _ACTION.split(said)
        if len(actions) > 1:
            actions = [_AFTER_ACTION.split(action, maxsplit=1)[0].strip() for action in actions]
        elif language.turn_form == REACT:
            return [said]
        else:
            thought, _, action = said.rpartition("Action:")
            actions = [action.strip()]
        return _turns(language, thought.strip().removeprefix("Thought:").strip(), actions)

    def write(self, text: str, language: Language) -> str:
        thought, action = language.split(text)
        if language.turn_form == REACT or _ACTION.search(action):  # of an environment elsewhere it is not known
            return text
        return REACT.format(thought=thought, action=action)


class FunctionCall:
    """One JSON object: `{"thought": ..., "name": ..., "arguments": {...}}`.

    It may stand in a text, between triple backticks or in `<tool_call>`; `function_name` is read as `name`, and the
    thought may be left out. Several objects, or a list of them, are several calls. Line breaks in texts may be raw.
    """

    rule = 'Write one JSON object {"thought": "...", "name": "...", "arguments": {...}}'

    def system_prompt(self, language: Language) -> str:
        task = (
            'Each turn, write one JSON object: {"thought": "what to do next and why", "name": "a function\'s name", '
            '"arguments": {...}}. The functions:'
        )
        schemas = "\n".join(json.dumps(function.schema, ensure_ascii=False) for function in language.functions)
        return _joined(language.introduction, f"{task}\n{schemas}")

    def read(self, text: str, language: Language) -> list[str]:
        return [self._turn(found, language) for found in _objects(without_thoughts(text))]

    @staticmethod
    def _turn(found: Mapping[str, Any], language: Language) -> str:
        arguments = found.get("arguments", {})
        if isinstance(arguments, str):  # as chat APIs send them
            arguments = _object(_json(arguments))
        if not isinstance(arguments, Mapping):
            raise BadCallError(f"arguments must be an object; got {arguments!r:.60}")
        action = language.text_of(found.get("name", found.get("function_name")), arguments)
        return language.join(str(found.get("thought", "")), action)

    def write(self, text: str, language: Language) -> str:
        thought, action = language.split(text)
        function, arguments = language.call_of(action)
        return json.dumps({"thought": thought, "name": function.name, "arguments": arguments}, ensure_ascii=False)


class Code:
    """Python calls of listed functions, with literal arguments; comments are the thought.

    They may stand between triple backticks. The text is parsed and never run.
    """

    rule = "Write one Python call, like name(argument=1)"

    def system_prompt(self, language: Language) -> str:
        task = (
            "Each turn, write one call of a Python function, with literal arguments and a comment above it:\n"
            "```python\n# what to do next and why\nname(argument=...)\n```\nThe functions:"
        )
        return _joined(language.introduction, f"{task}\n{listing(language.functions, 'signature')}")

    def read(self, text: str, language: Language) -> list[str]:
        said = without_thoughts(text)
        source = _bounded("\n".join(_FENCE.findall(said)) or said)
        try:
            statements = ast.parse(source.strip()).body
            if not statements or not all(isinstance(statement, ast.Expr) for statement in statements):
                raise BadCallError("it is no Python expression")
            actions = [self._action(statement.value, language) for statement in statements]  # type: ignore[attr-defined]
        except BadCallError:
            raise
        except SyntaxError as error:
            raise BadCallError(f"it is no Python expression ({error.msg})") from error
        except (ValueError, TypeError, MemoryError, RecursionError) as error:
            raise BadCallError("its arguments must be literals") from error
        lines = (line.strip() for line in source.splitlines())
        thought = " ".join(line.lstrip("# ") for line in lines if line.startswith("#"))
        return _turns(language, thought, actions)

    @classmethod
    def _action(cls, call: ast.expr, language: Language) -> str:
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name)):
            raise BadCallError("it is no call of a function by its name")
        return language.text_of(call.func.id, cls._arguments(call, language))

    def write(self, text: str, language: Language) -> str:
        thought, action = language.split(text)
        function, arguments = language.call_of(action)
        call = f"{function.name}({', '.join(f'{name}={value!r}' for name, value in arguments.items())})"
        return "\n".join(["```python", *(f"# {line}" for line in thought.splitlines()), call, "```"])

    @staticmethod
    def _arguments(call: ast.Call, language: Language) -> dict[str, Any]:
        known = {function.name: function.parameters for function in language.functions}
        parameters = known.get(call.func.id, ()) if isinstance(call.func, ast.Name) else ()
        if len(call.args) > len(parameters) and parameters:
            raise BadCallError(f"it takes {len(parameters)} arguments; got {len(call.args)}")
        arguments = {name: ast.literal_eval(node) for name, node in zip(parameters, call.args, strict=False)}
        for keyword in call.keywords:
            if keyword.arg is None or keyword.arg in arguments:
                raise BadCallError(f"every argument is given once, by its name; got {ast.unparse(keyword):.60}")
            arguments[keyword.arg] = ast.literal_eval(keyword.value)
        if len(call.args) > len(parameters):
            arguments |= {f"argument {k + 1}": None for k in range(len(call.args))}
        return arguments


class Tools:
    """Calls of the functions that the chat template tells of, in the syntax of the model's family.

    Attributes:
        calls: reads and writes them; None at the text level.
    """

    rule = "Call one of the functions"

    def __init__(self) -> None:
        self.calls: ToolCalls | None = None

    def system_prompt(self, language: Language) -> str:
        return language.introduction

    def read(self, text: str, language: Language) -> list[str]:
        found = self._syntax().read(text)
        if not found.calls:
            raise BadCallError(f"there is no call of one; the functions are {names(language.functions)}")
        actions = [language.text_of(name, json.loads(arguments)) for name, arguments in found.calls]
        thought = "\n".join(said for said in (found.thought, found.content) if said)
        return _turns(language, thought.strip(), actions)

    def write(self, text: str, language: Language) -> str:
        thought, action = language.split(text)
        function, arguments = language.call_of(action)
        return self._syntax().write(thought, function.name, arguments)

    def _syntax(self) -> ToolCalls:
        if self.calls is None:
            raise ConfigError(
                "agent: format: tools has the syntax of a model's chat template; got an environment at the text level. "
                'Make it at the token level (without obs_type="text"), or take format: function_call.'
            )
        return self.calls


FORMATS: dict[str, Format] = {
    "native": Native(),
    "react": React(),
    "function_call": FunctionCall(),
    "code": Code(),
    "tools": Tools(),
}


def _turns(language: Language, thought: str, actions: list[str]) -> list[str]:
    """Return turns in the environment's form, of which the first has the thought."""
    return [language.join("" if k else thought, action) for k, action in enumerate(actions)]


def _joined(introduction: str, task: str) -> str:
    return f"{introduction}\n{task}" if introduction else task


def _bounded(text: str) -> str:
    if len(text) > MAX_CALL_CHARS:
        raise BadCallError(f"it has {len(text)} characters; at most {MAX_CALL_CHARS} are read")
    return text


def _objects(text: str) -> list[dict[str, Any]]:
    """Return the calls of a text in order."""
    # In linear time: where the first tag has no end, no later one has.
    _, *parts = text.split(_TOOL_CALL)
    calls = [part.partition(_END_OF_TOOL_CALL) for part in parts]
    if any(is_closed for _, is_closed, _ in calls):
        if not all(is_closed for _, is_closed, _ in calls):
            raise BadCallError(f"a {_TOOL_CALL} has no {_END_OF_TOOL_CALL}")
        return [found for call, _, _ in calls for found in _read_objects(_json(call))]
    if fenced := _FENCE.findall(text):
        return [found for call in fenced for found in _read_objects(_json(call))]
    found, at = [], 0
    for _ in range(_MAX_OBJECTS):
        if (at := _bounded(text).find("{", at)) < 0:
            break
        try:
            value, end = _DECODER.raw_decode(text, at)
        except (ValueError, RecursionError):
            at += 1
            continue
        is_call = "name" in value or "function_name" in value
        found += [value] * is_call
        at = end if is_call else at + 1
    else:
        if found and "{" in text[at:]:
            raise BadCallError(f"it has more than {_MAX_OBJECTS} JSON objects")
    if not found:
        raise BadCallError("there is no JSON object that names a function")
    return found


_DECODER = json.JSONDecoder(strict=False)  # models write line breaks in texts as they are


def _json(text: str) -> Any:
    try:
        return json.loads(_bounded(text), strict=False)
    except (ValueError, RecursionError) as error:
        raise BadCallError("it is no JSON") from error


def _read_objects(value: Any) -> list[dict[str, Any]]:
    """Return the one object, or those of a list."""
    return [_object(part) for part in value] if isinstance(value, list) and value else [_object(value)]


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise BadCallError(f"it must be a JSON object; got {str(value).strip()!r:.60}")
    return value
