"""Starts a Ray of its own on this machine, or joins a running cluster; says what a trial asks too much of it."""

from __future__ import annotations

import atexit
import contextlib
import gc
import logging
import math
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

import psutil

from rllm_gym import ray_token
from rllm_gym.cli.common import FAILED
from rllm_gym.errors import ConfigError, RllmGymError
from rllm_gym.importing import uncollected
from rllm_gym.library_noise import hold_back

OBJECT_STORE_BYTES = 500 * 2**20  # weights and episodes of small models; RAY_OBJECT_STORE_BYTES overrides it

# For the driver only, before ray is imported; a user's own value wins.
DRIVER_ENV = {
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # else Ray hides the devices from actors that ask for 0 GPUs
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_COLOR_PREFIX": "0",  # else escapes reach files, too
    "OMP_WAIT_POLICY": "passive",  # sampler and trainer share the cores; spinning threads of one starve the other
    "GOMP_SPINCOUNT": "2000",  # a moment: to sleep at once and be woken costs a sampler a tenth of its time
    "RAY_CHDIR_TO_TRIAL_DIR": "0",  # else relative paths in a configuration mean other files in a trial
    "RAY_AIR_NEW_OUTPUT": "0",  # our own reporter speaks
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",  # they would tear our own bar
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # Tune's saves no checkpoint of the trials
    "TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S": "0",
}
GRACE_S = 3.0  # in which a failure may be told by who met it
WHERE_IT_IS_SET = "Check --ray-address and RAY_ADDRESS; without them a run starts a Ray of its own."


def prepare_driver(address: str | None) -> None:
    """Set Ray's environment variables and quieten its loggers; call it before anything else imports ray.

    Raises:
        ConfigError: nobody answers at the address.
    """
    if address and address != "auto":
        probe(address)
    # An address in the environment would make ray.init() join that cluster also where none is wanted.
    os.environ.pop("RAY_ADDRESS", None)
    for name, value in DRIVER_ENV.items():
        os.environ.setdefault(name, value)
    if address:
        ray_token.leave_to_cluster()
    else:
        ray_token.ask_for_token()
    with uncollected():
        import ray.rllib
        import ray.tune  # noqa: F401  both set their loggers' levels on import
        from ray.air._internal import usage

    atexit.register(_leave_all_to_the_system)
    # Workaround for Ray 2.60: it imports the libraries of all loggers that it knows (MLflow, wandb: 2 s), to count for
    # its statistics which are used. It may go once Ray leaves that out where RAY_USAGE_STATS_ENABLED is 0.
    usage.tag_callbacks = lambda callbacks: False
    hold_back()
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)  # we print a failed trial's error ourselves


def _leave_all_to_the_system() -> None:
    """Let what was imported go with the process: at its end Python would look through all of it, for a second."""
    if "triton" not in sys.modules:  # which would print that something of it is left
        gc.freeze()


@contextlib.contextmanager
def ray_session(
    address: str | None,
    bundles_per_trial: Sequence[list[dict[str, float]]],
    *,
    verbose: bool,
    on_sampling: Callable[[int, int], None] | None = None,
    on_death: Callable[[str], int] | None = None,
) -> Iterator[None]:
    """Have Ray running, with room for every trial's bundles, and shut it down at the end.

    Args:
        on_sampling: called now and then with how many of the episodes being sampled have ended, and of how many.
        on_death: called with what to say when a process of this run's own Ray has ended, without which nothing goes
            on; this process then ends with the exit code that it returns. The default prints it, and fails.

    Raises:
        ConfigError: the cluster cannot be reached, or a trial could wait for ever.
    """
    import ray

    if not address:
        check_this_machine(bundles_per_trial)

    needed_cpus = max(sum(bundle.get("CPU", 0) for bundle in bundles) for bundles in bundles_per_trial)
    options: dict[str, Any] = {
        "log_to_driver": verbose,
        "logging_level": logging.INFO if verbose else logging.ERROR,
        "configure_logging": verbose,
    }
    if address:
        options["address"] = address = _find_cluster() if address == "auto" else address
        probe(address)
    else:
        ray_token.ask_for_token()
        # Logical CPUs: processes that wait for each other may share a core.
        options |= {
            "address": "local",  # not another cluster on this machine, whether it lives or has left its traces
            "num_cpus": max(os.cpu_count() or 1, math.ceil(needed_cpus)),
            "include_dashboard": False,
            "object_store_memory": int(os.environ.get("RAY_OBJECT_STORE_BYTES", OBJECT_STORE_BYTES)),
        }
    try:
        with shielded_from_sigterm():
            ray.init(**options)
    except ConnectionError as error:
        raise ConfigError(f"ray: no cluster answers at {address!r}. {WHERE_IT_IS_SET}") from error
    ray_token.hide_token()
    try:
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        for bundles in bundles_per_trial:
            check_capacity(bundles, nodes, where=f"the cluster at {address}" if address else "this machine")
        with shown_notices(on_sampling), ended_with_ray(on_death or _say_and_fail):
            yield
    finally:
        ray.shutdown()


@contextlib.contextmanager
def shielded_from_sigterm() -> Iterator[None]:
    """Start Ray's processes with SIGTERM blocked, so that a scheduler's signal to all lets them finish the train step.

    `timeout` and Slurm signal the process group, systemd every process; Ray 2.60 shields its processes from SIGINT
    alone. They end with this process all the same (PR_SET_PDEATHSIG), and `ray.shutdown` is given SIGKILL in place of
    the SIGTERM for which it would wait. What runs environments or trains unblocks it again (`outlive_sigterm`), for its
    children. It may go once Ray shields them itself.
    """
    from ray._private import services

    class Process(services.ConsolePopen):
        def terminate(self) -> None:
            # A raylet's agents would look for it for a minute.
            agents = []
            with contextlib.suppress(psutil.Error):
                agents = [child for child in psutil.Process(self.pid).children() if child.name().endswith("Agent")]
            self.kill()
            for agent in agents:
                with contextlib.suppress(psutil.Error):
                    agent.kill()

    started = services.ConsolePopen
    services.ConsolePopen = Process
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        yield
    finally:
        services.ConsolePopen = started
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


