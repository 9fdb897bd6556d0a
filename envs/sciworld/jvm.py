"""The simulator's Java process: one in each Python process, shared by all of its environments."""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import subprocess
import tempfile
import threading
import weakref
from collections import deque
from typing import Any

from rllm_gym.envs.sciworld.java import PIP_INSTALL, find_java
from rllm_gym.errors import ConfigError, EnvError, MachineError

try:
    from py4j.java_gateway import GatewayClient, GatewayParameters, JavaGateway, find_jar_path
    from py4j.protocol import Py4JError, Py4JJavaError
    from scienceworld.constants import JAR_PATH
except ModuleNotFoundError as e:
    raise MachineError(f"SciWorld-v0 needs the {str(e.name).partition('.')[0]} package: {PIP_INSTALL}.") from e

HEAP_MB = 1024  # the whole Java process then stays below 1.3 GB
MAX_SIMULATIONS = 80  # a loaded simulation takes 10 MB of it; a heap that is nearly full makes everything very slow
CALL_TIMEOUT_S = 300.0  # the slowest call, a gold path in genetics, takes 5 to 16 s on an idle machine
OPTIONS = (
    f"-Xmx{HEAP_MB}m",
    "-XX:+ExitOnOutOfMemoryError",  # a dead process is noticed; one without memory answers nonsense
    "-XX:+UseSerialGC",
    "-XX:MinHeapFreeRatio=20",  # grow late
    "-XX:MaxHeapFreeRatio=40",
    "-XX:-UsePerfData",  # no file in /tmp
    # The simulator lists objects in the order of their hash codes. With constant ones a reload repeats the first load.
    "-XX:+UnlockExperimentalVMOptions",
    "-XX:hashCode=2",
)

# The simulator is not thread-safe, not even between two of its simulations.
_lock = threading.Lock()
_jvm: Jvm | None = None


class Simulation:
    """One loaded variation of a task, in the shared Java process, which starts with the first one.

    The Java process ends when the last simulation is closed or dropped, or with Python. A simulation that is dropped
    without `close` is freed when the next one is opened or closed.

    Args:
        task: the simulator's name of the task.
        variation: its number.
        has_gold: also have the simulator solve it, which takes from tenths of a second to many seconds.
        replaces: a simulation to close first.

    Raises:
        ConfigError: Java is not installed, or too many simulations are open.
        EnvError: the Java process died, did not answer, or raised.
    """

    def __init__(
        self, task: str, variation: int, *, has_gold: bool = False, replaces: Simulation | None = None
    ) -> None:
        with _lock:
            if replaces is not None:
                replaces._release()  # the Java process goes on even if this was its only simulation
            self._jvm = _shared_jvm()
            # A fresh interface each time: a used one keeps the old score until the first move.
            self._interface = self._jvm.call(self._jvm.interface_class)
            self._release: weakref.finalize = weakref.finalize(self, _drop, self._jvm, self._interface)
            self._jvm.num_simulations += 1
            self._jvm.call(self._interface.load, task, variation, "", has_gold)
            self.description: str = self._jvm.call(self._interface.getTaskDescription)

    @property
    def is_foreign(self) -> bool:
        """Whether another process opened it: after a fork the child must open its own."""
        return self._jvm.pid != os.getpid()

    def step(self, action: str) -> tuple[str, int, bool]:
        """Carry out an action; return the reply, the score (at most 100; negative for failure), and if it is complete.

        The package's own `step` also lists the thousands of valid actions, which takes most of its time.
        """
        action = action.encode("utf-8", "replace").decode("utf-8")  # py4j cannot send lone surrogates
        with _lock:
            reply = self._jvm.call(self._interface.step, action)
            score = round(100 * self._jvm.call(self._interface.getScore))
            return reply, score, self._jvm.call(self._interface.getCompleted)

    @property
    def num_moves(self) -> int:
        """Moves so far, as the simulator counts them."""
        with _lock:
            return int(self._jvm.call(self._interface.getNumMoves))

    def gold_path(self) -> tuple[str, ...]:
        """Return the simulator's own solution; the simulation must have been opened with `has_gold`."""
        with _lock:
            actions = self._jvm.call(self._interface.getGoldActionSequence)
            path = tuple(self._jvm.call(list, actions))
            self._jvm.detach(actions)
            return path

    def ask(self, method: str) -> Any:
        """Call a method of the simulator's Python interface, which returns a text or a list of texts."""
        with _lock:
            answer = self._jvm.call(getattr(self._interface, method))
            if isinstance(answer, str):
                return answer
            texts = self._jvm.call(list, answer)
            self._jvm.detach(answer)
            return texts

    def close(self) -> None:
        """Free it; safe to call twice."""
        with _lock:
            self._release()
            self._jvm.collect()
            if not self._jvm.num_simulations:
                self._jvm.kill()


