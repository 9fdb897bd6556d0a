"""Which way new weights take to the EnvRunners, and who sleeps meanwhile."""

from __future__ import annotations

from unittest import mock

import pytest

from rllm_gym.algorithms import GRPOConfig
from rllm_gym.rollout.policies import make_engines
from rllm_gym.types import Engine
from rllm_gym.weights.sync import WeightSync, WeightTransfer
from tests.wiring.harness import run


class Samplers:
    """EnvRunners on certain GPUs."""

    def __init__(self, *gpus: str | None) -> None:
        self.gpus = gpus

    def places(self):
        return {index: (gpu, f"host:{index}") for index, gpu in enumerate(self.gpus, 1)}


def sync_of(samplers: Samplers, learner_gpu: str | None) -> WeightSync:
    return WeightSync(samplers, None, lambda function: [(("host", 1), learner_gpu), None])


@pytest.mark.parametrize(
    ("learner", "runners", "far", "near"),
    [
        (None, [None, None], [1, 2], []),
        ("a", ["a", "b"], [2], [1]),
        ("a", ["a", "a"], [], [1, 2]),
        ("a", ["b", "c"], [1, 2], []),
    ],
)
def test_a_runner_on_the_learners_gpu_is_its_neighbour_and_the_others_are_broadcast_to(learner, runners, far, near):
    sync = sync_of(Samplers(*runners), learner)
    assert sync._next() == WeightTransfer(0, ("host", 1), far, near)
    assert sync._next() == WeightTransfer(1, ("host", 1), far, near)


@pytest.mark.parametrize(
    ("learner", "runners"),
    [
        ("a", ["a", None]),  # no GPU
        (None, [None, "a"]),
        ("a", ["b", "b"]),  # two on one, which NCCL refuses
        ("a", []),
    ],
)
def test_where_a_runner_is_out_of_reach_all_get_weights_through_the_object_store(learner, runners):
    assert sync_of(Samplers(*runners), learner)._next() is None


def test_new_connections_are_made_only_when_the_runners_are_others():
    samplers = Samplers("a")
    sync = sync_of(samplers, "a")
    assert sync._next() == WeightTransfer(0, ("host", 1), [], [1])
    sync._transfer = None  # it has failed
    assert sync._next() is None
    samplers.gpus = ("a", "b")
    assert sync._next() == WeightTransfer(0, ("host", 1), [2], [1])


@pytest.mark.parametrize(
    ("options", "transfers"),
    [
        ({}, False),
        ({"weight_transfer": "broadcast"}, True),
        ({"num_gpus_per_learner": 1, "num_gpus_per_env_runner": 1}, False),
        ({"num_gpus_per_learner": 1, "num_gpus_per_env_runner": 1, "weight_transfer": "broadcast"}, True),
        ({"weight_transfer": "broadcast", "engine_options": {"tensor_parallel_size": 2}}, False),
        ({"weight_transfer": "broadcast", "engine_options": {"pipeline_parallel_size": 2}}, False),
    ],
)
def test_weights_go_through_the_object_store_unless_another_way_is_named(options, transfers):
    assert GRPOConfig().update_from_dict(options).transfers_weights == transfers


SHARED = {"num_gpus_per_learner": 0.5, "num_gpus_per_env_runner": 0.5}
SLEEP = {"engine_options": {"enable_sleep_mode": True}}


@pytest.mark.parametrize(
    ("options", "by_turns"),
    [
        (SHARED | SLEEP, True),
        (SHARED, False),
        (SHARED | SLEEP | {"staleness": 1}, False),
        (SLEEP | {"num_gpus_per_learner": 1, "num_gpus_per_env_runner": 0.5}, False),
        (SLEEP, False),
    ],
)
def test_vllm_sleeps_where_it_is_asked_to_and_a_gpu_is_shared_by_turns(options, by_turns):
    assert GRPOConfig().update_from_dict(options).shares_gpus_by_turns == by_turns


def test_engines_sleep_while_the_learners_work(tiny_model):
    with mock.patch.object(GRPOConfig, "shares_gpus_by_turns", True), run(tiny_model, steps=1) as found:
        events = []
        found.engine.sleep = lambda: events.append("sleep")
        update, submit = found.algo.learner_group.update, found.engine.submit
        found.engine.submit = lambda request: (events.append("sample"), submit(request))
        found.algo.learner_group.update = lambda **kwargs: (events.append("learn"), update(**kwargs))[1]
        with mock.patch("torch.cuda.empty_cache", lambda: events.append("give back")):
            found.algo.train()
        assert found.engine.arguments["options"]["enable_sleep_mode"] is True
    order = [event for k, event in enumerate(events) if k == 0 or events[k - 1] != event]
    assert order == ["sample", "sleep", "learn", "give back"]


@pytest.mark.parametrize(("module_ids", "may_sleep"), [(["policy"], True), (["one", "two"], False)])
def test_of_several_engines_in_a_process_none_sleeps(tiny_model, module_ids, may_sleep):
    made = []

    def maker(model, *, dtype, max_model_len, max_num_seqs, options):
        made.append(options)
        return mock.Mock(spec=Engine)

    config = GRPOConfig().update_from_dict({"base_model": str(tiny_model), "engine": maker})
    with mock.patch.object(GRPOConfig, "shares_gpus_by_turns", True):
        make_engines(config, dict.fromkeys(module_ids, str(tiny_model)), {}, {}, mock.Mock())
    assert [options.get("enable_sleep_mode", False) for options in made] == [may_sleep] * len(module_ids)
