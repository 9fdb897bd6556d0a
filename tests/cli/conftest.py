"""A folder as the one that `rllib` is called in."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import gymnasium
import pytest


@pytest.fixture
def calling_folder(tmp_path, monkeypatch) -> Iterator[Path]:
    """The present folder, with an empty `my_package`; what was imported and registered from it is forgotten."""
    (tmp_path / "my_package").mkdir()
    (tmp_path / "my_package" / "__init__.py").touch()
    monkeypatch.chdir(tmp_path)
    # The command puts the present folder on the path.
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path not in ("", ".")])
    before = dict(gymnasium.registry)
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] == "my_package"]:
        del sys.modules[name]
    for key in gymnasium.registry.keys() - before.keys():
        del gymnasium.registry[key]
