"""The table of options: it says all there is, what it says holds, and reading it loads nothing heavy."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from typing import Annotated, get_args

import pytest
import yaml
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from typing_extensions import Doc

from rllm_gym.algorithms import RLLIBS, GRPOConfig
from rllm_gym.algorithms.registry import get_algorithm_class
from rllm_gym.errors import ConfigError
from rllm_gym.options.methods import METHODS, PRESETS, GRPOOptions
from rllm_gym.options.rllib import ALIASES, UNUSED, unknown_option
from rllm_gym.options.table import UNSET, list_options
from rllm_gym.options.values import describe, value_fault

OTHER_VALUES = {bool: lambda value: not value, int: lambda value: value + 7, float: lambda value: value + 7.0}


def config_of(method: str) -> AlgorithmConfig:
    return get_algorithm_class(method).get_default_config()


@pytest.mark.parametrize("method", METHODS)
def test_the_table_is_the_configurations(method):
    config = config_of(method)
    assert list_options(type(config)).keys() == list_options(METHODS[method].table).keys()
    assert not [name for name in list_options(type(config)) if not hasattr(config, name)]
    for name, option in list_options(type(config)).items():
        assert option.default is UNSET or getattr(config, name) == option.default or name == "env_runner_cls", name
        assert value_fault(name, getattr(config, name), option.hint) is None, name
        assert option.doc.endswith((".", ":", "...")), f"{name}: a sentence"


def test_a_word_that_yaml_takes_for_a_truth_value_is_named():
    hint = list_options(GRPOOptions)["filter_groups"].hint
    fault = value_fault("filter_groups", yaml.safe_load("off"), hint)
    assert fault == (
        'filter_groups must be one of advantage, success, off; got False. YAML reads off as false: write "off".'
    )
    assert "YAML" not in value_fault("filter_groups", True, hint)


def test_every_option_of_rllib_is_either_taken_or_refused_by_its_name():
    rllibs = {name for name in vars(AlgorithmConfig()) if not name.startswith("_")}
    taken = set().union(*(list_options(method.table) for method in METHODS.values()))
    assert rllibs - taken - UNUSED.keys() == {"algo_class", "in_evaluation"}  # no options
    assert not [name for name in list_options(GRPOOptions) if name in UNUSED]
    assert not [hint for hint in UNUSED.values() for word in hint.split("`")[1::2] if word and not known(word)]


def known(words: str) -> bool:
    """Return whether a hint's code names something: an option, a method of the configuration, or a command."""
    word = words.split()[0].strip(":").partition("(")[0]
    everything = set().union(*(list_options(method.table) for method in METHODS.values()))
    return word in everything or hasattr(GRPOConfig, word) or word in ("rllm-gym", "runtime_env")


def test_what_rllib_says_of_names_is_what_the_table_says():
    translate = AlgorithmConfig._translate_special_keys
    assert all(translate(alias, warn_deprecated=False) == name for alias, name in ALIASES.items())
    names = {*vars(AlgorithmConfig()), "lambda", "input", "framework", "callbacks", "num_workers"}
    assert {name for name in names if translate(name, warn_deprecated=False) != name} <= ALIASES.keys()
    from ray.rllib.algorithms.registry import ALGORITHMS as RLLIB

    assert RLLIB.keys() & METHODS.keys() == RLLIBS


def test_what_others_name_is_what_the_table_names():
    from ray.tune import CheckpointConfig

    from rllm_gym.algorithms.functional import KL_KINDS
    from rllm_gym.cli.train.check import CHECKPOINT_OPTIONS

    fields = {field.name for field in dataclasses.fields(CheckpointConfig) if not field.name.startswith("_")}
    assert fields == CHECKPOINT_OPTIONS.keys()
    table = list_options(GRPOOptions)
    assert describe(table["kl_kind"].hint) == "one of " + ", ".join(KL_KINDS)
    assert describe(table["preset"].hint) == f"one of {', '.join(PRESETS)} or null"


@pytest.mark.parametrize("method", ["GRPO", "SFT"])
def test_an_option_of_rllibs_that_does_nothing_is_refused_unless_it_has_its_default(method):
    refused = [name for name in UNUSED if name not in list_options(METHODS[method].table)]
    tried = 0
    for name in refused:
        assert unknown_option(name, list_options(METHODS[method].table)).startswith(f"{name} is not used here; ")
        config = config_of(method)
        value = getattr(config, name, None) if name in vars(config) else None
        if type(value) not in OTHER_VALUES or name == "simple_optimizer":
            continue
        config.environment("rllm_gym/TextCraft-v0").check_options()
        setattr(config, name, OTHER_VALUES[type(value)](value))
        with pytest.raises(ConfigError, match=f"{name} is not used here; "):
            config.check_options()
        tried += 1
    assert tried > 80


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("seed", -1, "seed must be a whole number of at least 0 or null; got -1."),
        ("temperature", float("inf"), "temperature must be a number of at least 0; got inf."),
        ("lr", float("nan"), "lr must be a number of at least 0; got nan."),
        ("episode_timeout_s", -1, "episode_timeout_s must be a number above 0 or null; got -1."),
        ("max_failed_fraction", 1.5, "max_failed_fraction must be a number of at least 0 and at most 1; got 1.5."),
        ("group_size", True, "group_size must be a whole number of at least 1; got True."),
        ("adam_betas", [0.9, 1.0], "adam_betas must be a list of numbers of at least 0 and below 1; got [0.9, 1.0]."),
        ("dtype", "int8", "dtype must be one of float32, bfloat16, float16 or null; got 'int8'."),
        ("engine_options", None, "engine_options must be a mapping; got None."),
    ],
)
def test_a_wrong_value_is_said_with_its_bounds(name, value, message):
    config = GRPOConfig().environment("rllm_gym/TextCraft-v0").update_from_dict({name: value})
    with pytest.raises(ConfigError) as error:
        config.validate()
    assert str(error.value) == f"GRPOConfig: {message}"


