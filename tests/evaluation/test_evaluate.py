"""An evaluation from beginning to end, in one process: what is played, kept, counted and gone on with."""

from __future__ import annotations

import dataclasses
import functools
import json
import pickle
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
from ray.rllib.algorithms import algorithm as rllib_algorithm

from rllm_gym.checkpoints import write_manifest
from rllm_gym.data import read_episodes
from rllm_gym.errors import ConfigError, TooManyFailedEpisodesError
from rllm_gym.evaluation import run as evaluation
from rllm_gym.evaluation.export import export_policy
from rllm_gym.evaluation.panel import make_panel
from rllm_gym.evaluation.policy import Policy, playing_config, sampled_policy
from rllm_gym.evaluation.report import Outcome, make_report, markdown_table, measures_table
from rllm_gym.learner.deepspeed import DeepSpeedLearner
from rllm_gym.rollout import policies
from rllm_gym.rollout.environments import EnvironmentSpec
from rllm_gym.types import SampleReply, SamplingParams
from tests.wiring.harness import Recorder, Runners, run

OPTIONS = {"max_model_len": 160, "max_new_tokens": 24, "num_envs_per_env_runner": 4, "zero_stage": 0}
TOOLS_TEMPLATE = Path(__file__).parents[1] / "chat_templates" / "qwen2_5.jinja"
SAMPLING = SamplingParams(max_new_tokens=24)


def panel(num_tasks=6, samples=2, *, env="maze", seed=5, split="eval", **env_config):
    spec = EnvironmentSpec(env, env, env_config)
    return make_panel(spec, split=split, num_tasks=num_tasks, samples=samples, seed=seed, horizon=3, sampling=SAMPLING)


@pytest.fixture
def evaluated(ray_cluster, tiny_model, tmp_path):
    """Evaluate the tiny model on panels; `max_requests` interrupts after as many."""

    def evaluate(*panels, source=tiny_model, folder="out", max_requests=None, **options):
        requests = 0

        def interrupt(report):
            nonlocal requests
            requests += 1
            progress.append(report)
            if requests == max_requests:
                raise KeyboardInterrupt

        progress = []
        resume = options.pop("resume", False)
        with (
            mock.patch.object(rllib_algorithm, "EnvRunnerGroup", Runners),
            mock.patch.object(policies, "engine_maker", lambda engine: functools.partial(Recorder, engine=engine)),
        ):
            plan = evaluation.plan_evaluation(source, panels=panels, out=tmp_path / folder, config=OPTIONS | options)
            return evaluation.play(plan, resume=resume, on_progress=interrupt), progress

    return evaluate


def test_every_episode_is_kept_and_counted(evaluated, tmp_path):
    report, progress = evaluated(panel())
    records = list(read_episodes(tmp_path / "out"))
    assert len(records) == report["episodes"] == 12
    assert {(record.split, record.is_evaluation, record.train_step) for record in records} == {("eval", True, None)}
    assert {record.item_id for record in records} == {f"maze_{k}" for k in range(1, 12, 2)}
    assert report["success_rate"] == sum(bool(record.is_success) for record in records) / 12
    assert 0 < report["success_rate"] < 1
    assert report["mean_return"] == pytest.approx(sum(record.total_reward for record in records) / 12)
    assert report["turns"] == sum(len(record.turns) for record in records) / 12
    assert report["errors"] == 0
    # Requests of 2 x 4 episodes: a running estimate of 8, then of all.
    assert [so_far["episodes"] for so_far in progress] == [8, 12]
    assert json.loads((tmp_path / "out" / "result.json").read_text()) == json.loads(json.dumps(report))
    assert (tmp_path / "out" / "table.md").read_text() == f"{markdown_table([report])}\n{measures_table(report)}"


