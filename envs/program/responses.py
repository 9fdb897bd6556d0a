"""OpenAI's newer form of requests and answers, `POST /v1/responses`, without a state kept between them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from rllm_gym.envs.program import chat_completions
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
    parallel_tool_calls,
    parse_arguments,
    some,
    text_of,
    tool_choice,
    validate,
    whole,
)

USED = (
    "input", "instructions", "model", "tools", "tool_choice", "max_output_tokens", "stream", "parallel_tool_calls",
    "text",
)  # fmt: skip
REPLACED = ("temperature", "top_p", "reasoning")
WITHOUT_EFFECT = (
    "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "include", "stream_options",
)  # fmt: skip
NEUTRAL: dict[str, Any] = {"truncation": "disabled", "background": False, "top_logprobs": 0}
TEXTS = ("input_text", "output_text", "text")


def read(body: Payload) -> ModelRequest:
    """Return the request that a body makes.

    Raises:
        RequestError: it asks for what is not supported, or is no such request.
    """
    body, replaced = checked(body, used=USED, replaced=REPLACED, without_effect=WITHOUT_EFFECT, neutral=NEUTRAL)
    items = body.get("input")
    items = [{"role": "user", "content": items}] if isinstance(items, str) else some("input", items)
    choice, replaced = tool_choice(body.get("tool_choice", "auto"), replaced)
    messages: list[Payload] = []
    if instructions := text_of("instructions", body.get("instructions"), TEXTS):
        messages.append({"role": "system", "content": instructions})
    for k, item in enumerate(items):
        _add(messages, f"input[{k}]", item)
    tools = tuple(map(_tool, listed("tools", body.get("tools", []))))
    return ModelRequest(
        messages=messages,
        tools=tools if choice == "auto" else (),
        max_tokens=whole("max_output_tokens", body["max_output_tokens"]) if "max_output_tokens" in body else None,
        is_streamed=body.get("stream", False) is True,
        replaced=_text(body.get("text", {}), parallel_tool_calls(body, replaced)),
        options={"model": str(body.get("model", "")), "tools": body.get("tools", []), "tool_choice": choice},
    )


def answer(request: ModelRequest, choices: Sequence[Choice], usage: tuple[int, int]) -> Payload:
    from openai.types.responses import Response

    return Response.model_validate(_response(request, choices, usage)).model_dump(mode="json", exclude_unset=True)


def events(request: ModelRequest, choices: Sequence[Choice], usage: tuple[int, int]) -> list[tuple[str | None, Any]]:
    response = answer(request, choices, usage)
    begun = {**response, "status": "in_progress", "output": [], "usage": None, "incomplete_details": None}
    found: list[Payload] = [{"type": "response.created", "response": begun}]
    for k, item in enumerate(response["output"]):
        place = {"item_id": item["id"], "output_index": k}
        if item["type"] == "message":
            [part] = item["content"]
            inner = {**place, "content_index": 0}
            middle = [
                {"type": "response.content_part.added", **inner, "part": {**part, "text": ""}},
                {"type": "response.output_text.delta", **inner, "delta": part["text"], "logprobs": []},
                {"type": "response.output_text.done", **inner, "text": part["text"], "logprobs": []},
                {"type": "response.content_part.done", **inner, "part": part},
            ]
            empty = {**item, "content": [], "status": "in_progress"}
        else:
            kind = "response.function_call_arguments"
            middle = [
                {"type": f"{kind}.delta", **place, "delta": item["arguments"]},
                {"type": f"{kind}.done", **place, "name": item["name"], "arguments": item["arguments"]},
            ]
            empty = {**item, "arguments": "", "status": "in_progress"}
        found += [
            {"type": "response.output_item.added", "output_index": k, "item": empty},
            *middle,
            {"type": "response.output_item.done", "output_index": k, "item": item},
        ]
    found.append({"type": f"response.{response['status']}", "response": response})
    return [(event["type"], {**event, "sequence_number": k}) for k, event in enumerate(found)]


FORM = Form(read, answer, events, chat_completions.error)


def _response(request: ModelRequest, choices: Sequence[Choice], usage: tuple[int, int]) -> Payload:
    [choice] = choices
    number = f"{time.time_ns():x}"
    output: list[Payload] = []
    if choice.content or not choice.calls:
        part = {"type": "output_text", "text": choice.content or "", "annotations": []}
        output.append(
            {"type": "message", "id": f"msg_{number}", "role": "assistant", "status": "completed", "content": [part]}
        )
    output += [
        {
            "type": "function_call",
            "id": f"fc_{call.id}",
            "call_id": call.id,
            "name": call.name,
            "arguments": call.arguments,
            "status": "completed",
        }
        for call in choice.calls
    ]
    is_cut = choice.finish_reason == "length"
    return {
        "id": f"resp_{number}",
        "object": "response",
        "created_at": time.time(),
        "model": request.options["model"],
        "output": output,
        "status": "incomplete" if is_cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
        "error": None,
        "instructions": None,
        "metadata": {},
        "parallel_tool_calls": True,
        "temperature": None,
        "top_p": None,
        "tool_choice": request.options["tool_choice"],
        "tools": request.options["tools"],
        "usage": {
            "input_tokens": usage[0],
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": usage[1],
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": sum(usage),
        },
    }


def _add(messages: list[Payload], where: str, item: Any) -> None:
    """Add an item as a message, or a call to the assistant's message that it belongs to."""
    kind = item.get("type", "message") if isinstance(item, dict) else None
    if kind == "message":
        if item.get("role") not in ("system", "developer", "user", "assistant"):
            raise RequestError(f"{where}: role must be system, developer, user or assistant; got {item!r:.100}.")
        role = "system" if item["role"] == "developer" else item["role"]
        messages.append({"role": role, "content": text_of(where, item.get("content"), TEXTS)})
    elif kind == "function_call":
        if not messages or messages[-1]["role"] != "assistant":
            messages.append({"role": "assistant", "content": ""})
        arguments = parse_arguments(item.get("arguments", "{}"))
        call = function_call(item.get("call_id", ""), str(item.get("name", "")), arguments)
        messages[-1].setdefault("tool_calls", []).append(call)
    elif kind == "function_call_output":
        said = text_of(where, item.get("output"), TEXTS)
        messages.append({"role": "tool", "content": said, "tool_call_id": str(item.get("call_id", ""))})
    else:
        raise RequestError(f"{where}: type {kind!r:.100} is not supported.", code="unsupported")


def _text(text: Any, replaced: tuple[str, ...]) -> tuple[str, ...]:
    """Return the replaced parameters, with `verbosity` among them where the request sets it; refuse other formats."""
    if not isinstance(text, dict) or text.get("format") not in (None, {"type": "text"}):
        raise RequestError(f"text.format is not supported here; got {text!r:.100}. Leave it out.", code="unsupported")
    return (*replaced, "verbosity") if text.get("verbosity") is not None else replaced


@lru_cache
def _tool_type() -> Any:
    from openai.types.responses import FunctionTool
    from pydantic import TypeAdapter

    return TypeAdapter(FunctionTool)


def _tool(tool: Any) -> Payload:
    if not isinstance(tool, dict) or tool.get("type") != "function" or not isinstance(tool.get("name"), str):
        raise RequestError(f"tools: must be functions with a name; got {tool!r:.100}.", code="unsupported")
    validate("tools", _tool_type(), tool)
    return function_tool(tool["name"], tool.get("description"), tool.get("parameters"))
