"""The type hints of a dataclass, read from its source where importing its module takes too long."""

from __future__ import annotations

import ast
import functools
import types
from collections.abc import Container
from pathlib import Path
from typing import Any, Literal, Union

_TYPES: dict[str, Any] = {kind.__name__: kind for kind in (bool, int, float, str, dict, list, set)}


def dataclass_hints(file: Path, name: str, wanted: Container[str]) -> dict[str, Any]:
    """Return {field: type hint}; `Any` for types that are not built in, and for fields that nobody wants to know.

    Args:
        file: the module.
        name: the dataclass in it.
        wanted: the fields whose types matter.
    """
    tree = _tree(file)
    [body] = [node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name]
    fields = {ast.unparse(node.target): node.annotation for node in body if isinstance(node, ast.AnnAssign)}
    return {field: _hint(node, file) if field in wanted else Any for field, node in fields.items()}


@functools.cache
def _tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def _hint(node: ast.expr, file: Path) -> Any:
    match node:
        case ast.Constant(value=None):
            return types.NoneType
        case ast.BinOp(left=left, right=right):
            return Union[_hint(left, file), _hint(right, file)]  # noqa: UP007
        case ast.Subscript(value=ast.Name(id="Literal"), slice=values):
            parts = [part.value if isinstance(part, ast.Constant) else _hint(part, file) for part in _parts(values)]
            return Any if Any in parts else Literal[tuple(parts)]
        case ast.Subscript(value=ast.Name(id="list" | "dict" | "set" as name), slice=inner):
            return _TYPES[name][tuple(_hint(part, file) for part in _parts(inner))]
        case ast.Name(id=name) if name in _TYPES:
            return _TYPES[name]
        case ast.Name(id=name):
            return _named(name, file)
        case _:
            return Any


def _parts(node: ast.expr) -> list[ast.expr]:
    return node.elts if isinstance(node, ast.Tuple) else [node]


def _named(name: str, file: Path) -> Any:
    """Return what a module calls by a name, if it is a `Literal` of its own, or of a module of its package."""
    for node in _tree(file).body:
        match node:
            case ast.Assign(targets=[ast.Name(id=target)], value=value) if target == name:
                return _hint(value, file)
            case ast.AnnAssign(target=ast.Name(id=target), value=ast.expr() as value) if target == name:
                return _hint(value, file)
            case ast.ImportFrom(module=str(module), names=names, level=0) if name in {alias.name for alias in names}:
                package, *rest = module.split(".")
                root = next((folder for folder in file.parents if folder.name == package), None)
                places = [root.joinpath(*rest, "__init__.py"), root.joinpath(*rest).with_suffix(".py")] if root else []
                return next((_named(name, place) for place in places if place.is_file()), Any)
    return Any
