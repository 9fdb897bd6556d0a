"""AgentGym's own servers and clients, from a checkout that the variable `AGENTGYM_SRC` names."""

from __future__ import annotations

import contextlib
import importlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import requests

REPOSITORY = "github.com/WooooDyy/AgentGym"
COMMIT = "3ef9235d23e68e7c2920c5422ad957dc8ced5c6c"
# SciWorld lists objects by Java's identity hashes; so they repeat (see OPTIONS in envs/sciworld/jvm.py).
SERVER_ENVIRONMENT = {"JAVA_TOOL_OPTIONS": "-XX:+UnlockExperimentalVMOptions -XX:hashCode=2"}


def source(*parts: str) -> Path:
    """Return a path in the checkout."""
    return Path(os.environ["AGENTGYM_SRC"]).resolve().joinpath(*parts)


def agentgym_class(name: str) -> Any:
    """Return a class of AgentGym's clients."""
    folder = str(source("agentenv"))
    if folder not in sys.path:
        sys.path.insert(0, folder)
    return getattr(importlib.import_module("agentenv.envs"), name)


@contextlib.contextmanager
def own_server(kind: str) -> Iterator[str]:
    """Run AgentGym's own server."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    python = os.environ.get("AGENTGYM_PYTHON", sys.executable)
    folder = source(f"agentenv-{kind}")
    process = subprocess.Popen(
        [python, "-m", "uvicorn", f"agentenv_{kind}.server:app", "--port", str(port)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder), **SERVER_ENVIRONMENT},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    url = f"http://127.0.0.1:{port}"
    try:
        end_s = time.monotonic() + 60
        while True:
            try:
                requests.get(url, timeout=5)
                break
            except requests.ConnectionError:
                assert time.monotonic() < end_s and process.poll() is None, "AgentGym's server does not start"
                time.sleep(0.1)
        yield url
    finally:
        process.kill()
        process.wait()
