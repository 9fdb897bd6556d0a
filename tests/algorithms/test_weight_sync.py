"""Weights that go past Ray's object store: what is learnt is the same, and no end that dies keeps others waiting."""

from __future__ import annotations

import os
import signal
import time

import pytest

from tests.algorithms.algorithm_helpers import equal, module_weights, toy_config

pytestmark = pytest.mark.slow
OPTIONS = {
    "num_env_runners": 2,
    "groups_per_step": 4,
    "group_size": 2,
    "engine": "transformers",
    "filter_groups": "off",
}
LORA = {"lora": {"r": 4}, "lr": 1e-2}


def pids(algo) -> list[int]:
    return algo.env_runner_group.foreach_env_runner(lambda runner: os.getpid(), local_env_runner=False)


def versions(algo) -> list[int]:
    return algo.env_runner_group.foreach_env_runner(lambda runner: runner.weights_seq_no, local_env_runner=False)


def mismatch(result) -> float:
    """How far the samplers' weights are from the learners'."""
    return result["learners"]["default_policy"]["logp_difference_max"]


@pytest.fixture
def trained(tiny_model, build_on_ray):
    def train(steps: int, **options):
        algo = build_on_ray(toy_config(tiny_model, **OPTIONS | options))
        return algo, [algo.train() for _ in range(steps)]

    return train


@pytest.mark.parametrize(
    "options",
    [{}, LORA, {"num_learners": 1}, {"num_learners": 2, "zero_stage": 3}],
    ids=["local_learner", "lora", "remote_learner", "zero_3"],
)
def test_weights_that_are_broadcast_are_those_of_the_object_store(trained, options):
    found = {}
    for way in ("object_store", "broadcast"):
        algo, results = trained(3, weight_transfer=way, **options)
        found[way] = module_weights(algo), versions(algo), results[-1]["env_runners"]["episode_return_mean"]
        assert mismatch(results[-1]) < 1e-3
        shipment = algo._weight_sync and algo._weight_sync._transfer
        assert (shipment is not None) == (way == "broadcast")
        algo.stop()
    assert equal(found["object_store"][0], found["broadcast"][0])
    assert found["object_store"][1:] == found["broadcast"][1:]


def test_a_restored_checkpoint_is_followed_whatever_its_number(trained, tmp_path):
    algo, _ = trained(1, weight_transfer="broadcast")
    path = algo.save_to_path(str(tmp_path / "checkpoint"))
    straight = [algo.train(), module_weights(algo)][1]
    algo.restore_from_path(path)  # backwards, over the same connections
    assert mismatch(algo.train()) < 1e-3
    assert equal(module_weights(algo), straight)
    assert versions(algo) == [2, 2] and algo._weight_sync._transfer.number == 2


def test_weights_are_broadcast_to_those_who_sample_ahead(trained):
    algo, _ = trained(4, weight_transfer="broadcast", staleness=1)
    assert versions(algo) == [4, 4] and algo._weight_sync._transfer.number == 3


def train_until_it_is_back(algo):
    """Train until the EnvRunner that died samples again, with weights that it got as the others do."""
    for _ in range(500):  # of a tenth of a second each
        result = algo.train()
        if result["fault_tolerance"]["num_remote_worker_restarts"] == 1 and len(versions(algo)) == 2:
            break
    result = algo.train()
    assert len(versions(algo)) == 2 and len(set(versions(algo))) == 1
    assert mismatch(result) < 1e-3
    assert algo._weight_sync._transfer is not None


def test_a_runner_that_was_killed_gets_weights_again(trained):
    algo, _ = trained(2, weight_transfer="broadcast")
    os.kill(pids(algo)[0], signal.SIGKILL)
    train_until_it_is_back(algo)


@pytest.mark.parametrize("num_learners", [0, 1])
def test_a_runner_that_dies_while_it_receives_keeps_nobody_waiting(trained, caplog, num_learners):
    algo, _ = trained(2, weight_transfer="broadcast", num_learners=num_learners)

    def die_at_the_next_weights(runner):
        runner._weights.load_policies = lambda *_: os.kill(os.getpid(), signal.SIGKILL)

    algo.env_runner_group.foreach_env_runner(die_at_the_next_weights, remote_worker_ids=[1], local_env_runner=False)
    begun = time.monotonic()
    algo.train()
    assert time.monotonic() - begun < 20  # no timeout
    assert "did not take the weights" in caplog.text and "object store" in caplog.text
    train_until_it_is_back(algo)


def test_an_engine_that_refuses_the_weights_ends_the_run_with_its_error(trained):
    algo, _ = trained(1, weight_transfer="broadcast")

    def refuse_the_next_weights(runner):
        def load_policies(*_):
            raise ValueError("too heavy")

        runner._weights.load_policies = load_policies

    algo.env_runner_group.foreach_env_runner(refuse_the_next_weights, remote_worker_ids=[1], local_env_runner=False)
    with pytest.raises(Exception, match="could not load the weights: ValueError: too heavy"):
        algo.train()