def test_an_interrupted_evaluation_goes_on_without_playing_again(evaluated, tmp_path):
    whole, _ = evaluated(panel(), folder="whole")
    with pytest.raises(KeyboardInterrupt):
        evaluated(panel(), max_requests=1)
    assert not (tmp_path / "out" / "result.json").exists()
    with pytest.raises(ConfigError, match=r"holds this evaluation already\. Go on with it with --resume"):
        evaluated(panel())
    report, progress = evaluated(panel(), resume=True)
    assert [so_far["episodes"] for so_far in progress] == [12]
    assert len(list(read_episodes(tmp_path / "out"))) == 12
    assert report == whole
    again, progress = evaluated(panel(), resume=True)
    assert (again, progress) == (whole, [])
    with pytest.raises(ConfigError, match="holds the evaluation of another panel"):
        evaluated(panel(seed=6), resume=True)


@pytest.mark.parametrize("method", ["GRPO", "PPO"])
@pytest.mark.parametrize("lora", [None, {"r": 4}])
def test_a_checkpoint_is_played_with_its_weights_and_needs_no_learner(evaluated, tiny_model, tmp_path, method, lora):
    with run(tiny_model, method=method, lora=lora, zero_stage=2, steps=2) as trained:
        path = trained.algo.save_to_path(str(tmp_path / "checkpoint"))
        expected = {
            name: np.asarray(value).copy() for name, value in trained.runner.engines["default_policy"].weights.items()
        }
    loaded, load_weights = [], Recorder.load_weights

    def load(engine, state, policy_version):
        load_weights(engine, state, policy_version)
        loaded.append({name: np.asarray(value).copy() for name, value in engine.weights.items()})

    with mock.patch.object(Recorder, "load_weights", load), mock.patch.object(DeepSpeedLearner, "build") as build:
        evaluated(panel(2, 1), source=path)
    assert not build.called
    [played] = loaded
    assert played.keys() == expected.keys()
    assert all(np.array_equal(played[name], expected[name]) for name in expected)
    assert {t.policy_version for record in read_episodes(tmp_path / "out") for t in record.turns} == {2}


def test_what_a_run_with_gpus_has_trained_is_played_and_exported_without_any(evaluated, tiny_model, tmp_path, caplog):
    with run(tiny_model, steps=1) as trained:
        path = Path(trained.algo.save_to_path(str(tmp_path / "checkpoint")))
    file = path / "class_and_ctor_args.pkl"
    content = pickle.loads(file.read_bytes())
    content["ctor_args_and_kwargs"][0][0].update(
        num_gpus_per_learner=1, num_gpus_per_env_runner=1, num_env_runners=8, num_learners=8, dtype="bfloat16",
        engine_options={"tensor_parallel_size": 2, "enable_sleep_mode": True, "max_num_seqs": 8},
    )  # fmt: skip
    file.write_bytes(pickle.dumps(content))
    write_manifest(path, training_iteration=1)
    plan = evaluation.plan_evaluation(path, panels=[panel(2, 1)], out=tmp_path / "plan", config={})
    config = plan.config
    assert (config.num_gpus_per_env_runner, config.num_env_runners, config.dtype) == (0, 1, "bfloat16")
    assert config.engine_options == {"max_num_seqs": 8}
    assert "the run sampled on GPUs, and there are none; one sampler plays on the CPU, in bfloat16" in caplog.text
    assert plan.algorithm.default_resource_request(config).required_resources.get("GPU", 0) == 0
    report, _ = evaluated(panel(2, 1), source=path)
    assert (report["episodes"], report["errors"]) == (2, 0)
    on_cluster = evaluation.plan_evaluation(path, panels=[panel(2, 1)], out=tmp_path / "plan", joins_cluster=True)
    assert (on_cluster.config.num_gpus_per_env_runner, on_cluster.config.num_env_runners) == (1, 8)
    assert export_policy(path, tmp_path / "model") == "default_policy"


@pytest.mark.parametrize(("dtype", "temperature"), [("bfloat16", 0.0), ("bfloat16", 1.0), ("float32", 0.0)])
def test_greedy_episodes_in_16_bits_are_said_to_depend_on_how_many_are_in_flight(tmp_path, caplog, dtype, temperature):
    greedy = dataclasses.replace(panel(2, 1), sampling=dataclasses.replace(SAMPLING, temperature=temperature))
    evaluation.plan_evaluation("tiny", panels=[greedy], out=tmp_path, config={"dtype": dtype})
    is_said = "greedy episodes in bfloat16 depend on how many are in flight" in caplog.text
    assert is_said == (dtype == "bfloat16" and temperature == 0.0)


