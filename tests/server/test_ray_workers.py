"""Workers as Ray actors, on two nodes of a cluster of this machine."""

from __future__ import annotations

import time

import pytest
import requests

from tests.needs import skip_without
from tests.serving import serving

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def test_workers_are_actors_on_both_nodes_and_a_stuck_one_is_replaced():
    skip_without("openenv")
    import ray
    from ray.cluster_utils import Cluster

    ray.shutdown()
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "object_store_memory": 150 * 2**20})
    cluster.add_node(num_cpus=1, object_store_memory=150 * 2**20)
    try:
        arguments = ("--env", "tests.server.odd_env:odd/Odd-v0", "--protocol", "agentgym", "--workers", "2")
        with serving(*arguments, "--ray", "--ray-address", cluster.address, "--timeout", "10") as served:

            def post(path, **body):
                return requests.post(f"{served.url}/{path}", json=body, timeout=60)

            ray.init(address=cluster.address, log_to_driver=False)
            # One CPU on each node, and both are taken: an actor is on each.
            assert [node["Resources"]["CPU"] for node in ray.nodes()] == [1.0, 1.0]
            assert ray.available_resources().get("CPU", 0) == 0
            first, second = (post("create").json()["id"] for _ in range(2))
            assert post("step", id=first, action="hello").json()["observation"] == "did hello"
            assert post("step", id=first, action="sleep 60").status_code == 504
            assert post("step", id=second, action="hello").json()["observation"] == "did hello"
            end_s = time.monotonic() + 60
            while post("create").status_code != 200:
                assert time.monotonic() < end_s
            assert post("step", id=first, action="hello").status_code == 404
    finally:
        ray.shutdown()
        cluster.shutdown()
