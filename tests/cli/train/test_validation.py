"""Every fault of an experiment is one line with its place, key and value, before Ray starts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from rllm_gym.cli.main import make_rllib_app
from rllm_gym.cli.train.experiment import read_experiment
from rllm_gym.errors import ConfigError

app = make_rllib_app()

GOOD = """\
quick:
  run: GRPO
  env: rllm_gym/TextCraft-v0
  stop: {training_iteration: 10}
  config:
    base_model: tiny
    env_config: {depth: 1}
    groups_per_step: 2
"""


def dry_run(path: Path) -> Result:
    return CliRunner().invoke(app, ["train", "file", str(path), "--dry-run", "--no-reset"])


def faults(tmp_path: Path, text: str) -> list[str]:
    """Return stderr's lines without the folder, after checking that nothing else was said."""
    path = tmp_path / "x.yaml"
    path.write_text(text)
    result = dry_run(path)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert "Traceback" not in result.output
    assert isinstance(result.exception, SystemExit)
    return [line.removeprefix(f"{tmp_path}/") for line in result.stderr.splitlines()]


def test_the_good_file_passes(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(GOOD)
    assert dry_run(tmp_path / "x.yaml").exit_code == 0


@pytest.mark.timeout(60)
def test_yaml_that_grows_without_end_is_refused_at_once(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{k}: &a{k} [{', '.join([f'*a{k - 1}'] * 10)}]" for k in range(1, 12)]
    [line] = faults(tmp_path, "\n".join(lines))
    assert line == "x.yaml:1: not YAML: it holds more than 100,000 values, aliases resolved."
    [line] = faults(tmp_path, f"a: {'[' * 20_000}")
    assert line == "x.yaml: not YAML: it is nested too deeply."
    result = dry_run(Path("/dev/zero"))
    assert (result.exit_code, result.stderr) == (
        2, "/dev/zero: cannot be read: an experiment must be smaller than 4,194,304 bytes.\n",
    )  # fmt: skip


def test_nan_is_refused_in_python_as_in_yaml() -> None:
    from rllm_gym.algorithms import GRPOConfig

    for options in ({"deepspeed": {"x": float("nan")}}, {"engine_options": {"swap_space": [float("inf")]}}):
        [name] = options
        with pytest.raises(ConfigError, match=f"GRPOConfig: {name} must hold finite numbers; got "):
            GRPOConfig().environment("rllm_gym/TextCraft-v0").env_runners(**options).validate()


@pytest.mark.slow
def test_asking_vllm_for_its_options_prints_nothing(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(GOOD.replace("groups_per_step: 2", "engine_options: {enforce_eager: true}"))
    # A process of its own: what vLLM prints it prints once, when it is imported.
    command = [sys.executable, "-m", "rllm_gym.cli.main", "rllib", "train", "file", str(path)]
    command += ["--dry-run", "--no-reset"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")


# (what replaces what in the good file, the whole of stderr)
CASES = {
    "unknown top-level key": (
        "  stop:",
        "  stpo:",
        "x.yaml:4: unknown key 'stpo'; did you mean 'stop'?",
    ),
    "option outside config": (
        "  stop: {training_iteration: 10}",
        "  lr: 1e-5",
        "x.yaml:4: unknown key 'lr'; move it into config",
    ),
    "unknown option": (
        "groups_per_step: 2",
        "group_per_step: 2",
        "x.yaml:8: config: unknown key 'group_per_step'; did you mean 'groups_per_step'?",
    ),
    "legacy model": (
        "groups_per_step: 2",
        "model: tiny",
        "x.yaml:8: config.model is not used here; the language model is `base_model` "
        "(tiny, a folder or a Hugging Face name).",
    ),
    "text for a number": (
        "groups_per_step: 2",
        "lr: fast",
        "x.yaml:8: config.lr must be a number of at least 0; got 'fast'.",
    ),
    "quoted number": (
        "groups_per_step: 2",
        "temperature: '1.0'",
        "x.yaml:8: config.temperature must be a number of at least 0; got '1.0'.",
    ),
    "seed below 0": (
        "groups_per_step: 2",
        "seed: -1",
        "x.yaml:8: config.seed must be a whole number of at least 0 or null; got -1.",
    ),
    "time-out below 0": (
        "groups_per_step: 2",
        "episode_timeout_s: -1",
        "x.yaml:8: config.episode_timeout_s must be a number above 0 or null; got -1.",
    ),
    "top_p of 0": (
        "groups_per_step: 2",
        "top_p: 0.0",
        "x.yaml:8: config.top_p must be a number above 0 and at most 1; got 0.0.",
    ),
    "infinite temperature": (
        "groups_per_step: 2",
        "temperature: .inf",
        "x.yaml:8: config.temperature must be a finite number; got inf.",
    ),
    "NaN inside an option": (
        "groups_per_step: 2",
        "deepspeed:\n      zero_optimization:\n        reduce_bucket_size: .nan",
        "x.yaml:10: config.deepspeed.zero_optimization.reduce_bucket_size must be a finite number; got nan.",
    ),
    "NaN in a sweep": (
        "groups_per_step: 2",
        "lr: {grid_search: [1e-4, .nan]}",
        "x.yaml:8: config.lr.grid_search.1 must be a finite number; got nan.",
    ),
    "a stop that is never met": (
        "{training_iteration: 10}",
        "{training_iteration: .inf}",
        "x.yaml:4: stop.training_iteration must be a finite number; got inf.",
    ),
    "NUL byte in a path": (
        "{depth: 1}",
        '{item_ids: "a\\0b"}',
        "x.yaml:7: text cannot contain a NUL character; got 'a\\x00b'. Leave it out.",
    ),
    "NUL byte in the file": (
        "groups_per_step: 2",
        "groups_per_step: \0",
        "x.yaml:8: not YAML: the character #x0000 is not allowed.",
    ),
    "item ids of a device": (
        "{depth: 1}",
        "{item_ids: /dev/zero}",
        "x.yaml:7: TextCraftEnv: item_ids must be a list of ids, or a JSON or JSON Lines file that holds some; got "
        "'/dev/zero', which cannot be read ('/dev/zero' is no regular file). Correct it.",
    ),
    "learning rate below 0": (
        "groups_per_step: 2",
        "lr: -1e-4",
        "x.yaml:8: config.lr must be a number of at least 0; got -0.0001.",
    ),
    "option that vLLM has not": (
        "groups_per_step: 2",
        "engine_options:\n      enforce_eager: true\n      gpu_memory_utilisation: 0.5",
        "x.yaml:10: config.engine_options: unknown key 'gpu_memory_utilisation'; did you mean "
        "'gpu_memory_utilization'?",
    ),
    "option of vLLM of a wrong type": (
        "groups_per_step: 2",
        "engine_options: {gpu_memory_utilization: most}",
        "x.yaml:8: config.engine_options.gpu_memory_utilization must be a number; got 'most'.",
    ),
    "option of vLLM that is set elsewhere": (
        "groups_per_step: 2",
        "engine_options: {max_num_seqs: 8}",
        "x.yaml:8: config.engine_options.max_num_seqs is not used here; the sampler sets it.",
    ),
    "section that DeepSpeed has not": (
        "groups_per_step: 2",
        "deepspeed:\n      zero_optimisation: {overlap_comm: true}",
        "x.yaml:9: config.deepspeed: unknown key 'zero_optimisation'; did you mean 'zero_optimization'?",
    ),
    "key that ZeRO has not, in a sweep": (
        "groups_per_step: 2",
        "deepspeed:\n      zero_optimization:\n        overlap_com: {grid_search: [true, false]}",
        "x.yaml:10: config.deepspeed.zero_optimization: unknown key 'overlap_com'; did you mean 'overlap_comm'?",
    ),
    "ZeRO's stage in two places": (
        "groups_per_step: 2",
        "deepspeed: {zero_optimization: {stage: 3}}",
        "x.yaml:8: config.deepspeed.zero_optimization.stage is not used here; use `zero_stage`.",
    ),
    "option of DeepSpeed of a wrong type": (
        "groups_per_step: 2",
        "deepspeed: {gradient_clipping: high}",
        "x.yaml:8: config.deepspeed.gradient_clipping must be a number; got 'high'.",
    ),
    "schedule that DeepSpeed has not": (
        "groups_per_step: 2",
        "deepspeed: {scheduler: {type: WarmupRL, params: {warmup_num_steps: 5}}}",
        "x.yaml:8: config.deepspeed.scheduler.type: unknown schedule 'WarmupRL'; did you mean 'WarmupLR'?",
    ),
    "parameter that a schedule has not": (
        "groups_per_step: 2",
        "deepspeed: {scheduler: {type: WarmupLR, params: {warmup_steps: 5}}}",
        "x.yaml:8: config.deepspeed.scheduler.params: unknown key 'warmup_steps'; did you mean 'warmup_num_steps'?",
    ),
    "choice that vLLM has not": (
        "groups_per_step: 2",
        "engine_options: {scheduling_policy: lifo}",
        "x.yaml:8: config.engine_options.scheduling_policy must be one of fcfs, priority; got 'lifo'.",
    ),
    "section that DeepSpeed has no longer": (
        "groups_per_step: 2",
        "deepspeed: {quantize_training: {enabled: true}}",
        "x.yaml:8: config.deepspeed.quantize_training: DeepSpeed refuses it (Mixture-of-Quantization (MoQ) / "
        "'quantize_training' has been removed. See https://github.com/deepspeedai/DeepSpeed/issues/8489.); "
        "got {'enabled': True}.",
    ),
    "key that one of DeepSpeed's monitors has not": (
        "groups_per_step: 2",
        "deepspeed:\n      tensorboard: {enabled: true, job: me}",
        "x.yaml:9: config.deepspeed.tensorboard: unknown key 'job'.",
    ),
    "text for a section of DeepSpeed": (
        "groups_per_step: 2",
        "deepspeed: {optimizer: adam}",
        "x.yaml:8: config.deepspeed.optimizer: DeepSpeed refuses it ('str' object has no attribute 'keys'); "
        "got 'adam'.",
    ),
    "key inside DeepSpeed's offloading": (
        "groups_per_step: 2",
        "deepspeed:\n      zero_optimization:\n        offload_optimizer: {device: gpuu}",
        "x.yaml:10: config.deepspeed.zero_optimization.offload_optimizer.device: Input should be 'none', 'cpu' "
        "or 'nvme'; got 'gpuu'.",
    ),
    "option that LoRA has not": (
        "groups_per_step: 2",
        "lora: {r: 8, lora_alfa: 16}",
        "x.yaml:8: config.lora: unknown key 'lora_alfa'; did you mean 'lora_alpha'?",
    ),
    "rank of LoRA of a wrong type": (
        "groups_per_step: 2",
        "lora: {r: many}",
        "x.yaml:8: config.lora.r must be a whole number; got 'many'.",
    ),
    "algorithm that contains another's name": (
        "run: GRPO",
        "run: GRPPO",
        "x.yaml:2: run: no algorithm has this name; got 'GRPPO'. Did you mean 'GRPO'?",
    ),
    "algorithm in lower case": (
        "run: GRPO",
        "run: ppo",
        "x.yaml:2: run: no algorithm has this name; got 'ppo'. Did you mean 'PPO'?",
    ),
    "truth for a count": (
        "groups_per_step: 2",
        "group_size: true",
        "x.yaml:8: config.group_size must be a whole number of at least 1; got True.",
    ),
    "fraction for a count": (
        "groups_per_step: 2",
        "group_size: 2.5",
        "x.yaml:8: config.group_size must be a whole number of at least 1; got 2.5.",
    ),
    "unknown choice": (
        "groups_per_step: 2",
        "engine: sglang",
        "x.yaml:8: engine: must be one of openai, scripted, transformers, vllm, or \"module:name\"; got 'sglang'. "
        "Did you mean 'transformers'?",
    ),
    "an engine that only plays": (
        "groups_per_step: 2",
        "engine: openai",
        "x.yaml:8: the engine openai is for `rllib evaluate`: an endpoint takes no weights and tells no "
        "log-probabilities of our tokens; got it for training. Set engine: vllm.",
    ),
    "an engine's name for a number": (
        "groups_per_step: 2",
        "engine: 3",
        "x.yaml:8: config.engine must be text or a class or function; got 3.",
    ),
    "engine in a module that is not there": (
        "groups_per_step: 2",
        "engine: rllm_gym.rollout.engins.scripted:ScriptedEngine",
        "x.yaml:8: engine: must name a Python object as \"module:name\"; got "
        "'rllm_gym.rollout.engins.scripted:ScriptedEngine' (No module named 'rllm_gym.rollout.engins'). "
        "Did you mean 'rllm_gym.rollout.engines.scripted:ScriptedEngine'?",
    ),
    "something that is no engine": (
        "groups_per_step: 2",
        "engine: pathlib:Path",
        "x.yaml:8: engine: must have the methods of rllm_gym.types.Engine; got 'pathlib:Path' without submit, step, "
        "abort, load_weights, reset_prefix_cache, close. Write them.",
    ),
    "option that an engine has not": (
        "groups_per_step: 2",
        "engine: transformers\n    engine_options: {devise: cpu}",
        "x.yaml:9: engine_options: the engine transformers takes device; got 'devise'. Did you mean 'device'?",
    ),
    "scripted engine without replies": (
        "groups_per_step: 2",
        "engine: scripted",
        "x.yaml:8: engine_options: the engine scripted needs replies, a list of token ids for each; got none. "
        "Set engine_options: {replies: [[...], ...]}.",
    ),
    "out of range": (
        "groups_per_step: 2",
        "group_size: 1",
        "x.yaml:8: GRPOConfig: group_size must be at least 2, since one episode has no group mean; got 1. "
        "Set .env_runners(group_size=...).",
    ),
    "no class there": (
        "groups_per_step: 2",
        "callbacks_class: rllm_gym.callbacks.scaling_inter:Nope",
        "x.yaml:8: config.callbacks_class must name a Python object as \"module:name\"; "
        "got 'rllm_gym.callbacks.scaling_inter:Nope' "
        "(module 'rllm_gym.callbacks.scaling_inter' has no attribute 'Nope'). "
        "Did you mean 'rllm_gym.callbacks.scaling_inter:ScalingInter'?",
    ),
    "horizon schedule": (
        "groups_per_step: 2",
        "scaling_inter: {type: stepwise, horizons: [2, 6]}",
        "x.yaml:8: scaling_inter: steps_per_stage must be a whole number of at least 1; got None.",
    ),
    "missing run": ("  run: GRPO\n", "", "x.yaml:1: `run` is missing: the algorithm, for example `run: GRPO`."),
    "unknown algorithm": (
        "run: GRPO",
        "run: GPRO",
        "x.yaml:2: run: no algorithm has this name; got 'GPRO'. Did you mean 'GRPO'?",
    ),
    "method in a module that is not there": (
        "run: GRPO",
        "run: rllm_gym.algorithms.gpro:GRPO",
        "x.yaml:2: run: must name a Python object as \"module:name\"; got 'rllm_gym.algorithms.gpro:GRPO' (No module "
        "named 'rllm_gym.algorithms.gpro'). Did you mean 'rllm_gym.algorithms.grpo:GRPO'?",
    ),
    "method that is not in the module": (
        "run: GRPO",
        "run: rllm_gym.algorithms.grpo:GPRO",
        "x.yaml:2: run: must name a Python object as \"module:name\"; got 'rllm_gym.algorithms.grpo:GPRO' (module "
        "'rllm_gym.algorithms.grpo' has no attribute 'GPRO'). Did you mean 'rllm_gym.algorithms.grpo:GRPO'?",
    ),
    "configuration for a method": (
        "run: GRPO",
        "run: rllm_gym.algorithms.grpo:GRPOConfig",
        "x.yaml:2: run: must name a class derived from rllm_gym.training.algorithm.LLMAlgorithm; got "
        "'rllm_gym.algorithms.grpo:GRPOConfig', which is <class 'rllm_gym.algorithms.grpo.GRPOConfig'>. Name the "
        "algorithm, not its configuration.",
    ),
    "missing env": (
        "  env: rllm_gym/TextCraft-v0\n",
        "",
        "x.yaml:1: `env` is missing: the environment's id, for example `env: rllm_gym/TextCraft-v0`.",
    ),
    "unknown env": (
        "rllm_gym/TextCraft-v0",
        "rllm_gym/TextCarft-v0",
        "x.yaml:3: env: no environment has this id; got 'rllm_gym/TextCarft-v0'. "
        "Did you mean 'rllm_gym:rllm_gym/TextCraft-v0'?",
    ),
    "unknown env_config key": (
        "{depth: 1}",
        "{dept: 1}",
        "x.yaml:7: TextCraftEnv: takes the keywords depth, split, item_ids, splits, system_prompt, render_mode; got "
        "'dept'. "
        "Did you mean 'depth'?",
    ),
    "unknown split": (
        "{depth: 1}",
        "{split: evl}",
        "x.yaml:7: TextCraftEnv: split must be one of train, eval, all; got 'evl'. Did you mean 'eval'?",
    ),
    "unknown evaluation split": (
        "groups_per_step: 2",
        "evaluation_interval: 5\n    evaluation_splits: [train, tset]",
        "x.yaml:9: TextCraftEnv: split must be one of train, eval, all; got 'tset'. Did you mean 'eval'?",
    ),
    "another environment in an evaluation": (
        "groups_per_step: 2",
        "evaluation_interval: 5\n    evaluation_config: {env: TextCarft-v0}",
        "x.yaml:9: GRPOConfig: evaluation_config: env: no environment has this id; got 'TextCarft-v0'. "
        "Did you mean 'rllm_gym:rllm_gym/TextCraft-v0'?",
    ),
    "another environment's env_config in an evaluation": (
        "groups_per_step: 2",
        "evaluation_interval: 5\n    evaluation_config: {env: rllm_gym/BabyAI-v0, env_config: {depth: 2}}",
        "x.yaml:9: BabyAIEnv: takes the keywords levels, split, item_ids, splits, system_prompt, render_mode; got "
        "'depth'. Did you mean 'split'?",
    ),
    "training items in an evaluation": (
        "env_config: {depth: 1}",
        "evaluation_interval: 5\n    env_config:\n      depth: 1\n      item_ids: [3, 4, 6, 17]",
        "x.yaml:10: TextCraft-v0: item_ids in env_config hold for every split, so that evaluation would play what is "
        "trained on; got them with evaluation on eval. Use splits: {train: ..., eval: ...} in place of item_ids, or "
        "evaluate on train.",
    ),
    "training items in a split": (
        "env_config: {depth: 1}",
        "env_config:\n      splits: {train: [3, 17], eval: [textcraft_17]}",
        "x.yaml:8: TextCraftEnv: splits must keep what is trained on apart; got 'textcraft_17' both in train and in "
        "eval. Say in splits what train and eval hold.",
    ),
    "training items in the environment's own split": (
        "env_config: {depth: 1}",
        "evaluation_interval: 5\n    env_config:\n      splits: {train: [3, 6]}",
        "x.yaml:9: TextCraftEnv: splits must keep what is trained on apart; got 'textcraft_6' both in train and in "
        "eval. Say in splits what train and eval hold.",
    ),
    "no item of this name": (
        "{depth: 1}",
        "{splits: {hard: [textcarft_2]}}",
        "x.yaml:7: TextCraftEnv: an item id is a number from 0 to 543, with or without \"textcraft_\" before it; got "
        "'textcarft_2'. Did you mean 'textcraft_2'?",
    ),
    "no such split of the user's": (
        "{depth: 1}",
        "{splits: {hard: [2]}}\n    evaluation_interval: 5\n    evaluation_splits: [hrad]",
        "x.yaml:9: TextCraftEnv: split must be one of train, eval, all, hard; got 'hrad'. Did you mean 'hard'?",
    ),
    "no such folder": (
        "base_model: tiny",
        "base_model: ./nowhere/tiny",
        "x.yaml:6: base_model: must be 'tiny', a folder with a config.json, or the name of a Hugging Face model; "
        "got './nowhere/tiny' (no such folder, and not of the form owner/name). "
        "Check the spelling and the network, or give a folder.",
    ),
    "stop at nothing": (
        "training_iteration: 10",
        "training_iterations: 10",
        "x.yaml:4: stop: no result has the key 'training_iterations'; did you mean 'training_iteration'?",
    ),
    "stop at an unknown metric": (
        "training_iteration: 10",
        "env_runners/succes_rate: 0.9",
        "x.yaml:4: stop: no result has the key 'env_runners/succes_rate'; did you mean 'env_runners/success_rate'?",
    ),
    "stop at text": (
        "training_iteration: 10",
        "training_iteration: ten",
        "x.yaml:4: stop: training_iteration must be a number; got 'ten'.",
    ),
    "unknown checkpoint key": (
        "  stop: {training_iteration: 10}",
        "  checkpoint_config: {checkpoint_freq: 2}",
        "x.yaml:4: checkpoint_config: unknown key 'checkpoint_freq'; did you mean 'checkpoint_frequency'?",
    ),
    "checkpoint type": (
        "  stop: {training_iteration: 10}",
        "  checkpoint_config: {checkpoint_frequency: often}",
        "x.yaml:4: checkpoint_config.checkpoint_frequency must be a whole number of at least 0 or null; got 'often'.",
    ),
    "no trials": (
        "  stop: {training_iteration: 10}",
        "  num_samples: 0",
        "x.yaml:4: num_samples must be a whole number of at least 1; got 0.",
    ),
    "a bad candidate in a sweep": (
        "groups_per_step: 2",
        "lr: {grid_search: [1e-5, high]}",
        "x.yaml:8: config.lr must be a number of at least 0; got 'high'.",
    ),
    "a bad range": (
        "groups_per_step: 2",
        "lr: {loguniform: [1e-4, 1e-6]}",
        "x.yaml:8: config.lr: loguniform needs low below high; got [0.0001, 1e-06].",
    ),
    "a bad combination in a sweep": (
        "groups_per_step: 2",
        "max_new_tokens: {grid_search: [48, 4096]}",
        "x.yaml:8: GRPOConfig: max_new_tokens must be below max_model_len, which holds a whole episode; "
        "got 4096 and 2048. Raise max_model_len.",
    ),
    "name": ("quick:", "a/b:", "x.yaml:1: an experiment's name becomes a folder: letters, digits, '.', '_', '+' "
        "and '-'; got 'a/b'. Rename it."),
    "a key twice": (
        "groups_per_step: 2",
        "groups_per_step: 2\n    groups_per_step: 4",
        "x.yaml:9: duplicate key 'groups_per_step'. Remove one.",
    ),
    "two environments": (
        "groups_per_step: 2",
        "env: TextCraft-v0",
        "x.yaml:8: env is given twice: 'TextCraft-v0' here, 'rllm_gym/TextCraft-v0' at the top level. Remove one.",
    ),
    "no YAML": ("  config:\n", "  config: ]\n", "x.yaml:5: not YAML: expected the node content, but found ']'."),
    "config is a list": (
        GOOD[GOOD.index("  config:") :],
        "  config: [1]\n",
        "x.yaml:5: config must be a mapping; got [1].",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_fault_is_one_line(case: str, tmp_path: Path) -> None:
    old, new, expected = CASES[case]
    assert GOOD.count(old) == 1
    assert faults(tmp_path, GOOD.replace(old, new)) == [expected]


def test_all_faults_of_a_file_are_shown_at_once(tmp_path: Path) -> None:
    text = GOOD.replace("groups_per_step: 2", "group_siz: 2\n    seed: x").replace("TextCraft-v0", "Nope-v0")
    assert [line.partition(": ")[0] for line in faults(tmp_path, text)] == ["x.yaml:8", "x.yaml:9", "x.yaml:3"]


def test_two_experiments_in_a_file_are_refused(tmp_path: Path) -> None:
    two = GOOD + GOOD.replace("quick", "other")
    assert faults(tmp_path, two) == ["x.yaml: must hold one experiment; got 2: quick, other. Write one file for each."]


def test_a_missing_file_is_one_line(tmp_path: Path) -> None:
    result = dry_run(tmp_path / "none.yaml")
    assert result.exit_code == 2
    assert result.stderr == f"{tmp_path}/none.yaml: cannot be read: No such file or directory.\n"


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    assert dry_run(tmp_path).stderr == f"{tmp_path}: cannot be read: Is a directory.\n"


@pytest.mark.parametrize("text", ["", "just text", "[1, 2]", "quick: 3"])
def test_what_is_no_experiment_is_one_line(text: str, tmp_path: Path) -> None:
    assert len(faults(tmp_path, text)) == 1


def test_options_make_the_same_experiment_as_a_file(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(GOOD)
    arguments = [
        "train",
        "--algo",
        "GRPO",
        "--env",
        "rllm_gym:rllm_gym/TextCraft-v0",
        "--name",
        "quick",
        "--dry-run",
        "--no-reset",
    ]
    arguments += ["--stop", '{"training_iteration": 10}']
    arguments += ["--config", '{"base_model": "tiny", "env_config": {"depth": 1}, "groups_per_step": 2}']
    by_options = CliRunner().invoke(app, arguments)
    assert by_options.exit_code == 0
    assert by_options.stdout == dry_run(tmp_path / "x.yaml").stdout


def test_a_fault_in_an_option_names_the_option() -> None:
    arguments = ["train", "--algo", "GRPO", "--env", "TextCraft-v0", "--config", '{"group_siz": 2}']
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert result.stderr == "--config: config: unknown key 'group_siz'; did you mean 'group_size'?\n"


def test_train_without_anything_says_what_it_needs() -> None:
    result = CliRunner().invoke(app, ["train"])
    assert result.exit_code == 2
    assert "needs `file X.yaml`, or --algo and --env" in result.stderr


def test_keys_of_a_files_config_are_replaced_on_the_command_line(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(
        "x:\n  run: GRPO\n  env: rllm_gym/TextCraft-v0\n"
        "  config: {base_model: tiny, lr: 1.0e-4, env_config: {depth: 1, split: eval}}\n"
    )
    changes = '{"lr": 1e-6, "env_config": {"depth": [1, 2]}}'
    changed = read_experiment(path, changes)
    assert changed.config == {"base_model": "tiny", "lr": 1e-6, "env_config": {"depth": [1, 2], "split": "eval"}}
    assert read_experiment(path).config["lr"] == 1e-4
    for text, fault in [
        ('{"lrr": 1}', "--config: config: unknown key 'lrr'; did you mean 'lr'?"),
        ("[1]", "--config: must be a mapping, like '{\"lr\": 1e-6}'; got [1]."),
        ('{"env_config": {"deep": 1}}', "deep"),
    ]:
        done = CliRunner().invoke(app, ["train", "file", str(path), "--config", text, "--dry-run", "--no-reset"])
        assert done.exit_code == 2 and fault in done.stderr, done.stderr
        assert len(done.stderr.strip().splitlines()) == 1
