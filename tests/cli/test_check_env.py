"""`rllm-gym check-env` plays an environment as a run does, and says what would break there."""

from __future__ import annotations

import textwrap

import pytest
from typer.testing import CliRunner

from rllm_gym.cli.main import make_rllm_gym_app

ENVIRONMENTS = """
    import signal
    import sqlite3
    import threading

    import gymnasium

    from rllm_gym.envs import UnicodeText

    class Base(gymnasium.Env):
        def __init__(self):
            self.observation_space = self.action_space = UnicodeText(100)

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            self.db = sqlite3.connect(":memory:")  # for one thread
            return "Guess.", {}

        def step(self, action):
            self.db.execute("select 1")
            return "No.", 0.0, False, False, {}

    class Alarm(Base):
        def step(self, action):
            signal.signal(signal.SIGALRM, signal.SIG_IGN)
            return super().step(action)

    class Hang(Base):
        def step(self, action):
            threading.Event().wait()
"""


@pytest.fixture
def check(calling_folder, monkeypatch):
    (calling_folder / "my_package" / "checked.py").write_text(textwrap.dedent(ENVIRONMENTS))
    monkeypatch.syspath_prepend(str(calling_folder))
    return lambda name, *options: (
        CliRunner().invoke(make_rllm_gym_app(), ["check-env", f"my_package.checked:{name}", *options]).output
    )


def test_an_environment_for_one_thread_plays_in_a_runs_threads(check):
    assert check("Base").startswith("ok           it plays in the threads of a run\n")


def test_one_for_a_main_thread_is_told_what_it_needs(check):
    said = check("Alarm", "--num-env-workers", "1")
    assert said.startswith(
        "BROKEN       it plays in the threads of a run: episodes fail: ValueError: signal only works"
    )
    assert said.splitlines()[0].endswith("With env_process: true it plays.")
    assert check("Alarm", "--num-env-workers", "1", "--env-process").startswith("ok           it plays")


def test_one_that_hangs_is_said_within_the_runs_limit(check):
    said = check("Hang", "--env-timeout-s", "0.2")
    assert "must return within env_timeout_s = 0.2; got 0.2 s in step of Hang" in said
    assert "check-env: 1 of 1 rules are broken" in said
