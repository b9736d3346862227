"""A Ray cluster on loopback: three nodes of two types, one of which is killed, and a driver that is killed, too."""

import os
import signal
import socket
from argparse import Namespace

import psutil
import pytest

from .conftest import MEASURED, PROCESSES, SWEEP, Sweeping, check_resumed

pytest.importorskip("ray")


@pytest.fixture(scope="module")
def cluster():
    """A head that measures nothing, two nodes of type `a`, one of type `b`, with a core each."""
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    nodes = [made.add_node(num_cpus=1, num_gpus=0, resources={f"type:{kind}": 1}) for kind in "aab"]
    made.wait_for_nodes()
    yield made, nodes
    made.shutdown()


def test_nodes_have_tasks_of_their_own_type_alone(own_signals, cluster, monkeypatch):
    from bench.cluster import node
    from bench.cluster.on_ray import Cluster

    ray_cluster, nodes = cluster
    unnamed = ray_cluster.add_node(num_cpus=1, num_gpus=0)
    ray_cluster.wait_for_nodes()

    def do(archive, task):
        import ray

        return str(ray.get_runtime_context().get_node_id())

    monkeypatch.setattr(node, "do", do)
    engine = Cluster(Namespace(address=ray_cluster.address), b"")
    try:
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)
        kinds = engine.nodes(())
        assert engine.nodes({socket.gethostname()}) == {}
        asked = [(engine.submit(node, {}), kind) for node, kind in kinds.items()]
        found = {future.result(300): kind for future, kind in asked}
    finally:
        engine.close()
    assert found == dict(zip((it.node_id for it in (*nodes, unnamed)), ("a", "a", "b", "default"), strict=True))
    ray_cluster.remove_node(unnamed)


def test_a_node_is_killed_and_the_driver_too(cluster, alone, tmp_path):
    ray_cluster, nodes = cluster
    folder = tmp_path / "user"
    folder.mkdir()
    where = ("ray", "--address", ray_cluster.address)
    first = Sweeping(folder, *where, "--save", "x", "--processes", str(PROCESSES), *SWEEP)
    first.until(MEASURED)
    raylets = {node.all_processes["raylet"][0].process.pid: node for node in nodes[:2]}
    worker = first.stopped_job(lambda: [it for raylet in raylets for it in psutil.Process(raylet).children()])
    ray_cluster.remove_node(raylets[worker.ppid()], allow_graceful=False)
    worker.kill()
    first.until(" is lost: ")
    first.kill()
    check_resumed(folder, alone, *where)