def test_a_model_is_played_without_a_learner(evaluated):
    with mock.patch.object(Recorder, "load_weights") as load, mock.patch.object(DeepSpeedLearner, "build") as build:
        evaluated(panel(2, 1))
    assert not build.called and not load.called  # the samplers have read it


def test_nobody_asks_for_learners_where_none_are():
    policy = Policy("tiny", None)
    _, config = playing_config(policy, {"num_learners": 0, "num_gpus_per_env_runner": 1})
    assert (config.num_learners, config.num_gpus_per_learner, config.weight_dtype) == (0, 0, "bfloat16")
    with pytest.raises(ConfigError, match=r"config: nothing learns here; got num_learners: 2\. Leave it out\."):
        playing_config(policy, {"num_learners": 2})
    with pytest.raises(ConfigError, match="a pool is of the earlier selves of a run; got one of 'tiny' for player_1"):
        playing_config(policy, {"opponents": {"player_1": {"pool": {"every": 2}}}})


def test_what_an_endpoint_has_counted_is_kept_over_an_interruption(evaluated, tmp_path, monkeypatch):
    submit = Recorder.submit

    def count(engine, request):
        engine.__dict__.setdefault("usage", Counter())["requests"] += 1
        submit(engine, request)

    monkeypatch.setattr(Recorder, "submit", count)
    with pytest.raises(KeyboardInterrupt):
        evaluated(panel(), max_requests=1)
    report, _ = evaluated(panel(), resume=True)
    assert report["usage"] == {"requests": sum(len(record.turns) for record in read_episodes(tmp_path / "out"))}


def test_an_endpoint_plays_no_checkpoint():
    config = SimpleNamespace(engine="openai", engine_options={"model": "theirs"})
    with pytest.raises(ConfigError, match="samples from its endpoint's model; got the checkpoint 'runs/mine'"):
        sampled_policy(Policy("runs/mine", Path("runs/mine")), config)


def test_errors_are_no_failures_and_are_played_again_by_resume(evaluated, tmp_path, monkeypatch):
    broken = panel(fail_items=(3,))
    with pytest.raises(TooManyFailedEpisodesError, match=r"2 of 12 episodes failed.*--resume plays the rest"):
        evaluated(broken, max_episode_retries=0)
    report, _ = evaluated(broken, resume=True, max_failed_fraction=1.0, max_episode_retries=0)
    assert (report["episodes"], report["errors"], report["end_reasons"]["error"]) == (10, 2, 2)
    [of_broken] = [task for task in report["by_env"]["maze"]["tasks"] if task["errors"]]
    assert (of_broken["item_id"], of_broken["episodes"], len(of_broken["errors"])) == ("maze_3", 0, 2)
    assert "item 3 is broken" in of_broken["errors"][0]
    played = [record for record in read_episodes(tmp_path / "out") if record.error is None]
    assert report["success_rate"] == sum(bool(record.is_success) for record in played) / 10
    monkeypatch.setattr("tests.wiring.maze.Maze.reset_item", repaired)
    mended, progress = evaluated(broken, resume=True, max_episode_retries=0)
    assert (mended["episodes"], mended["errors"], len(progress)) == (12, 0, 1)
    assert len(list(read_episodes(tmp_path / "out"))) > 12  # the failed ones are kept


