"""Reads YAML and remembers the line of every key, so that a fault can be shown where it was written."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from rllm_gym.errors import ConfigError

KeyPath = tuple[str | int, ...]


MAX_BYTES = 4 * 2**20
MAX_VALUES = 100_000  # with those that aliases repeat


class ExperimentError(ConfigError):
    """An experiment's faults, one line each, with the place where each was written."""


class _Loader(yaml.SafeLoader):
    """YAML with 1.2's numbers: PyYAML follows 1.1, in which `1e-4` is a string."""

    yaml_implicit_resolvers = {k: list(v) for k, v in yaml.SafeLoader.yaml_implicit_resolvers.items()}  # noqa: RUF012


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+[eE][-+]?[0-9]+$"), list("-+0123456789")
)


@dataclass
class Source:
    """The places of options: a label such as `file.yaml:12` or `--config` for the path of keys."""

    name: str
    labels: dict[KeyPath, str] = field(default_factory=dict)
    num_values: int = 0

    def label(self, path: KeyPath) -> str:
        """Return the label of the option, or of the nearest mapping around it."""
        for length in range(len(path), -1, -1):
            if path[:length] in self.labels:
                return self.labels[path[:length]]
        return self.name

    def fault(self, path: KeyPath, text: object) -> str:
        return f"{self.label(path)}: {one_line(text)}"


def one_line(text: object) -> str:
    return " ".join(str(text).split())


def read_yaml(path: Path) -> tuple[Any, Source]:
    """Read a YAML file.

    Raises:
        ExperimentError: the file is missing, unreadable or no YAML, or a mapping has a key twice.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)  # no more, since it may be a device
        if len(data) > MAX_BYTES:
            raise ExperimentError(f"{path}: cannot be read: an experiment must be smaller than {MAX_BYTES:,} bytes.")
        text = data.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else f"not UTF-8 text ({error})"
        raise ExperimentError(f"{path}: cannot be read: {reason}.") from error
    return parse_yaml(text, str(path))


def parse_yaml(text: str, name: str, *, with_lines: bool = True) -> tuple[Any, Source]:
    """Parse YAML (and so JSON), labelling every key with its line."""
    source = Source(name)
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            return None, source
        faults: list[str] = []
        _walk(loader, node, (), source, faults, frozenset(), with_lines)
        if faults:
            raise ExperimentError("\n".join(faults))
        return loader.construct_document(node), source
    except yaml.reader.ReaderError as error:
        place = f"{name}:{text.count(chr(10), 0, error.position) + 1}" if with_lines else name
        raise ExperimentError(f"{place}: not YAML: the character #x{error.character:04x} is not allowed.") from error
    except RecursionError as error:
        raise ExperimentError(f"{name}: not YAML: it is nested too deeply.") from error
    except (yaml.YAMLError, ValueError) as error:
        if isinstance(error, ExperimentError):
            raise
        mark = getattr(error, "problem_mark", None)
        place = f"{name}:{mark.line + 1}" if mark and with_lines else name
        raise ExperimentError(f"{place}: not YAML: {one_line(getattr(error, 'problem', None) or error)}.") from error


def _walk(
    loader: _Loader,
    node: yaml.Node,
    path: KeyPath,
    source: Source,
    faults: list[str],
    parents: frozenset[int],
    with_lines: bool,
) -> None:
    if id(node) in parents:
        raise yaml.MarkedYAMLError(problem="an alias refers to what contains it", problem_mark=node.start_mark)
    parents |= {id(node)}

    def place(at: yaml.Node) -> str:
        return f"{source.name}:{at.start_mark.line + 1}" if with_lines else source.name

    source.labels.setdefault(path, place(node))
    source.num_values += 1
    if source.num_values > MAX_VALUES:
        raise yaml.MarkedYAMLError(
            problem=f"it holds more than {MAX_VALUES:,} values, aliases resolved", problem_mark=node.start_mark
        )
    if isinstance(node, yaml.ScalarNode) and "\0" in node.value:
        faults.append(f"{place(node)}: text cannot contain a NUL character; got {node.value!r}. Leave it out.")
    if isinstance(node, yaml.SequenceNode):
        for k, child in enumerate(node.value):
            _walk(loader, child, (*path, k), source, faults, parents, with_lines)
    if isinstance(node, yaml.MappingNode):
        seen = set()
        for key, _ in node.value:
            if key.value != "<<" and isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    faults.append(f"{place(key)}: duplicate key {key.value!r}. Remove one.")
                seen.add(key.value)
        loader.flatten_mapping(node)  # resolves `<<`; what is written here comes last and wins
        for key, child in node.value:
            if isinstance(key, yaml.ScalarNode):
                source.labels[(*path, key.value)] = place(key)
                _walk(loader, child, (*path, key.value), source, faults, parents, with_lines)
