"""The environments that the hub offers, with what their docstrings say."""

from __future__ import annotations

import inspect
from typing import Any

import gymnasium
from gymnasium.envs.registration import load_env_creator

import rllm_gym  # noqa: F401  (registers its environments)
from rllm_gym.errors import ConfigError
from rllm_gym.registration import TEXT_AND_TOKEN_FACTORY


def environments() -> list[dict[str, Any]]:
    """Return `id`, `summary`, `doc` and `drawsPictures` of every environment that is registered here, by name."""
    ids = sorted(id for id, spec in gymnasium.registry.items() if spec.entry_point == TEXT_AND_TOKEN_FACTORY)
    return [{"id": id, "drawsPictures": draws_pictures(id), **_doc_of(id)} for id in ids]


def draws_pictures(id: str) -> bool:
    return "rgb_array" in getattr(class_of(id), "metadata", {}).get("render_modes", ())


def class_of(id: str) -> Any:
    """Return what makes an environment; None where it cannot be imported, which making it will say."""
    spec = gymnasium.registry.get(id.rpartition(":")[2])
    env = spec.kwargs.get("env") if spec else None
    try:
        return load_env_creator(env) if isinstance(env, str) else env
    except (ImportError, AttributeError, ConfigError):
        return None


def _doc_of(id: str) -> dict[str, str]:
    doc = inspect.getdoc(class_of(id)) or ""
    return {"summary": doc.partition("\n")[0], "doc": doc}
