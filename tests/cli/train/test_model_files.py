"""What is wrong with a model's folder is one line of a dry run."""

from __future__ import annotations

import json
import shutil

import pytest
from transformers import BertConfig

from rllm_gym.cli.train.model_files import is_whole, model_fault
from rllm_gym.errors import ConfigError
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


def test_a_torn_file_of_weights_is_named(model):
    file = model / "model.safetensors"
    whole = file.read_bytes()
    assert is_whole(file)
    for torn in (whole[:-100], whole[:5], b"", b"x" * 200):
        file.write_bytes(torn)
        assert "model.safetensors is torn" in fault(model)


def test_half_a_download_names_what_is_missing(model):
    (model / "model.safetensors").unlink()
    assert "has no weights" in fault(model)
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "2 of 2 files of weights are missing, first" in fault(model)


def test_quantized_weights_are_refused(model):
    change(model, quantization_config={"quant_method": "gptq", "bits": 4})
    assert "quantized (gptq)" in fault(model)


def test_code_of_its_own_wants_to_be_trusted(model):
    change(model, model_type="mine", auto_map={"AutoConfig": "m.C", "AutoModelForCausalLM": "m.M"})
    assert "set trust_remote_code: true" in fault(model)
    assert fault(model, trust_remote_code=True) is None
    change(model, auto_map={})
    assert "got model_type 'mine'" in fault(model)


def test_an_encoder_is_no_causal_language_model(tmp_path):
    BertConfig().save_pretrained(tmp_path)
    assert "must be a causal language model; got a bert" in fault(tmp_path)


def test_a_token_beyond_the_embedding_is_named(model):
    change(model, vocab_size=250)
    assert "must have a row of the embedding, which has 250" in fault(model)


def test_an_adapters_folder_is_called_one(tmp_path):
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(ConfigError, match="is a LoRA adapter, no model"):
        resolve_base_model(tmp_path)
