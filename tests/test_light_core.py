"""The wheel in an empty environment: TextCraft plays, the rest says what it needs, and little is installed."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PARTS = ("rllm_gym", "envs", "algorithms", "tuned_examples", "setup.cfg", "pyproject.toml", "README.md", "LICENSE")
MOST_MB_BEYOND_NUMPY = 75

ENVIRONMENTS = """
import gymnasium
import rllm_gym
for name in ("ALFWorld", "BabyAI", "MiniWoB", "SciWorld", "SearchQA", "TextArena", "TextWorld", "WebArena"):
    try:
        gymnasium.make(f"rllm_gym/{name}-v0").reset(seed=0)
    except rllm_gym.errors.ConfigError as error:
        print(f"{name}: {error}")
"""


@pytest.fixture(scope="module")
def venv(tmp_path_factory):
    """Return an environment with the wheel and what it requires, from the package index."""
    work = tmp_path_factory.mktemp("light_core")
    for part in PARTS:  # a build leaves files beside its sources
        if (ROOT / part).is_dir():
            ignore = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / part, work / "source" / part, symlinks=True, ignore=ignore)
        else:
            shutil.copy(ROOT / part, work / "source")
    run([sys.executable, "-m", "build", "--wheel", "--outdir", work, work / "source"], work)
    run([sys.executable, "-m", "venv", "--without-pip", work / "venv"], work)
    (wheel,) = work.glob("*.whl")
    run([sys.executable, "-m", "pip", "--python", work / "venv/bin/python", "install", "-q", wheel], work)
    return work / "venv"


def run(command, folder):
    outside = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    result = subprocess.run(
        list(map(str, command)), cwd=folder, env=outside, capture_output=True, text=True, timeout=300
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def megabytes(paths):
    files = [file for path in paths for file in ([path] if path.is_file() else path.rglob("*")) if file.is_file()]
    return sum(file.stat().st_size for file in files) / 1e6


@pytest.mark.promise
@pytest.mark.slow
def test_textcraft_plays_at_once_and_little_is_installed(venv):
    run([venv / "bin/python", ROOT / ".ci/smoke_test.py"], venv)
    (packages,) = venv.glob("lib/*/site-packages")
    heavy = ("torch", "ray", "vllm", "deepspeed", "transformers")
    assert not [name for name in heavy if (packages / name).exists()]
    beyond_numpy = megabytes(path for path in packages.iterdir() if not path.name.startswith("numpy"))
    assert 20 < beyond_numpy < MOST_MB_BEYOND_NUMPY


@pytest.mark.slow
def test_the_other_environments_name_their_extra_in_one_line(venv):
    said = run([venv / "bin/python", "-c", ENVIRONMENTS], venv).splitlines()
    extras = {
        "ALFWorld": "alfworld",
        "BabyAI": "babyai",
        "MiniWoB": "web",
        "SciWorld": "sciworld",
        "SearchQA": "searchqa",
    }
    extras |= {"TextArena": "textarena", "TextWorld": "textworld", "WebArena": "web"}
    assert [line.partition(":")[0] for line in said] == list(extras)
    for line, extra in zip(said, extras.values(), strict=True):
        assert f'pip install "rllm-gym[{extra}]"' in line


@pytest.mark.slow
@pytest.mark.parametrize("command", ["rllib", "rllm-gym"])
def test_the_commands_say_in_one_line_what_is_missing(venv, command):
    result = subprocess.run([venv / "bin" / command, "--help"], cwd=venv, capture_output=True, text=True, timeout=60)
    assert result.returncode == 1 and result.stdout == ""
    assert result.stderr.count("\n") == 1 and result.stderr.startswith(f"{command}: needs ")
    assert 'pip install "rllm-gym[' in result.stderr
