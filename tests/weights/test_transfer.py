"""Weights from one process to others: by a broadcast, or opened where they lie; and what happens when one end dies."""

from __future__ import annotations

import multiprocessing
import threading
import time
from contextlib import ExitStack
from datetime import timedelta
from functools import partial
from unittest import mock

import pytest
import torch

from rllm_gym.errors import RllmGymError
from rllm_gym.weights.receiver import Receiver
from rllm_gym.weights.sender import Sender, TransferError
from rllm_gym.weights.sync import WeightTransfer

CPU = torch.device("cpu")


def make_weights(number: int, device: torch.device = CPU) -> dict:
    tied = torch.full((4, 3), float(number), device=device)
    return {
        ("policy", "embed"): tied,
        ("policy", "norm"): torch.arange(5, dtype=torch.bfloat16, device=device) + number,
        ("policy", "head"): tied,
        ("other", "scale"): torch.full((2,), number - 0.5, device=device).expand(3, 2).T,  # not contiguous
    }


def receive(shipment: WeightTransfer, index: int, receiver: Receiver | None = None) -> dict:
    """Return what an EnvRunner gets, read in another order than it is sent."""
    with (receiver or Receiver(index)).weights(shipment) as weights:
        names = [(module_id, name) for module_id in reversed(weights) for name in [*weights[module_id]][::-1]]
        return {key: weights[key[0]][key[1]].cpu().clone() for key in names}


def same(found: dict, expected: dict) -> bool:
    return found.keys() == expected.keys() and all(
        torch.equal(found[key], value.cpu()) and found[key].dtype == value.dtype for key, value in expected.items()
    )


