"""A dry run finds what training would meet: first prompt, cache, machine; neither Ray nor an engine starts."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml
from typer.testing import CliRunner, Result

from rllm_gym.cli.main import make_rllib_app
from rllm_gym.cli.train import check, first_prompt, sampler_memory
from rllm_gym.cli.train import dry_run as dry
from rllm_gym.errors import MachineError
from rllm_gym.rollout.environments import EnvironmentSpec

app = make_rllib_app()

EXPERIMENT = """\
quick:
  run: GRPO
  env: rllm_gym/TextCraft-v0
  config:
    env_config: {depth: 1}
    groups_per_step: 2
    max_model_len: 1024
"""
FAULTY = '''\
import os, subprocess, sys, time
from rllm_gym.envs.base import TextEnv
from rllm_gym.errors import EnvError
from rllm_gym.registration import register_text_env


class Faulty(TextEnv):
    """Fails at the reset."""

    name, num_items, category = "faulty", 2, "all"

    def act(self, action):
        raise NotImplementedError

    def __init__(self, how="raise", **kwargs):
        super().__init__(**kwargs)
        self.how = how

    def split_indices(self, split):
        return range(2)

    def reset_item(self, index):
        if self.how == "exit":
            os._exit(3)
        if self.how == "hang":
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
            open("child", "w").write(str(child.pid))
            time.sleep(600)
        raise EnvError("needs Chromium: apt install chromium")


register_text_env("me/Faulty-v0", Faulty)
'''


def dry_run(tmp_path: Path, text: str, *options: str) -> Result:
    (tmp_path / "x.yaml").write_text(text)
    storage = ("--storage-path", str(tmp_path / "runs"))
    return CliRunner().invoke(app, ["train", "file", str(tmp_path / "x.yaml"), "--dry-run", *storage, *options])


def fault(result: Result, tmp_path: Path) -> str:
    assert (result.exit_code, result.stdout) == (1, "")
    [line] = result.stderr.splitlines()
    return line.removeprefix(f"{tmp_path}/")


def lack(result: Result, tmp_path: Path, *, code: int = 1) -> str:
    """Return the one thing that this machine lacks, where nothing else is wrong."""
    assert (result.exit_code, result.stdout) == (code, ""), result.output
    heading, line = result.stderr.splitlines()
    assert heading == "what this machine lacks (--elsewhere leaves it out):"
    return line.removeprefix("  ").removeprefix(f"{tmp_path}/")


@pytest.fixture(autouse=True)
def no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    def started(**options: object) -> None:
        raise AssertionError("a dry run started Ray")

    monkeypatch.setattr(ray, "init", started)


@pytest.fixture
def prompts(monkeypatch: pytest.MonkeyPatch) -> list[first_prompt.FirstPrompt]:
    """What the environments' resets come to, without a process."""
    found = [first_prompt.FirstPrompt(num_tokens=300)]
    monkeypatch.setattr(dry, "first_prompts", lambda config: iter(found))
    return found


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_a_dry_run_counts_the_first_prompt_and_its_output_runs(tmp_path: Path) -> None:
    result = dry_run(tmp_path, EXPERIMENT)
    assert result.exit_code == 0, result.output
    # The first task of the run's seed, as the run itself would render it.
    import gymnasium

    from rllm_gym.rollout.loop import derive_seed
    from rllm_gym.training.task_sampler import TaskSampler

    env = gymnasium.make("rllm_gym:rllm_gym/TextCraft-v0", depth=1)
    [group] = TaskSampler([env.unwrapped.item_ids], [1.0], seed=0, group_size=8).groups(0, 1)
    tokens, _ = env.reset(seed=derive_seed(*group.key, 0), options={"item_id": group.item_id})
    assert f"# first prompt: {len(tokens)} tokens\n" in result.stdout
    # 2 (keys, values) x 4 layers x 2 heads x 64 x 4 bytes = 4 KiB a token; of 1 GiB, and 1024 an episode.
    assert "# key-value cache: 1.00 GiB for 262,144 tokens, 256.0 episodes of max_model_len\n" in result.stdout
    assert "not checked" not in result.stdout
    again = dry_run(tmp_path, result.stdout, "--no-reset")
    assert again.exit_code == 0, again.output
    assert yaml.safe_load(again.stdout) == yaml.safe_load(result.stdout)
    assert (
        "# not checked: the environments' reset (--no-reset), and what it starts: browsers, Java, games\n"
        in again.stdout
    )
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("raise", "EnvError: needs Chromium: apt install chromium"),
        ("exit", "the environment ended its process at the reset"),
        ("hang", "must return within env_timeout_s = 5; got 5."),
    ],
)
def test_an_environment_that_fails_hangs_or_dies_at_its_reset_is_said(
    calling_folder: Path, monkeypatch: pytest.MonkeyPatch, how: str, why: str
) -> None:
    (calling_folder / "my_package" / "faulty.py").write_text(FAULTY)
    monkeypatch.syspath_prepend(str(calling_folder))
    spec = EnvironmentSpec("faulty", "my_package.faulty:me/Faulty-v0", {"how": how})
    config = SimpleNamespace(
        all_environments=[spec], base_model="tiny", chat_options={}, seed=0, group_size=2, env_timeout_s=5.0,
        token_options={},
    )  # fmt: skip
    [found] = first_prompt.first_prompts(config)
    assert found.error is not None
    assert why in found.error
    if how == "hang":  # what it had started is gone, too
        pid = int((calling_folder / "child").read_text())
        while Path(f"/proc/{pid}/stat").exists() and Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z":
            time.sleep(0.05)


