"""Tool calls, read from the text that a model writes by the parser of its family: vLLM's."""

from __future__ import annotations

import logging
from typing import Any, NamedTuple

from rllm_gym.errors import ConfigError, nearest


class Parsed(NamedTuple):
    """The words and the calls of a completion.

    Args:
        content: None where it only calls.
        calls: name and arguments, as JSON, of each.
    """

    content: str | None
    calls: list[tuple[str, str]]


def parser_of(chat_template: str) -> str | None:
    """Return the name of the parser for what a chat template asks models to write; None where it does not tell."""
    is_hermes = "<tool_call>" in chat_template and '"name": <function-name>' in chat_template.replace("\\", "")
    return "hermes" if is_hermes else None


def load_parser(name: str, tokenizer: Any) -> Any:
    """Return vLLM's parser of a name.

    Args:
        tokenizer: the Hugging Face tokenizer of the model.

    Raises:
        ConfigError: vLLM is not installed, or has no such parser.
    """
    try:
        from vllm.tool_parsers import ToolParserManager  # takes seconds
    except ImportError as error:
        raise ConfigError(
            "tool_parser: tool calls are read by vLLM's parsers, and vLLM is not installed. "
            'pip install "rllm-gym[cpu]", or play a program that uses no tools.'
        ) from error
    # It logs a traceback for each text that is no call, which is for a model to learn.
    logging.getLogger("vllm.tool_parsers").setLevel(logging.CRITICAL)
    known = [*ToolParserManager.tool_parsers, *ToolParserManager.lazy_parsers]
    if name not in known:
        raise ConfigError(
            f"tool_parser: must be one of vLLM's, {', '.join(sorted(known))}; got {name!r}. "
            f"Did you mean {nearest(name, known)!r}?"
        )
    return ToolParserManager.get_tool_parser(name)(tokenizer)


def parse(parser: Any, text: str) -> Parsed:
    """Return the words and the calls of a text; one that cannot be read is only said."""
    found = parser.extract_tool_calls(text, None)
    if not found.tools_called:
        return Parsed(text, [])
    return Parsed(found.content, [(call.function.name, call.function.arguments) for call in found.tool_calls])
