"""Resets every environment of an experiment once, in a process that can be killed, and counts the first prompt."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from rllm_gym.errors import MachineError

RESET_TIMEOUT_S = 60.0
START_TIMEOUT_S = 300.0  # imports and the tokenizer, before the first reset


@dataclass(frozen=True)
class FirstPrompt:
    """The outcome of an environment's reset.

    Args:
        num_tokens: of the prompt, the longest one where several agents act; None where it failed.
        agents: who acts, sooner or later.
        error: why it failed.
        is_machines: whether it failed for something that this machine lacks.
    """

    num_tokens: int | None = None
    agents: tuple[str, ...] = ()
    error: str | None = None
    is_machines: bool = False


def first_prompts(config: Any, *, reset_timeout_s: float = RESET_TIMEOUT_S) -> Iterator[FirstPrompt]:
    """Yield the outcome of the reset of every environment, in order, up to the first that fails.

    Each plays the first task that training draws, with the seed that it has there.
    """
    context = multiprocessing.get_context("spawn")  # a fork would have the threads of what is loaded here
    ours, theirs = context.Pipe()
    process = context.Process(target=_reset_all, args=(config.environments, _settings(config), theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        if (found := _receive(ours, START_TIMEOUT_S, "the tokenizer")).error is not None:
            yield found
            return
        for _ in config.environments:
            found = _receive(ours, reset_timeout_s, "the environment's reset")
            yield found
            if found.error is not None:
                return
    finally:
        with contextlib.suppress(ProcessLookupError):  # browsers, JVMs and games are in its group
            os.killpg(process.pid or 0, signal.SIGKILL)
        process.kill()
        process.join()


def _settings(config: Any) -> dict[str, Any]:
    from rllm_gym.models import resolve_base_model

    names = ("chat_options", "seed", "group_size")
    model = resolve_base_model(config.base_model, allow_lookup=False)
    return {"model": str(model), **{name: getattr(config, name) for name in names}}


def _receive(connection: Connection, timeout_s: float, what: str) -> FirstPrompt:
    if not connection.poll(timeout_s):
        return FirstPrompt(error=f"{what} took more than {timeout_s:g} s")
    try:
        return connection.recv()
    except EOFError:
        return FirstPrompt(error="the environment ended its process at the reset")


# --- in the other process ---


def _reset_all(environments: list[Any], settings: dict[str, Any], connection: Connection) -> None:
    os.setsid()
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True, name="end-with-the-dry-run").start()
    try:
        from rllm_gym.rollout.environments import make_token_env
        from rllm_gym.tokens import ChatTokenizer

        chat = ChatTokenizer(settings["model"], **settings["chat_options"])
        connection.send(FirstPrompt())
        for spec in environments:
            connection.send(_first_prompt(make_token_env(spec, chat), settings))
    except Exception as error:  # an environment may raise anything
        text = f"{type(error).__name__}: {' '.join(str(error).split())}"
        connection.send(FirstPrompt(error=text, is_machines=isinstance(error, MachineError)))


def _end_with(parent: int) -> None:
    """End this process and what it has started when the dry run is gone: nobody else would."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os.killpg(0, signal.SIGKILL)


def _first_prompt(env: Any, settings: dict[str, Any]) -> FirstPrompt:
    from rllm_gym.rollout.env_adapters import adapt_env
    from rllm_gym.rollout.loop import seed_of
    from rllm_gym.training.task_sampler import TaskSampler

    try:
        seed = settings["seed"] or 0
        item_ids = getattr(getattr(env, "unwrapped", env), "item_ids", None)
        [group] = TaskSampler([item_ids], [1.0], seed=seed, group_size=settings["group_size"]).groups(0, 1)
        adapted = adapt_env(env)
        step = adapted.reset(seed_of(*group.key), group.item_id)
        return FirstPrompt(max(len(step.observations[agent_id]) for agent_id in step.to_act), adapted.agents)
    finally:
        env.close()
