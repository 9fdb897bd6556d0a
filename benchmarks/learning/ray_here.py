"""A Ray of this process's own, on one core."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


@contextlib.contextmanager
def ray_here() -> Iterator[None]:
    from rllm_gym.cli.ray_session import prepare_driver

    prepare_driver(None)
    import ray

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=400 * 2**20)
    try:
        yield
    finally:
        ray.shutdown()
