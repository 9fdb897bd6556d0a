"""Program-v0: an agent that is somebody else's program, and takes the policy for OpenAI's server."""

from __future__ import annotations

import json
import os
import queue
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, Unpack

from rllm_gym.envs.base import StepResult
from rllm_gym.envs.items import TextOptions
from rllm_gym.envs.program.child import MAX_FOLDER_BYTES, Child
from rllm_gym.envs.program.conversation import ConversationEnv, read_reward
from rllm_gym.envs.program.requests import RequestError
from rllm_gym.errors import ConfigError, EnvError, MachineError
from rllm_gym.importing import import_object

POSTED = "posted"
TASK = "RLLM_GYM_TASK"
MAX_TASK_BYTES = 100_000  # of a variable of the environment Linux takes 128 KiB
LOOK_S = 1.0  # between two looks at the clock and at the folder
MAX_REFUSED = 1000  # requests; who goes on after so many errors keeps the endpoint from others
GRACE_S = 10.0  # in which a program may end once its requests are refused


class ProgramEnv(ConversationEnv):
    """A program plays the episode: it asks the policy by HTTP, as often as it likes, and its end is the episode's.

    The program reads its task as JSON from standard input and from `RLLM_GYM_TASK`, and finds `OPENAI_BASE_URL` and
    `OPENAI_API_KEY` set, and Anthropic's alike. It runs in a temporary folder; with its end, and with the episode's,
    everything ends that it has started. A program that cannot be started, ends with another exit code than 0, asks for
    nothing, takes too long, floods the endpoint or leaves no reward raises `EnvError` with its last lines.

    Observation:
        Text. What a request adds to the model's last answer in it: the messages, each but a user's headed by its role.
        The first one is that of the program's first request.

    Action:
        Text: the answer. Where the request has tools, calls of them in the form of the model's family.

    Reward:
        0.0, and at the end of the program what `reward` says.

    Episode end:
        Terminated when the program ends; never truncated from inside.

    Info keys:
        `item_id` ("program_17"), `category` (the task's, or "program"), `is_success` (what the reward says, or that it
        is 1 or more), `is_invalid_action` (always False: any text is an answer), `num_requests` (int, that were
        answered), `replaced_params` (a mapping: how often requests asked for which
        parameter that is the run's).

    Data:
        The tasks are the user's; item i is the i-th.

    Args:
        command: the program and its arguments, as a list; arguments that name a file are taken from the present folder,
            and "python" is this Python. Or "module:function": a function that is called with the task in a process of
            its own, and whose result is the reward where `reward` is None; its module is imported once for all of them.
        tasks: a list of mappings, or a JSON Lines file of them. `split` says which split a task is of (`train` where it
            says none), `category` what to report it by.
        reward: "module:function", which is called with `task`, `messages` (of the last request, and its answer) and
            `output` (what the program printed), in this process; None for the last line that the program prints: a
            number, or {"reward": ..., "is_success": ...}; "posted" for what it posts to `RLLM_GYM_REWARD_URL`, with
            `RLLM_GYM_REWARD_TOKEN`. Where the model runs code in the program, it can print and post rewards of its own.
        timeout_s: seconds that the program may take, without those in which it waits for the policy.
        max_parallel: requests of one program that may wait at once; one more is refused with status 429.
        sampling_params: "replace" samples as the run does where a request asks for a temperature, a `top_p` or a seed
            of its own, or for a call of a tool in any case, and counts it in `replaced_params`; "refuse" answers
            it with an error.
        tool_parser: vLLM's name of the parser that reads tool calls; None takes what the chat template tells.
        variables: more environment variables of the program.
        options: `split`, `item_ids`, `splits` and `render_mode`, see `TextEnv`.

    Raises:
        ConfigError: see `TextEnv`; or an option that cannot be, or tasks that cannot be read.
    """

    name = "program"

    def __init__(
        self,
        *,
        command: Sequence[str] | str,
        tasks: Sequence[Mapping[str, Any]] | str | Path,
        reward: str | None = None,
        timeout_s: float = 600.0,
        max_parallel: int = 8,
        sampling_params: str = "replace",
        tool_parser: str | None = None,
        variables: Mapping[str, str] | None = None,
        **options: Unpack[TextOptions],
    ) -> None:
        self._command = _parse_command(command)
        self._tasks = _read_tasks(tasks)
        self.num_items = len(self._tasks)
        self._reward = None if reward in (None, POSTED) else import_object("ProgramEnv: reward", str(reward))
        self._is_posted = reward == POSTED
        for name, value in {"timeout_s": timeout_s, "max_parallel": max_parallel}.items():
            if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
                raise ConfigError(f"ProgramEnv: {name} must be a number above 0; got {value!r}. Correct it.")
        if options.get("system_prompt") is not None:
            raise ConfigError("ProgramEnv: the program writes its own system prompt; got system_prompt. Leave it out.")
        self._timeout_s, self._max_parallel = float(timeout_s), int(max_parallel)
        self._variables = {str(name): str(value) for name, value in (variables or {}).items()}
        self._child: Child | None = None
        super().__init__(sampling_params=sampling_params, tool_parser=tool_parser, **options)

    def split_indices(self, split: str) -> Sequence[int]:
        return [k for k, task in enumerate(self._tasks) if split in ("all", task.get("split", "train"))]

    @property
    def category(self) -> str:
        return str(self._tasks[self.index].get("category", self.name))

    def reset_item(self, index: int) -> str:
        self._end_program()
        self._begin()
        self._spent_s = 0.0
        self._start(json.dumps(self._tasks[index]))
        return self._wait().reply

    def cut_short(self) -> tuple[float, dict[str, Any]]:
        """Refuse the request that waits and all to come, and give the program a moment to end.

        Returns the reward, which is 0 where the program ends without one, and the info.
        """
        error = RequestError("the episode has had all the turns that it may take.", 400, "max_turns")
        self._session.end(error)
        self._refuse_waiting(error)
        end_s = time.monotonic() + GRACE_S
        reward = 0.0
        while (left_s := end_s - time.monotonic()) > 0 and self._child is not None:
            try:
                call = self._session.events.get(timeout=left_s)
            except queue.Empty:
                break
            if call is None:
                try:
                    reward = self._ended().reward
                except EnvError:  # it did not get to the end of the task
                    self.is_success = False
                break
            call.refuse(error)
        self._end_program()
        return reward, self._info()

    def abandon(self) -> None:
        """End the program, for whose next request nobody waits any more; for another thread."""
        if (child := self._child) is not None:
            child.end()

    def close(self) -> None:
        self._end_program()
        super().close()

    def _start(self, task: str) -> None:
        try:
            from rllm_gym.envs.program.endpoint import endpoint
        except ImportError as error:
            raise MachineError(
                f'Program-v0 needs the {error.name} package: pip install "rllm-gym[programs]".'
            ) from error
        server = endpoint()
        self._session = session = server.open(self._max_parallel)
        here = os.pathsep.join(filter(None, (os.getcwd(), os.environ.get("PYTHONPATH"))))
        own_hosts = ",".join(filter(None, (os.environ.get("NO_PROXY"), "127.0.0.1,localhost")))
        own = {
            "OPENAI_BASE_URL": f"{server.url}/v1",
            "OPENAI_API_KEY": session.key,
            "ANTHROPIC_BASE_URL": server.url,
            "ANTHROPIC_API_KEY": session.key,
            TASK: task,
        }
        if self._is_posted:
            own |= {"RLLM_GYM_REWARD_URL": f"{server.url}/reward", "RLLM_GYM_REWARD_TOKEN": session.reward_token}
        variables = {"NO_PROXY": own_hosts, "no_proxy": own_hosts, "PYTHONPATH": here, **self._variables}
        self._child = Child(
            self._command,
            task=task,
            variables=variables,
            own_variables={name: value for name, value in own.items() if name not in self._variables},
            on_end=lambda: session.events.put(None),
        )

    def _wait(self) -> StepResult:
        """Wait for the next request, or for the end of the program."""
        begun_s = time.monotonic()
        looked_s = begun_s
        while True:
            now_s = time.monotonic()
            left_s = self._timeout_s - self._spent_s - (now_s - begun_s)
            if left_s <= 0:
                self._fail(f"it must end within timeout_s = {self._timeout_s:g} s of its own, and has not")
            if now_s - looked_s >= LOOK_S:
                looked_s = now_s
                if self._child is not None and self._child.folder_bytes() > MAX_FOLDER_BYTES:
                    self._fail(f"its folder may hold {MAX_FOLDER_BYTES >> 20} MiB, and holds more")
            if self._session.num_refused > MAX_REFUSED:
                self._fail(
                    f"it floods the endpoint: {self._session.num_refused} of its requests were refused, the last one "
                    f"with: {self._session.last_refused}"
                )
            try:
                call = self._session.events.get(timeout=min(left_s, LOOK_S))
            except queue.Empty:
                continue
            if call is None:
                return self._ended()
            if (step := self._take(call)) is not None:
                self._spent_s += time.monotonic() - begun_s
                return step

    def _ended(self) -> StepResult:
        """Return the last step, of a program that has ended."""
        child, session = self._child, self._session
        assert child is not None
        if child.exit_code:
            self._fail(f"it ended with exit code {child.exit_code}")
        if not self._num_turns:
            errors = (
                f"; the last of {session.num_refused} errors: {session.last_refused}" if session.num_refused else ""
            )
            self._fail(f"it ended without a request that was answered, so that there is nothing to learn from{errors}")
        if self._reward is not None:
            task = self._tasks[self.index]
            try:
                found = self._reward(task=task, messages=self._messages, output=child.output)
            except Exception as error:  # it is the user's
                raise EnvError(f"ProgramEnv: the reward function raised {type(error).__name__}: {error}") from error
        elif self._is_posted:
            found = session.posted
            if found is None:
                self._fail("it ended without having posted a reward")
        else:
            lines = child.output.strip().splitlines()
            try:
                found = json.loads(lines[-1]) if lines else None
            except (ValueError, RecursionError):
                found = None
            if found is None:
                self._fail('its last line must be its reward as JSON, such as 1 or {"reward": 1}')
        try:
            reward, self.is_success = read_reward(found)
        except ValueError as error:
            self._fail(str(error))
        self._end_program()
        return StepResult("(The program has ended.)", reward, is_over=True, is_invalid=False)

    def _fail(self, why: str) -> NoReturn:
        said = "" if self._child is None else f" Its last lines: {self._child.last_lines()}"
        self._end_program()
        named = self._command if isinstance(self._command, str) else " ".join(self._command)
        raise EnvError(f"ProgramEnv: {named[:200]}: {why}.{said}")

    def _end_program(self) -> None:
        if self._child is not None:
            self._child.close()
            self._child = None
        if self._session is not None:
            from rllm_gym.envs.program.endpoint import endpoint

            self._refuse_waiting(RequestError("the episode has ended.", 410, "episode_ended"))
            endpoint().close(self._session)
            self._session = None