@contextlib.contextmanager
def ended_with_ray(on_death: Callable[[str], int], interval_s: float = 1.0) -> Iterator[None]:
    """End this process soon after a process of its own Ray has ended; Ray itself waits for a minute.

    Args:
        on_death: see `ray_session`.
    """
    is_over = threading.Event()

    def end(name: str) -> NoReturn:
        code = FAILED
        with contextlib.suppress(BaseException):  # it ends whatever becomes of the line
            why = "killed, out of memory, or by a signal to every process"
            code = on_death(f"failed: Ray's process {name} has ended ({why}).")
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # Ray's own shutdown would wait for what is no more

    def look() -> None:
        while not is_over.wait(interval_s):
            if (name := _ended_process()) and not is_over.wait(GRACE_S):
                end(name)

    threading.Thread(target=look, name="ray-watch", daemon=True).start()
    try:
        yield
    except Exception:
        if name := _ended_process():  # whatever the call was that met it
            end(name)
        raise
    finally:
        is_over.set()


def check_ray() -> None:
    """Raise an error that the session explains, if a process of this run's own Ray has ended.

    Raises:
        RllmGymError: one has.
    """
    if name := _ended_process():
        raise RllmGymError(f"Ray's process {name} has ended.")


def _ended_process() -> str | None:
    """Return the name of a process of this run's own Ray that has ended; None while all live."""
    from ray._private import worker

    node = worker._global_node
    for name in ("raylet", "gcs_server") if node else ():
        if any(info.process.poll() is not None for info in node.all_processes.get(name, ())):
            return name
    return None


def _say_and_fail(text: str) -> int:
    print(text, file=sys.stderr, flush=True)
    return FAILED


def probe(address: str, *, timeout_s: float = 8.0) -> None:
    """Make sure that something listens at a cluster's address; Ray itself would try for many minutes.

    Raises:
        ConfigError: the address has another form, or nobody answers in time.
    """
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 2**16:
        raise ConfigError(f"ray: an address must be auto or host:port; got {address!r}. Check --ray-address.")
    problems: list[str] = []

    def connect() -> None:
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=timeout_s).close()
            problems.append("")
        except OSError as error:
            problems.append(f" ({error.strerror or error})")

    # Its own time-out leaves name resolution out.
    thread = threading.Thread(target=connect, daemon=True, name="ray-probe")
    thread.start()
    thread.join(timeout_s)
    if problem := (problems[0] if problems else f" (no answer within {timeout_s:g} s)"):
        raise ConfigError(f"ray: no cluster answers at {address!r}{problem}. {WHERE_IT_IS_SET}")


def _find_cluster() -> str:
    """Return the address of a cluster on this machine."""
    from ray._private import services

    try:
        return services.canonicalize_bootstrap_address("auto")
    except ConnectionError as error:
        raise ConfigError(f"ray: no cluster runs on this machine; got 'auto'. {WHERE_IT_IS_SET}") from error


def check_this_machine(bundles_per_trial: Sequence[list[dict[str, float]]]) -> None:
    """Make sure that this machine has the GPUs of a trial; of CPUs, which are logical, Ray gets as many as it needs.

    Raises:
        ConfigError: says how many there are.
    """
    import torch

    gpus = {"GPU": float(torch.cuda.device_count())}
    for bundles in bundles_per_trial:
        check_capacity([{"GPU": bundle.get("GPU", 0.0)} for bundle in bundles], [gpus], where="this machine")


@contextlib.contextmanager
def shown_notices(on_sampling: Callable[[int, int], None] | None = None, interval_s: float = 2.0) -> Iterator[None]:
    """Print the lines that runners have for the user, while a run goes."""
    from rllm_gym.rollout.notices import progress_of_all, take_notices

    is_over = threading.Event()

    def show() -> None:
        while not is_over.wait(interval_s):
            for line in take_notices():
                print(line, file=sys.stderr, flush=True)
            if on_sampling:
                on_sampling(*progress_of_all())

    thread = threading.Thread(target=show, name="notices", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def check_capacity(bundles: list[dict[str, float]], nodes: list[dict[str, float]], *, where: str) -> None:
    """Make sure that a trial can be placed on an idle cluster.

    Raises:
        ConfigError: says which resource is too much.
    """
    for name in sorted({name for bundle in bundles for name in bundle}):
        asked = sum(bundle.get(name, 0) for bundle in bundles)
        total = sum(node.get(name, 0) for node in nodes)
        if asked > total:
            raise ConfigError(
                f"ray: a trial must fit {where}; it asks for {asked:g} {name}s, and there are {total:g}. "
                + _remedy(name)
            )
    for bundle in bundles:
        if not any(all(node.get(name, 0) >= amount for name, amount in bundle.items()) for node in nodes):
            listed = ", ".join(f"{amount:g} {name}s" for name, amount in bundle.items() if amount)
            raise ConfigError(f"ray: one worker must fit one node of {where}; it asks for {listed}, which no node has.")


def _remedy(name: str) -> str:
    if name not in ("CPU", "GPU"):
        return f"Lower custom_resources_per_env_runner or custom_resources_per_learner, or start nodes with {name}."
    unit = f"num_{name.lower()}s"
    return f"Lower num_env_runners, num_learners, {unit}_per_env_runner or {unit}_per_learner."
