"""The tuned examples that ship with the package: found by name, and listed by `rllib examples`."""

from __future__ import annotations

from pathlib import Path

import typer

from rllm_gym.errors import ConfigError, nearest

EXAMPLES_DIR = Path(__file__).parents[1] / "tuned_examples"


def shipped_examples() -> dict[str, Path]:
    """Return {name: file} of every example; a name is `quickstart` or `textcraft/grpo_tiny`."""
    paths = sorted(EXAMPLES_DIR.rglob("*.yaml"))
    return {path.relative_to(EXAMPLES_DIR).with_suffix("").as_posix(): path for path in paths}


def find_example(path: Path) -> Path:
    """Return the file as it is where there is one, else the shipped example of that name.

    Args:
        path: a file, or an example's name with or without `.yaml` and the folder `tuned_examples/`.

    Raises:
        ConfigError: it is neither.
    """
    if path.exists() or path.is_absolute():
        return path
    examples = shipped_examples()
    name = path.as_posix().removeprefix("tuned_examples/").removesuffix(".yaml")
    if name not in examples:
        raise ConfigError(
            f"rllib train file: must be a YAML file or the name of a shipped example; got '{path}'. "
            f"Did you mean {nearest(name, examples)!r}? `rllib examples` lists them."
        )
    return examples[name]


def examples() -> None:
    """List the shipped examples, for `rllib train file NAME`."""
    found = shipped_examples()
    width = max(map(len, found))
    for name, path in found.items():
        first_line = path.read_text(encoding="utf-8").partition("\n")[0]
        typer.echo(f"{name:{width}}  {first_line.removeprefix('#').strip()}")