def test_a_task_that_kills_runners_counts_as_an_error_and_is_left_to_resume(evaluated, tmp_path, monkeypatch):
    play = Runners.foreach_env_runner

    def lose_the_first(self, function, *args, **kwargs):
        results = play(self, function, *args, **kwargs)
        if isinstance(results[0], SampleReply):
            results[0].episodes = [episode for episode in results[0].episodes if episode.item_id != "maze_3"]
        return results

    with monkeypatch.context() as patched:
        patched.setattr(Runners, "foreach_env_runner", lose_the_first)
        report, _ = evaluated(panel(), max_failed_fraction=1.0)
    assert (report["episodes"], report["errors"]) == (10, 2)
    [lost] = [task for task in report["by_env"]["maze"]["tasks"] if task["errors"]]
    assert (lost["item_id"], lost["errors"]) == ("maze_3", ["it killed two EnvRunners"] * 2)
    report, _ = evaluated(panel(), resume=True)
    assert (report["episodes"], report["errors"]) == (12, 0)
    assert len(list(read_episodes(tmp_path / "out"))) == 12


def repaired(self, index):
    self._steps = 0
    return f"Room {index}."


def test_an_agent_is_evaluated_as_it_was_configured(evaluated, tmp_path):
    agent = {"plan": True, "context": {"last_n_turns": 1}, "rewards": [{"fn": "environment", "weight": 2}]}
    plain, planning = panel(), panel(agent=agent)
    assert plain.hash != planning.hash
    report, _ = evaluated(planning, max_model_len=512)
    records = list(read_episodes(tmp_path / "out"))
    assert {record.turns[0].kind for record in records} == {"plan"}
    assert max(len(record.turns) for record in records) == 3  # the plan is one turn of the horizon
    rewards = sum(turn.rewards["environment"] for record in records for turn in record.turns)
    assert report["mean_return"] == pytest.approx(2 * rewards / len(records))


def test_an_agent_with_tools_is_evaluated_on_a_panel(evaluated, tmp_path):
    calling = panel(2, 1, env="rllm_gym:rllm_gym/TextCraft-v0", agent={"format": "tools"})
    assert calling.hash != panel(2, 1, env="rllm_gym:rllm_gym/TextCraft-v0").hash
    report, _ = evaluated(calling, max_model_len=8192, chat_template=str(TOOLS_TEMPLATE))
    assert (report["episodes"], report["errors"]) == (2, 0)
    records = list(read_episodes(tmp_path / "out"))
    assert {record.messages[2]["role"] for record in records} == {"assistant"}
    replies = {
        message["content"] for record in records for message in record.messages[3::2]
    }  # random weights call nothing
    assert {reply.partition(":")[0] for reply in replies} == {"Invalid. Call one of the functions"}


def test_several_environments_each_have_their_numbers(evaluated, tmp_path):
    panels = panel(4, 1), panel(3, 2, env="rllm_gym:rllm_gym/TextCraft-v0", system_prompt="")
    report, _ = evaluated(*panels, max_model_len=2048)
    assert report["panel_hash"] not in {p.hash for p in panels}
    maze, craft = report["by_env"]["maze"], report["by_env"]["TextCraft-v0"]
    assert (maze["episodes"], craft["episodes"], report["episodes"]) == (4, 6, 10)
    assert [block["panel_hash"] for block in (maze, craft)] == [p.hash for p in panels]
    assert report["success_rate"] == (maze["successes"] + craft["successes"]) / 10
    alone, _ = evaluated(panels[0], folder="alone")
    assert alone["by_env"]["maze"]["tasks"] == maze["tasks"]  # whatever is played beside it
    header = markdown_table([report]).splitlines()[0]
    assert header == "| model | maze | TextCraft-v0 | overall |"


def outcome(k, member, is_success, *, category="a", error=None):
    group = panel(3, 2).groups(0)[k].key
    return Outcome(group, member, is_success, 1.0 * is_success, 2, 10, category, "error" if error else "horizon", error)


