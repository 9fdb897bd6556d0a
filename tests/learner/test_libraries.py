"""Imports in the background."""

import threading

from rllm_gym.learner import libraries


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
