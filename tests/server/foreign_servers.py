"""OpenEnv servers that are not this package's, made with that library alone: `python -m tests.server.foreign_servers`.

fields: an action of several fields; echo: of one text field, with tasks; tools: MCP tools.
"""

from __future__ import annotations

import socket
import sys
from typing import Literal

import uvicorn
from openenv.core.env_server import (
    Action,
    CallToolAction,
    CallToolObservation,
    Environment,
    Observation,
    State,
    create_fastapi_app,
)
from openenv.core.env_server.mcp_environment import MCPEnvironment


class MoveAction(Action):
    direction: Literal["left", "right"]
    steps: int = 1


class EchoAction(Action):
    message: str


class Seen(Observation):
    heard: str = ""
    place: int = 0


class Walk(Environment):
    """Walk to place 2."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        super().__init__()
        self._place = 0

    def reset(self, seed=None, episode_id=None, **kwargs):
        self._place = 0
        return Seen(heard="You stand at 0. Go to 2.")

    def step(self, action, timeout_s=None, **kwargs):
        self._place += action.steps if action.direction == "right" else -action.steps
        return Seen(place=self._place, done=self._place == 2, reward=float(self._place == 2))

    @property
    def state(self):
        return State()


class Echo(Environment):
    """Say the number of the task."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    TASKS = {"train": 5, "test": 2}  # noqa: RUF012

    def __init__(self):
        super().__init__()
        self._word = ""

    def reset(self, seed=None, episode_id=None, split="train", index=0, **kwargs):
        self._word = f"{split} {index}"
        return Seen(heard=f"Say {self._word}.")

    def step(self, action, timeout_s=None, **kwargs):
        is_right = action.message == self._word
        return Seen(heard=action.message, done=is_right, reward=float(is_right))

    @property
    def state(self):
        return State()

    def list_splits(self):
        return list(self.TASKS)

    def list_tasks(self, split):
        return [{"id": f"{split}-{index}"} for index in range(self.TASKS[split])]

    def num_tasks(self, split):
        return self.TASKS[split]

    def get_task(self, split, index):
        return self.list_tasks(split)[index]

    def get_task_range(self, split, start=None, stop=None):
        return self.list_tasks(split)[start:stop]


class Tools(MCPEnvironment):
    """Add with a tool."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        from fastmcp import FastMCP

        server = FastMCP("sums")

        @server.tool
        def add(a: int, b: int) -> str:
            """Add two numbers."""
            return f"{a} + {b} = {a + b}"

        super().__init__(server)

    def reset(self, seed=None, episode_id=None, **kwargs):
        return Observation(metadata={"hint": "use add"})

    def _step_impl(self, action, timeout_s=None, **kwargs):
        raise ValueError("only tools")

    @property
    def state(self):
        return State()


def main(which: str) -> None:
    env, action, observation = {
        "fields": (Walk, MoveAction, Seen),
        "echo": (Echo, EchoAction, Seen),
        "tools": (Tools, CallToolAction, CallToolObservation),
    }[which]
    app = create_fastapi_app(env, action, observation, max_concurrent_envs=8, env_name=which)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        print(f"at http://127.0.0.1:{listening.getsockname()[1]}", flush=True)
        uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listening])


if __name__ == "__main__":
    main(sys.argv[1])