def test_the_numbers_of_a_report():
    outcomes = [
        outcome(0, 0, True), outcome(0, 1, False),
        outcome(1, 0, True, category="b"), outcome(1, 1, True, category="b"),
        outcome(2, 0, False), outcome(2, 1, False, error="down"),
    ]  # fmt: skip
    report = make_report({"maze": panel(3, 2)}, outcomes)
    assert (report["episodes"], report["successes"], report["errors"]) == (5, 3, 1)
    assert report["success_rate"] == pytest.approx(3 / 5)
    assert report["avg@k"] == pytest.approx((1 / 2 + 1 + 0) / 3)
    assert report["pass@k"] == {"1": pytest.approx(0.5), "2": 1.0}  # the third task has one episode only
    assert report["pass^k"] == {"1": pytest.approx(0.5), "2": 0.5}
    assert (report["mean_return"], report["turns"], report["tokens"]) == (pytest.approx(0.6), 2, 10)
    by_category = report["by_category"]
    assert [by_category[c]["success_rate"] for c in ("a", "b")] == [pytest.approx(1 / 3), 1.0]
    table = markdown_table([{"model": "tiny", **report}]).splitlines()
    assert table[0] == "| model | a | b | overall |"
    assert table[2].startswith("| tiny | 33.3 (")
    assert make_report({"maze": panel(3, 2)}, [])["success_rate"] is None


def test_avg_and_pass_at_k_by_category_are_those_of_agentgym_rls_script():
    # Returns of three tasks, two episodes each; the second task has partial scores and no success.
    returns = [(1.0, 0.0), (0.25, -0.5), (0.0, 0.0)]
    outcomes = [
        dataclasses.replace(outcome(k, member, score == 1.0), total_reward=score)
        for k, scores in enumerate(returns)
        for member, score in enumerate(scores)
    ]
    played = panel(3, 2)
    played = dataclasses.replace(played, categories={played.item_ids[0]: "easy", played.item_ids[1]: "hard"})
    report = make_report({"maze": played}, outcomes)
    # main_generation.py: np.mean(scores), np.mean(np.max(scores, axis=-1) > 0), of all and of each category's file.
    assert (report["score_avg@k"], report["score_pass@k"]) == (pytest.approx(0.75 / 6), pytest.approx(2 / 3))
    assert (report["avg@k"], report["pass@k"]["2"]) == (pytest.approx(1 / 6), pytest.approx(1 / 3))
    hard = report["by_category"]["hard"]
    assert (hard["score_avg@k"], hard["score_pass@k"], hard["pass@k"]["2"]) == (-0.125, 1.0, 0.0)
    assert measures_table(report).splitlines() == [
        "| category | tasks | avg@2 | pass@2 | score avg@2 | score pass@2 |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
        "| a | 1 | 0.0 | 0.0 | 0.000 | 0.0 |",  # in no category's file: the environment's own
        "| easy | 1 | 50.0 | 100.0 | 0.500 | 100.0 |",
        "| hard | 1 | 0.0 | 0.0 | -0.125 | 100.0 |",
        "| all | 3 | 16.7 | 33.3 | 0.125 | 66.7 |",
    ]
    assert measures_table(make_report({"maze": played}, [])).splitlines()[-1] == "| all | 3 | - | - | - | - |"


def test_a_models_evaluation_needs_a_horizon_and_room_for_a_turn(ray_cluster, tiny_model, tmp_path):
    plan = functools.partial(evaluation.plan_evaluation, tiny_model, out=tmp_path / "out")
    with pytest.raises(ConfigError, match=r"evaluate: needs an environment; .* Name it with --env"):
        plan()
    with pytest.raises(ConfigError, match=r"TextCraft-v0 needs a horizon; got none\. Set --horizon"):
        plan(envs=[("rllm_gym/TextCraft-v0", {})])
    long_turns = dataclasses.replace(panel(), sampling=SamplingParams(max_new_tokens=500))
    with pytest.raises(ConfigError, match="max_model_len must be above the panel's max_new_tokens, 500; got 160"):
        plan(panels=[long_turns], config=OPTIONS)
    with pytest.raises(ConfigError, match="a panel is played once"):
        plan(panels=[panel(), panel()], config=OPTIONS)
    planned = plan(envs=[("TextCraft-v0", {"depth": 1})], horizon=4, num_tasks=5, samples=3, config=OPTIONS)
    assert [(p.env, p.env_config, len(p), p.samples, p.horizon) for p in planned.panels] == [
        ("rllm_gym:rllm_gym/TextCraft-v0", {"depth": 1}, 5, 3, 4)
    ]