def beside(*functions) -> list:
    """Call functions at the same time; return what each returned or raised."""
    results: list = [None] * len(functions)

    def call(place: int) -> None:
        try:
            results[place] = functions[place]()
        except Exception as error:
            results[place] = error

    threads = [threading.Thread(target=call, args=(place,), daemon=True) for place in range(len(functions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)
    return results


def test_everybody_gets_what_is_broadcast_in_whatever_order_it_is_read():
    sender, receivers = Sender(CPU), {index: Receiver(index) for index in (7, 3)}
    for number in range(3):
        shipment = WeightTransfer(number, sender.address, far=(7, 3), near=())
        weights = make_weights(number)
        failed, *found = beside(
            partial(sender.send, weights, shipment),
            *(partial(receive, shipment, index, end) for index, end in receivers.items()),
        )
        assert failed is None and len(found) == 2 and all(same(one, weights) for one in found)


def test_what_an_engine_does_not_read_is_not_waited_for_and_nothing_is_read_twice():
    sender, receiver = Sender(CPU), Receiver(1)

    def read(shipment, *names):
        with receiver.weights(shipment) as weights:
            assert "head" in weights["policy"] and "heads" not in weights["policy"]
            return [weights["policy"][name] for name in names]

    shipments = [WeightTransfer(number, sender.address, far=(1,), near=()) for number in range(3)]
    failed, found = beside(lambda: sender.send(make_weights(0), shipments[0]), lambda: read(shipments[0], "embed"))
    assert failed is None and len(found) == 1  # the learner has sent all of it
    failed, error = beside(
        lambda: sender.send(make_weights(0), shipments[1]), lambda: read(shipments[1], "norm", "norm")
    )
    assert failed is None
    assert isinstance(error, RllmGymError) and "norm twice" in str(error) and "object_store" in str(error)
    failed, found = beside(
        lambda: sender.send(make_weights(1), shipments[2]), lambda: receive(shipments[2], 1, receiver)
    )
    assert failed is None and same(found, make_weights(1))


def die_in_the_second(address: tuple[str, int], begun) -> None:
    receiver = Receiver(2)
    receive(WeightTransfer(0, address, (1, 2), ()), 2, receiver)
    with receiver.weights(WeightTransfer(1, address, (1, 2), ())):
        begun.set()
        time.sleep(60)


def test_where_one_dies_the_learner_and_the_others_hear_of_it_at_once():
    context = multiprocessing.get_context("spawn")
    sender, receiver, begun = Sender(CPU), Receiver(1), context.Event()
    process = context.Process(target=die_in_the_second, args=(sender.address, begun), daemon=True)
    process.start()
    shipments = [WeightTransfer(number, sender.address, (1, 2), ()) for number in range(2)]
    failed, found = beside(
        lambda: sender.send(make_weights(0), shipments[0]), lambda: receive(shipments[0], 1, receiver)
    )
    assert failed is None and same(found, make_weights(0))

    def kill():
        begun.wait()
        process.kill()
        return time.monotonic()

    errors = beside(
        lambda: sender.send(make_weights(1), shipments[1]), lambda: receive(shipments[1], 1, receiver), kill
    )
    assert isinstance(errors[0], TransferError) and "did not take the weights" in str(errors[0])
    assert isinstance(errors[1], TransferError)
    assert time.monotonic() - errors[2] < 10
    process.join()


def test_a_learner_that_fails_closes_its_end_and_the_others_hear_of_it_at_once():
    sender, receivers = Sender(CPU), [Receiver(1), Receiver(2)]
    shipments = [WeightTransfer(number, sender.address, (1, 2), ()) for number in range(2)]

    def transfer(shipment):
        return beside(
            lambda: sender.send(make_weights(0), shipment),
            *(partial(receive, shipment, index, end) for index, end in enumerate(receivers, 1)),
        )

    assert transfer(shipments[0])[0] is None
    sender._group.broadcast = mock.Mock(side_effect=[None, RuntimeError("out of memory\nsecond line")])
    begun = time.monotonic()
    failed, *errors = transfer(shipments[1])
    assert isinstance(failed, TransferError) and str(failed).endswith("did not take the weights: out of memory")
    assert all(isinstance(error, TransferError) for error in errors)
    assert time.monotonic() - begun < 10


def test_one_that_is_not_there_is_not_waited_for_long(monkeypatch):
    monkeypatch.setattr("rllm_gym.weights.sender.CONNECT_TIMEOUT", timedelta(seconds=1))
    sender = Sender(CPU)
    shipment = WeightTransfer(0, sender.address, (1, 2), ())
    begun = time.monotonic()
    errors = beside(lambda: sender.send(make_weights(0), shipment), lambda: receive(shipment, 1))
    assert all(isinstance(error, TransferError) for error in errors)
    assert time.monotonic() - begun < 15


def open_where_they_lie(address: tuple[str, int], index: int, found) -> None:
    torch.multiprocessing.set_sharing_strategy("file_system")
    receiver = Receiver(index)
    for number in range(2):
        found.put(receive(WeightTransfer(number, address, (), (1, 2)), index, receiver))


def check_near(device: torch.device) -> None:
    context = torch.multiprocessing.get_context("spawn")
    sender, queue = Sender(device), context.Manager().Queue()
    processes = [context.Process(target=open_where_they_lie, args=(sender.address, i, queue)) for i in (1, 2)]
    with ExitStack() as ended:
        for process in processes:
            process.start()
            ended.callback(process.kill)
        for number in range(2):
            weights = make_weights(number, device)
            sender.send(weights, WeightTransfer(number, sender.address, (), (1, 2)))
            assert all(same(queue.get(timeout=30), weights) for _ in processes)


def test_neighbours_open_the_learners_tensors():
    # On a CPU PyTorch shares memory where CUDA would share a GPU's; all else is the same.
    before = torch.multiprocessing.get_sharing_strategy()
    torch.multiprocessing.set_sharing_strategy("file_system")
    try:
        check_near(CPU)
    finally:
        torch.multiprocessing.set_sharing_strategy(before)


@pytest.mark.gpu
def test_neighbours_open_the_tensors_on_their_gpu():
    check_near(torch.device("cuda", 0))


def receive_on(gpu: int, address: tuple[str, int], found) -> None:
    torch.cuda.set_device(gpu)
    receiver = Receiver(1)
    receiver._device = torch.device("cuda", gpu)
    found.put(receive(WeightTransfer(0, address, (1,), ()), 1, receiver))


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_weights_are_broadcast_from_gpu_to_gpu():
    context = torch.multiprocessing.get_context("spawn")
    sender, queue = Sender(torch.device("cuda", 0)), context.Manager().Queue()
    process = context.Process(target=receive_on, args=(1, sender.address, queue))
    process.start()
    weights = make_weights(3, torch.device("cuda", 0))
    sender.send(weights, WeightTransfer(0, sender.address, (1,), ()))
    assert same(queue.get(timeout=60), weights)
    process.join()
