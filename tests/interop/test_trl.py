"""TRL's GRPOTrainer plays TextCraft's expert through `environment_factory`: the class of docs/serving.md."""

from __future__ import annotations

import json
import re
from importlib.util import find_spec

import pytest

from tests.conftest import make_model
from tests.interop.scripted_model import expert_turns
from tests.needs import skip_without
from tests.serving import ROOT, serving
from tools.record_agentgym import item_of_goal

pytestmark = [pytest.mark.slow, pytest.mark.interop, pytest.mark.timeout(400)]


def write(tokenizer, input_ids):
    """Return what the expert writes next after each row, as `generate` would."""
    import torch

    rows = []
    for row in input_ids:
        text = tokenizer.decode(row)
        goal = re.findall(r"Goal: craft .*?\.", text)[-1]
        turns = expert_turns(f"textcraft_{item_of_goal(goal)}")
        num_calls = text.rpartition(goal)[2].count("<tool_call>")
        reply = "Done."
        if num_calls < len(turns):
            call = {"name": "act", "arguments": {"action": turns[num_calls][0]}}
            reply = f"<tool_call>\n{json.dumps(call)}\n</tool_call>"
        rows.append(tokenizer.encode(f"{reply}<|im_end|>", add_special_tokens=False))
    longest = max(map(len, rows))
    padded = [row + [tokenizer.pad_token_id] * (longest - len(row)) for row in rows]
    return torch.cat([input_ids, torch.tensor(padded, device=input_ids.device)], dim=1)


@pytest.mark.skipif(find_spec("trl") is None, reason="TRL is installed by make test-interop")
def test_trl_plays_the_expert_to_success_with_the_rewards_of_gymnasium(tmp_path, monkeypatch):
    skip_without("openenv")
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    folder = make_model(0, tmp_path / "model")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = (ROOT / "tests" / "chat_templates" / "qwen3.jinja").read_text(encoding="utf-8")
    model = AutoModelForCausalLM.from_pretrained(folder, max_position_embeddings=8192)  # TRL cuts at their number
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    page = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")
    block = next(text for text in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "GRPOTrainer" in text)
    with serving("--env", "TextCraft-v0", "--workers", "1") as served:
        names: dict = {}
        exec(compile(block.replace("http://127.0.0.1:36001", served.url), "docs/serving.md", "exec"), names)
        prompt = [{"role": "user", "content": "Craft it. "}]
        rows = [{"prompt": prompt, "item_id": item} for item in ("textcraft_0", "textcraft_17")]
        trainer = GRPOTrainer(
            model=model,
            processing_class=tokenizer,
            environment_factory=names["TextCraft"],
            train_dataset=Dataset.from_list(rows),
            args=GRPOConfig(
                output_dir=str(tmp_path / "out"),
                per_device_train_batch_size=4,
                num_generations=2,
                max_steps=1,
                max_completion_length=4000,
                logging_steps=1,
                report_to="none",
                use_cpu=True,
                save_strategy="no",
            ),
        )
        trainer.model.generate = lambda input_ids, **kwargs: write(tokenizer, input_ids)
        trainer.train()
        for environment in trainer.environments:
            environment._client.close()
    logged = trainer.state.log_history[0]
    assert logged["reward"] == logged["rewards/TextCraft/mean"] == 1.0
    assert logged["tools/failure_frequency"] == 0.0
