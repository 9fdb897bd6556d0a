"""An environment's actions as functions: from a call to the environment's own text, and back."""

from __future__ import annotations

import functools
import re
import string
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MAX_NUMBER = 10**18
REACT = "Thought: {thought}\nAction: {action}"


class BadCallError(ValueError):
    """A call that cannot be made; the message tells the policy why."""


@dataclass(frozen=True)
class Function:
    """One kind of action.

        Function("get", "get {count} {item}", "take a basic item", integers=("count",))

    says that the call `get(count=2, item="oak logs")` is the environment's "get 2 oak logs".

    Args:
        name: a Python identifier.
        form: the environment's own text, with the parameters in braces. An action is read as a call of the first
            function whose form it has, so the more special one comes first.
        description: for the system prompt.
        integers: the parameters that are whole numbers; the others are texts.
    """

    name: str
    form: str
    description: str
    integers: tuple[str, ...] = ()

    @functools.cached_property
    def parameters(self) -> tuple[str, ...]:
        return tuple(name for _, name, _, _ in string.Formatter().parse(self.form) if name)

    @property
    def signature(self) -> str:
        """As in `get(count: int, item: str)`."""
        typed = (f"{name}: {'int' if name in self.integers else 'str'}" for name in self.parameters)
        return f"{self.name}({', '.join(typed)})"

    @property
    def schema(self) -> dict[str, Any]:
        """The function in JSON Schema, as chat APIs describe tools."""
        kinds = {name: {"type": "integer" if name in self.integers else "string"} for name in self.parameters}
        parameters = {"type": "object", "properties": kinds, "required": list(self.parameters)}
        return {"name": self.name, "description": self.description, "parameters": parameters}

    def text(self, arguments: Mapping[str, Any]) -> str:
        """Return the environment's text for a call.

        Raises:
            BadCallError: an argument is missing, unknown or of another type.
        """
        if set(arguments) != set(self.parameters):
            takes = ", ".join(self.parameters) or "no arguments"
            raise BadCallError(f"{self.name} takes {takes}; got {', '.join(map(str, arguments)) or 'none'}")
        return self.form.format(**{name: self._value(name, arguments[name]) for name in self.parameters})

    def arguments(self, text: str) -> dict[str, Any] | None:
        """Return the arguments of the call that an environment's text is, or None where it is none."""
        match = self._pattern.fullmatch(text)
        if match is None:
            return None
        return {name: int(match[name]) if name in self.integers else match[name] for name in self.parameters}

    @functools.cached_property
    def _pattern(self) -> re.Pattern[str]:
        pattern = ""
        for literal, name, _, _ in string.Formatter().parse(self.form):
            pattern += re.escape(literal)
            if name:
                # Without leading zeros: a number must come back as it was written.
                pattern += f"(?P<{name}>{'0|[1-9][0-9]{0,17}' if name in self.integers else '.*?'})"
        return re.compile(pattern, re.DOTALL)

    def _value(self, name: str, value: Any) -> str:
        is_integer = name in self.integers
        if isinstance(value, int | float) and not isinstance(value, bool):
            # Python does not spell out numbers of thousands of digits, which a hexadecimal literal may have.
            if not abs(value) < MAX_NUMBER:
                raise BadCallError(f"{name} of {self.name} must be a number of at most 18 digits")
            if not is_integer or value == int(value):
                return str(int(value) if is_integer else value)
        elif isinstance(value, str) and (not is_integer or re.fullmatch(r"-?[0-9]{1,18}", value)):
            return str(int(value)) if is_integer else value
        raise BadCallError(
            f"{name} of {self.name} must be a {'whole number' if is_integer else 'text'}; got {value!r:.60}"
        )


# What can be done in an environment that does not say.
ACT = Function("act", "{action}", "your action, in the environment's own words")


@dataclass(frozen=True)
class Language:
    """The language of an environment.

    Args:
        system_prompt: its whole instruction, in its own format.
        introduction: the part of it that is about the world alone; where there is none, the whole.
        turn_form: what a turn looks like, with `{thought}` and `{action}`.
        functions: what can be done.
        is_silenced: its user wants no system prompt.
    """

    system_prompt: str
    introduction: str
    turn_form: str
    functions: tuple[Function, ...]
    is_silenced: bool = False

    @classmethod
    def of(cls, env: Any) -> Language:
        """Return the language of a text environment; its attributes are those of `TextEnv`, and all optional."""
        prompt, default = getattr(env, "system_prompt", ""), getattr(env, "default_system_prompt", "")
        introduction = getattr(env, "introduction", "") if prompt == default else ""
        functions = tuple(getattr(env, "functions", ())) or (ACT,)
        return cls(
            system_prompt=prompt,
            introduction=introduction or prompt,
            turn_form=getattr(env, "turn_form", "{action}"),
            functions=functions,
            is_silenced=default != "" and not prompt,
        )

    def split(self, text: str) -> tuple[str, str]:
        """Return the thought and the action of a turn in the environment's form; of another text, all is action."""
        for form in dict.fromkeys((self.turn_form, REACT)):
            match = _turn_pattern(form).fullmatch(text)
            if match:
                return match.groupdict().get("thought", ""), match["action"]
        return "", text

    def join(self, thought: str, action: str) -> str:
        """Return a turn in the environment's form."""
        return self.turn_form.format(thought=thought, action=action)

    def call_of(self, action: str) -> tuple[Function, dict[str, Any]]:
        """Return the call that an action is.

        Raises:
            ValueError: no function has this form.
        """
        for function in self.functions:
            arguments = function.arguments(action)
            if arguments is not None:
                return function, arguments
        raise ValueError(f"agent: an expert's action must have the form of a function; got {action!r}.")

    def text_of(self, name: Any, arguments: Mapping[str, Any]) -> str:
        """Return the action that a call is.

        Raises:
            BadCallError: there is no such function, or it takes other arguments.
        """
        function = next((function for function in self.functions if function.name == name), None)
        if function is None:
            raise BadCallError(f"there is no function {name!r:.60}; the functions are {names(self.functions)}")
        return function.text(arguments)


def names(functions: Iterable[Function]) -> str:
    return ", ".join(dict.fromkeys(function.name for function in functions))


def listing(functions: Sequence[Function], form: str) -> str:
    """Return one line for each function, of its attribute `form` and its description."""
    return "\n".join(f"- {getattr(function, form)}: {function.description}" for function in functions)


@functools.cache
def _turn_pattern(form: str) -> re.Pattern[str]:
    parts = re.split(r"\{(thought|action)\}", form)
    pattern = "".join(f"(?P<{part}>.*?)" if k % 2 else re.escape(part) for k, part in enumerate(parts))
    return re.compile(pattern, re.DOTALL)
