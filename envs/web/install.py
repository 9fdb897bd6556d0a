"""Gets a browser where there is none: `python -m rllm_gym.envs.web.install`, which `make install` runs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from rllm_gym.envs.web.browser import find_chromium
from rllm_gym.errors import ConfigError


def commands() -> list[list[str]]:
    """Return what gets a browser here: Debian's package as root on Debian, else Playwright's own build."""
    if Path("/etc/debian_version").exists() and os.geteuid() == 0 and shutil.which("apt-get"):
        return [["apt-get", "update", "-qq"], ["apt-get", "install", "-y", "-qq", "chromium"]]
    return [[sys.executable, "-m", "playwright", "install", "chromium"]]


def main() -> None:
    """Say which browser there is, after getting one if need be; where that fails, say what to run."""
    try:
        print(f"web: the browser is {find_chromium()}")
        return
    except ConfigError:
        todo = commands()
    if all(_run(command) for command in todo):
        print(f"web: the browser is {find_chromium()}")
    else:
        print(f"web: no browser could be installed. For the web environments, run: {_shell(todo)}")


def _run(command: Sequence[str]) -> bool:
    print(f"web: {' '.join(command)}", flush=True)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    return subprocess.run(command, env=environment, stdout=subprocess.DEVNULL).returncode == 0


def _shell(todo: Sequence[Sequence[str]]) -> str:
    return " && ".join(" ".join(command) for command in todo)


if __name__ == "__main__":
    main()
