"""Plays ALFWorld's games, for `game_server.py`; the only file that imports alfworld."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path
from typing import Any

WORDS = ("id", "name", "noun", "adj", "type", "definite", "indefinite")  # of a thing that a game's text may quote


def load(folder: Path) -> None:
    import fast_downward  # noqa: F401  (TextWorld says only at the first game that it is missing)
    import textworld.envs  # noqa: F401


class Player:
    """Plays games, one after the other: ("begin", file), ("step", command), and ("plan",) for what wins from here."""

    def __init__(self, folder: Path) -> None:
        from alfworld.agents.environment.alfred_tw_env import AlfredDemangler
        from textworld import EnvInfos
        from textworld.envs import PddlEnv
        from textworld.envs.pddl import textgen

        textgen.EvalSymbol.derive = _derive  # its own, in TextWorld 1.7, passes the file's text to Python's eval

        self._env: Any = AlfredDemangler(PddlEnv(EnvInfos(admissible_commands=True, won=True)))
        self._commands: list[str] = []

    def answer(self, verb: str, *arguments: str) -> dict[str, Any]:
        match verb:
            case "begin":
                try:
                    self._env.load(*arguments)
                    state = self._env.reset()
                except Exception as error:  # a file may hold anything
                    return {"error": f"{type(error).__name__}: {error}"}
                return self._answer(state)
            case "step":
                state, _, _ = self._env.step(*arguments)
                return self._answer(state)
            case _:
                pddl = self._env.unwrapped
                return {"plan": pddl._pddl_state.replan(pddl._entity_infos)}

    def _answer(self, state: Any) -> dict[str, Any]:
        return {"text": state.feedback, "is_won": bool(state.won), "commands": state.admissible_commands}


def _derive(symbol: Any, context: Mapping[str, Any] | None = None) -> list[Any]:
    """Return the text of what stands in braces in a game's grammar; in place of `EvalSymbol.derive`."""
    from textworld.envs.pddl.textgen import TerminalSymbol

    return [TerminalSymbol(text_of(symbol.expression, (context or symbol.context)["variables"]))]


def text_of(expression: str, variables: Mapping[str, Any]) -> Any:
    """Return the value of an expression of ALFWorld's grammars: texts, things, their words, `+` and `or`.

    Raises:
        ValueError: it holds anything else, which Python could run.
    """

    def value(node: ast.AST) -> Any:
        match node:
            case ast.Expression(body=body):
                return value(body)
            case ast.Constant(value=str(text)):
                return text
            case ast.Name(id=name) if name in variables:
                return variables[name]
            case ast.Attribute(value=ast.Name(id=name), attr=word) if name in variables and word in WORDS:
                return getattr(variables[name], word)
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                return str(value(left)) + str(value(right))
            case ast.BoolOp(op=ast.Or(), values=values):
                return next((found for found in map(value, values) if found), "")
        raise ValueError(f"a game's grammar may hold texts, things, their words, + and or; got {expression!r:.200}.")

    try:
        return value(ast.parse(expression.strip(), mode="eval"))
    except SyntaxError as error:
        raise ValueError(f"a game's grammar must hold expressions; got {expression!r:.200}.") from error
