"""A program of somebody else's in processes and a folder of its own, and the last of what it prints."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

from rllm_gym.envs.program.forked import ForkedProcess, fork_server
from rllm_gym.envs.program.supervisor import MARK, kill_all, remove_folder
from rllm_gym.envs.text_space import UNREADABLE

MAX_OUTPUT_BYTES = 1 << 20  # that are kept of what a program prints, the last ones
MAX_FOLDER_BYTES = 1 << 30
CLOSE_TIMEOUT_S = 15.0
# Of this process's variables: what the run itself needs, and a program of somebody else's has no business with. A model
# that runs a shell there would read them, and what it reads is stored.
SECRETS = (
    "RAY_AUTH_TOKEN", "RLLM_GYM_TOKEN", "OPENAI_API_KEY", "ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN",
    "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "WANDB_API_KEY", "MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN",
    "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AZURE_STORAGE_CONNECTION_STRING",
    "GOOGLE_APPLICATION_CREDENTIALS",
)  # fmt: skip


class Child:
    """A running program; `close` ends it and all that it has started, and removes its folder.

    Args:
        command: the program and its arguments; or "module:function", which a `ForkServer` calls with the task.
        task: what it reads.
        variables: more environment variables than this process's, of which `SECRETS` are taken out; all programs of a
            function have the same.
        own_variables: those of this program alone.
        on_end: called in another thread once it has ended.
    """

    def __init__(
        self,
        command: Sequence[str] | str,
        *,
        task: str,
        variables: Mapping[str, str],
        own_variables: Mapping[str, str],
        on_end: Callable[[], None],
    ) -> None:
        self.folder = tempfile.mkdtemp(prefix="rllm_gym_program_")
        theirs, self._owner = os.pipe()
        common = {name: value for name, value in os.environ.items() if name not in SECRETS} | dict(variables)
        own = {**common, "TMPDIR": self.folder, **own_variables, MARK: self.folder}
        self._process: subprocess.Popen[bytes] | ForkedProcess
        with tempfile.TemporaryFile() as file, contextlib.ExitStack() as opened:
            opened.callback(os.close, theirs)
            if isinstance(command, str):
                file.write(json.dumps({"task": task, "folder": self.folder, "variables": own}).encode())
                file.seek(0)
                self._process = fork_server(command, variables, common).start(theirs, file.fileno())
            else:
                file.write(task.encode())
                file.seek(0)
                supervisor = Path(__file__).with_name("supervisor.py")
                self._process = subprocess.Popen(
                    [sys.executable, "-I", "-S", str(supervisor), str(theirs), self.folder, *command],
                    cwd=self.folder,
                    env=own,
                    stdin=file,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    pass_fds=[theirs],
                    process_group=0,  # Ctrl-C is for this process
                )
        assert self._process.stdout and self._process.stderr
        self._stdout, self._stderr = _Tail(self._process.stdout), _Tail(self._process.stderr)
        self._on_end, self._lock, self._is_closed = on_end, threading.Lock(), False
        threading.Thread(target=self._wait, name="program", daemon=True).start()

    @property
    def exit_code(self) -> int | None:
        return self._process.poll()

    @property
    def output(self) -> str:
        """The last `MAX_OUTPUT_BYTES` of its standard output."""
        return self._stdout.text

    def last_lines(self, number: int = 10) -> str:
        """Return the end of what it said of its faults, or else of what it printed, in one line."""
        said = (self._stderr.text.strip() or self._stdout.text.strip() or "(it printed nothing)").splitlines()
        # Without what a terminal, in which this may be read, takes for orders.
        return UNREADABLE.sub("", " | ".join(line.strip()[:300] for line in said[-number:] if line.strip()))

    def folder_bytes(self) -> float:
        """Return the size of the files in its folder; infinity where some have too long a path to be measured."""
        total, folders = 0, [self.folder]
        while folders:
            try:
                with os.scandir(folders.pop()) as entries:
                    for entry in entries:
                        if entry.is_dir(follow_symlinks=False):
                            folders.append(entry.path)
                        else:
                            total += entry.stat(follow_symlinks=False).st_blocks * 512
            except OSError as error:  # it has gone meanwhile
                if error.errno == errno.ENAMETOOLONG:
                    return math.inf
        return total

    def end(self) -> None:
        """Have it end, and wait for nothing; may be called in any thread, and twice."""
        with self._lock:
            owner, self._owner = self._owner, -1
        if owner >= 0:
            os.close(owner)
            self._process.send_signal(signal.SIGCONT)  # a program may have stopped it

    def close(self) -> None:
        """End it; safe to call twice."""
        self.end()
        if not self._is_closed:
            self._is_closed = True
            try:
                self._process.wait(CLOSE_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
            if self._process.wait() < 0:  # the supervisor has been killed itself
                kill_all(self._marked)
            remove_folder(self.folder)

    def _marked(self) -> list[int]:
        """Return the ids of the processes that have this program's mark."""
        found, mark = [], f"{MARK}={self.folder}\0".encode()
        for name in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError), open(f"/proc/{name}/environ", "rb") as file:
                if mark in file.read():
                    found.append(int(name))
        return found

    def _wait(self) -> None:
        self._process.wait()
        for tail in (self._stdout, self._stderr):
            tail.thread.join(CLOSE_TIMEOUT_S)
        self._on_end()


class _Tail:
    """The last bytes of a pipe, read in a thread, so that nobody who writes to it waits."""

    def __init__(self, pipe: IO[bytes]) -> None:
        self._pipe = pipe
        self._parts: list[bytes] = []
        self._lock = threading.Lock()
        self.thread = threading.Thread(target=self._read, name="program-output", daemon=True)
        self.thread.start()

    @property
    def text(self) -> str:
        with self._lock:
            return b"".join(self._parts)[-MAX_OUTPUT_BYTES:].decode("utf-8", "replace")

    def _read(self) -> None:
        with self._pipe:
            while part := os.read(self._pipe.fileno(), 1 << 16):
                with self._lock:
                    self._parts.append(part)
                    if len(self._parts) > 64:  # several may be short: joined, they are cut to what is kept
                        self._parts = [b"".join(self._parts)[-MAX_OUTPUT_BYTES:]]
