"""`rllm-gym doctor` says of a model what fits, a line each, and what to set."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from rllm_gym.cli.main import make_rllm_gym_app
from rllm_gym.models import TINY_MODEL_DIR

REWRITES = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{{ m.content.split('</think>')[-1].lstrip('\n') if m.role == 'assistant' else m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% if not enable_thinking %}<think>\n\n</think>\n\n"
    "{% endif %}{% endif %}"
)


@pytest.fixture(autouse=True)
def restored(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def doctor(model, *options):
    result = CliRunner().invoke(make_rllm_gym_app(), ["doctor", str(model), *options])
    assert not isinstance(result.exception, Exception) or isinstance(result.exception, SystemExit), result.exception
    return result


def levels_of(result) -> dict[str, tuple[str, str]]:
    return {f["check"]: (f["level"], f["text"]) for f in json.loads(result.stdout)["findings"]}


@pytest.fixture
def folder(tmp_path) -> Path:
    return Path(shutil.copytree(TINY_MODEL_DIR, tmp_path / "model"))


@pytest.mark.promise
def test_the_shipped_model_is_fine_and_the_config_at_the_end_is_yaml():
    result = doctor("tiny", "--config", '{"max_model_len": 512}')
    assert result.exit_code == 0, result.output
    *lines, block = result.stdout.partition("\nconfig:")
    assert not [line for line in lines[0].splitlines() if line.startswith("wrong")]
    assert "ok     packing: " in lines[0] and "ok     sharing: " in lines[0]
    assert yaml.safe_load(f"config:{block}")["config"] == {
        "base_model": "tiny", "engine": "vllm", "dtype": "float32", "max_model_len": 512,
    }  # fmt: skip


def test_each_check_has_a_line():
    result = doctor("tiny", "--json", "--env", "TextCraft-v0", "--engine", "transformers")
    assert list(dict.fromkeys(f["check"] for f in json.loads(result.stdout)["findings"])) == [
        "kind of model", "quantization", "files of weights", "embedding", "size", "length", "memory of the sampler",
        "memory of the learner", "custom code", "positions", "chat template", "system role", "tools",
        "template arguments", "date", "ends of a turn", "LoRA", "first prompt", "packing", "sharing", "number format",
        "sampler against trainer", "names of weights",
    ]  # fmt: skip


def test_code_of_its_own_is_a_note_where_transformers_knows_the_kind(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "auto_map": {"AutoModelForCausalLM": "m.M"}}))
    found = levels_of(doctor(folder, "--json"))
    level, text = found["custom code"]
    assert level == "note" and text.startswith("left alone")
    assert "parts" not in found and found["positions"] == ("ok", "rotary frequencies: default")


def test_a_broken_folder_is_told_and_nothing_is_loaded(folder):
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-64])
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "vocab_size": 100}))
    result = doctor(folder, "--json")
    found = levels_of(result)
    assert result.exit_code == 1
    assert found["files of weights"][0] == "wrong" and "is torn" in found["files of weights"][1]
    assert found["embedding"][0] == "wrong" and "packing" not in found


def test_quantized_weights_and_a_kind_that_is_not_known_are_wrong(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": {"quant_method": "awq"}}))
    assert "awq" in levels_of(doctor(folder, "--json"))["quantization"][1]
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "mine"}))
    assert list(levels_of(doctor(folder, "--json"))) == ["kind of model"]


def test_a_template_that_rewrites_is_a_note_with_its_cost_and_its_arguments(folder):
    (folder / "chat_template.jinja").write_text(REWRITES)
    found = levels_of(doctor(folder, "--json", "--config", '{"chat_template_kwargs": {"enable_thinking": true}}'))
    level, text = found["chat template"]
    assert level == "note" and text.startswith("history: as_template: ") and "5 training samples" in text
    assert found["template arguments"][0] == "note" and "enable_thinking" in found["template arguments"][1]


def test_arguments_that_the_template_lacks_and_too_many_tokens_are_wrong():
    options = {"chat_template_kwargs": {"enable_thinkng": False}, "max_model_len": 100_000}
    result = doctor("tiny", "--json", "--config", json.dumps(options))
    found = levels_of(result)
    assert found["chat_template_kwargs"][0] == found["length"][0] == "wrong" and result.exit_code == 1
    assert json.loads(result.stdout)["config"]["max_model_len"] == 16_384


def test_the_date_and_the_tools_of_a_template_are_told(folder):
    (folder / "chat_template.jinja").write_text(
        "{% if tools %}{% for t in tools %}{{ t | tojson }}{% endfor %}{% endif %}{{ strftime_now('%d %b') }}"
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    result = doctor(folder, "--json", "--config", '{"template_date": "2026-02-03"}')
    found = levels_of(result)
    assert found["date"] == ("note", "the template writes one: always 2026-02-03")
    assert found["tools"][1] == "the template takes them; it is not known what reads its calls"
    assert json.loads(result.stdout)["config"]["template_date"] == "2026-02-03"


@pytest.mark.promise
def test_the_engine_is_compared_with_the_trainer_before_and_after_new_weights(monkeypatch):
    options = ("--json", "--engine", "transformers", "--config", '{"max_model_len": 256}')
    found = json.loads(doctor("tiny", *options).stdout)["findings"]
    [before, after] = [f for f in found if f["check"] == "sampler against trainer"]
    assert before["level"] == after["level"] == "ok" and "after a sync of changed weights" in after["text"]

    from rllm_gym.rollout.engines.transformers import TransformersEngine

    monkeypatch.setattr(TransformersEngine, "load_weights", lambda self, state, version: None)
    result = doctor("tiny", *options)
    level, text = levels_of(result)["sampler against trainer"]
    assert (level, result.exit_code) == ("wrong", 1) and text.startswith("after a sync of changed weights: check_sync")


def test_a_model_that_is_not_here_is_refused_without_a_network():
    result = doctor("someone/on-the-hub")
    assert result.exit_code == 2 and "someone/on-the-hub" in result.stderr
