"""`rllm-gym new-env`: writes a package with an environment, its expert and its tests, to begin one's own with."""

from __future__ import annotations

import keyword
import sys
from pathlib import Path
from typing import Annotated

import typer

from rllm_gym.cli.common import errors_in_one_line
from rllm_gym.errors import ConfigError

TEMPLATE = Path(__file__).parent.parent / "assets" / "new_env"
# Its Python files end in .py.txt, as they are no modules of this package.
NAME = "my_env"  # the name of everything in the template: my_env, MyEnv, MyEnv-v0


def new_env(
    name: Annotated[str, typer.Argument(help="Name of the package and of its folder, like my_env.")],
    folder: Annotated[Path, typer.Option("--in", help="The folder to write it in.")] = Path(),
) -> None:
    """Write a package with an environment, an expert and tests, which trains as it stands."""
    with errors_in_one_line():
        files = write_package(name, folder)
    target = folder / name
    for file in files:
        typer.echo(f"wrote {file}")
    typer.echo(f"next: cd {target}, then what {target / 'README.md'} says")


def write_package(name: str, folder: Path) -> list[Path]:
    """Write the package and return its files.

    Raises:
        ConfigError: the name is no name of a package, or a file or folder of that name exists.
    """
    who = "new-env"
    if not name.isidentifier() or keyword.iskeyword(name) or not name.isascii() or name != name.lower():
        raise ConfigError(
            f"{who}: the name must be a Python name in lower case, as it is the package's; got {name!r}. "
            "Write letters, digits and underscores, like my_env."
        )
    if name in sys.stdlib_module_names or name in ("rllm_gym", "tests"):
        raise ConfigError(f"{who}: a module of this name is there already; got {name!r}. Choose another name.")
    target = folder / name
    if target.exists():
        raise ConfigError(f"{who}: nothing is overwritten; {target} exists. Choose another name, or move it away.")
    title = "".join(part.capitalize() for part in name.split("_"))
    class_name = title if title.endswith("Env") else f"{title}Env"
    # The id first, whose name need not end in Env.
    words = {"MyEnv-v0": f"{title}-v0", "MyEnv": class_name, NAME: name}
    files = []
    for source in sorted(file for file in TEMPLATE.rglob("*") if file.is_file()):
        file = target / _replaced(source.relative_to(TEMPLATE).as_posix(), words).removesuffix(".txt")
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(_replaced(source.read_text(encoding="utf-8"), words), encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"{who}: {file} cannot be written ({error}). Choose another folder with --in.") from error
        files.append(file)
    return files


def _replaced(text: str, words: dict[str, str]) -> str:
    for old, new in words.items():
        text = text.replace(old, new)
    return text
