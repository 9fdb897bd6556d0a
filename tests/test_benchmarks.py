"""Benchmarks are run by hand; a change of the package must not break them in silence."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

BENCHMARKS = sorted((Path(__file__).resolve().parent.parent / "benchmarks").rglob("*.py"))


@pytest.mark.parametrize("path", BENCHMARKS, ids=lambda path: path.parent.name + "." + path.stem)
def test_all_that_a_benchmark_imports_of_the_package_is_there(path):
    imports = [
        (node.module, alias.name)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "rllm_gym"
        for alias in node.names
    ]
    assert [f"{module}:{name}" for module, name in imports if not hasattr(importlib.import_module(module), name)] == []
