"""Type hints read from a source, without importing it."""

from __future__ import annotations

import dataclasses
import types
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

import pytest

from rllm_gym.cli.train.source_hints import dataclass_hints

ARGS = """
from package.config import Mode
from elsewhere import Other

Size = Literal["small", 2]

class Args:
    number: int = 1
    switch: bool | None = None
    names: list[str] | None = None
    table: dict[str, int] = None
    mode: Mode = "slow"
    size: Size | Mode = "small"
    own: Other | str = None
    unwanted: Literal["a"] = "a"

    def method(self):
        local: int = 0
"""


def test_types_are_read_also_through_other_modules_of_the_package(tmp_path):
    package = tmp_path / "package"
    package.mkdir()
    (package / "args.py").write_text(ARGS)
    (package / "config.py").write_text('Mode: TypeAlias = Literal["fast", "slow"]\n')
    names = ("number", "switch", "names", "table", "mode", "size", "own")
    hints = dataclass_hints(package / "args.py", "Args", names)
    assert hints == {
        "number": int,
        "switch": bool | None,
        "names": list[str] | None,
        "table": dict[str, int],
        "mode": Literal["fast", "slow"],
        "size": Literal["small", 2] | Literal["fast", "slow"],
        "own": Union[Any, str],  # noqa: UP007
        "unwanted": Any,
    }


@pytest.mark.slow
def test_those_of_vllm_are_what_importing_it_gives():
    from vllm.engine.arg_utils import EngineArgs

    def plain(hint: Any) -> Any:
        if get_origin(hint) in (Union, types.UnionType):
            return Union[tuple(map(plain, get_args(hint)))]  # noqa: UP007
        is_plain = get_origin(hint) in (Literal, list, dict, set) or hint in (bool, int, float, str, dict, type(None))
        return hint if is_plain else Any

    theirs = {field.name: plain(field.type) for field in dataclasses.fields(EngineArgs)}
    file = Path(find_spec("vllm").origin).with_name("engine") / "arg_utils.py"
    ours = dataclass_hints(file, "EngineArgs", theirs)
    assert list(ours) == list(theirs)
    assert len([name for name in theirs if ours[name] == theirs[name]]) > 0.95 * len(theirs)
