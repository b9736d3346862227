"""Ray engine: the nodes of a running cluster, or of one started here. A node's type is its resource `type:NAME`."""

from __future__ import annotations

import argparse
import signal
import socket
from collections.abc import Collection, Mapping
from concurrent.futures import Future
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ..selection.errors import UsageError
from . import node as on_node
from .sweep import Reply

TYPE = "type:"
"""Prefix of the resource that names a node's type: `ray start --resources '{"type:a": 1}'`."""

UNNAMED = "default"
"""Type of nodes without such a resource."""

Node = tuple[str, float, float]
"""Ray's name of a node, its cores and its GPUs."""

REACHING = 10.0
"""Most seconds until the head node replies."""


class Cluster:
    """Ray's scheduler: a task takes all cores and GPUs of a node."""

    def __init__(self, options: argparse.Namespace, archive: bytes, *_: object):
        ray.cloudpickle.register_pickle_by_value(on_node)
        address = options.address or ""
        host, _colon, port = address.partition(":")
        try:
            if port.isdigit():  # Ray itself would retry for minutes
                socket.create_connection((host, int(port)), REACHING).close()
            ray.init(address=address or None, log_to_driver=False, logging_level="error")
            signal.signal(signal.SIGTERM, signal.default_int_handler)  # which Ray has replaced
        except (OSError, RuntimeError, ValueError) as error:
            raise UsageError(f"Ray can't be reached at {address}: {str(error).splitlines()[0]}") from None
        self._archive = ray.put(archive)
        self._do = ray.remote(on_node.do)

    def nodes(self, refused: Collection[str]) -> Mapping[Node, str]:
        found: dict[Node, str] = {}
        for node in ray.nodes():
            has = node["Resources"]
            if node["Alive"] and has.get("CPU") and node["NodeManagerHostname"] not in refused:
                named = (name.removeprefix(TYPE) for name in has if name.startswith(TYPE))
                found[node["NodeID"], has["CPU"], has.get("GPU", 0)] = next(named, UNNAMED)
        return found

    def submit(self, node: Node, task: dict[str, Any]) -> Future[Reply]:
        name, cpus, gpus = node
        there = NodeAffinitySchedulingStrategy(name, soft=False)
        do = self._do.options(scheduling_strategy=there, num_cpus=cpus, num_gpus=gpus, max_retries=0)
        future: Future[Reply] = do.remote(self._archive, task).future()
        return future

    def close(self) -> None:
        ray.shutdown()
