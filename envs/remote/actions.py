"""Actions on an OpenEnv server: its action schema in words, and the model's reply as the action."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rllm_gym.envs.base import parse_action

_OWN_KEYS = ("metadata", "type")  # of every OpenEnv action; not for the model
_FORM = "Each turn, write one thought and one action:\nThought: what to do next and why\nAction: "


class Parsed(NamedTuple):
    """A model's reply as an action, or why it is none."""

    action: dict[str, Any] | None
    problem: str = ""


class TextForm(NamedTuple):
    """Actions of one text field.

    Args:
        field: its name.
        is_whole: the server parses what the model wrote; else the action is what follows "Action:".
        prompt: for the system prompt.
    """

    field: str
    is_whole: bool = False
    prompt: str = ""

    def parse(self, text: str) -> Parsed:
        return Parsed({self.field: text if self.is_whole else parse_action(text)})


class FieldsForm(NamedTuple):
    """Actions of other fields, as a JSON object."""

    schema: Mapping[str, Any]

    @property
    def prompt(self) -> str:
        shown = {key: self.schema[key] for key in ("properties", "required", "$defs") if key in self.schema}
        return f"{_FORM}a JSON object of this JSON schema: {json.dumps(shown)}"

    def parse(self, text: str) -> Parsed:
        return _checked(parse_action(text), self.schema)


class ToolsForm(NamedTuple):
    """Calls of MCP tools.

    Args:
        tools: as `list_tools` gives them: name, description, input_schema.
    """

    tools: Sequence[Mapping[str, Any]]

    @property
    def prompt(self) -> str:
        lines = [
            json.dumps({"name": tool["name"], "description": tool.get("description", ""), "arguments": _inputs(tool)})
            for tool in self.tools
        ]
        form = f'{_FORM}{{"name": ..., "arguments": {{...}}}}'
        return f"{form}, a call of one of these tools:\n" + "\n".join(lines)

    def parse(self, text: str) -> Parsed:
        calls = {
            "type": "object",
            "required": ["name"],
            "properties": {"name": {"enum": [t["name"] for t in self.tools]}},
        }
        call, problem = _checked(parse_action(text), calls)
        if call is None:
            return Parsed(None, problem)
        tool = next(tool for tool in self.tools if tool["name"] == call["name"])
        problem = _problem(call.get("arguments", {}), _inputs(tool))
        if problem:
            return Parsed(None, problem)
        return Parsed({"type": "call_tool", "tool_name": call["name"], "arguments": call.get("arguments", {})})


ActionForm = TextForm | FieldsForm | ToolsForm


def is_of_tools(schema: Mapping[str, Any]) -> bool:
    """Return whether an action schema is that of MCP tools, which the server lists on request."""
    return {"tool_name", "arguments"} <= set(schema.get("properties", ()))


def make_form(schema: Mapping[str, Any], *, is_ours: bool = False) -> TextForm | FieldsForm:
    """Return the form of the actions of a schema that is not of tools.

    Args:
        schema: JSON schema of an action.
        is_ours: the server is this package's, which parses what a model wrote.
    """
    fields = {key: value for key, value in schema.get("properties", {}).items() if key not in _OWN_KEYS}
    if len(fields) == 1 and next(iter(fields.values())).get("type") == "string":
        name, field = next(iter(fields.items()))
        prompt = "" if is_ours else f"{_FORM}{field.get('description') or name}"
        return TextForm(name, is_ours, prompt)
    kept = {key: value for key, value in schema.items() if key != "properties"}
    return FieldsForm({**kept, "properties": fields, "additionalProperties": False})


def text_of(observation: Mapping[str, Any]) -> str:
    """Return an OpenEnv observation as text: its one text, the result of a tool, or itself as JSON."""
    shown = {key: value for key, value in observation.items() if key not in ("metadata", "reward", "done")}
    if isinstance(shown.get("text"), str):
        return shown["text"]
    if "tool_name" in shown and ("result" in shown or "error" in shown):
        error, result = shown.get("error"), shown.get("result")
        if error:
            return f"Error: {error.get('message', error) if isinstance(error, dict) else error}"
        parts = result.get("content") if isinstance(result, dict) else None
        texts = [part["text"] for part in parts or () if isinstance(part, dict) and isinstance(part.get("text"), str)]
        return "\n".join(texts) if texts else _as_text(result)
    texts = [value for value in shown.values() if isinstance(value, str)]
    others = [value for value in shown.values() if value and not isinstance(value, str)]
    return texts[0] if len(texts) == 1 and not others else _as_text(shown)


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _inputs(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    return tool.get("input_schema") or tool.get("inputSchema") or {"type": "object"}


def _checked(text: str, schema: Mapping[str, Any]) -> Parsed:
    """Return the first JSON object of a text, if it is of a schema."""
    begin = text.find("{")
    try:
        value, _ = json.JSONDecoder().raw_decode(text[begin:] if begin >= 0 else text)
    except (ValueError, RecursionError):
        return Parsed(None, "Could not read the action: it must be a JSON object.")
    problem = _problem(value, schema)
    return Parsed(None, problem) if problem else Parsed(value)


def _problem(value: Any, schema: Mapping[str, Any]) -> str:
    """Return how a value differs from a JSON schema, in one line, or nothing."""
    import jsonschema  # comes with openenv's own needs

    if not isinstance(value, dict):
        return "Could not read the action: it must be a JSON object."
    error = next(iter(jsonschema.Draft202012Validator(schema).iter_errors(value)), None)
    return f"Could not read the action: {error.message[:300]}." if error else ""