def _parse_command(command: Any) -> list[str] | str:
    if isinstance(command, str) and ":" in command:
        import_object("ProgramEnv: command", command)
        return command
    is_list = isinstance(command, Sequence) and not isinstance(command, str)
    if not is_list or not command or not all(isinstance(part, str) for part in command):
        raise ConfigError(
            "ProgramEnv: command must be a list of texts, like [python, my_agent.py], or one text, "
            f'"module:function"; got {command!r}. Correct it.'
        )
    first = command[0]
    if first in ("python", "python3"):
        if len(command) > 1 and not command[1].startswith("-") and not Path(command[1]).is_file():
            raise ConfigError(
                f"ProgramEnv: command must name a program that is there; got {command[1]!r}, which is no file in "
                f"{os.getcwd()}, where the run starts. Correct it."
            )
        first = sys.executable
    return [str(Path(part).absolute()) if Path(part).is_file() else part for part in [first, *command[1:]]]


def _read_tasks(tasks: Any) -> list[Mapping[str, Any]]:
    rule = "ProgramEnv: tasks must be a list of mappings, or a JSON Lines file with some"
    rows: Any = tasks
    if isinstance(tasks, str | Path):
        try:
            lines = Path(tasks).expanduser().read_text(encoding="utf-8").splitlines()
            rows = [json.loads(line) for line in lines if line.strip()]
        except (OSError, ValueError, RecursionError) as error:
            raise ConfigError(f"{rule}; got {str(tasks)!r}, which cannot be read ({error}). Correct it.") from error
    if not isinstance(rows, Sequence) or not rows or not all(isinstance(row, Mapping) for row in rows):
        raise ConfigError(f"{rule}; got {tasks!r:.200}. Correct it.")
    for k, row in enumerate(rows):
        try:
            size = len(json.dumps(row).encode())
        except (TypeError, ValueError) as error:
            raise ConfigError(f"ProgramEnv: a task must be JSON; got {row!r:.200} ({error}). Correct it.") from error
        if size > MAX_TASK_BYTES:
            raise ConfigError(
                f"ProgramEnv: a task may have {MAX_TASK_BYTES:,} bytes; got {size:,} in task {k}. Give it a path."
            )
    return list(rows)
