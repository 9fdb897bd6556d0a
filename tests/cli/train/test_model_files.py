"""What is wrong with a model's folder is one line of a dry run."""

from __future__ import annotations

import json
import logging
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from rllm_gym.cli.train.model_files import find_tokens_beyond, is_whole, model_fault
from rllm_gym.errors import ConfigError
from rllm_gym.learner.rl_module import load_language_model
from rllm_gym.models import resolve_base_model

pytestmark = pytest.mark.promise


@pytest.fixture
def model(tiny_model, tmp_path):
    return shutil.copytree(tiny_model, tmp_path / "model")


def change(folder, **values):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def fault(folder, **options):
    return model_fault(folder, **{"trust_remote_code": False, **options})


def test_a_whole_model_has_no_fault(model):
    assert fault(model) is None


def test_transformers_says_nothing_of_a_whole_model(model, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    assert fault(model) is None and caplog.text == ""  # such as "The following layers were not sharded"


def test_a_torn_file_of_weights_is_named(model):
    file = model / "model.safetensors"
    whole = file.read_bytes()
    assert is_whole(file)
    for torn in (whole[:-100], whole[:5], b"", b"x" * 200):
        file.write_bytes(torn)
        assert "model.safetensors is torn" in fault(model)


@pytest.mark.parametrize("span", [[-(10**9), 4], [4, 0, 4], [4], ["0", 4]])
def test_a_file_whose_head_names_no_span_is_torn(model, span):
    head = json.dumps({"w": {"dtype": "F32", "shape": [1, 1], "data_offsets": span}}).encode()
    (model / "model.safetensors").write_bytes(len(head).to_bytes(8, "little") + head + bytes(4))
    assert "model.safetensors is torn" in fault(model)


def test_a_file_whose_room_was_taken_and_never_filled_is_named(model):
    file = model / "model.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2].ljust(len(whole), b"\0"))
    assert is_whole(file) and "model.safetensors ends in zeros" in fault(model)
    file.write_bytes(whole)
    weights = load_file(file)
    for weight in weights.values():
        weight[1:] = 0  # as the rows are that fill an embedding up, and new biases
    save_file(weights, file, {"format": "pt"})
    assert fault(model) is None


def test_a_torn_file_of_torchs_own_is_named(model):
    weights, file = model / "model.safetensors", model / "pytorch_model.bin"
    torch.save(load_file(weights), file)
    weights.unlink()
    whole = file.read_bytes()
    assert fault(model) is None
    for torn in (whole[:-100], whole[:5], b"", b"version https://git-lfs.github.com/spec/v1\n"):
        file.write_bytes(torn)
        assert "pytorch_model.bin is torn" in fault(model)


def test_a_torn_file_that_is_not_the_models_is_no_fault(model):
    (model / "other.safetensors").write_bytes(b"x" * 200)
    assert fault(model) is None


def test_half_a_download_names_what_is_missing(model):
    (model / "model.safetensors").unlink()
    assert "has no weights" in fault(model)
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "2 of 2 files of weights are missing, first" in fault(model)


def test_quantized_weights_are_refused(model):
    change(model, quantization_config={"quant_method": "gptq", "bits": 4})
    assert "quantized (gptq)" in fault(model)


def save(folder, tensors):
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def test_a_weight_that_is_not_in_the_files_is_named(model, caplog, monkeypatch):
    tensors = load_file(model / "model.safetensors")
    tensors.pop("model.layers.1.self_attn.q_proj.weight")
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    save(model, tensors)
    assert "got none for 1 of" in fault(model) and "first model.layers.1.self_attn.q_proj.weight" in fault(model)
    assert "LOAD REPORT" not in caplog.text  # transformers' own table
    with pytest.raises(ConfigError, match="every weight must be in the model's files"):
        load_language_model(str(model), "float32")


def test_a_weight_of_another_shape_than_the_configurations_is_named(model):
    change(model, vocab_size=300)
    assert "got model.embed_tokens.weight of (259, 64) for (300, 64)" in fault(model)


def test_weights_in_eight_bits_are_quantized_whatever_the_configuration_says(model):
    tensors = load_file(model / "model.safetensors")
    save(model, {k: v.to(torch.float8_e4m3fn) if v.ndim == 2 else v for k, v in tensors.items()})
    assert "quantized (F8_E4M3)" in fault(model)
    (model / "model.safetensors").rename(model / "model.gguf")
    assert "quantized (GGUF)" in fault(model)


@pytest.mark.parametrize(
    "values",
    [{"hidden_size": "many"}, {"rope_scaling": {"type": "wonder", "factor": 2.0}}, {"quantization_config": ["x"]}],
)
def test_a_configuration_that_builds_no_model_is_told_in_a_line(model, values):
    change(model, **values)
    assert fault(model).startswith("base_model: ") and "\n" not in fault(model)


@pytest.mark.parametrize("text", ["", "{", "{}"])
def test_a_tokenizer_that_is_none_is_told_in_a_line(model, text):
    (model / "tokenizer.json").write_text(text)
    assert "tokenizer.json must hold a tokenizer" in fault(model)
    (model / "tokenizer.json").unlink()
    assert "a folder must hold a tokenizer (tokenizer.json); got none in" in fault(model)


def test_a_token_beyond_the_embedding_that_nobody_writes_does_no_harm(model):
    path = model / "tokenizer.json"
    files = json.loads(path.read_text())
    files["added_tokens"].append({**files["added_tokens"][-1], "id": 259, "content": "<image>", "special": True})
    path.write_text(json.dumps(files))
    assert fault(model) is None and find_tokens_beyond(model, 259).never_written == ["<image>"]
    template = model / "chat_template.jinja"
    template.write_text(template.read_text() + "<image>")
    assert "got '<image>' beyond it" in fault(model)


def test_an_adapter_beside_a_configuration_is_called_one(model):
    (model / "model.safetensors").rename(model / "adapter_model.safetensors")
    (model / "adapter_config.json").write_text("{}")
    assert "is a LoRA adapter, no model" in fault(model)


def test_an_adapter_beside_a_model_is_named(model):
    (model / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "base_model_name_or_path": "x/y"}))
    assert "holds a LoRA adapter beside the model (adapter_config.json)" in fault(model)


def test_code_of_its_own_wants_to_be_trusted(model):
    change(model, model_type="mine", auto_map={"AutoConfig": "m.C", "AutoModelForCausalLM": "m.M"})
    assert "set trust_remote_code: true" in fault(model)
    assert fault(model, trust_remote_code=True) is None
    change(model, auto_map={})
    assert "got model_type 'mine'" in fault(model)


@pytest.mark.parametrize("kind", ["bert", "t5", "whisper", "bart", "vit"])
def test_what_has_an_encoder_is_no_causal_language_model(tmp_path, kind):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
    assert f"must be a causal language model; got a {kind}" in fault(tmp_path)


def test_a_token_beyond_the_embedding_is_named(model):
    change(model, vocab_size=250)
    assert "must have a row of the embedding, which has 250" in fault(model)


def test_an_adapters_folder_is_called_one(tmp_path):
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(ConfigError, match="is a LoRA adapter, no model"):
        resolve_base_model(tmp_path)
