"""How far a newcomer walks: the files that one train step crosses, and how long they are."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MOST_FILES, MOST_CHANGES, MOST_LINES = 25, 320, 400


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_one_grpo_step_crosses_few_files():
    run = subprocess.run([sys.executable, "tools/walk.py"], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr[-2000:]
    found = re.fullmatch(r"files (\d+)\nchanges of file (\d+)\n", run.stdout)
    assert found, run.stdout
    files, changes = map(int, found.groups())
    assert 10 <= files <= MOST_FILES  # fewer would mean that it has not seen the step
    assert 100 <= changes <= MOST_CHANGES


def test_no_module_is_too_long_to_read():
    folders = ("rllm_gym", "envs", "algorithms", "tools", "benchmarks", ".ci")
    modules = {path.resolve() for folder in folders for path in (ROOT / folder).rglob("*.py")}
    assert len(modules) > 100
    lengths = {path.relative_to(ROOT): len(path.read_text(encoding="utf-8").splitlines()) for path in modules}
    assert {path: lines for path, lines in lengths.items() if lines > MOST_LINES} == {}
