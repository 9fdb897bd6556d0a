"""docs/reproduce.md's commands, with files of the published ones' shape: lists of items, and questions."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from rllm_gym.cli.main import make_rllib_app, make_rllm_gym_app
from rllm_gym.data import read_episodes
from rllm_gym.evaluation.panel import read_panel

rllib = make_rllib_app()
rllm_gym = make_rllm_gym_app()

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "reproduce.md").read_text(encoding="utf-8")
ITEMS = {  # two to train on and two to evaluate on, numbers as high as the published lists have them
    "babyai": (["babyai_0", "babyai_11155"], ["babyai_1804", "babyai_12875"]),
    "sciworld": (["sciworld_0", "sciworld_4632"], ["sciworld_536", "sciworld_4336"]),
    "searchqa": (["nq_51713", "hotpotqa_130881"], ["nq_7", "bamboogle_51711"]),
    "textcraft": (["textcraft_31", "textcraft_537"], ["textcraft_0", "textcraft_535"]),
    "webarena": (["webarena_0", "webarena_788"], ["webarena_4", "webarena_763"]),
}
QUESTIONS = [
    ("nq", "train", 0), ("hotpotqa", "train", 0), ("nq", "test", 7), ("bamboogle", "test", 123)
]  # fmt: skip


@pytest.fixture
def files(tmp_path, monkeypatch):
    """The folder of the page, as the present one."""
    for name, lists in ITEMS.items():
        for folder, kind, item_ids in zip(("train", "eval"), ("train", "test"), lists, strict=True):
            path = tmp_path / "AgentGym-RL-Data-ID" / folder / f"{name}_{kind}.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps([{"item_id": item_id} for item_id in item_ids], indent=4))
    rows = [
        {
            "data_source": dataset,
            "question": f"Who has number {index}?",
            "golden_answers": ["Nobody"],
            "extra_info": {"split": split, "index": index},
        }
        for dataset, split, index in QUESTIONS
    ]
    (tmp_path / "searchqa" / "data").mkdir(parents=True)
    (tmp_path / "searchqa" / "data" / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name in ("SHOPPING", "SHOPPING_ADMIN", "REDDIT", "GITLAB", "MAP", "WIKIPEDIA"):
        monkeypatch.setenv(f"WA_{name}", "http://127.0.0.1:9")
    monkeypatch.setenv("OPENAI_API_KEY", "for the judge, whom nobody asks here")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def commands(beginning: str) -> list[list[str]]:
    """The commands of the block that begins so, as a shell cuts them."""
    [block] = [block for block in PAGE.split("```bash\n")[1:] if block.startswith(beginning)]
    text = block.partition("```")[0].replace("\\\n", " ")
    words = shlex.split(text)
    starts = [k for k, word in enumerate(words) if word in ("rllib", "rllm-gym")]
    return [words[start:end] for start, end in zip(starts, [*starts[1:], len(words)], strict=True)]


@pytest.mark.parametrize("command", commands("rllib train"), ids=lambda words: words[3])
def test_the_paper_is_trained_on_its_lists(command, files):
    done = CliRunner().invoke(rllib, [*command[1:], "--dry-run", "--no-reset", "--elsewhere"])  # on eight GPUs
    assert done.exit_code == 0, done.output
    assert "protocol: agentgym" in done.output
    assert ("_train.json" in done.output) == any("_train.json" in word for word in command)


@pytest.mark.parametrize("command", commands("rllm-gym panel"), ids=lambda words: words[2])
def test_the_paper_is_evaluated_on_its_lists(command, files):
    *arguments, sign, file = command
    assert sign == ">"
    done = CliRunner().invoke(rllm_gym, arguments[1:])
    assert done.exit_code == 0, done.output
    Path(file).write_text(done.stdout)
    panel = read_panel(Path(file), is_trusted=True)  # one names the files of the data
    assert panel.env_config["protocol"] == "agentgym"
    numbers = [str(item_id).rpartition("_")[2] for item_id in panel.item_ids]
    name = Path(file).stem
    if name != "textcraft":
        assert numbers == [item_id.rpartition("_")[2] for item_id in ITEMS[name][1]]


def test_textcrafts_list_of_numbers_is_refused_with_the_reason(files):
    arguments = ["panel", "TextCraft-v0", "--horizon", "30", "--from", "AgentGym-RL-Data-ID/eval/textcraft_test.json"]
    done = CliRunner().invoke(rllm_gym, arguments)
    assert done.exit_code == 2
    assert "a number alone names none; got 'textcraft_0'" in done.stderr


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_from_lists_to_the_papers_table(files):
    """A folder like AgentEval/babyai, played by the tiny model, and the numbers as main_generation.py has them."""
    folder = files / "AgentEval" / "babyai"
    folder.mkdir(parents=True)
    categories = {"goto": ["babyai_1800", "babyai_1804"], "pickup": ["babyai_1817"]}
    lists = {"babyai_test": [item for items in categories.values() for item in items], **categories}
    for stem, items in lists.items():
        (folder / f"{stem}.json").write_text(json.dumps([{"item_id": item} for item in items]))
    made = CliRunner().invoke(
        rllm_gym,
        ["panel", "BabyAI-v0", "--from", str(folder), "--horizon", "4", "--samples", "3", "--max-new-tokens", "24",
         "--env-config", '{"protocol": "agentgym"}'],
    )  # fmt: skip
    assert made.exit_code == 0, made.output
    (files / "babyai.json").write_text(made.stdout)
    played = subprocess.run(
        [sys.executable, "-m", "rllm_gym.cli.main", "rllib", "evaluate", "tiny", "--panel", "babyai.json",
         "--out", "results", "--config", '{"max_model_len": 2048, "engine": "transformers"}'],
        capture_output=True, text=True, timeout=500,
    )  # fmt: skip
    assert played.returncode == 0, played.stderr[-2000:]
    scores: dict[str, list[float]] = {}
    for record in read_episodes(files / "results"):
        scores.setdefault(record.item_id, []).append(record.total_reward)
    table = np.array([scores[item] for item in lists["babyai_test"]])
    result = json.loads((files / "results" / "result.json").read_text())
    assert result["score_avg@k"] == pytest.approx(np.mean(table))
    assert result["score_pass@k"] == pytest.approx(np.mean(np.max(table, axis=-1) > 0))
    assert set(result["by_category"]) == {"goto", "pickup"}
    assert result["by_category"]["pickup"]["score_avg@k"] == pytest.approx(np.mean(table[2]))
    assert "| category | tasks | avg@3 | pass@3 | score avg@3 | score pass@3 |\n" in played.stdout
    rows = [line for line in played.stdout.splitlines() if line.startswith(("| goto", "| pickup", "| all"))]
    assert [row.split(" | ")[1] for row in rows] == ["2", "1", "3"]
