"""The words between this package's clients and servers beyond the two protocols."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Any

VERSION_HEADER = "x-rllm-gym-version"  # on every request and answer
# The metadata of an OpenEnv action that asks what the expert would write, and changes nothing.
EXPERT: dict[str, Any] = {"rllm_gym": "expert_action"}


def package_version() -> str:
    try:
        return version("rllm-gym")
    except PackageNotFoundError:  # a copy that nobody installed
        return "unknown"