def test_a_failing_reset_is_one_line_and_code_1(tmp_path: Path, prompts: list[first_prompt.FirstPrompt]) -> None:
    prompts[0] = first_prompt.FirstPrompt(error="EnvError: needs Chromium")
    assert fault(dry_run(tmp_path, EXPERIMENT), tmp_path) == "x.yaml:3: TextCraft-v0: EnvError: needs Chromium"


def test_a_prompt_without_room_is_said_with_its_tokens(tmp_path: Path, prompts: list[first_prompt.FirstPrompt]) -> None:
    prompts[0] = first_prompt.FirstPrompt(num_tokens=961)
    assert fault(dry_run(tmp_path, EXPERIMENT), tmp_path) == (
        "x.yaml:7: a first prompt and one turn must fit in max_model_len = 1024; got 961 + 64 tokens of TextCraft-v0. "
        "Raise max_model_len or lower max_new_tokens."
    )
    prompts[0] = first_prompt.FirstPrompt(num_tokens=960)
    assert dry_run(tmp_path, EXPERIMENT).exit_code == 0


def test_agents_without_a_policy_are_said(tmp_path: Path, prompts: list[first_prompt.FirstPrompt]) -> None:
    prompts[0] = first_prompt.FirstPrompt(num_tokens=9, agents=("planner", "actor"))
    two = EXPERIMENT + "    policies: [planner, acter]\n"
    assert fault(dry_run(tmp_path, two), tmp_path).endswith(
        "policies: must have one for each agent; got acter, planner, and 'actor' is to play actor. "
        "Name them after the agents, or set policy_mapping_fn."
    )
    assert dry_run(tmp_path, two.replace("acter", "actor")).exit_code == 0


def test_a_length_beyond_the_models_own_is_what_vllm_says(tmp_path: Path, prompts: object) -> None:
    line = fault(dry_run(tmp_path, EXPERIMENT.replace("1024", "100000")), tmp_path)
    assert line.startswith(
        "x.yaml:7: User-specified max_model_len (100000) is greater than the derived max_model_len "
        "(max_position_embeddings=16384"
    )


def test_a_cache_that_holds_no_episode_is_said(tmp_path: Path, prompts: object) -> None:
    # An episode takes 1024 x 4 KiB = 4 MiB.
    cached = EXPERIMENT + "    engine_options: {kv_cache_memory_bytes: %d}\n"
    assert dry_run(tmp_path, cached % 2**22).exit_code == 0
    assert fault(dry_run(tmp_path, cached % (2**22 - 1)), tmp_path) == (
        "x.yaml:8: engine_options: the key-value cache must hold an episode of max_model_len 1024, 0.00 GiB; got 0.00 "
        "GiB for 1,023 tokens. Raise kv_cache_memory_bytes or gpu_memory_utilization, or lower max_model_len."
    )


def test_a_cache_counts_each_layers_own_heads(tmp_path):
    """Gemma 4: a head of a layer that slides has 32 numbers, of one that does not 512."""
    import transformers

    text = transformers.Gemma4TextConfig(num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, head_dim=32)
    text.save_pretrained(tmp_path)
    options = SimpleNamespace(engine_options={}, weight_dtype="float32", trust_remote_code=False, max_model_len=10)
    # tokens, keys and values, bytes of a number
    assert sampler_memory.episode_bytes(options, str(tmp_path)) == 10 * 2 * 4 * (32 + 512)


