"""What "module:name" names is found, or one line says why not, with the nearest name; large imports are quick."""

from __future__ import annotations

import gc
import subprocess
import sys
from fractions import Fraction

import pytest

from rllm_gym.errors import ConfigError
from rllm_gym.importing import import_object, uncollected


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


def num_collections() -> int:
    """Return how often the collector has gone through all that lives."""
    return gc.get_stats()[2]["collections"]


def test_what_is_made_uncollected_is_old_afterwards():
    gc.collect()
    gc.unfreeze()  # what an engine of another test froze
    before = num_collections()
    with uncollected():
        with uncollected():
            made = [[] for _ in range(100_000)]
        assert not gc.isenabled()
    assert gc.isenabled()
    assert num_collections() == before
    assert gc.get_freeze_count() == 0
    assert id(made) in map(id, gc.get_objects(generation=2))


def test_what_is_made_uncollected_while_the_collector_is_off_leaves_it_off():
    gc.disable()
    try:
        with uncollected():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_what_was_frozen_stays_frozen():
    gc.freeze()
    try:
        with uncollected():
            pass
        assert gc.get_freeze_count()
    finally:
        gc.unfreeze()


def test_an_env_runner_is_imported_with_the_collector_at_rest():
    told = "import gc, rllm_gym.rollout.env_runner; print(gc.get_stats()[2]['collections'])"
    done = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True)
    assert int(done.stdout) <= 1  # 5 without
