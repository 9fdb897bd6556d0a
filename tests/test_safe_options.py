"""A stranger's options choose among what is installed; nothing of his is read, imported or asked."""

import gymnasium
import pytest
from typer.testing import CliRunner

from rllm_gym.cli.main import make_rllib_app
from rllm_gym.envs.items import keywords_of
from rllm_gym.errors import ConfigError
from rllm_gym.evaluation.panel import Panel, read_panel
from rllm_gym.registration import env_class
from rllm_gym.safe_options import check_safe_options
from rllm_gym.types import SamplingParams

TEXTCRAFT = "rllm_gym:rllm_gym/TextCraft-v0"


def check(env, env_config):
    check_safe_options("panel", env, env_config, "Give --trust-panel.")


@pytest.mark.parametrize(
    ("env", "env_config"),
    [
        (TEXTCRAFT, {"depth": [1, 2], "item_ids": ["textcraft_17", 4], "system_prompt": "Craft."}),
        (TEXTCRAFT, {"splits": {"train": "train", "mine": [1, 2]}, "protocol": "agentgym"}),
        (TEXTCRAFT, {"agent": {"format": "react", "plan": True, "rewards": ["environment"]}, "max_tokens": 100}),
        ("rllm_gym/SearchQA-v0", {"topk": 5, "datasets": "nq"}),
        ("rllm_gym/KuhnPoker-v0", {"split": "eval"}),
    ],
)
def test_choices_among_what_is_installed_are_safe(env, env_config):
    check(env, env_config)


@pytest.mark.parametrize(
    ("env", "env_config"),
    [
        ("this:Zen-v0", {}),
        (TEXTCRAFT, {"item_ids": "/etc/passwd"}),
        (TEXTCRAFT, {"splits": {"eval": "/etc/passwd"}}),
        (TEXTCRAFT, {"agent": {"rewards": ["this:zen"]}}),
        (TEXTCRAFT, {"agent": {"rewards": [{"fn": "builtins:id"}]}}),
        (TEXTCRAFT, {"agent": {"rewards": "this:zen"}}),
        (TEXTCRAFT, {"tokenizer": "/home/stranger/model"}),
        (TEXTCRAFT, {"chat_template": "{% for a in range(10**9) %}{% endfor %}"}),
        (TEXTCRAFT, {"env": "this:zen"}),
        (TEXTCRAFT, {"agentgym": "this:zen"}),
        (TEXTCRAFT, {"depth": {"a": "b"}}),
        ("rllm_gym/ALFWorld-v0", {"data": "games"}),
        ("rllm_gym/AgentGym-v0", {"url": "http://127.0.0.1:9"}),
        ("rllm_gym/OpenEnv-v0", {"url": "http://127.0.0.1:9"}),
        ("rllm_gym/Program-v0", {"command": ["true"]}),
        ("rllm_gym/Program-v0", {"tasks": [{"a": "b"}]}),
        ("rllm_gym/SearchQA-v0", {"data": "questions.jsonl"}),
        ("rllm_gym/SearchQA-v0", {"retriever": "http", "url": "http://127.0.0.1:9"}),
        ("rllm_gym/WebArena-v0", {"auth_folder": "/home"}),
        ("rllm_gym/WebArena-v0", {"judge_url": "http://127.0.0.1:9"}),
    ],
)
def test_paths_addresses_and_modules_are_refused(env, env_config):
    with pytest.raises(ConfigError, match=r"registered here|no path, address or module"):
        check(env, env_config)


def test_safe_options_are_keywords_of_the_environment_that_names_no_path():
    ids = [id for id in gymnasium.registry if id.startswith("rllm_gym/")]
    assert len(ids) > 12
    for id in ids:
        env = env_class(id)
        assert env is not None, id
        safe = getattr(env, "safe_options", ())
        assert set(safe) <= set(keywords_of(env)), id
        assert not [key for key in safe if "url" in key or key in ("data", "index", "corpus", "retriever")], id


@pytest.fixture
def panel_file(tmp_path):
    def panel_file(env, env_config):
        file = tmp_path / "panel.json"
        file.write_text(Panel(env, [1], [7], 3, SamplingParams(8), env_config=env_config).to_json())
        return file

    return panel_file


def test_a_panel_that_names_a_module_is_read_only_when_trusted(panel_file):
    file = panel_file("toy_of_nobody:Toy-v0", {})
    with pytest.raises(ConfigError, match="--trust-panel"):
        read_panel(file)
    assert read_panel(file, is_trusted=True).env == "toy_of_nobody:Toy-v0"


def test_evaluate_refuses_a_strangers_panel_in_one_line(panel_file):
    file = panel_file(TEXTCRAFT, {"agent": {"rewards": ["this:zen"]}})
    result = CliRunner().invoke(make_rllib_app(), ["evaluate", "tiny", "--panel", str(file)])
    assert result.exit_code == 2 and "--trust-panel" in result.stderr
    assert len(result.stderr.splitlines()) == 1
