"""Policies on the disk, measured in Kuhn poker: by evaluate_game and by `rllib evaluate`."""

import json

import pytest

from rllm_gym.cli.evaluate import game_lines
from rllm_gym.errors import ConfigError
from rllm_gym.evaluation import evaluate, evaluate_game
from rllm_gym.games.measure import measure
from rllm_gym.learner.rl_module import load_language_model
from rllm_gym.models import TINY_MODEL_DIR
from rllm_gym.tokens import ChatTokenizer
from rllm_gym.types import SamplingParams
from tests.needs import skip_without

pytestmark = pytest.mark.slow
KEYS = {"nash_conv", "exploitability", "illegal_probability", "method", "num_information_sets"}


@pytest.fixture(autouse=True)
def open_spiel():
    skip_without("open_spiel")


def test_a_model_by_name_is_asked_at_every_information_set():
    result = evaluate_game("tiny", "kuhn_poker")
    assert set(result) == KEYS and (result["method"], result["num_information_sets"]) == ("exact", 12)
    lm = load_language_model(str(TINY_MODEL_DIR), "float32").eval()
    params = SamplingParams(64)
    assert result == measure("kuhn_poker", env_config={}, chat=ChatTokenizer(), params=params, token_options={}, lm=lm)


def test_what_cannot_be_measured_is_said_in_one_line():
    with pytest.raises(ConfigError, match="Did you mean 'leduc_poker'"):
        evaluate_game("tiny", "leduc")
    with pytest.raises(ConfigError, match="no such folder"):
        evaluate_game("/no/such/run", "kuhn_poker")


def test_an_evaluation_writes_the_measure_and_says_it_in_a_line(ray_cluster, tmp_path):
    options = {"engine": "transformers", "max_new_tokens": 8, "max_model_len": 1024}
    report = evaluate("tiny", envs=[("KuhnPoker-v0", {})], num_tasks=2, horizon=8, config=options, out=tmp_path / "out")
    assert json.loads((tmp_path / "out" / "result.json").read_text()) == report
    assert set(report) >= KEYS and report["method"] == "exact"
    assert game_lines(report) == [
        f"NashConv {report['nash_conv']:.3f} (exact, illegal {report['illegal_probability']:.3f}), "
        f"exploitability {report['exploitability']:.3f}, 12 information sets"
    ]
    assert game_lines({"games": {"KuhnPoker-v0": {"mine": report}}})[0].startswith("KuhnPoker-v0, mine: NashConv")
