"""What "module:name" names is found, or one line says why not, with the nearest name."""

from __future__ import annotations

import sys
from fractions import Fraction

import pytest

from rllm_gym.errors import ConfigError
from rllm_gym.importing import import_object


@pytest.fixture
def modules(tmp_path, monkeypatch):
    """A package with a good module, a broken one, and one that needs what is not installed."""
    (tmp_path / "garden").mkdir()
    (tmp_path / "garden" / "__init__.py").write_text("")
    (tmp_path / "garden" / "tools.py").write_text("from fractions import Fraction\n\ndef rake(): ...\n")
    (tmp_path / "garden" / "broken.py").write_text("1 / 0\n")
    (tmp_path / "garden" / "needy.py").write_text("import spades_that_nobody_has\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "garden"]:
        del sys.modules[name]


def test_a_path_names_its_object():
    assert import_object("run:", "fractions:Fraction") is Fraction


@pytest.mark.parametrize(
    ("path", "rest"),
    [
        ("garden.tools", "(it needs a module, a colon and a name). Correct it."),
        ("garden.tools:", "(it needs a module, a colon and a name). Correct it."),
        ("gardn.tools:rake", "(No module named 'gardn'). Did you mean 'garden.tools:rake'?"),
        ("garden.tool:rake", "(No module named 'garden.tool'). Did you mean 'garden.tools:rake'?"),
        ("garden.tools.more:rake", "(No module named 'garden.tools.more'; 'garden.tools' is not a package)."),
        ("qqqqqqqq:rake", "(No module named 'qqqqqqqq')."),
        ("garden.needy:rake", "(No module named 'spades_that_nobody_has')."),
        ("garden.broken:rake", "(ZeroDivisionError: division by zero)."),
        ("garden.tools:raek", "(module 'garden.tools' has no attribute 'raek'). Did you mean 'garden.tools:rake'?"),
        ("garden:rake", "(module 'garden' has no attribute 'rake')."),
    ],
)
def test_what_is_not_there_is_one_line(modules, path, rest):
    with pytest.raises(ConfigError) as error:
        import_object("run:", path)
    assert str(error.value) == f'run: must name a Python object as "module:name"; got {path!r} {rest}'