def test_caches_beyond_the_machines_memory_are_said(
    tmp_path: Path, prompts: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampler_memory, "machine_bytes", lambda: 3 * 2**30)
    assert dry_run(tmp_path, EXPERIMENT + "    num_env_runners: 3\n").exit_code == 0
    many = EXPERIMENT + "    num_env_runners: 4\n"
    assert "must hold the key-value caches; got 4 of 1.00 GiB, and it has 3.00 GiB." in lack(
        dry_run(tmp_path, many), tmp_path
    )
    assert dry_run(tmp_path, many, "--elsewhere").exit_code == 0


def test_on_a_gpu_the_cache_is_what_the_weights_leave(
    tmp_path: Path, prompts: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = sum(p.numel() for p in _tiny().parameters()) * 4
    for module in (sampler_memory, dry):
        monkeypatch.setattr(module, "gpu_bytes", lambda: 2 * (weights + 2**22))
    shared = EXPERIMENT + "    engine_options: {gpu_memory_utilization: 0.5}\n"
    assert "0.00 GiB for 1,024 tokens, 1.0 episodes" in dry_run(tmp_path, shared).stdout
    assert "must hold an episode" in fault(dry_run(tmp_path, shared.replace("0.5", "0.49")), tmp_path)


def _tiny() -> torch.nn.Module:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(Path(first_prompt.__file__).parents[2] / "assets" / "tiny")


def test_a_gpu_too_many_is_refused_as_training_refuses_it(
    tmp_path: Path, prompts: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    text = EXPERIMENT + "    num_gpus_per_env_runner: 1\n"
    assert lack(dry_run(tmp_path, text), tmp_path, code=2).startswith(
        "ray: a trial must fit this machine; it asks for 1 GPUs, and there are 0."
    )


def test_a_gpu_needs_a_compiler(tmp_path: Path, prompts: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(dry.shutil, "which", lambda name: None)
    line = lack(dry_run(tmp_path, EXPERIMENT + "    num_gpus_per_env_runner: 1\n"), tmp_path)
    assert line.endswith("engine: vllm compiles for a GPU with a C compiler; got none. Install gcc, or set CC.")


ALL_WRONG = """\
quick:
  run: GRPO
  env: rllm_gym/TextCraft-v0
  stop: {training_iterations: 3}
  config:
    env_config: {depth: 1}
    groups_per_step: 0
    group_size: 1
    temperature: 0
    lora: {r: many}
    engine_options: {enforce_eagr: true}
    max_model_len: 1024
    num_gpus_per_learner: 8
"""


def test_all_faults_are_named_and_those_of_the_machine_last(
    tmp_path: Path, prompts: list[first_prompt.FirstPrompt], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    prompts[0] = first_prompt.FirstPrompt(num_tokens=1000)
    result = dry_run(tmp_path, ALL_WRONG)
    assert (result.exit_code, result.stdout) == (2, "")
    *found, heading, lacking = (line.removeprefix(f"{tmp_path}/") for line in result.stderr.splitlines())
    expected = {
        "x.yaml:4": "did you mean 'training_iteration'?",
        "x.yaml:7": "config.groups_per_step must be a whole number of at least 1; got 0.",
        "x.yaml:8": "group_size must be at least 2",
        "x.yaml:9": "training needs temperature above 0",
        "x.yaml:10": "config.lora.r must be a whole number",
        "x.yaml:11": "unknown key 'enforce_eagr'",
        "x.yaml:12": "a first prompt and one turn must fit in max_model_len = 1024; got 1000 + 64 tokens",
    }
    assert [line.partition(": ")[0] for line in found] == [*expected]
    assert all(text in line for text, line in zip(expected.values(), found, strict=True))
    assert heading.startswith("what this machine lacks")
    assert lacking.startswith("  ray: a trial must fit this machine; it asks for 8 GPUs, and there are 0.")
    assert dry_run(tmp_path, ALL_WRONG, "--elsewhere").stderr.splitlines() == result.stderr.splitlines()[:-2]


def test_an_option_at_fault_brings_no_other_fault_with_it(tmp_path: Path, prompts: object) -> None:
    text = EXPERIMENT + "    screening_size: 12\n    group_siz: 16\n"  # with 8, the default, 12 would be too much
    result = dry_run(tmp_path, text)
    [line] = result.stderr.splitlines()
    assert "unknown key 'group_siz'" in line


def test_a_file_for_another_machine_is_checked_without_what_this_one_lacks(
    tmp_path: Path, prompts: list[first_prompt.FirstPrompt], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    prompts[0] = first_prompt.FirstPrompt(error="MachineError: Web environments need a Chromium", is_machines=True)
    text = EXPERIMENT + "    num_gpus_per_env_runner: 1\n"
    here = dry_run(tmp_path, text)
    assert here.exit_code == 2 and "8 GPUs" not in here.stderr and "1 GPUs" in here.stderr
    done = dry_run(tmp_path, text, "--elsewhere")
    assert (done.exit_code, done.stderr) == (0, "")
    comments = [line for line in done.stdout.splitlines() if line.startswith("# not checked: ")]
    assert [line.removeprefix("# not checked: ").removeprefix(f"{tmp_path}/") for line in comments] == [
        "whether a machine has room for a trial, and takes its results (--elsewhere)",
        "the key-value cache, on GPUs that this machine does not have",
        "x.yaml:3: TextCraft-v0: MachineError: Web environments need a Chromium",
    ]
    prompts[0] = first_prompt.FirstPrompt(error="EnvError: broken")
    assert dry_run(tmp_path, text, "--elsewhere").exit_code == 1


def test_the_sleep_of_a_sampler_on_another_machines_gpu_is_not_refused(tmp_path: Path, prompts: object) -> None:
    asleep = EXPERIMENT + "    engine_options: {enable_sleep_mode: true}\n"
    assert "Sleep mode is not supported" in dry_run(tmp_path, asleep, "--elsewhere").stderr  # on a CPU nothing sleeps
    done = dry_run(tmp_path, asleep + "    num_gpus_per_env_runner: 1\n", "--elsewhere")
    assert (done.exit_code, done.stderr) == (0, "")
    assert "# not checked: engine_options: enable_sleep_mode, on GPUs" in done.stdout


def test_a_package_that_is_not_here_is_lacking_and_not_wrong(
    tmp_path: Path, prompts: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(spec: object, ask: object) -> None:
        raise MachineError("SciWorld-v0 needs the py4j package: pip install py4j.")

    monkeypatch.setattr(check, "ask_text_env", missing)
    assert lack(dry_run(tmp_path, EXPERIMENT), tmp_path, code=2).startswith("x.yaml:3: SciWorld-v0 needs the py4j")
    assert "# not checked: " in dry_run(tmp_path, EXPERIMENT, "--elsewhere").stdout


def test_what_cannot_be_known_here_is_listed(tmp_path: Path, prompts: object) -> None:
    text = EXPERIMENT + "    base_model: someone/on-the-hub\n"
    out = dry_run(tmp_path, text).stdout
    assert "# not checked: someone/on-the-hub, which is not on this machine: prompts, max_model_len and the key" in out
    assert "first prompt" not in out
    out = dry_run(tmp_path, EXPERIMENT + "    engine: transformers\n").stdout
    assert "# not checked: the engine transformers\n" in out


def test_no_reset_without_a_dry_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(EXPERIMENT)
    result = CliRunner().invoke(app, ["train", "file", str(tmp_path / "x.yaml"), "--no-reset"])
    assert (result.exit_code, result.stderr) == (
        2, "--no-reset: goes with --dry-run; training has to reset the environments. Leave it out.\n",
    )  # fmt: skip
    result = CliRunner().invoke(app, ["train", "file", str(tmp_path / "x.yaml"), "--elsewhere"])
    assert (result.exit_code, result.stderr) == (
        2, "--elsewhere: goes with --dry-run; training needs this machine. Leave it out.\n",
    )  # fmt: skip
    assert os.listdir(tmp_path) == ["x.yaml"]


@pytest.mark.promise
def test_a_dry_run_notes_what_the_doctor_finds_in_a_template(tmp_path: Path, prompts: list[object]) -> None:
    template = tmp_path / "mine.jinja"
    template.write_text(
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% if not think %}<think></think>{% endif %}{% endif %}"
    )
    text = f"{EXPERIMENT}    engine: transformers\n    chat_template: {template}\n"
    result = dry_run(tmp_path, text)
    assert result.exit_code == 0, result.output
    assert "# template arguments: chat_template_kwargs may set think\n" in result.stdout
    result = dry_run(tmp_path, f"{text}    chat_template_kwargs: {{thnk: true}}\n")
    assert fault(result, tmp_path).startswith("x.yaml:10: the template takes no 'thnk', only: think.")
