"""What tests need beside Python, and why they are skipped where it is missing.

Where RLLM_GYM_SKIP_NOTHING is set nothing is skipped: there a missing thing is a failure.
"""

from __future__ import annotations

import functools
import os
from importlib.util import find_spec

import pytest

from rllm_gym.envs.sciworld.java import find_java
from rllm_gym.envs.web.browser import find_chromium
from rllm_gym.errors import ConfigError

OF_ENVIRONMENTS = {
    "rllm_gym/ALFWorld-v0": "alfworld",
    "rllm_gym/KuhnPoker-v0": "open_spiel",
    "rllm_gym/LeducPoker-v0": "open_spiel",
    "rllm_gym/MiniWoB-v0": "browser",
    "rllm_gym/OpenEnv-v0": "openenv",
    "rllm_gym/SciWorld-v0": "java",
    "rllm_gym/TextWorld-v0": "textworld",
    "rllm_gym/WebArena-v0": "browser",
}


@functools.cache
def missing(what: str) -> str:
    """Return what is missing of `alfworld`, `browser`, `java`, `open_spiel`, `openenv` or `textworld`, or ""."""
    if what == "open_spiel":
        return "" if find_spec("pyspiel") is not None else "open_spiel of the extra games is not installed."
    if what == "openenv":
        is_there = find_spec("openenv") is not None and find_spec("fastmcp") is not None
        return "" if is_there else "openenv is not installed: pip install --no-deps openenv==0.10.0."
    if what == "alfworld":
        is_there = find_spec("alfworld") is not None and find_spec("fast_downward") is not None
        return "" if is_there else "ALFWorld is not installed: its extra needs a C++ compiler, cmake and make."
    if what == "textworld":
        is_there = find_spec("textworld") is not None
        return "" if is_there else "TextWorld is not installed: its extra needs a C compiler and make."
    if what == "java" and (packages := [name for name in ("scienceworld", "py4j") if find_spec(name) is None]):
        return f"{' and '.join(packages)} of the extra sciworld is not installed."
    try:
        {"browser": find_chromium, "java": find_java}[what]()
    except ConfigError as e:
        return str(e)
    return ""


def skip_without(what: str | None) -> None:
    """Skip the present test where something is missing."""
    if what is not None and missing(what) and not os.environ.get("RLLM_GYM_SKIP_NOTHING"):
        pytest.skip(missing(what))