class Jvm:
    """A Java process with the simulator, and the connection to it. Callers hold the lock."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.num_simulations = 0
        self.released: deque[Any] = deque()  # interfaces of dropped simulations, until `collect`
        self._client: _QuietClient | None = None
        command = [find_java(), "-classpath", os.pathsep.join((find_jar_path(), JAR_PATH)), *OPTIONS]
        # The simulator writes a table of its objects into the working folder.
        self.folder = tempfile.mkdtemp(prefix="sciworld_")
        # Not py4j's launch_gateway, which adds two threads and lets Ctrl-C reach the Java process.
        self.process = subprocess.Popen(
            [*command, "py4j.GatewayServer", "--die-on-broken-pipe", "--enable-auth", "0"],
            stdin=subprocess.PIPE,  # Java ends when it is closed, as it is when Python is killed
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=self.folder,
            process_group=0,
        )
        assert self.process.stdin and self.process.stdout
        try:
            port, token = int(self.process.stdout.readline()), self.process.stdout.readline().decode().strip()
            parameters = GatewayParameters(
                port=port, auth_token=token, read_timeout=CALL_TIMEOUT_S, enable_memory_management=False
            )
            self._gateway = JavaGateway(gateway_parameters=parameters)
            self._client = _QuietClient(gateway_parameters=parameters)
            self._gateway.set_gateway_client(self._client)
            java = self._gateway.jvm.java
            # Nobody reads what the simulator prints, and a full pipe would stop it.
            java.lang.System.setOut(java.io.PrintStream(java.io.OutputStream.nullOutputStream()))
            self.interface_class = self._gateway.jvm.scienceworld.runtime.pythonapi.PythonInterface
        except Exception as e:
            self.kill()
            raise EnvError(f"SciWorld-v0: Java did not start: {e} (command: {' '.join(command)}).") from e
        except BaseException:
            self.kill()
            raise
        self.process.stdout.close()

    @property
    def is_alive(self) -> bool:
        return self.pid == os.getpid() and self.process.poll() is None

    def call(self, function: Any, *args: Any) -> Any:
        """Call into Java.

        Raises:
            EnvError: it is not there, died, did not answer in time, or raised.
        """
        if not self.is_alive:
            raise EnvError("SciWorld-v0: the Java process of this episode is gone. Reset the environment.")
        try:
            return function(*args)
        except Py4JJavaError as e:
            raise EnvError(f"SciWorld-v0: the simulator raised: {' '.join(str(e).split())[:300]}") from e
        except (Py4JError, OSError) as e:
            self.kill()
            raise EnvError(f"SciWorld-v0: the Java process died or hung: {e}. Reset the environment.") from e
        except BaseException:  # Ctrl-C; the answer would be taken for that of the next call
            self.kill()
            raise

    def detach(self, java_object: Any) -> None:
        """Let Java's garbage collector have an object."""
        with contextlib.suppress(EnvError):  # what is gone is freed
            self.call(self._gateway.detach, java_object)

    def collect(self) -> None:
        """Free the simulations that were released."""
        while self.released:
            self.detach(self.released.popleft())
            self.num_simulations -= 1

    def kill(self) -> None:
        """End the process, which holds nothing worth keeping; safe to call twice."""
        if self.pid != os.getpid():
            return
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe:
                pipe.close()
        if self._client is not None:
            self._client.close()  # its sockets; py4j would leave them to the garbage collector
        shutil.rmtree(self.folder, ignore_errors=True)

    def abandon(self) -> None:
        """In a forked child, let go of the parent's process without a word to it."""
        if self.process.stdin and not self.process.stdin.closed:
            self.process.stdin.close()  # or Java would outlive the parent as long as the child lives
        self.process.returncode = 0  # not a child of this process
        if self._client is not None:
            self._client.abandon()


class _QuietClient(GatewayClient):
    """One connection, without retries: py4j's own client logs a trace to the root logger when Java dies."""

    def send_command(self, command: str, retry: bool = True, binary: bool = False) -> str:
        connection = self._get_connection()
        try:
            answer = connection.send_command(command)
        except BaseException:  # Ctrl-C, too: the answer would be taken for that of the next call
            connection.close(reset=True)
            raise
        self._give_back_connection(connection)
        return answer

    def abandon(self) -> None:
        for connection in self.deque:
            os.close(connection.socket.detach())  # a shutdown would end the parent's connection as well


def _drop(jvm: Jvm, interface: Any) -> None:
    """Release a simulation that was closed or garbage-collected."""
    jvm.released.append(interface)
    # With the last simulation the process ends, unless something is going on, which sees to it: a call of another
    # thread, or one of this thread that the garbage collector has interrupted.
    lock = _lock
    if len(jvm.released) == jvm.num_simulations and lock.acquire(blocking=False):
        try:
            if len(jvm.released) == jvm.num_simulations:
                jvm.kill()
        finally:
            lock.release()


def _shared_jvm() -> Jvm:
    global _jvm
    if _jvm is not None and not _jvm.is_alive:
        _jvm.kill()  # it died on its own; clean up behind it
        _jvm = None
    if _jvm is None:
        _jvm = Jvm()
    _jvm.collect()
    if _jvm.num_simulations >= MAX_SIMULATIONS:
        raise ConfigError(
            f"SciWorld-v0: at most {MAX_SIMULATIONS} environments fit in one process; got one more. "
            "Close some, or spread them over several processes (num_env_runners)."
        )
    return _jvm


def _after_fork_in_child() -> None:
    global _jvm, _lock
    _lock = threading.Lock()  # another thread of the parent may have held it
    if _jvm is not None:
        _jvm.abandon()
    _jvm = None


@atexit.register
def _at_exit() -> None:
    if _jvm is not None:
        _jvm.kill()


os.register_at_fork(after_in_child=_after_fork_in_child)