def test_every_builder_method_takes_every_option_and_names_the_nearest_of_a_wrong_one():
    config = GRPOConfig().training(group_size=4, lr=1e-4).env_runners(clip_high=0.3).learners(seed=3)
    assert (config.group_size, config.lr, config.clip_high, config.seed) == (4, 1e-4, 0.3, 3)
    assert config.training(preset="gspo", clip_low=0.1).clip_low == 0.1
    assert config.training(clip_low=0.1, preset="gspo").clip_low == 0.1
    for builder in ("training", "env_runners", "learners", "evaluation", "rl_module", "reporting", "fault_tolerance"):
        with pytest.raises(ConfigError, match=r"got 'grup_size'. Did you mean 'group_size'\?"):
            getattr(GRPOConfig(), builder)(grup_size=3)
    with pytest.raises(ConfigError, match="minibatch_size is not used here; use `num_minibatches`"):
        GRPOConfig().training(minibatch_size=3).validate()


def test_a_configuration_of_ones_own_declares_options_as_the_table_does():
    class MineConfig(GRPOConfig):
        quantile: Annotated[float, Doc("of the group's returns.")] = 0.5

    assert MineConfig().quantile == 0.5
    assert MineConfig().training(quantile=0.9).quantile == 0.9
    assert list(list_options(MineConfig))[-1] == "quantile"
    assert get_args(list_options(MineConfig)["quantile"].hint)[0] is float
    with pytest.raises(ConfigError, match="quantile must be a number; got 'x'"):
        MineConfig().environment("rllm_gym/TextCraft-v0").training(quantile="x").validate()


