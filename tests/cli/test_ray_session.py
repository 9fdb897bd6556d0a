"""A run starts a Ray of its own, joins a cluster where it is told to, and says at once what cannot be."""

from __future__ import annotations

import functools
import os
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from rllm_gym.cli import ray_session
from rllm_gym.cli.main import make_rllib_app
from rllm_gym.cli.ray_session import probe
from rllm_gym.cli.train.storage import check_storage
from rllm_gym.errors import ConfigError

app = make_rllib_app()

EXPERIMENT = """\
x:
  run: GRPO
  env: rllm_gym/TextCraft-v0
  config: {{env_config: {{depth: 1}}, num_gpus_per_learner: {gpus}, num_learners: 1}}
"""


@pytest.fixture
def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What `ray.init` was asked for, without a Ray."""
    import ray

    calls: list[dict[str, Any]] = []
    monkeypatch.setattr(ray, "init", lambda **options: calls.append(options))
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    monkeypatch.setattr(ray, "nodes", lambda: [{"Alive": True, "Resources": {"CPU": 64.0}}])
    return calls


@pytest.mark.parametrize("address", ["127.0.0.1:{}", "ray://127.0.0.1:{}", "localhost:{}"])
def test_a_dead_address_is_said_within_ten_seconds(free_port: int, address: str) -> None:
    address = address.format(free_port)
    begun = time.monotonic()
    with pytest.raises(ConfigError) as caught:
        probe(address)
    assert time.monotonic() - begun < 10
    assert str(caught.value) == (
        f"ray: no cluster answers at {address!r} (Connection refused). Check --ray-address and RAY_ADDRESS; without "
        "them a run starts a Ray of its own."
    )


def test_a_host_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    test_is_over = threading.Event()

    def never_answers(*args: object, **options: object) -> None:
        test_is_over.wait(60)
        raise OSError("too late")

    monkeypatch.setattr(socket, "create_connection", never_answers)
    with pytest.raises(ConfigError, match=r"no cluster answers at 'nowhere:1' \(no answer within 0.1 s\)"):
        probe("nowhere:1", timeout_s=0.1)
    test_is_over.set()


def test_a_live_port_is_taken(free_port: int) -> None:
    with socket.create_server(("127.0.0.1", free_port)):
        probe(f"127.0.0.1:{free_port}")


@pytest.mark.parametrize("address", ["nonsense", "host:", "host:port", ":6379", "host:99999"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="an address must be auto or host:port; got"):
        probe(address)


def test_a_dead_ray_address_ends_the_command_before_anything_is_loaded(tmp_path: Path, free_port: int) -> None:
    (tmp_path / "x.yaml").write_text(EXPERIMENT.format(gpus=0))
    done = subprocess.run(
        [sys.executable, "-m", "rllm_gym.cli.main", "rllib", "train", "file", "x.yaml"],
        cwd=tmp_path, env={"RAY_ADDRESS": f"127.0.0.1:{free_port}", "PYTHONPATH": ":".join(sys.path)},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.startswith(f"ray: no cluster answers at '127.0.0.1:{free_port}' (Connection refused). ")
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "runs").exists()


def test_without_an_address_ray_is_our_own(asked: list[dict[str, Any]]) -> None:
    with ray_session.ray_session(None, [[{"CPU": 48.0}]], verbose=False):
        assert asked[0]["address"] == "local"
    assert asked[0]["num_cpus"] == 48


def test_auto_joins_the_cluster_of_this_machine(
    asked: list[dict[str, Any]], free_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ray._private import services

    found = f"127.0.0.1:{free_port}"
    monkeypatch.setattr(services, "canonicalize_bootstrap_address", lambda address: found)
    join = functools.partial(ray_session.ray_session, "auto", [[]], verbose=False)
    with pytest.raises(ConfigError, match=f"no cluster answers at '{found}'"), join():  # it has ended
        pass
    assert asked == []
    with socket.create_server(("127.0.0.1", free_port)), join():
        assert asked[0]["address"] == found


def test_auto_without_a_cluster_is_said(asked: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    from ray._private import services

    def nothing(address: str) -> str:
        raise ConnectionError

    monkeypatch.setattr(services, "canonicalize_bootstrap_address", nothing)
    with (
        pytest.raises(ConfigError, match="no cluster runs on this machine; got 'auto'"),
        ray_session.ray_session("auto", [[]], verbose=False),
    ):
        pass


def test_one_gpu_too_many_is_said_before_ray_starts(
    tmp_path: Path, asked: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.yaml").write_text(EXPERIMENT.format(gpus=3))
    result = CliRunner().invoke(app, ["train", "file", "x.yaml"])
    assert result.exit_code == 2
    assert result.stderr == (
        "ray: a trial must fit this machine; it asks for 3 GPUs, and there are 2. Lower num_env_runners, num_learners, "
        "num_gpus_per_env_runner or num_gpus_per_learner.\n"
    )
    assert asked == []


@pytest.mark.parametrize(
    ("storage", "why"),
    [
        ("{0}/x.yaml/runs", "Not a directory"),
        ("/proc/runs", "No such file or directory"),
        ("nowhere://bucket/runs", "Unrecognized filesystem type in URI: nowhere://bucket/runs/x"),
    ],
)
def test_storage_that_cannot_be_written_is_said_before_ray_starts(
    tmp_path: Path, storage: str, why: str, asked: list[dict[str, Any]]
) -> None:
    (tmp_path / "x.yaml").write_text(EXPERIMENT.format(gpus=0))
    storage = storage.format(tmp_path)
    result = CliRunner().invoke(app, ["train", "file", str(tmp_path / "x.yaml"), "--storage-path", storage])
    assert result.exit_code == 2
    assert result.stderr == f"--storage-path: must be writable; got {storage!r} ({why}). Choose another one.\n"
    assert asked == []


def test_runs_that_try_the_same_new_folder_at_once_do_not_take_it_from_each_other(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: check_storage(str(tmp_path / "runs"), "quick"), range(400)))
    assert not list(tmp_path.iterdir())


def test_a_driver_neither_begins_nor_ends_with_collecting_what_it_imports() -> None:
    code = (
        "import atexit, gc\n"
        "from rllm_gym.cli.ray_session import prepare_driver\n"
        "atexit.register(lambda: print(gc.get_freeze_count()))\n"  # called after those that are registered later
        "prepare_driver(None)\n"
        "print(gc.get_stats()[2]['collections'])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    num_collections, num_frozen = map(int, done.stdout.split())
    assert num_collections <= 1
    assert num_frozen > 100_000


OWNER = """
import os, sys
from rllm_gym.cli.ray_session import prepare_driver, ray_session
prepare_driver(None)
import psutil, ray
with ray_session(None, [[{"CPU": 1.0}]], verbose=False):
    told = [" ".join(child.cmdline()) for child in psutil.Process().children(recursive=True)]
    token = next(filter(None, (c.environ().get("RAY_AUTH_TOKEN") for c in psutil.Process().children(recursive=True))))
    assert len(token) == 64 and not any(token in of for of in told)
    assert "RAY_AUTH_TOKEN" not in os.environ
    print(ray.get_runtime_context().gcs_address, flush=True)
    sys.stdin.read()
