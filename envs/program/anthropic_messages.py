"""Anthropic's form of requests and answers, `POST /v1/messages`, by the types of its SDK."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

from rllm_gym.envs.program.requests import (
    Choice,
    Form,
    ModelRequest,
    Payload,
    RequestError,
    checked,
    function_call,
    function_tool,
    listed,
    parse_arguments,
    some,
    text_of,
    texts,
    tool_choice,
    whole,
)

USED = ("messages", "model", "system", "tools", "tool_choice", "max_tokens", "stop_sequences", "stream")
REPLACED = ("temperature", "top_p", "top_k", "thinking")
WITHOUT_EFFECT = ("metadata", "service_tier", "cache_control")
STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


def read(body: Payload) -> ModelRequest:
    """Return the request that a body makes.

    Raises:
        RequestError: it asks for what is not supported, or is no such request.
    """
    body, replaced = checked(body, used=USED, replaced=REPLACED, without_effect=WITHOUT_EFFECT, neutral={})
    said = some("messages", body.get("messages"))
    named = body.get("tool_choice", {"type": "auto"})
    kind = named.get("type") if isinstance(named, dict) else named
    choice, replaced = tool_choice("required" if kind == "any" else kind, replaced)
    if isinstance(named, dict) and named.get("disable_parallel_tool_use"):  # nothing keeps the policy from it
        replaced = (*replaced, "disable_parallel_tool_use")
    messages = []
    if system := text_of("system", body.get("system"), ("text",)):
        messages.append({"role": "system", "content": system})
    for k, message in enumerate(said):
        messages += _messages(f"messages[{k}]", message)
    return ModelRequest(
        messages=messages,
        tools=tuple(map(_tool, listed("tools", body.get("tools", [])))) if choice == "auto" else (),
        stop=texts("stop_sequences", body.get("stop_sequences", ())),
        max_tokens=whole("max_tokens", body.get("max_tokens")),
        is_streamed=body.get("stream", False) is True,
        replaced=replaced,
        options={"model": str(body.get("model", ""))},
    )


def answer(request: ModelRequest, choices: Sequence[Choice], usage: tuple[int, int]) -> Payload:
    from anthropic.types import Message

    [choice] = choices
    return Message.model_validate(
        {
            **_head(request, usage),
            "content": _blocks(choice),
            **_end(choice),
        }
    ).model_dump(mode="json", exclude_unset=True)


def events(request: ModelRequest, choices: Sequence[Choice], usage: tuple[int, int]) -> list[tuple[str | None, Any]]:
    from anthropic.types import RawMessageStreamEvent
    from pydantic import TypeAdapter

    [choice] = choices
    found: list[Payload] = [
        {
            "type": "message_start",
            "message": {**_head(request, (usage[0], 0)), "content": [], "stop_reason": None, "stop_sequence": None},
        }
    ]
    for k, block in enumerate(_blocks(choice)):
        if block["type"] == "text":
            start, delta = {**block, "text": ""}, {"type": "text_delta", "text": block["text"]}
        else:
            start = {**block, "input": {}}
            delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
        found += [
            {"type": "content_block_start", "index": k, "content_block": start},
            {"type": "content_block_delta", "index": k, "delta": delta},
            {"type": "content_block_stop", "index": k},
        ]
    found += [
        {"type": "message_delta", "delta": _end(choice), "usage": {"output_tokens": usage[1]}},
        {"type": "message_stop"},
    ]
    form: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
    dumped = [form.validate_python(event).model_dump(mode="json", exclude_unset=True) for event in found]
    return [(event["type"], event) for event in dumped]


def error(error: RequestError) -> Payload:
    kinds = {
        401: "authentication_error",
        403: "permission_error",
        404: "not_found_error",
        413: "request_too_large",
        429: "rate_limit_error",
    }
    kind = kinds.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    return {"type": "error", "error": {"type": kind, "message": f"{error} ({error.code})"}}


FORM = Form(read, answer, events, error)


def _head(request: ModelRequest, usage: tuple[int, int]) -> Payload:
    return {
        "id": f"msg_{time.time_ns():x}",
        "type": "message",
        "role": "assistant",
        "model": request.options["model"],
        "usage": {"input_tokens": usage[0], "output_tokens": usage[1]},
    }


def _end(choice: Choice) -> Payload:
    if choice.finish_reason == "stop" and choice.stopped_by:
        return {"stop_reason": "stop_sequence", "stop_sequence": choice.stopped_by}
    return {"stop_reason": STOP_REASONS[choice.finish_reason], "stop_sequence": None}


def _blocks(choice: Choice) -> list[Payload]:
    blocks: list[Payload] = []
    if choice.content or not choice.calls:
        blocks.append({"type": "text", "text": choice.content or "", "citations": None})
    for call in choice.calls:
        arguments = parse_arguments(call.arguments)
        arguments = arguments if isinstance(arguments, dict) else {"arguments": arguments}
        blocks.append({"type": "tool_use", "id": call.id, "name": call.name, "input": arguments})
    return blocks


def _messages(where: str, message: Any) -> list[Payload]:
    """Return the messages of chat completions for one of Anthropic's, of whose user's the results of tools are some."""
    role = message.get("role") if isinstance(message, dict) else None
    if role not in ("user", "assistant"):
        raise RequestError(f"{where}: role must be user or assistant; got {role!r:.100}.")
    content = message.get("content")
    if content is None or isinstance(content, str):
        return [{"role": role, "content": content or ""}]
    if not isinstance(content, list) or not content or not all(isinstance(block, dict) for block in content):
        raise RequestError(f"{where}: content must be a text or a list of blocks, one at least; got {content!r:.100}.")
    special = "tool_use" if role == "assistant" else "tool_result"
    others = [block for block in content if block.get("type") == special]
    said = [block for block in content if block.get("type") != special]
    found: Payload = {"role": role, "content": text_of(where, said, ("text",))}
    if role == "assistant":
        calls = [_call(where, block) for block in others]
        return [{**found, "tool_calls": calls} if calls else found]
    results = [
        {
            "role": "tool",
            "content": text_of(where, block.get("content"), ("text",)),
            "tool_call_id": str(block.get("tool_use_id", "")),
        }
        for block in others
    ]
    return [*results, *([found] if said else [])]


def _call(where: str, block: Payload) -> Payload:
    if not isinstance(block.get("name"), str) or not isinstance(block.get("input"), dict):
        raise RequestError(f"{where}: a tool_use must have a name and an input; got {block!r:.100}.")
    return function_call(block.get("id", ""), block["name"], block["input"])


def _tool(tool: Any) -> Payload:
    if not isinstance(tool, dict) or tool.get("type", "custom") != "custom" or not isinstance(tool.get("name"), str):
        raise RequestError(f"tools: must be of one's own, with a name; got {tool!r:.100}.", code="unsupported")
    return function_tool(tool["name"], str(tool.get("description", "")), tool.get("input_schema"))
