"""Every code block of README.md and docs/ runs here or in a test of its page's own, or says why it does not."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import gymnasium
import pytest
import typer
import yaml
from rich.text import Text
from typer.testing import CliRunner

from rllm_gym.cli.main import make_rllib_app, make_rllm_gym_app
from rllm_gym.cli.train.check import Faults, check_quickly
from rllm_gym.cli.train.experiment import read_experiment
from rllm_gym.data import TrajectoryWriter
from rllm_gym.options.methods import METHODS, PRESETS
from rllm_gym.options.table import list_options
from tests.data.test_trajectories import record

rllib_app = make_rllib_app()
rllm_gym_app = make_rllm_gym_app()

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
KINDS = ("python", "yaml", "bash", "json", "text")
# Pages with a test of their own, which runs every block of theirs.
OWN_TESTS = {
    "docs/environments/your_own.md": "tests/envs/test_your_own.py",
    "docs/methods.md": "tests/cli/test_methods_page.py",
}
# A browser, a virtual machine or a compiler starts.
WORLDS = ("alfworld", "miniwob", "sciworld", "textworld", "webarena", "webarena_sites")
SLOW = {f"docs/environments/{name}.md" for name in WORLDS}
NOT_RUN = re.compile(r"<!-- not run: \S.* -->")
RUN_ELSEWHERE = re.compile(r"<!-- run by (tests/\S+\.py): \S.* -->")
RUN_SLOWLY = "<!-- run by a slow test: "
COMMANDS = {"rllib": rllib_app, "rllm-gym": rllm_gym_app}
RUNNABLE = (["rllib", "examples"], ["rllm-gym", "new-env"])  # quick, and without a run


class Block(NamedTuple):
    page: str
    line: int
    kind: str
    text: str
    before: str

    @property
    def is_run(self) -> bool:
        return not NOT_RUN.fullmatch(self.before) and not self.other_test

    @property
    def other_test(self) -> str:
        """The test that runs it."""
        return found[1] if (found := RUN_ELSEWHERE.fullmatch(self.before)) else ""

    @property
    def is_slow(self) -> bool:
        return self.before.startswith(RUN_SLOWLY)


def blocks_of(text: str, page: str) -> list[Block]:
    found, lines, begin = [], text.splitlines(), None
    for number, line in enumerate(lines):
        if line.lstrip().startswith("```"):
            if begin is None:
                begin = number
            else:
                inside = "\n".join(lines[begin + 1 : number]) + "\n"
                found.append(Block(page, begin + 1, lines[begin].strip(" `"), inside, lines[begin - 1].strip()))
                begin = None
    assert begin is None, f"{page}:{begin}: a code block does not end"
    return found


BLOCKS = [
    block
    for page in PAGES
    for block in blocks_of(page.read_text(encoding="utf-8"), str(page.relative_to(ROOT)))
    if str(page.relative_to(ROOT)) not in OWN_TESTS
]


def of_kind(kind: str) -> list:
    return [pytest.param(b, id=f"{b.page}:{b.line}") for b in BLOCKS if b.kind == kind and b.is_run]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder as the present one; what is registered there is forgotten."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    with contextlib.suppress(ImportError):
        importlib.import_module("minigrid")  # it registers its environments once, and they are to stay
    before, modules = dict(gymnasium.registry), set(sys.modules)
    yield tmp_path
    for key in gymnasium.registry.keys() - before.keys():
        del gymnasium.registry[key]
    for name in sys.modules.keys() - modules:
        if str(getattr(sys.modules[name], "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]


def test_every_block_says_what_it_is_and_a_reason_where_it_is_not_run():
    assert len(BLOCKS) > 30
    for block in BLOCKS:
        where = f"{block.page}:{block.line}"
        assert block.kind in KINDS, f"{where}: a block of {', '.join(KINDS)}; got {block.kind!r}"
        marked = block.before.startswith("<!--")
        assert not marked or not block.is_run or block.is_slow, f"{where}: write <!-- not run: reason -->"
    elsewhere = [*OWN_TESTS.items(), *((block.page, block.other_test) for block in BLOCKS if block.other_test)]
    for page, test in elsewhere:
        assert Path(page).name in (ROOT / test).read_text(encoding="utf-8"), f"{test} runs blocks of {page}"


def test_a_block_without_a_kind_or_a_reason_is_found():
    [bare, reasoned, empty] = blocks_of(
        "```\nx\n```\n\n<!-- not run: it trains -->\n```bash\ny\n```\n<!-- not run: -->\n```bash\nz\n```\n", "page"
    )
    assert bare.kind not in KINDS
    assert not reasoned.is_run and empty.is_run


PYTHON_PAGES = list(dict.fromkeys(b.page for b in BLOCKS if b.kind == "python" and b.is_run))


@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=[pytest.mark.slow] if page in SLOW else []) for page in PYTHON_PAGES]
)
def test_a_pages_python_runs_in_order(page, folder):
    with TrajectoryWriter("runs/quickstart/trajectories") as writer:
        writer.append([record(1)])
    names = {}
    for block in BLOCKS:
        if (block.page, block.kind) == (page, "python") and block.is_run and not block.is_slow:
            if module := re.search(r'"(\w+):\w+"\)$', block.text):  # a module that the page tells to write
                Path(f"{module[1]}.py").write_text(block.text, encoding="utf-8")
                importlib.import_module(module[1])
                continue
            exec(compile(block.text, f"{page}:{block.line}", "exec"), names)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("block", [pytest.param(b, id=f"{b.page}:{b.line}") for b in BLOCKS if b.is_slow])
def test_a_block_that_trains_runs_in_a_process_of_its_own(block, tmp_path):
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    command = [sys.executable, "-c", block.text]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize("block", of_kind("yaml"))
def test_a_yaml_block_passes_the_check_of_what_is_written(block, folder):
    (folder / "my_train.json").write_text('["textcraft_3", 17]', encoding="utf-8")
    lines = block.text
    indent = len(lines) - len(lines.lstrip(" "))  # 0: a whole experiment; 2: keys of one; 4: keys of its `config`
    head = "" if indent == 0 else "x:\n  run: GRPO\n"
    if indent and "\n  env:" not in f"\n{lines}":
        head += "  env: rllm_gym/TextCraft-v0\n"
    if "  scheduler:" in lines:  # which is a sweep's
        lines += "  num_samples: 2\n  stop: {training_iteration: 40}\n  config: {lr: {choice: [1e-5, 1e-4]}}\n"
    (folder / "x.yaml").write_text(head + ("  config:\n" if indent == 4 else "") + lines, encoding="utf-8")
    experiment = read_experiment(folder / "x.yaml")
    faults = Faults(experiment.source)
    assert check_quickly(experiment, faults)["env"]
    faults.raise_any()


@pytest.mark.parametrize("block", of_kind("bash"))
def test_a_command_exists_and_takes_these_options(block, folder):
    for line in block.text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        words = words[: words.index(">")] if ">" in words else words
        if not words:
            continue
        assert words[0] in COMMANDS, f"{block.page}:{block.line}: {words[0]} is not run here; say why above the block"
        if words[:2] in RUNNABLE:
            done = CliRunner().invoke(COMMANDS[words[0]], words[1:])
            assert done.exit_code == 0, done.output
        command, arguments = typer.main.get_command(COMMANDS[words[0]]), words[1:]
        while arguments and (inner := getattr(command, "commands", {}).get(arguments[0])):
            command, arguments = inner, arguments[1:]
        command.make_context(words[0], arguments)  # click refuses what it does not know


def helps(command):
    """Yield every help text of a command and of those below it."""
    yield command.help
    yield from (parameter.help for parameter in command.params)
    for inner in getattr(command, "commands", {}).values():
        yield from helps(inner)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_shows_all_of_its_text(name):
    """Rich takes what stands in brackets for markup, and leaves it out."""
    texts = [text for text in helps(typer.main.get_command(COMMANDS[name])) if text]
    assert len(texts) > 20
    assert [text for text in texts if Text.from_markup(text).plain != text] == []


@pytest.mark.parametrize("block", of_kind("json"))
def test_a_json_block_is_json(block):
    decoder, rest, count = json.JSONDecoder(), block.text.strip(), 0
    while rest:
        _, end = decoder.raw_decode(rest)
        rest, count = rest[end:].lstrip(), count + 1
    assert count


@pytest.mark.parametrize("page", ["coming_from", "clusters", "rewards"])
def test_the_options_that_a_page_names_exist(page):
    rows = [line for line in (ROOT / f"docs/{page}.md").read_text().splitlines() if line.startswith("| ")]
    last_cells = [re.split(r"(?<!\\)\|", row)[1 if page == "rewards" else -2] for row in rows]
    names = {span.partition(":")[0] for cell in last_cells for span in re.findall(r"`([^`]+)`", cell)}
    options = {name for name in names if re.fullmatch(r"[a-z]+(_[a-z]+)+", name)}
    known = set().union(*(list_options(method.table) for method in METHODS.values())) | {"env_config", *PRESETS}
    assert options and options <= known


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("material", reason='the site needs MkDocs: pip install "rllm-gym[docs]"')
    built = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(built)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return built


@pytest.mark.promise
def test_the_site_builds_strictly_with_a_page_for_each_environment_and_method(site):
    pages = {str(page.relative_to(site)) for page in site.rglob("*.html")}
    ids = [key.partition("/")[2] for key in gymnasium.registry if key.startswith("rllm_gym/")]
    assert len(ids) == 16
    for env_id in ids:
        text = (site / f"reference/{env_id.partition('-')[0].lower()}.html").read_text(encoding="utf-8")
        assert f"rllm_gym/{env_id}" in text and all(f'id="{part}"' in text for part in ("reward", "action", "data"))
    for name in METHODS:
        text = (site / f"reference/method_{name.lower()}.html").read_text(encoding="utf-8")
        assert f"Configuration of {name}".replace("ReinforcePP", "") in text and 'id="formulas"' in text
    assert {"index.html", "options.html", "metrics.html", "clusters.html", "coming_from.html", "rewards.html"} <= pages


@pytest.mark.promise
def test_the_site_asks_no_other_host(site):
    """Links may lead elsewhere; what a page loads by itself may not."""
    loads = re.compile(
        r'<(?:script|img|iframe|source|video|audio|embed)[^>]*\ssrc="((?:https?:)?//[^"]*)|<link[^>]*\shref="((?:https?:)?//[^"]*)'
    )
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert not loads.findall(text), page
        assert 'data-md-component="source"' not in text  # the theme would ask GitHub about the repository
    for style in site.rglob("*.css"):
        assert not re.search(r"(?:url\(|@import )['\"]?(?:https?:)?//", style.read_text(encoding="utf-8")), style
    hosts = ("unpkg.com", "jsdelivr", "cdnjs", "googleapis", "gstatic", "google-analytics", "polyfill.io")
    scripts = list(site.rglob("*.js"))
    assert scripts
    for script in scripts:
        assert not [host for host in hosts if host in script.read_text(encoding="utf-8")], script


@pytest.mark.parametrize("name", METHODS)
def test_a_method_has_an_example_and_a_row_on_its_page_and_in_the_readme(name):
    examples = [yaml.safe_load(path.read_text()) for path in (ROOT / "tuned_examples").rglob("*.yaml")]
    runs = {experiment.get("run") for example in examples for experiment in example.values()}
    assert name in runs, "it has no example, such as tuned_examples/textcraft/<method>_tiny.yaml"
    for page in ("docs/methods.md", "README.md"):
        rows = [line for line in (ROOT / page).read_text(encoding="utf-8").splitlines() if line.startswith("|")]
        assert any(f"`{name}`" in row for row in rows), f"{page} has no row for it"


def test_security_names_tests_that_exist_and_one_table_of_faults():
    page = (ROOT / "SECURITY.md").read_text()
    named = re.findall(r"`(tests/[\w/.]+)`", page)
    assert len(named) > 8
    assert [file for file in named if not (ROOT / file).exists()] == []
    _, _, faults = page.partition("## What a fault costs\n")
    assert faults and (ROOT / "docs" / "clusters.md").read_text().endswith(f"### What a fault costs\n{faults}")
