"""Shipped examples are found by name from anywhere, and listed."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from rllm_gym.cli.examples import find_example
from rllm_gym.cli.main import make_rllib_app

app = make_rllib_app()

FOLDER = Path(__file__).parents[2] / "tuned_examples"


@pytest.mark.parametrize(
    "name", ["textcraft/grpo_tiny", "textcraft/grpo_tiny.yaml", "tuned_examples/textcraft/grpo_tiny.yaml"]
)
def test_a_shipped_example_is_found_by_name(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_example(Path(name)).samefile(FOLDER / "textcraft" / "grpo_tiny.yaml")
    assert (
        CliRunner()
        .invoke(app, ["train", "file", name, "--dry-run", "--no-reset"])
        .stdout.startswith("textcraft_grpo_tiny:\n")
    )


def test_a_file_of_the_users_comes_before_a_shipped_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("quickstart.yaml").write_text("mine: {}")
    assert find_example(Path("quickstart.yaml")) == Path("quickstart.yaml")


def test_a_wrong_name_is_one_line_with_the_nearest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["train", "file", "textcraft/gpro_tiny.yaml", "--dry-run", "--no-reset"])
    assert result.exit_code == 2
    assert result.stderr == (
        "rllib train file: must be a YAML file or the name of a shipped example; got 'textcraft/gpro_tiny.yaml'. "
        "Did you mean 'textcraft/grpo_tiny'? `rllib examples` lists them.\n"
    )


def test_every_example_is_listed_with_its_first_comment_line_which_is_a_sentence() -> None:
    lines = CliRunner().invoke(app, ["examples"]).stdout.splitlines()
    listed = dict(line.split(maxsplit=1) for line in lines)
    assert [text for text in listed.values() if not text.endswith(".")] == []
    files = {str(path.relative_to(FOLDER).with_suffix("")): path for path in FOLDER.rglob("*.yaml")}
    assert list(listed) == sorted(files)
    assert {name: f"# {text}" for name, text in listed.items()} == {
        name: path.read_text().splitlines()[0] for name, path in files.items()
    }
