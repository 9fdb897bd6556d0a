"""OpenAI's form of requests and answers, `POST /v1/chat/completions`, by the types of its SDK."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from rllm_gym.envs.program.requests import (
    Choice,
    Form,
    ModelRequest,
    Payload,
    RequestError,
    checked,
    function_call,
    listed,
    parallel_tool_calls,
    parse_arguments,
    some,
    text_of,
    texts,
    tool_choice,
    validate,
    whole,
)

USED = (
    "messages", "model", "tools", "stop", "max_tokens", "max_completion_tokens", "n", "stream", "stream_options",
    "tool_choice", "logprobs", "parallel_tool_calls",
)  # fmt: skip
# The run's own are used, and the model thinks and talks as much as it does.
REPLACED = ("temperature", "top_p", "top_k", "seed", "reasoning_effort", "verbosity")
WITHOUT_EFFECT = ("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key")
# Values of what is not supported that ask for nothing.
NEUTRAL: dict[str, Any] = {
    "frequency_penalty": 0, "presence_penalty": 0, "logit_bias": {}, "top_logprobs": 0,
    "response_format": {"type": "text"}, "modalities": ["text"],
}  # fmt: skip
MAX_CHOICES = 16
ROLES = ("system", "developer", "user", "assistant", "tool")


def read(body: Payload) -> ModelRequest:
    """Return the request that a body makes.

    Raises:
        RequestError: it asks for what is not supported, or is no such request.
    """
    body, replaced = checked(body, used=USED, replaced=REPLACED, without_effect=WITHOUT_EFFECT, neutral=NEUTRAL)
    messages = some("messages", body.get("messages"))
    choice, replaced = tool_choice(body.get("tool_choice", "auto"), replaced)
    num_choices = whole("n", body.get("n", 1), most=MAX_CHOICES)
    stream = body.get("stream_options", {})
    if not isinstance(stream, dict):
        raise RequestError(f"stream_options must be an object; got {stream!r:.100}.")
    limits = [whole(name, body[name]) for name in ("max_tokens", "max_completion_tokens") if name in body]
    return ModelRequest(
        messages=[_message(k, message) for k, message in enumerate(messages)],
        tools=tuple(map(_tool, listed("tools", body.get("tools", [])))) if choice == "auto" else (),
        stop=texts("stop", body.get("stop", ())),
        max_tokens=min(limits, default=None),
        num_choices=num_choices,
        is_streamed=body.get("stream", False) is True,
        replaced=parallel_tool_calls(body, replaced),
        options={
            "model": str(body.get("model", "")),
            "has_logprobs": body.get("logprobs", False) is True,
            "has_usage": stream.get("include_usage") is True,
        },
    )


def answer(request: ModelRequest, choices: Sequence[Choice], usage: tuple[int, int]) -> Payload:
    from openai.types.chat import ChatCompletion

    rows = [
        {"index": k, "message": choice.message, "finish_reason": choice.finish_reason, **_logprobs(request, choice)}
        for k, choice in enumerate(choices)
    ]
    return ChatCompletion.model_validate(
        {**_head(request, "chat.completion"), "choices": rows, "usage": _usage(usage)}
    ).model_dump(mode="json", exclude_unset=True)


def events(request: ModelRequest, choices: Sequence[Choice], usage: tuple[int, int]) -> list[tuple[str | None, Any]]:
    from openai.types.chat import ChatCompletionChunk

    head = _head(request, "chat.completion.chunk")
    chunks: list[Payload] = []
    for k, choice in enumerate(choices):
        calls = [{"index": i, **call} for i, call in enumerate(choice.message.get("tool_calls", ()))]
        deltas = [{"role": "assistant", "content": choice.content or ""}, *({"tool_calls": [call]} for call in calls)]
        logprobs = _logprobs(request, choice)  # with the first one, which has all of the content
        for i, delta in enumerate(deltas):
            row = {"index": k, "delta": delta, "finish_reason": None, **({} if i else logprobs)}
            chunks.append({**head, "choices": [row]})
        chunks.append({**head, "choices": [{"index": k, "delta": {}, "finish_reason": choice.finish_reason}]})
    if request.options["has_usage"]:
        chunks.append({**head, "choices": [], "usage": _usage(usage)})
    dumped = [ChatCompletionChunk.model_validate(chunk).model_dump(mode="json", exclude_unset=True) for chunk in chunks]
    return [*((None, chunk) for chunk in dumped), (None, "[DONE]")]


def error(error: RequestError) -> Payload:
    kind = "invalid_request_error" if error.status < 500 else "server_error"
    return {"error": {"message": str(error), "type": kind, "param": None, "code": error.code}}


FORM = Form(read, answer, events, error)


def _head(request: ModelRequest, kind: str) -> Payload:
    return {
        "id": f"chatcmpl-{time.time_ns():x}",
        "object": kind,
        "created": int(time.time()),
        "model": request.options["model"],
    }


def _logprobs(request: ModelRequest, choice: Choice) -> Payload:
    if not request.options["has_logprobs"] or choice.token_logps is None:
        return {"logprobs": None}
    rows = [
        {"token": text, "logprob": logp, "bytes": list(text.encode("utf-8", "replace")), "top_logprobs": []}
        for text, logp in choice.token_logps
    ]
    return {"logprobs": {"content": rows, "refusal": None}}


def _usage(usage: tuple[int, int]) -> Payload:
    prompt, said = usage
    return {"prompt_tokens": prompt, "completion_tokens": said, "total_tokens": prompt + said}


@lru_cache
def _types() -> dict[str, Any]:
    """Return the SDK's types of a message of each role, and of a tool, by name."""
    from openai.types import chat
    from pydantic import TypeAdapter

    types = {
        "system": chat.ChatCompletionSystemMessageParam,
        "developer": chat.ChatCompletionDeveloperMessageParam,
        "user": chat.ChatCompletionUserMessageParam,
        "assistant": chat.ChatCompletionAssistantMessageParam,
        "tool": chat.ChatCompletionToolMessageParam,
        "a tool": chat.ChatCompletionFunctionToolParam,
    }
    return {name: TypeAdapter(type_) for name, type_ in types.items()}


def _message(k: int, message: Any) -> Payload:
    role = message.get("role") if isinstance(message, dict) else None
    if role not in ROLES:
        raise RequestError(f"messages[{k}]: role must be one of {', '.join(ROLES)}; got {role!r:.100}.")
    message = {name: value for name, value in message.items() if value is not None or name == "content"}
    validate(f"messages[{k}]", _types()[role], message)
    if "function_call" in message or "audio" in message:
        raise RequestError(f"messages[{k}]: function_call and audio are not supported; use tool_calls.")
    found: Payload = {
        "role": "system" if role == "developer" else role,
        "content": text_of(f"messages[{k}]", message.get("content"), ("text",)),
    }
    if role == "tool":
        found["tool_call_id"] = message["tool_call_id"]
    if calls := list(message.get("tool_calls", ())):
        found["tool_calls"] = [_call(k, call) for call in calls]
    return found


def _call(k: int, call: Any) -> Payload:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise RequestError(f"messages[{k}]: tool_calls must be of functions; got {call!r:.100}.")
    return function_call(call.get("id", ""), function["name"], parse_arguments(function.get("arguments", "{}")))


def _tool(tool: Any) -> Payload:
    validate("tools", _types()["a tool"], tool)
    return dict(tool)