"""
STRANGER = """
import sys, ray
ray.init(address=sys.argv[1], logging_level=50, log_to_driver=False)
print("joined")
"""


@pytest.mark.parametrize(
    "mode", [pytest.param("disabled", marks=pytest.mark.promise), pytest.param(None, marks=pytest.mark.slow)]
)
def test_a_runs_own_ray_takes_nobody_without_its_token(mode: str | None, tmp_path: Path) -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH")}
    shell = env if mode is None else env | {"RAY_AUTH_MODE": mode}
    with subprocess.Popen(
        [sys.executable, "-c", OWNER], env=shell, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdin is not None and owner.stdout is not None
        address = owner.stdout.readline().strip()
        assert address
        stranger = subprocess.run(
            [sys.executable, "-c", STRANGER, address],
            env=env | {"HOME": str(tmp_path), "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        owner.stdin.close()
    assert owner.returncode == 0
    assert stranger.returncode != 0 and "joined" not in stranger.stdout


@pytest.mark.parametrize(
    ("before", "asks"),
    [
        ({}, True),
        ({"RAY_AUTH_MODE": "disabled"}, False),
        ({"RAY_ADDRESS": "10.0.0.1:6379"}, False),
        ({"RAY_AUTH_TOKEN": "mine"}, False),
    ],
)
def test_a_script_of_the_users_own_gets_a_token_unless_it_has_decided(
    before: dict[str, str], asks: bool, tmp_path: Path
) -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")} | {"HOME": str(tmp_path)}
    code = "import os, rllm_gym.algorithms; print(os.environ.get('RAY_AUTH_MODE'), os.environ.get('RAY_AUTH_TOKEN'))"
    done = subprocess.run([sys.executable, "-c", code], env=env | before, capture_output=True, text=True, check=True)
    mode, token = done.stdout.split()
    if asks:
        assert mode == "token" and len(token) == 64
    else:
        assert (mode, token) == (before.get("RAY_AUTH_MODE", "None"), before.get("RAY_AUTH_TOKEN", "None"))
