"""Gets a browser where there is none: `python -m rllm_gym.envs.web.install`, which `make install` runs."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence

from rllm_gym.envs.web.browser import find_chromium
from rllm_gym.errors import ConfigError

DEBIANS = [["apt-get", "update", "-qq"], ["apt-get", "install", "-y", "-qq", "chromium-headless-shell"]]


def ways() -> list[list[list[str]]]:
    """Return the commands that may get a browser here: Debian's package as root on Debian; Playwright's own build."""
    playwrights = [[sys.executable, "-m", "playwright", "install", "chromium"]]
    if os.geteuid() == 0 and shutil.which("apt-get"):
        if _system() == "debian":
            return [DEBIANS, playwrights]
        playwrights[0].insert(-1, "--with-deps")  # Ubuntu, whose own package is no browser; it installs libraries, too
    return [playwrights]


def main() -> None:
    """Say which browser there is, after getting one if need be; where that fails, say what to run."""
    try:
        print(f"web: the browser is {find_chromium()}")
        return
    except ConfigError:
        todo = ways()
    if any(all(_run(command) for command in commands) for commands in todo):
        print(f"web: the browser is {find_chromium()}")
    else:
        print(f"web: no browser could be installed. For the web environments, run: {_shell(todo[0])}")


def _system() -> str:
    try:
        return platform.freedesktop_os_release()["ID"]
    except OSError:  # no Linux
        return ""


def _run(command: Sequence[str]) -> bool:
    print(f"web: {' '.join(command)}", flush=True)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    return subprocess.run(command, env=environment, stdout=subprocess.DEVNULL).returncode == 0


def _shell(todo: Sequence[Sequence[str]]) -> str:
    return " && ".join(" ".join(command) for command in todo)


if __name__ == "__main__":
    main()
