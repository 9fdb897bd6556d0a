"""The formats of a turn: what the system prompt asks for, how a model's text is read, and how an expert writes."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping
from typing import Any, Protocol

from rllm_gym.envs.agents.functions import REACT, BadCallError, Language, listing

MAX_CALL_CHARS = 8_000  # of what is parsed; deeper nesting than that allows is nobody's call
_FENCE = re.compile(r"```[a-zA-Z]*\n(.*?)```", re.DOTALL)
_TOOL_CALL, _END_OF_TOOL_CALL = "<tool_call>", "</tool_call>"
_MAX_OBJECTS = 20  # places at which a JSON object is looked for


class Format(Protocol):
    """A way to write a turn."""

    # What a turn must be, for the answer to one that is not.
    rule: str

    def system_prompt(self, language: Language) -> str:
        """Return the instruction in place of the environment's own, for its default one."""

    def read(self, text: str, language: Language) -> str:
        """Return the turn in the environment's own form.

        Raises:
            BadCallError: the text is no turn of this format.
        """

    def write(self, text: str, language: Language) -> str:
        """Return what an expert wrote in the environment's form, in this one."""


class Native:
    """The environment's own format, word for word."""

    rule = ""

    def system_prompt(self, language: Language) -> str:
        return language.system_prompt

    def read(self, text: str, language: Language) -> str:
        return text

    def write(self, text: str, language: Language) -> str:
        return text


class React:
    """`Thought: ...` and `Action: ...`; without "Action:" the whole text is the action.

    Source: Yao et al. 2022 (ReAct), arXiv:2210.03629.
    """

    rule = "Write `Thought:` and `Action:`"

    def system_prompt(self, language: Language) -> str:
        if language.turn_form == REACT:
            return language.system_prompt
        task = "Each turn, write one thought and one action:\nThought: what to do next and why\nAction: one of these"
        return _joined(language.introduction, f"{task}\n{listing(language.functions, 'form')}")

    def read(self, text: str, language: Language) -> str:
        if language.turn_form == REACT:
            return text
        thought, _, action = text.rpartition("Action:")
        return language.join(thought.strip().removeprefix("Thought:").strip(), action.strip())

    def write(self, text: str, language: Language) -> str:
        if language.turn_form == REACT:
            return text
        thought, action = language.split(text)
        return REACT.format(thought=thought, action=action)


class FunctionCall:
    """One JSON object: `{"thought": ..., "name": ..., "arguments": {...}}`.

    It may stand in a text, between triple backticks or in `<tool_call>`; `function_name` is read as `name`, and the
    thought may be left out. The first object that names a function counts.
    """

    rule = 'Write one JSON object {"thought": "...", "name": "...", "arguments": {...}}'

    def system_prompt(self, language: Language) -> str:
        task = (
            'Each turn, write one JSON object: {"thought": "what to do next and why", "name": "a function\'s name", '
            '"arguments": {...}}. The functions:'
        )
        schemas = "\n".join(json.dumps(function.schema, ensure_ascii=False) for function in language.functions)
        return _joined(language.introduction, f"{task}\n{schemas}")

    def read(self, text: str, language: Language) -> str:
        found = _first_object(text)
        arguments = found.get("arguments", {})
        if isinstance(arguments, str):  # as chat APIs send them
            arguments = _object(arguments)
        if not isinstance(arguments, Mapping):
            raise BadCallError(f"arguments must be an object; got {arguments!r:.60}")
        action = language.text_of(found.get("name", found.get("function_name")), arguments)
        return language.join(str(found.get("thought", "")), action)

    def write(self, text: str, language: Language) -> str:
        thought, action = language.split(text)
        function, arguments = language.call_of(action)
        return json.dumps({"thought": thought, "name": function.name, "arguments": arguments}, ensure_ascii=False)


class Code:
    """One Python call of a listed function, with literal arguments; comments before it are the thought.

    It may stand between triple backticks. The text is parsed and never run.
    """

    rule = "Write one Python call, like name(argument=1)"

    def system_prompt(self, language: Language) -> str:
        task = (
            "Each turn, write one call of a Python function, with literal arguments and a comment above it:\n"
            "```python\n# what to do next and why\nname(argument=...)\n```\nThe functions:"
        )
        return _joined(language.introduction, f"{task}\n{listing(language.functions, 'signature')}")

    def read(self, text: str, language: Language) -> str:
        fenced = _FENCE.search(text)
        source = _bounded(fenced[1] if fenced else text)
        try:
            call = ast.parse(source.strip(), mode="eval").body
            if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name)):
                raise BadCallError("it is no call of a function by its name")
            arguments = self._arguments(call, language)
        except BadCallError:
            raise
        except SyntaxError as error:
            raise BadCallError(f"it is no Python expression ({error.msg})") from error
        except (ValueError, TypeError, MemoryError, RecursionError) as error:
            raise BadCallError("its arguments must be literals") from error
        lines = (line.strip() for line in source.splitlines())
        thought = " ".join(line.lstrip("# ") for line in lines if line.startswith("#"))
        return language.join(thought, language.text_of(call.func.id, arguments))

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


FORMATS: dict[str, Format] = {
    "native": Native(),
    "react": React(),
    "function_call": FunctionCall(),
    "code": Code(),
}


def _joined(introduction: str, task: str) -> str:
    return f"{introduction}\n{task}" if introduction else task


def _bounded(text: str) -> str:
    if len(text) > MAX_CALL_CHARS:
        raise BadCallError(f"it has {len(text)} characters; at most {MAX_CALL_CHARS} are read")
    return text


def _first_object(text: str) -> dict[str, Any]:
    # In linear time: where the first tag has no end, no later one has.
    _, is_opened, rest = text.partition(_TOOL_CALL)
    call, is_closed, _ = rest.partition(_END_OF_TOOL_CALL)
    if is_opened and is_closed:
        return _object(call)
    if match := _FENCE.search(text):
        return _object(match[1])
    decoder = json.JSONDecoder()
    for match in list(re.finditer(r"\{", _bounded(text)))[:_MAX_OBJECTS]:
        try:
            found, _ = decoder.raw_decode(text, match.start())
        except (ValueError, RecursionError):
            continue
        if "name" in found or "function_name" in found:
            return found
    raise BadCallError("there is no JSON object that names a function")


def _object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(_bounded(text))
    except (ValueError, RecursionError) as error:
        raise BadCallError("it is no JSON") from error
    if not isinstance(found, dict):
        raise BadCallError(f"it must be a JSON object; got {text.strip()!r:.60}")
    return found
