"""A server of environments in a process of its own, for tests."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent


class Served(NamedTuple):
    line: str  # what it said when it was ready
    url: str
    process: subprocess.Popen[str]


@contextlib.contextmanager
def serving(*arguments: str, env: dict[str, str] | None = None, serve: str = "serve") -> Iterator[Served]:
    """Run `rllm-gym serve`, or another that serves, on a free port, and end it by SIGTERM, which it must obey."""
    command = [sys.executable, "-m", "rllm_gym.cli.main", "rllm-gym", serve, "--port", "0", *arguments]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, **(env or {})},
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        found = re.search(r"at (http://\S+)", line)
        assert found, f"the server said {line!r} and ended with {process.wait(10)}"
        yield Served(line.strip(), found[1], process)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
