"""`rllm-gym new-env` and `check-env`: what they write passes its own tests, and what they say is one line each."""

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rllm_gym.cli.main import make_rllib_app, make_rllm_gym_app

rllib = make_rllib_app()
app = make_rllm_gym_app()

CLASS = "import gymnasium\nfrom rllm_gym.envs import UnicodeText\n\nclass Mine(gymnasium.Env):\n"


def run(*arguments):
    return CliRunner().invoke(app, list(arguments))


@pytest.mark.parametrize(
    ("name", "class_name", "env_id"),
    [("my_env", "MyEnv", "my_env:my_env/MyEnv-v0"), ("word_game", "WordGameEnv", "word_game:word_game/WordGame-v0")],
)
def test_what_it_writes_passes_its_tests_and_a_check_as_it_stands(tmp_path, name, class_name, env_id):
    done = run("new-env", name, "--in", str(tmp_path))
    assert done.exit_code == 0, done.output
    folder = tmp_path / name
    assert sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()) == sorted(
        ["README.md", f"{name}/__init__.py", f"{name}/env.py", "pyproject.toml", "tests/test_env.py", "train.yaml"]
    )
    assert f"class {class_name}(TextEnv)" in (folder / name / "env.py").read_text()
    # In a process of its own: this one has other settings of pytest.
    code = (
        "import sys, pytest\n"
        "assert pytest.main(['-q', '-p', 'no:cacheprovider']) == 0\n"
        "from rllm_gym.cli.main import rllm_gym\n"
        f"sys.argv = ['rllm-gym', 'check-env', {env_id!r}]\n"
        "rllm_gym()\n"
    )
    tests = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=120)
    assert tests.returncode == 0, tests.stdout + tests.stderr
    assert " passed" in tests.stdout and "BROKEN" not in tests.stdout and "not checked" not in tests.stdout
    assert f"    rllm-gym check-env {env_id}" in (folder / "README.md").read_text()


@pytest.mark.slow
def test_what_it_writes_passes_a_dry_run(calling_folder, monkeypatch):
    (calling_folder / "my_package" / "__init__.py").unlink()
    (calling_folder / "my_package").rmdir()
    assert run("new-env", "my_package").exit_code == 0
    monkeypatch.chdir(calling_folder / "my_package")
    monkeypatch.syspath_prepend(calling_folder / "my_package")
    done = CliRunner().invoke(rllib, ["train", "file", "train.yaml", "--dry-run", "--no-reset"])
    assert done.exit_code == 0, done.output
    assert "env: my_package:my_package/MyPackage-v0" in done.output


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("my-env", "must be a Python name in lower case"),
        ("class", "must be a Python name in lower case"),
        ("MyEnv", "must be a Python name in lower case"),
        ("../env", "must be a Python name in lower case"),
        ("random", "a module of this name is there already"),
        ("taken", "nothing is overwritten"),
    ],
)
def test_a_name_that_cannot_be_is_refused_in_one_line(tmp_path, name, message):
    (tmp_path / "taken").mkdir()
    done = run("new-env", name, "--in", str(tmp_path))
    assert done.exit_code == 2 and not done.stdout
    assert message in done.stderr and done.stderr.count("\n") == 1
    assert [path.name for path in tmp_path.rglob("*")] == ["taken"]


def test_check_env_says_each_broken_rule_in_one_line_and_fails(calling_folder, monkeypatch):
    monkeypatch.syspath_prepend(calling_folder)
    (calling_folder / "my_package" / "env.py").write_text(
        CLASS + "    observation_space = action_space = UnicodeText(9)\n"
        "    def reset(self, *, seed=None, options=None):\n"
        "        super().reset(seed=seed)\n        return 'hello', {}\n"
        "    def step(self, action):\n        return 'far too long', 1.0, False, False, {}\n"
    )
    done = run("check-env", "my_package.env:Mine")
    assert done.exit_code == 1
    broken = [line for line in done.stdout.splitlines() if line.startswith("BROKEN")]
    assert [line for line in broken if "'far too long' is not in UnicodeText(0, 9)" in line]
    assert done.stderr == f"check-env: {len(broken)} of 15 rules are broken\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["rllm_gym.envs.textcraft.env:TextCrftEnv"], "Did you mean 'rllm_gym.envs.textcraft.env:TextCraftEnv'?"),
        (["rllm_gym/TextCrft-v0"], "Did you mean 'rllm_gym:rllm_gym/TextCraft-v0'?"),
        (["rllm_gym/TextCraft-v0", "--env-config", "depth"], "--env-config: must be a JSON object"),
        (["rllm_gym/TextCraft-v0", "--env-config", '{"depht": 1}'], "got 'depht'. Did you mean 'depth'?"),
        (["fractions:Fraction"], "env must be a gymnasium.Env"),
    ],
)
def test_what_cannot_be_checked_is_said_in_one_line(arguments, message):
    done = run("check-env", *arguments)
    assert done.exit_code == 2 and not done.stdout
    assert message in done.stderr and done.stderr.count("\n") == 1


def test_the_template_is_part_of_the_package():
    from rllm_gym.cli.new_env import TEMPLATE

    assert TEMPLATE.is_relative_to(Path(sys.modules["rllm_gym"].__file__).parent / "assets")
