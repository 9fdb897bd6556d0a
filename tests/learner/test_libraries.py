"""Imports in the background, and DeepSpeed on the learner's device."""

import threading

from rllm_gym.learner import libraries
from tests.learner.learner_helpers import make_config, make_group, make_samples, update


def test_a_learner_waits_for_what_is_being_imported(monkeypatch):
    may_end, has_ended = threading.Event(), threading.Event()

    def imports():
        may_end.wait(10)
        has_ended.set()

    monkeypatch.setattr(libraries, "_import_models", imports)
    libraries.import_in_background()
    threading.Timer(0.2, may_end.set).start()
    libraries.wait_for_imports()
    assert has_ended.is_set()
    libraries.wait_for_imports()  # nothing to wait for


def test_a_learner_without_a_gpu_leaves_the_machines_alone(tiny_model):
    # On a machine with a GPU DeepSpeed takes it, wherever RLlib has put the learner.
    deepspeed = libraries.import_deepspeed()
    from deepspeed.accelerator.cuda_accelerator import CUDA_Accelerator

    before = deepspeed.get_accelerator()
    deepspeed.accelerator.set_accelerator(CUDA_Accelerator())
    try:
        metrics = update(make_group(make_config(tiny_model)), make_samples(4))
        assert metrics["gradient_norm"] > 0
    finally:
        deepspeed.accelerator.set_accelerator(before)
