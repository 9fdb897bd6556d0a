"""A Jinja sandbox with bounds: a template of a stranger's model can neither run for ever nor fill the memory.

Jinja's own sandbox keeps a template away from Python. This one also counts what it does: every iteration of a loop,
every call, every piece of text and every operator that makes something larger. Processor time counts, so that a
machine that is busy, or a process that was stopped, refuses nothing.
"""

from __future__ import annotations

import functools
import re
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import jinja2
from jinja2 import ext, nodes, sandbox

RENDER_S = 4.0  # of processor time; a long conversation takes milliseconds, Python's own collection of garbage a second
MOST_CHARS = 20_000_000  # of one rendering, and of any text on the way
MOST_ITEMS = 1_000_000  # of a list
MOST_BITS = 10_000  # of a whole number
MOST_NUMBER = 100_000  # given to a function, a filter or a format: widths and counts
MOST_SOURCE_CHARS = 500_000  # the longest published templates have 30,000
_NUMBER_IN_FORMAT = re.compile(r"[0-9]{6}")


class TemplateBoundError(jinja2.TemplateRuntimeError):
    """A template did more than any conversation needs."""


class BoundedSandbox(sandbox.ImmutableSandboxedEnvironment):
    """Compiles templates whose renderings are bounded."""

    intercepted_binops = frozenset(["+", "*", "**", "%"])

    def __init__(self, **options: Any) -> None:
        super().__init__(**{**options, "extensions": [*options.get("extensions", ()), _Counter]})
        self.globals.pop("lipsum", None)  # it makes text at random
        for name, function in self.filters.items():
            self.add_filter(name, function)

    def add_filter(self, name: str, function: Callable[..., Any]) -> None:
        self.filters[name] = _bounded_filter(name, function)

    def compile_bounded(self, source: str) -> jinja2.Template:
        """Return the template.

        Raises:
            jinja2.TemplateError: the source is none, or larger than any template is.
        """
        if len(source) > MOST_SOURCE_CHARS:
            raise TemplateBoundError(f"a source of {len(source)} characters; at most {MOST_SOURCE_CHARS} are compiled")
        return _told(lambda: self.from_string(source))

    def render_bounded(self, template: jinja2.Template, **variables: Any) -> str:
        """Render a template with the variables.

        Raises:
            jinja2.TemplateError: the template refuses them, does too much, or fails in any way.
        """
        self._counter.begin()
        return _told(lambda: template.render(**variables))

    @property
    def _counter(self) -> _Counter:
        return self.extensions[_Counter.identifier]  # type: ignore[return-value]

    def _generate(self, source: nodes.Template, *args: Any, **kwargs: Any) -> str:
        self._counter.count_in(source)
        return super()._generate(source, *args, **kwargs)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "+":
            _check_size(_size(left) + _size(right), left)
        elif operator == "*":
            for value, times in ((left, right), (right, left)):
                if isinstance(value, str | bytes | list | tuple) and isinstance(times, int):
                    _check_size(len(value) * times, value)
            _check_bits(_bits(left) + _bits(right))
        elif operator == "**":
            _check_bits(_bits(left) * abs(right) if isinstance(right, int) else 0)
        elif isinstance(left, str):
            _check_format(left, right if isinstance(right, tuple) else (right,))
        return super().call_binop(context, operator, left, right)

    def call(self, context: Any, function: Any, *args: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        text = getattr(function, "__self__", None)
        if text is self._counter:
            return function(*args)
        self._counter.tick()
        if isinstance(text, str):
            _check_text_call(function.__name__, text, args, kwargs)
        else:
            _check_numbers((*args, *kwargs.values()))
        return super().call(context, function, *args, **kwargs)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        if isinstance(text := getattr(value, "__self__", None), str) and value.__name__.startswith("format"):
            _check_format(text, ())
        return super().wrap_str_format(value)


class _Counter(ext.Extension):
    """Counts what the templates of an environment do, for each thread by itself."""

    def __init__(self, environment: Any) -> None:
        super().__init__(environment)
        self._budget = threading.local()

    def begin(self) -> None:
        self._budget.end_s, self._budget.num_chars = time.thread_time() + RENDER_S, 0

    def tick(self) -> None:
        if time.thread_time() > getattr(self._budget, "end_s", float("inf")):
            raise TemplateBoundError(f"no end after {RENDER_S:g} s of rendering")

    def say(self, value: Any) -> Any:
        """Return a piece of the output."""
        self._budget.num_chars = getattr(self._budget, "num_chars", 0) + (len(value) if isinstance(value, str) else 8)
        _check_size(self._budget.num_chars, "")
        return value

    def join(self, *values: Any) -> str:
        """Join texts, as `~` does."""
        texts = [str(value) for value in values]
        _check_size(sum(map(len, texts)), "")
        return "".join(texts)

    def count_in(self, source: nodes.Template) -> None:
        """Put the counting into a parsed template."""
        _replace_in(source, nodes.Concat, lambda node: self._call("join", node.nodes, node.lineno))
        for output in list(source.find_all(nodes.Output)):
            output.nodes = [
                self._call("say", [nodes.Const(n.data) if isinstance(n, nodes.TemplateData) else n], output.lineno)
                for n in output.nodes
            ]
        block: Any
        for block in list(source.find_all((nodes.For, nodes.Macro, nodes.CallBlock))):
            block.body.insert(0, nodes.ExprStmt(self._call("tick", [], block.lineno)).set_lineno(block.lineno))

    def _call(self, name: str, arguments: list[nodes.Expr], lineno: int) -> nodes.Expr:
        node: Any = self.call_method(name, arguments).set_lineno(lineno)
        node.set_environment(self.environment)
        return node


def _replace_in(parent: nodes.Node, kind: type, replacement: Callable[[Any], nodes.Node]) -> None:
    """Replace every node of a kind below a node, the innermost first."""
    for field in parent.fields:
        value = getattr(parent, field, None)
        if isinstance(value, list):
            for k, child in enumerate(value):
                if isinstance(child, nodes.Node):
                    _replace_in(child, kind, replacement)
                    value[k] = replacement(child) if isinstance(child, kind) else child
        elif isinstance(value, nodes.Node):
            _replace_in(value, kind, replacement)
            if isinstance(value, kind):
                setattr(parent, field, replacement(value))


def _told(function: Callable[[], Any]) -> Any:
    """Call a function; whatever a template makes Python raise is the template's error."""
    try:
        return function()
    except jinja2.TemplateError:
        raise
    except Exception as error:  # RecursionError, MemoryError, TypeError, ...: a template can cause any
        raise jinja2.TemplateRuntimeError(f"{type(error).__name__}: {str(error)[:200]}") from None


def _bounded_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def bounded(*args: Any, **kwargs: Any) -> Any:
        values = [value for value in args if not isinstance(value, jinja2.Environment | nodes.EvalContext)]
        if name == "format" and values and isinstance(values[0], str):
            _check_format(values[0], (*values[1:], *kwargs.values()))
        elif name == "join" and values:
            return function(*_with_list(args, values[0], kwargs), **kwargs)
        elif values and isinstance(values[0], str):
            _check_text_call(name, values[0], tuple(values[1:]), kwargs)
        else:
            _check_numbers((*values[1:], *kwargs.values()))
        return function(*args, **kwargs)

    return bounded


def _with_list(args: tuple[Any, ...], value: Any, kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the arguments of `join`, its texts as a list that is not too long."""
    if isinstance(value, str | Mapping):
        return args
    texts = list(value)
    _check_size(len(texts), texts)
    between = max((len(other) for other in (*args, *kwargs.values()) if isinstance(other, str)), default=0)
    _check_size(sum(len(text) if isinstance(text, str) else 8 for text in texts) + between * len(texts), "")
    return tuple(texts if arg is value else arg for arg in args)


def _check_text_call(name: str, text: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Make sure that a method or a filter of a text gives no text without bound."""
    given = (*args, *kwargs.values())
    _check_numbers(given)
    longest = max((len(value) for value in given if isinstance(value, str)), default=0)
    if name in ("replace", "translate"):
        for value in given:
            if isinstance(value, Mapping):
                longest = max([longest, *(len(v) for v in value.values() if isinstance(v, str))])
        _check_size((len(text) + 1) * max(1, longest), "")
    elif name in ("indent", "expandtabs", "wordwrap"):
        number = max((value for value in given if isinstance(value, int)), default=8)
        _check_size(len(text) + (text.count("\n") + text.count("\t") + 1) * (number + longest), "")
    elif name == "join":
        for value in given:
            if isinstance(value, list | tuple):
                _check_size(sum(len(v) if isinstance(v, str) else 8 for v in value) + len(text) * len(value), "")


def _check_format(form: str, values: tuple[Any, ...]) -> None:
    if _NUMBER_IN_FORMAT.search(form):
        raise TemplateBoundError(f"a format with a width of 100,000 or more: {form!r:.60}")
    _check_numbers(values)


def _check_numbers(values: tuple[Any, ...]) -> None:
    for value in values:
        if isinstance(value, int) and abs(value) > MOST_NUMBER:
            raise TemplateBoundError(f"a number above {MOST_NUMBER:,} is given to a function or filter")


def _check_size(size: int, value: Any) -> None:
    most = MOST_ITEMS if isinstance(value, list | tuple) else MOST_CHARS
    if size > most:
        raise TemplateBoundError(f"more than {most:,} {'items' if most == MOST_ITEMS else 'characters'}")


def _check_bits(num_bits: int) -> None:
    if num_bits > MOST_BITS:
        raise TemplateBoundError(f"a whole number of more than {MOST_BITS:,} bits")


def _size(value: Any) -> int:
    return len(value) if isinstance(value, str | bytes | list | tuple) else 0


def _bits(value: Any) -> int:
    return value.bit_length() if isinstance(value, int) else 0
