"""Chat templates: found by name, rendered as transformers renders them but without it, and the roles they mark."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import jinja2
from jinja2 import ext, meta, nodes

from rllm_gym.errors import ChatTemplateError, nearest
from rllm_gym.template_sandbox import BoundedSandbox

CHAT_TEMPLATE_DIR = Path(__file__).parent / "assets" / "chat_templates"
# What a template takes for today (Llama 3.1's, gpt-oss's): the clock's would change prompts overnight.
TEMPLATE_DATE = "2026-01-01"
# Variables of a template that are no arguments of one's own.
_TAKEN = ("messages", "add_generation_prompt", "continue_final_message", "strftime_now", "raise_exception")


def shipped_names() -> str:
    """Return the names of the templates that come with the package."""
    return ", ".join(sorted(path.stem for path in CHAT_TEMPLATE_DIR.glob("*.jinja")))


def find_template(chat_template: str | Path) -> str:
    """Return Jinja source from what the caller gave: source, a path, or the name of a shipped template."""
    text = str(chat_template)
    if "{%" in text or "{{" in text:
        return text
    for path in (CHAT_TEMPLATE_DIR / f"{text}.jinja", Path(text).expanduser()):
        if path.is_file():
            return path.read_text(encoding="utf-8")
    raise ChatTemplateError(
        "ChatTokenizer: chat_template must be Jinja source, a .jinja file or the name of a shipped template; "
        f"got {text!r}. Did you mean {nearest(text, shipped_names().split(', '))!r}?"
    )


def renderer(
    source: str,
    special_tokens: Mapping[str, str],
    *,
    template_kwargs: Mapping[str, Any] = {},
    template_date: str | None = None,
) -> Callable[..., str]:
    """Return a function of `messages` and `add_generation_prompt`, both by name, that renders a conversation.

    It returns what `apply_chat_template(messages, tokenize=False, **template_kwargs)` of transformers returns on that
    date.

    Args:
        special_tokens: by the names that templates know them by, such as `bos_token`.
        template_kwargs: more variables, such as `enable_thinking`.
        template_date: as 2026-01-31, what `strftime_now` writes; None is `TEMPLATE_DATE`.

    Raises:
        ChatTemplateError: the date or an argument cannot be.
        jinja2.TemplateError: the source is no template; the function raises it where the template refuses the messages,
            or does more than any conversation needs.
    """
    try:
        day = date.fromisoformat(str(template_date or TEMPLATE_DATE))
    except ValueError as error:
        raise ChatTemplateError(f"template_date: must be a date like 2026-01-31; got {template_date!r}.") from error
    if taken := sorted(set(template_kwargs) & set(_TAKEN)):
        raise ChatTemplateError(f"chat_template_kwargs: {taken[0]!r} is not for arguments. Leave it out.")
    variables = {"tools": None, "documents": None, **special_tokens, **template_kwargs, "strftime_now": day.strftime}
    environment = _environment()
    return partial(environment.render_bounded, _compile(source), **variables)


def find_arguments(source: str, special_tokens: Mapping[str, str]) -> list[str]:
    """Return the names of a template's own arguments, such as `enable_thinking`; `strftime_now` where it asks the date.

    Raises:
        jinja2.TemplateError: the source is no template.
    """
    _compile(source)  # within bounds
    given = {*_TAKEN, "tools", "documents", *special_tokens, "bos_token", "eos_token"} - {"strftime_now"}
    template = _environment().parse(source)
    first_use: dict[str, str] = {}
    for name, use in _uses_of_names(template):
        first_use.setdefault(name, use)
    # Jinja counts a name that one branch sets as undeclared behind it; an argument is read before it is set.
    arguments = {name for name in meta.find_undeclared_variables(template) if first_use.get(name) == "load"}
    return sorted(arguments - given - {*_environment().globals})


def _uses_of_names(node: nodes.Node) -> Iterator[tuple[str, str]]:
    """Yield the names in a template and whether each is read ("load") or set ("store", "param"), in order."""
    if isinstance(node, nodes.Name):
        yield node.name, node.ctx
    children = list(node.iter_child_nodes())
    for child in reversed(children) if isinstance(node, nodes.Assign) else children:  # the value before the target
        yield from _uses_of_names(child)


def role_markers(
    render: Callable[..., str], end_of_turn: str, bos_token: str, *, has_system_role: bool
) -> tuple[str, ...]:
    """Return the text that a template writes right before a system's, a user's and an assistant's content.

    ChatML gives `<|im_start|>user` and so on, and a template that writes its roles as ordinary text, `USER:`. Of a
    header of several lines only the first one is taken: it is what tells the roles apart.
    """
    roles = ["system"] * has_system_role + ["user", "assistant", "user"]
    contents = [f"content-{k}-5b1e" for k in range(len(roles))]
    messages = [{"role": role, "content": content} for role, content in zip(roles, contents, strict=True)]
    text = render(messages=messages, add_generation_prompt=False)
    markers = []
    for content in contents:
        header, found, text = text.partition(content)
        first_line = header.rpartition(end_of_turn)[2].replace(bos_token, "").strip().partition("\n")[0].strip()
        if found and first_line:
            markers.append(first_line)
    return tuple(dict.fromkeys(markers))


class _Generation(ext.Extension):
    """`{% generation %}` marks what an assistant says; the text inside is rendered as it is."""

    tags = {"generation"}  # noqa: RUF012  Jinja's own form

    def parse(self, parser: Any) -> nodes.Node:
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        # A call block, as in transformers: variables set inside stay inside.
        return nodes.CallBlock(self.call_method("_said"), [], [], body).set_lineno(lineno)

    def _said(self, caller: Callable[[], str]) -> str:
        return caller()


@lru_cache(maxsize=32)
def _compile(source: str) -> jinja2.Template:
    return _environment().compile_bounded(source)


@lru_cache(maxsize=1)
def _environment() -> BoundedSandbox:
    """Return the sandbox of transformers, with its settings, extensions and functions, and with bounds.

    Source: transformers 5.19, utils/chat_template_utils.py.
    """
    environment = BoundedSandbox(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, ext.loopcontrols])
    environment.add_filter("tojson", _to_json)
    environment.globals["raise_exception"] = _raise_exception
    return environment


def _to_json(
    x: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def compile_any(texts: Sequence[str]) -> re.Pattern[str]:
    """Return a pattern for any of these texts, the longest one first where one begins with another."""
    return re.compile("|".join(re.escape(text) for text in sorted(texts, key=len, reverse=True)) or "(?!)")
