"""The learner's peak memory, taken in processes of their own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

NUM_TOKENS, VOCABULARY = 4096, 65_536
FULL_LOGITS_MB = NUM_TOKENS * VOCABULARY * 4 / 2**20  # float32


def resident_memory_mb(field: str) -> float:
    # Not getrusage: a child inherits its parent's peak through fork and exec, and pytest's is large.
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(field)) / 1024


def measure(folder: str, num_sampled: int) -> dict[str, float]:
    """Train one sequence of a large vocabulary; returns the update's metrics and its memory beyond what was there."""
    import numpy as np
    from transformers import Qwen2Config, Qwen2ForCausalLM

    from rllm_gym.types import Sample, Turn
    from tests.learner.learner_helpers import make_config, make_group, update

    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        intermediate_size=16,
        max_position_embeddings=NUM_TOKENS,
        tie_word_embeddings=True,
    )
    Qwen2ForCausalLM(config).save_pretrained(folder)
    rng = np.random.default_rng(0)
    observation, action = (rng.integers(0, VOCABULARY, n) for n in (NUM_TOKENS - num_sampled, num_sampled))
    logp = np.full(num_sampled, -np.log(VOCABULARY), np.float32)
    sample = Sample.of_turns([Turn(observation, action, logp, policy_version=0, env_step=0)])
    sample.advantage = sample.weight
    group = make_group(make_config(folder, tokens_per_micro_batch=NUM_TOKENS, zero_stage=2))
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    before_mb = resident_memory_mb("VmRSS")
    metrics = update(group, [sample])
    return {**metrics, "extra_mb": resident_memory_mb("VmHWM") - before_mb}


KEPT = """
import numpy, psutil
from rllm_gym import memory

def held_mb():
    return psutil.Process().memory_info().rss / 2**20 - before_mb

def step():
    [numpy.ones(10 * 2**17) for _ in range(6)]  # 60 MiB
    return held_mb()

before_mb = 0.0
before_mb = held_mb()
by_default = step()
memory.keep_freed_memory()
kept = step()
memory.give_back_freed_memory()
given_back = held_mb()
memory.keep_freed_memory(sparingly=True)
print(by_default, kept, given_back, step())
"""


def test_freed_memory_is_kept_for_the_next_step_until_it_is_given_back():
    run = subprocess.run([sys.executable, "-c", KEPT], capture_output=True, text=True, check=True)
    by_default_mb, kept_mb, given_back_mb, sparingly_mb = map(float, run.stdout.split())
    assert by_default_mb < 30 and 50 < kept_mb < 70 and given_back_mb < 10
    assert sparingly_mb < 30  # blocks of 10 MiB are not kept


@pytest.mark.slow
@pytest.mark.parametrize("num_sampled", [800, NUM_TOKENS - 1])
def test_training_at_4k_context_takes_less_memory_than_full_logits(tmp_path, num_sampled):
    command = [sys.executable, "-m", __name__, str(tmp_path), str(num_sampled)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    metrics = json.loads(run.stdout.splitlines()[-1])
    assert metrics["num_sampled_tokens_trained"] == num_sampled
    assert metrics["gradient_norm"] > 0
    assert metrics["extra_mb"] < FULL_LOGITS_MB


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], int(sys.argv[2]))))
