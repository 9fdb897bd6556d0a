"""Resets every environment of an experiment once, in a process that can be killed, and counts the first prompt."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from rllm_gym.errors import MachineError

START_TIMEOUT_S = 300.0  # imports and the tokenizer, before the first reset
SPARE_S = 15.0  # beyond the limits of making and resetting: native code may hold Python's lock


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


def first_prompts(config: Any) -> Iterator[FirstPrompt]:
    """Yield the outcome of the reset of every environment, in order, up to the first that fails.

    Each plays the first task that training draws, with the seed, in a thread and with the limit that it has there.
    """
    context = multiprocessing.get_context("spawn")  # a fork would have the threads of what is loaded here
    ours, theirs = context.Pipe()
    process = context.Process(target=_reset_all, args=(config.all_environments, _settings(config), theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        if (found := _receive(ours, START_TIMEOUT_S, "the tokenizer")).error is not None:
            yield found
            return
        for _ in config.all_environments:
            found = _receive(ours, 2 * config.env_timeout_s + SPARE_S, "the environment's reset")
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

    names = ("chat_options", "seed", "group_size", "env_timeout_s", "token_options")
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
    from rllm_gym.child_process import end_with_parent

    os.setsid()
    threading.Thread(target=end_with_parent, args=(os.getppid(),), daemon=True, name="end-with-the-dry-run").start()
    try:
        from rllm_gym.tokens import ChatTokenizer

        chat = ChatTokenizer(settings["model"], **settings["chat_options"])
        if any(spec.calls_tools for spec in environments):
            from rllm_gym.tool_calls import import_parsers

            import_parsers()
        connection.send(FirstPrompt())
        for spec in environments:
            connection.send(_first_prompt(spec, chat, settings))
    except Exception as error:  # an environment may raise anything
        text = f"{type(error).__name__}: {' '.join(str(error).split())}"
        connection.send(FirstPrompt(error=text, is_machines=isinstance(error, MachineError)))


def _first_prompt(spec: Any, chat: Any, settings: dict[str, Any]) -> FirstPrompt:
    from rllm_gym.rollout.env_pool import EnvPool
    from rllm_gym.rollout.environments import list_item_ids, make_token_env
    from rllm_gym.rollout.loop import derive_seed
    from rllm_gym.training.task_sampler import TaskSampler

    def make_env(env_index: int) -> Any:
        return make_token_env(spec, chat, **settings["token_options"])

    [group] = TaskSampler(
        [list_item_ids(spec, None)], [1.0], seed=settings["seed"] or 0, group_size=settings["group_size"]
    ).groups(0, 1)
    pool = EnvPool(make_env, num_envs=1, num_workers=1, timeout_s=settings["env_timeout_s"])
    try:
        slot = pool.acquire(0)
        assert slot is not None
        pool.submit(slot, None, "reset", derive_seed(*group.key), group.item_id)
        [job] = pool.poll(None)
        if job.error is not None:
            return FirstPrompt(error=job.error, is_machines=job.error.startswith(f"{MachineError.__name__}:"))
        step = job.result
        assert slot.env is not None
        return FirstPrompt(max(len(step.observations[agent_id]) for agent_id in step.to_act), slot.env.agents)
    finally:
        pool.close()
