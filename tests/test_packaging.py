"""Guard rails of the layout: real folders at the top that are in the package through symlinks."""

import collections
import configparser
import importlib.metadata
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from setuptools import find_packages

import rllm_gym

ROOT = Path(__file__).parents[1]


def config():
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    return parser


def pins(lines):
    return dict(re.fullmatch(r"([\w-]+)(?:\[[\w,]+\])?==(\S+)", line).groups() for line in lines if "==" in line)


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


def test_no_two_modules_outside_the_environments_share_a_name():
    paths = collections.defaultdict(list)
    for top in ("rllm_gym", "tools", "benchmarks"):
        for folder, _, files in os.walk(ROOT / top, followlinks=True):
            is_one_environments = re.match(r"rllm_gym/envs/\w", os.path.relpath(folder, ROOT))
            for file in files if not is_one_environments else ():
                if file.endswith(".py") and file != "__init__.py":
                    paths[file].append(os.path.relpath(folder, ROOT))
    assert {"env_pool.py", "wrappers.py"} <= set(paths)
    assert {file: folders for file, folders in paths.items() if len(folders) > 1} == {}


def test_the_pinned_versions_agree_with_what_the_package_asks_for():
    options = config()
    extras = options["options.extras_require"]
    asked = pins(options["options"]["install_requires"].split("\n"))
    asked |= pins(extras["cpu"].split()) | pins(extras["lora"].split()) | pins(extras["dev"].split())
    constraints = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = pins(line for line in constraints if not line.startswith("#"))
    assert {name: pinned.get(name) for name in asked if name != "torch"} == {
        n: v for n, v in asked.items() if n != "torch"
    }
    # A pinned torch would be that of one device; the Makefile picks the build.
    assert "torch" not in pinned
    makefile = (ROOT / "Makefile").read_text()
    assert re.search(r"^TORCH_VERSION = (\S+)$", makefile, re.MULTILINE).group(1) == asked["torch"]


def test_make_install_asks_for_extras_that_exist():
    asked = re.findall(r'-e "\.\[([^\]]+)\]"', (ROOT / "Makefile").read_text())
    assert set(",".join(asked).split(",")) - {"$(DEVICE)"} == set(config()["options.extras_require"]) - {"cpu", "cuda"}
