"""Every option of every method does something: setting it changes what it says it changes.

A row names an option, a value, and what to read of a run in one process (`harness.Run`); the reading must differ from
that of the same run without the option. A new option without a row fails.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from ray.rllib.algorithms import algorithm as rllib_algorithm
from ray.rllib.env import env_runner_group
from ray.rllib.utils import actor_manager, framework
from ray.tune.trainable import trainable

from rllm_gym.algorithms.registry import get_algorithm_class
from rllm_gym.data import read_episodes
from rllm_gym.errors import RllmGymError
from rllm_gym.options.methods import METHODS
from rllm_gym.options.table import list_options
from rllm_gym.rollout.env_runner import LLMEnvRunner
from tests.conftest import CHATML
from tests.wiring.harness import Run, run
from tests.wiring.maze import Maze

ROOT = Path(__file__).resolve().parent.parent.parent
CALLED: list[str] = []
ITEMS = [f"maze_{number}" for number in range(0, 12, 2)]
NO_REWARD = {"env_config": {"reward": 0.0}}
SGD = {"deepspeed": {"optimizer": {"type": "SGD", "params": {"lr": 1.0}}}}
KL = {"kl_coeff": 0.5, "lr": 1e-2}
RECOMPUTE = {"old_logp": "recompute", "num_epochs": 2, "lr": 1e-2}
CORRECTION = {**RECOMPUTE, "importance_correction": "token", "importance_cap": 1.05}
EVALUATE = {"evaluation_interval": 1, "evaluation_duration": 4}
KUHN = {"env": "rllm_gym/KuhnPoker-v0", "max_model_len": 1024}
PLAYED = {"data": "expert", "num_expert_episodes": 6, "samples_per_step": 4, "num_evaluation_samples": 2}
DPO = {"num_sampled_groups": 6, "expert_threshold": None, "reward_gap": 0.0, "samples_per_step": 4, "lr": 1e-2}
DPO |= {"num_evaluation_samples": 1, "save_trajectories": True}
EVOL = {"data": "expert", "num_expert_episodes": 4, "samples_per_step": 4, "num_evaluation_samples": 1}
EVOL |= {"threshold": 0.5, "keep_per_item": None}


class OwnRunner(LLMEnvRunner):
    """Another EnvRunner."""


def evaluate_myself(algorithm: Any, env_runner_group: Any) -> Any:
    return {"mine": 1.0}, 3, 3


@dataclass
class Row:
    """An option's value, and a reading that it must change.

    Args:
        value: to set it to.
        read: what of a run must differ; of a configuration, where `of_config`.
        given: other options, in both runs.
        steps: train steps.
    """

    value: Any
    read: Callable[[Any], Any]
    given: dict[str, Any] = field(default_factory=dict)
    steps: int = 1
    of_config: bool = False


def resources(config: Any) -> Any:
    request = config.algo_class.default_resource_request(config)
    return request.bundles, request.strategy


def of_resources(value: Any, **given: Any) -> Row:
    return Row(value, resources, given, of_config=True)


def callback(name: str) -> Any:
    def called(**_: Any) -> None:
        CALLED.append(name)

    return called


def calls(run: Run) -> list[str]:
    made, CALLED[:] = list(CALLED), []
    return made


def losses(run: Run) -> list[float]:
    return run.losses


def last_loss(run: Run) -> float:
    return run.losses[-1]


def moved(run: Run) -> float:
    return run.moved


def advantages(run: Run) -> list[float]:
    return run.advantages()


def prompt(run: Run) -> list[int]:
    return list(run.engine.requests[0].prompt_ids)


def critic_weights(run: Run) -> float:
    critic = run.learner.module["default_policy_critic"]
    return float(sum(parameter.detach().abs().sum() for parameter in critic.parameters()))


def trained_samples(run: Run) -> int:
    return sum(len(batch["mask"]) for batch in run.batches)


def evaluation(name: str) -> Callable[[Run], Any]:
    return lambda run: run.results[-1]["evaluation"]["eval"][name]


def kept_episodes(run: Run) -> int:
    run.algo._recorder.close()
    return len(list(read_episodes(run.algo.trajectories_path)))


def metric(name: str) -> Callable[[Run], Any]:
    return lambda run: run.metrics[name]


def of_env(name: str) -> Callable[[Run], Any]:
    return lambda run: run.env_metrics[name]


# --- options of every method, on GRPO ---

COMMON: dict[str, Row] = {
    "env": Row("other_maze", lambda run: run.results[-1]["config"]["env"]),
    "env_config": Row({"system_prompt": ""}, prompt),
    "seed": Row(1, lambda run: [episode.item_id for episode in run.algo.sampled.played]),
    "num_env_runners": of_resources(2),
    "num_envs_per_env_runner": Row(2, lambda run: run.engine.max_running),
    "num_cpus_per_env_runner": of_resources(2),
    "num_gpus_per_env_runner": of_resources(1),
    "custom_resources_per_env_runner": of_resources({"disk": 1}),
    "num_learners": of_resources(2),
    "num_cpus_per_learner": of_resources(2, num_learners=1),
    "num_gpus_per_learner": of_resources(1, num_learners=1),
    "custom_resources_per_learner": of_resources({"disk": 1}, num_learners=1),
    "num_cpus_for_main_process": of_resources(2),
    "custom_resources_for_main_process": of_resources({"disk": 1}),
    "placement_strategy": of_resources("SPREAD"),
    "learner_config_dict": Row({"mine": 1}, lambda run: run.learner.config.learner_config_dict),
    "lr": Row(2e-3, moved),
    "grad_clip": Row(1e-6, moved, SGD),
    "num_epochs": Row(2, metric("num_optimizer_steps")),
    "evaluation_interval": Row(1, lambda run: "evaluation" in run.results[-1]),
    "evaluation_duration": Row(7, evaluation("num_episodes"), {"evaluation_interval": 1}),
    "evaluation_config": Row({"explore": False}, lambda run: [p.temperature for p in run.engine.params], EVALUATE),
    "custom_evaluation_function": Row(evaluate_myself, lambda run: "mine" in run.results[-1]["evaluation"], EVALUATE),
    "callbacks_class": Row(None, calls),  # below
    **{
        f"callbacks_on_{name}": Row(callback(name), calls, EVALUATE)
        for name in (
            *("algorithm_init", "environment_created", "episode_start", "episode_end", "sample_end"),
            *("train_result", "evaluate_start", "evaluate_end"),
        )
    },
    "env_runner_cls": Row(OwnRunner, lambda run: type(run.runner).__name__),
    "evaluation_splits": Row(["train"], lambda run: "train" in run.results[-1]["evaluation"], EVALUATE),
    "evaluation_horizon": Row(1, evaluation("num_turns_mean"), EVALUATE),
    "evaluation_seed": Row(7, evaluation("num_sampled_tokens"), EVALUATE | {"evaluation_duration": 12}),
    "evaluation_game_samples": Row(
        0, lambda run: "nash_conv" in run.results[-1]["evaluation"], EVALUATE | KUHN | {"evaluation_on_start": False}
    ),
    "evaluation_on_start": Row(False, lambda run: "evaluation_on_start" in run.results[-1], EVALUATE),
    "save_trajectories": Row(True, lambda run: run.algo.trajectories_path.exists()),
    "keep_episodes": Row({"newest": 2, "best": 0, "worst": 0}, kept_episodes, {"save_trajectories": True}),
    "tokens_per_micro_batch": Row(100, lambda run: len(run.batches)),
    "share_prefixes": Row(False, lambda run: run.learner.sharing_fault),
    "packing": Row(False, lambda run: run.learner.packing_fault),
    "num_minibatches": Row(2, metric("num_optimizer_steps")),
    "trust_remote_code": Row(True, lambda run: run.engine.arguments["options"].get("trust_remote_code")),
    "quiet_libraries": Row(False, lambda config: config.quiet_libraries, of_config=True),
    "check_sync": Row("warn", lambda config: config.check_sync, of_config=True),  # see test_sync_check.py
    "weight_transfer": Row("broadcast", lambda config: config.transfers_weights, of_config=True),
    "zero_stage": Row(2, lambda run: run.deepspeed.zero_optimization_stage()),
    "deepspeed": Row(SGD["deepspeed"], lambda run: type(run.deepspeed.basic_optimizer).__name__),
    "weight_decay": Row(0.5, moved),
    "adam_betas": Row([0.5, 0.9], lambda run: run.optimizer["betas"]),
    "engine": Row("transformers", lambda run: run.engine.arguments["engine"]),
    "engine_options": Row({"enforce_eager": True}, lambda run: run.engine.arguments["options"]),
    "max_model_len": Row(60, of_env("context_limit_fraction")),
    "max_new_tokens": Row(3, of_env("num_sampled_tokens")),
    "temperature": Row(0.7, lambda run: (run.engine.params[0].temperature, *run.losses)),
    "groups_per_step": Row(4, lambda run: len(run.samples)),
    "group_size": Row(5, lambda run: len(run.samples)),
    "episode_timeout_s": Row(1e-9, of_env("num_failed_episodes"), {"max_failed_fraction": 1.0}),
    "num_env_workers": Row(4, lambda run: len(Maze.threads), {"env_config": {"step_s": 0.01}}),
    "env_process": Row(True, lambda run: len(Maze.threads), {"groups_per_step": 1, "group_size": 2}),  # none of ours
    "env_timeout_s": Row(
        0.05,
        of_env("num_env_timeouts"),
        {"env_config": {"step_s": 0.3}, "max_failed_fraction": 1.0, "groups_per_step": 1, "group_size": 2},
    ),
    "max_episode_retries": Row(
        3, of_env("num_episode_retries"), {"env_config": {"fail_items": [0, 4]}, "max_failed_fraction": 1.0}
    ),
    "max_failed_fraction": Row(1.0, lambda run: len(run.results), {"env_config": {"fail_items": [0, 2, 4, 6]}}),
    "max_episode_steps": Row(1, of_env("num_turns_mean")),
    "scaling_inter": Row(
        {"type": "stepwise", "horizons": [3, 1], "steps_per_stage": 1},
        lambda run: [result["max_episode_steps"] for result in run.results],
        {"max_episode_steps": None},
        steps=2,
    ),
    "base_model": Row("other", losses),
    "chat_template_kwargs": Row(
        {"mood": "kind"}, prompt, {"chat_template": CHATML.replace("{{ m['role'] }}", "{{ m['role'] ~ (mood or '') }}")}
    ),
    "template_date": Row(
        "1999-12-31",
        prompt,
        {"chat_template": CHATML.replace("{{ m['role'] }}", "{{ m['role'] ~ strftime_now('%Y') }}")},
    ),
    "history": Row("as_template", lambda run: run.runner.chat.history),
    "stop": Row(["o"], of_env("num_sampled_tokens")),
    "chat_template": Row(CHATML.replace("{{ m['role'] }}\n", "{{ m['role'] }}: "), prompt),
    "dtype": Row("bfloat16", lambda run: (run.deepspeed.bfloat16_enabled(), run.engine.arguments["dtype"])),
    "gradient_checkpointing": Row(True, lambda run: run.learner.module["default_policy"].lm.is_gradient_checkpointing),
    "lora": Row({"r": 4}, metric("num_trainable_parameters")),
}
POLICY_GRADIENT: dict[str, Row] = {
    "clip_low": Row(0.01, losses),
    "clip_high": Row(0.01, losses),
    "dual_clip": Row(1.0, losses),
    "ratio_level": Row("sequence", losses, {"loss_average": "sequences"}),
    "loss_average": Row("sequences", losses),
    "loss_constant": Row(7, losses, {"loss_average": "constant"}),
    "kl_coeff": Row(0.5, last_loss, {"lr": 1e-2}, steps=2),
    "kl_kind": Row("k2", metric("ref_kl"), KL, steps=2),
    "kl_in": Row("reward", advantages, KL, steps=2),
    "kl_target": Row(1e-3, metric("kl_coeff"), KL, steps=3),
    "kl_rate": Row(0.9, metric("kl_coeff"), {**KL, "kl_target": 1e-3}, steps=3),
    "entropy_coeff": Row(0.5, losses),
    "old_logp": Row("recompute", losses),
    "save_trainer_logp": Row(True, lambda run: [sample.trainer_logp is None for sample in run.trained]),
    "importance_correction": Row("token", losses, RECOMPUTE),
    "importance_mode": Row("mask", losses, CORRECTION),
    "importance_cap": Row(1.5, losses, CORRECTION),
    "importance_veto": Row(0.9, losses, CORRECTION),
    "invalid_action_penalty": Row(1.0, advantages),
    "overlong_filter": Row(True, lambda run: len(run.trained), {"max_model_len": 100}),
    "filter_groups": Row("off", lambda run: len(run.trained), NO_REWARD),
    "task_sampling": Row("difficulty", lambda run: [episode.item_id for episode in run.algo.sampled.played]),
    "min_probability": Row(
        1.0,
        lambda run: run.algo.task_difficulty.probabilities(2, 0, ITEMS, run.algo.horizons).tolist(),
        {"task_sampling": "difficulty"},
        steps=2,
    ),
    "screening_size": Row(2, lambda run: len(run.samples), NO_REWARD),
    "staleness": Row(1, lambda run: [sample.policy_version.max() for sample in run.samples], steps=2),
    "max_empty_steps": Row(1, lambda run: len(run.results), NO_REWARD),
    "max_refill_rounds": Row(2, lambda run: len(run.samples), NO_REWARD),
}
COMPARED = {
    "advantage": Row("agent_turn", advantages),
    "role_decay": Row(0.5, advantages, {"advantage": "role"}),
}
OWN: dict[str, dict[str, Row]] = {
    "GRPO": {
        "normalize_std": Row(False, advantages),
        "overlong_buffer": Row(0.9, advantages),
        "step_weight": Row(1.0, advantages),
        "step_gamma": Row(0.1, advantages, {"step_weight": 1.0}),
        **COMPARED,
        "preset": Row("gspo", metric("num_optimizer_steps")),
    },
    "PPO": {
        "gamma": Row(0.5, advantages),
        "lambda_": Row(0.5, advantages),
        "gae_per": Row("turn", advantages, {"gamma": 0.9, "lambda_": 0.9}),
        "bootstrap": Row("truncated", advantages, {"critic_lr": 1e-2}, steps=2),
        "critic": Row("shared", lambda run: sorted(run.learner.module.keys())),
        "critic_lr": Row(1e-2, critic_weights),
        "critic_epochs": Row(3, critic_weights),
        "critic_deepspeed": Row(
            {"gradient_clipping": 0.5}, lambda run: run.learner.engines["default_policy_critic"].gradient_clipping()
        ),
        "critic_warmup_steps": Row(1, moved),
        "vf_loss_coeff": Row(10.0, losses, {"critic": "shared"}),
        "vf_clip": Row(1e-4, critic_weights, {"critic_epochs": 3, "critic_lr": 1e-2}),
    },
    "RLOO": {**COMPARED, "step_gamma": Row(0.1, advantages, {"advantage": "agent_turn"})},
    "ReMax": {},
    "Distill": {
        "teacher": Row("other", advantages),
        "teacher_weight": Row(0.5, advantages),
        "divergence": Row("jsd", losses),
        "jsd_beta": Row(0.1, losses, {"divergence": "jsd"}),
        "with_reward": Row(True, advantages, {"group_size": 4}),
    },
    "ReinforcePP": {
        "gamma": Row(0.5, advantages, {"group_size": 4}),
        "baseline": Row("group", advantages, {"group_size": 4}),
    },
    "SFT": {
        "top_p": Row(0.5, lambda run: {p.top_p for p in run.engine.params}, PLAYED | EVALUATE),
        "top_k": Row(5, lambda run: {p.top_k for p in run.engine.params}, PLAYED | EVALUATE),
        "num_expert_episodes": Row(5, lambda run: len(run.algo.training_items), PLAYED),
        "min_return": Row(9.0, lambda run: len(run.results), PLAYED | {"data": "trajectories"}),
        "observation_weight": Row(0.5, losses, PLAYED),
        "evaluation_data": Row("expert", lambda run: len(run.algo.training_items), PLAYED | EVALUATE),
        "num_evaluation_samples": Row(1, lambda run: len(run.algo.training_items), PLAYED | EVALUATE),
        "samples_per_step": Row(2, trained_samples, PLAYED | {"packing": False}),
    },
    "DPO": {
        "data": Row("trajectories", lambda run: len(run.engine.requests), DPO | EVALUATE),
        "pairs_within": Row("group", lambda run: len(run.algo.training_items), DPO | {"num_sampled_groups": 12}),
        "reward_gap": Row(0.3, lambda run: len(run.algo.training_items), DPO),
        "expert_threshold": Row(1.2, lambda run: len(run.algo.training_items), DPO),
        "num_sampled_groups": Row(3, lambda run: len(run.engine.requests), DPO),
        "beta": Row(1.0, losses, DPO, steps=2),
        "label_smoothing": Row(0.4, losses, DPO, steps=2),
        "kind": Row("ipo", losses, DPO),
    },
    "AgentEvol": {
        "keep": Row("reward", losses, EVOL),
        "threshold": Row(1.5, losses, EVOL),
        "keep_per_item": Row(1, trained_samples, EVOL | {"packing": False}),
        "accumulates": Row(False, trained_samples, EVOL | {"packing": False}, steps=2),
        "num_cloning_epochs": Row(3, lambda run: len(run.batches), EVOL),
        "num_generation_epochs": Row(2, lambda run: len(run.batches), EVOL),
        "restart_from_base": Row(False, moved, EVOL),
        "groups_per_request": Row(1, lambda run: run.engine.num_cache_resets, EVOL),
    },
}

# What only RLlib reads; it must go on doing so.
RLLIBS_OWN = {
    "restart_failed_env_runners": env_runner_group,
    "max_num_env_runner_restarts": env_runner_group,
    "delay_between_env_runner_restarts_s": actor_manager,
    "env_runner_health_probe_timeout_s": env_runner_group,
    "local_gpu_idx": framework,
    "log_level": rllib_algorithm,
    "log_sys_usage": trainable,
    "callbacks_on_env_runners_recreated": rllib_algorithm,
}
# What needs more than one process, or another library; the test that holds it.
ELSEWHERE = {
    "policies": "tests/algorithms/test_grpo.py",
    "policy_mapping_fn": "tests/algorithms/test_grpo.py",
    "policies_to_train": "tests/algorithms/test_grpo.py",
    "opponents": "tests/wiring/test_opponents.py",
    "algorithm_config_overrides_per_module": "tests/wiring/test_multi_agent.py",
    "skip_non_finite_steps": "tests/learner/test_non_finite.py",
    "env_runner_restore_timeout_s": "tests/training/test_samplers.py",
    "callbacks_on_checkpoint_loaded": "tests/wiring/test_joints.py",
    "num_expert_workers": "tests/algorithms/test_sft.py",
    "retokenize": "tests/algorithms/test_sft.py",
    "data": "tests/data/test_offline_sources.py",
}


def rows() -> list[Any]:
    table = [("GRPO", name, row) for name, row in (COMMON | POLICY_GRADIENT).items()]
    table += [(method, name, row) for method, own in OWN.items() for name, row in own.items()]
    return [
        pytest.param(*row, id=f"{row[0]}-{row[1]}", marks=[pytest.mark.slow] if row[1] == "env_process" else [])
        for row in table
    ]


def test_every_option_has_a_row():
    known = COMMON.keys() | RLLIBS_OWN.keys() | ELSEWHERE.keys()
    for method, (table, _) in METHODS.items():
        family = POLICY_GRADIENT.keys() if "clip_low" in list_options(table) else OWN["SFT"].keys()
        missing = list_options(table).keys() - known - family - OWN.get(method, {}).keys() - {"top_p", "top_k"}
        assert not missing, f"{method}: no row says what these change: {sorted(missing)}"
    for name, module in RLLIBS_OWN.items():
        source = inspect.getsource(module)
        assert f"config.{name}" in source or f'config.get("{name}"' in source, name
    for name, path in ELSEWHERE.items():
        assert name in (ROOT / path).read_text(encoding="utf-8"), f"{path} says nothing of {name}"


@pytest.fixture(scope="module")
def models(ray_cluster, tiny_model, other_model):
    from ray.tune.registry import register_env

    register_env("other_maze", lambda config: Maze(**config))
    return {"tiny": tiny_model, "other": other_model}


@pytest.mark.parametrize(("method", "name", "row"), rows())
def test_setting_an_option_changes_what_it_says(ray_cluster, models, without, method, name, row):
    options = {name: own_value(name, row.value)}
    if row.of_config:
        config = get_algorithm_class(method).get_default_config().environment("maze").update_from_dict(row.given)
        before, after = row.read(config), row.read(config.copy(copy_frozen=False).update_from_dict(options))
    else:
        before = reading(row, without(method, row))
        with ExitStack() as stack:
            after = reading(row, entered(stack, method, row.steps, row.given | options, models))
    assert repr(before) != repr(after), f"{name}: nothing has changed: {before}"


def own_value(name: str, value: Any) -> Any:
    if name != "callbacks_class":
        return value
    from ray.rllib.callbacks.callbacks import RLlibCallback

    class Mine(RLlibCallback):
        def on_train_result(self, **_: Any) -> None:
            CALLED.append("mine")

    return Mine


def entered(stack: ExitStack, method: str, steps: int, options: dict[str, Any], models: Any) -> Any:
    """Return a run, or the error that it has ended in."""
    CALLED.clear()
    Maze.threads.clear()
    options = dict(options)
    base_model = models[options.pop("base_model", "tiny")]
    if method == "Distill":
        options["teacher"] = str(models[options.get("teacher", "tiny")])
    if options.get("data") == "trajectories":
        with run(base_model, groups_per_step=6, save_trajectories=True) as played:
            options["data"] = str(played.algo.trajectories_path)
    try:
        return stack.enter_context(run(base_model, method=method, steps=steps, **options))
    except RllmGymError as error:
        return error


def reading(row: Row, found: Any) -> Any:
    return f"{type(found).__name__}: {found}" if isinstance(found, Exception) else row.read(found)


@pytest.fixture(scope="module")
def without(models):
    """Runs without the option of a row, each of which several rows share."""
    with ExitStack() as stack:
        kept: dict[str, Any] = {}

        def enter(method: str, row: Row) -> Any:
            key = repr((method, row.steps, row.given))
            if key not in kept:
                kept[key] = entered(stack, method, row.steps, row.given, models)
            return kept[key]

        yield enter
