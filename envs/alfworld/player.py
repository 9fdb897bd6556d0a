"""Plays ALFWorld's games, for `game_server.py`; the only file that imports alfworld."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def load(folder: Path) -> None:
    import fast_downward  # noqa: F401  (TextWorld says only at the first game that it is missing)
    import textworld.envs  # noqa: F401


class Player:
    """Plays games, one after the other: ("begin", file), ("step", command), and ("plan",) for what wins from here."""

    def __init__(self, folder: Path) -> None:
        from alfworld.agents.environment.alfred_tw_env import AlfredDemangler
        from textworld import EnvInfos
        from textworld.envs import PddlEnv

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