FAULTS = [
    ("GRPO", "config: {grup_size: 8}", "unknown key 'grup_size'; did you mean 'group_size'?"),
    ("GRPO", "config: {group_size: 0}", "config.group_size must be a whole number of at least 1; got 0."),
    ("GRPO", "config: {gamma: 0.9}", "config.gamma is not used here; an episode's return is not discounted"),
    ("GRPO", "config: {env_config: {dept: 1}}", "got 'dept'. Did you mean 'depth'?"),
    ("GRPO", "config: {scaling_inter: {type: stepwise, horizons: []}}", "horizons must be a list of turns"),
    ("GRPO", "stop: {training_iterations: 3}", "did you mean 'training_iteration'?"),
    (
        "GRPO",
        "checkpoint_config: {num_to_keep: x}",
        "checkpoint_config.num_to_keep must be a whole number of at least 1 or null",
    ),
    ("GPRO", "config: {}", "run: no algorithm has this name; got 'GPRO'. Did you mean 'GRPO'?"),
    # Options that are right by themselves.
    ("GRPO", "config: {group_size: 1}", "GRPOConfig: group_size must be at least 2, since one episode has no group"),
    ("GRPO", "config: {temperature: 0}", "GRPOConfig: training needs temperature above 0"),
    ("GRPO", "config: {screening_size: 8}", "screening_size must be below group_size, or no episode is left to play"),
    ("GRPO", "config: {ratio_level: sequence}", "ratio_level: sequence needs loss_average: sequences or episodes"),
    ("GRPO", "config: {preset: gspo, loss_average: tokens}", "ratio_level: sequence needs loss_average: sequences"),
    ("GRPO", "config: {top_p: 0.9}", "top_p and top_k must be off (1.0 and 0) in training"),
    ("GRPO", "config: {importance_correction: token}", "got old_logp: rollout. Set old_logp: recompute."),
    ("GRPO", "config: {importance_veto: 0.1}", "importance_veto goes with an importance_correction"),
    ("GRPO", "config: {kl_target: 0.1}", "kl_target and the kl_coeff to begin with must be above 0; got 0.1 and 0.0."),
    ("GRPO", "config: {max_new_tokens: 4096}", "max_new_tokens must be below max_model_len"),
    ("GRPO", "config: {num_env_runners: 0}", "num_env_runners must be at least 1; got 0."),
    ("GRPO", "config: {engine: sglang}", "engine: must be one of openai, scripted, transformers, vllm"),
    ("GRPO", "config: {engine: transformers, engine_options: {devise: cpu}}", "Did you mean 'device'?"),
    ("GRPO", "config: {opponents: {a: randm}}", "Did you mean 'random'?"),
    ("GRPO", "config: {opponents: {a: {pool: {every: 2}}}, staleness: 1}", "staleness must be 0 where opponents come"),
    ("GRPO", "config: {opponents: {a: random}, policies: [me, random]}", "no policy may have the name of an opponent"),
    ("GRPO", "config: {algorithm_config_overrides_per_module: {me: {lr: 0}}}", "is for policies of the run; got 'me'."),
    ("GRPO", "config: {step_weight: 1, advantage: joint}", "step_weight adds to the advantage of whole episodes"),
    ("RLOO", "config: {advantage: joint, kl_coeff: 0.1}", "which cannot hold the KL to one policy's reference"),
    ("PPO", "config: {task_sampling: difficulty}", "difficulty compares the episodes of a task"),
    ("PPO", "config: {screening_size: 2}", "nothing is compared within a group here; got 2."),
    ("PPO", "config: {critic: shared, critic_epochs: 2}", "critic_epochs are the separate critic's; got 2"),
    ("PPO", "config: {critic: centralised, bootstrap: truncated}", "Set bootstrap: never, or critic: separate."),
    ("PPO", "config: {policies: [a, a_critic]}", "the critic of policy 'a' takes the id 'a_critic'"),
    ("ReMax", "config: {kl_in: reward}", "ReMaxConfig: kl_in must be loss; got 'reward'."),
    ("ReMax", "config: {staleness: 1}", "greedy episodes are played when the sampled ones have ended"),
    ("ReMax", "config: {policies: [a, b]}", "have no single greedy episode to compare with"),
    ("ReinforcePP", "config: {baseline: group, group_size: 2, gamma: 0.9}", "Set gamma: 1.0, or baseline: none."),
    ("SFT", "config: {policies: [a, b]}", "one policy is trained, the default one; got a, b."),
    ("SFT", "config: {num_minibatches: 64}", "num_minibatches must be at most samples_per_step, 32; got 64."),
    ("SFT", "config: {data: null}", "data must be `expert` or a path; got none."),
    ("DPO", "config: {data: expert}", "data: must be pairs; got expert, who has no worse episodes."),
    ("DPO", "config: {save_trajectories: false}", "data: sample needs save_trajectories: true"),
    ("DPO", "config: {observation_weight: 0.5}", "observation_weight must be 0; got 0.5."),
    ("AgentEvol", "config: {keep_episodes: {newest: 10}}", "keep_episodes must be all, for it learns from them"),
]
QUICK_S = 3.0  # of processor time for one file, with Python's start


def test_a_mistake_in_a_file_is_told_without_loading_ray_or_torch(tmp_path):
    for k, (method, written, _) in enumerate(FAULTS):
        (tmp_path / f"{k}.yaml").write_text(f"x:\n  run: {method}\n  env: rllm_gym/TextCraft-v0\n  {written}\n")
    code = (
        "import sys, time\nfrom rllm_gym.cli.main import make_rllib_app\napp = make_rllib_app()\n"
        f"for k in range({len(FAULTS)}):\n    app(['train', 'file', f'{{k}}.yaml'], standalone_mode=False)\n"
        "    if k == 0: first_s = time.process_time()\n"
        "print([name for name in ('ray', 'torch', 'vllm', 'deepspeed') if name in sys.modules], first_s)\n"
    )
    run = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    said = run.stderr.splitlines()
    assert len(said) == len(FAULTS), run.stderr
    for line, (_, written, message) in zip(said, FAULTS, strict=True):
        assert message in line, written
    loaded, first_s = run.stdout.rsplit(maxsplit=1)
    assert loaded == "[]" and float(first_s) < QUICK_S


@pytest.mark.parametrize(
    ("method", "written", "message"),
    [row for row in FAULTS[8:] if "env_config" not in row[1]],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_a_configuration_in_python_is_told_the_same(method, written, message):
    import yaml

    options = yaml.safe_load(written)["config"]
    if "policies" in options:
        options["policies"] = set(options["policies"])
    config = config_of(method).environment("rllm_gym/TextCraft-v0").update_from_dict(options)
    with pytest.raises(ConfigError) as error:
        config.validate()
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_configuration_tells_all_that_is_wrong_a_line_each():
    config = GRPOConfig().environment("rllm_gym/TextCraft-v0").update_from_dict({"group_size": 1, "temperature": 0})
    with pytest.raises(ConfigError) as error:
        config.validate()
    assert [line.split()[1] for line in str(error.value).splitlines()] == ["group_size", "training"]


def test_the_page_of_options_is_up_to_date():
    from tools.options_page import PAGE, page

    assert PAGE.read_text(encoding="utf-8") == page(), "run python -m tools.options_page"
