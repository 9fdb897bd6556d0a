"""Makes the model that TextWorld's runs begin with: the tiny model after SFT on the games' own plans."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.learning import tasks
from benchmarks.learning.smollm2 import call
from rllm_gym.models import TINY_MODEL_DIR
from tools.tiny_model.train import save

CONFIG = Path(__file__).with_name("textworld_sft.yaml")
NAME = "textworld_sft_tiny"  # of its experiment


def make(out: Path) -> None:
    """Train in a folder, going on where a run in it stopped, and write the model: weights in bfloat16, 6 MB."""
    env_config = {"system_prompt": "", "split": "all", "item_ids": tasks.TEXTWORLD_SFT}
    resume = ["--resume"] if any(out.glob("*/*/checkpoint_*")) else []
    config = json.dumps({"env_config": env_config})
    call("rllib", "train", "file", CONFIG, "--storage-path", out, "--config", config, *resume)
    call("rllm-gym", "export", out / NAME, out / "policy", "--force")
    folder = Path(tasks.TEXTWORLD.base_model)
    save(TINY_MODEL_DIR, out / "policy", folder)
    (folder / "README.md").unlink()  # the tiny model's
