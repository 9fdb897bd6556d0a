"""The environments that the hub offers, with what their docstrings say."""

from __future__ import annotations

import inspect
from typing import Any

import gymnasium

import rllm_gym  # noqa: F401  (registers its environments)
from rllm_gym.registration import TEXT_AND_TOKEN_FACTORY, env_class


def environments() -> list[dict[str, Any]]:
    """Return `id`, `summary`, `doc` and `drawsPictures` of every environment that is registered here, by name."""
    ids = sorted(id for id, spec in gymnasium.registry.items() if spec.entry_point == TEXT_AND_TOKEN_FACTORY)
    return [{"id": id, "drawsPictures": draws_pictures(id), **_read_doc(id)} for id in ids]


def draws_pictures(id: str) -> bool:
    return "rgb_array" in getattr(env_class(id), "metadata", {}).get("render_modes", ())


def _read_doc(id: str) -> dict[str, str]:
    doc = inspect.getdoc(env_class(id)) or ""
    return {"summary": doc.partition("\n")[0], "doc": doc}
