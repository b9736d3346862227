"""Ray engine: the nodes of a running cluster, or of one started here. A node's type is its resource `type:NAME`."""

from __future__ import annotations

import argparse
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
        except (OSError, RuntimeError, ValueError) as error:
            raise UsageError(f"Ray can't be reached at {address}: {str(error).splitlines()[0]}") from None
        self._archive = ray.put(archive)
        self._do = ray.remote(on_node.do)
        self._there: dict[str, list[dict[str, Any]]] = {}
        """Nodes of each type, as listed by Ray."""
        self._last: dict[str, Future[Reply]] = {}
        """Latest task of each node."""

    def nodes(self, refused: Collection[str]) -> Mapping[str, int]:
        self._there = {}
        for node in ray.nodes():
            if node["Alive"] and node["Resources"].get("CPU") and node["NodeManagerHostname"] not in refused:
                named = (name.removeprefix(TYPE) for name in node["Resources"] if name.startswith(TYPE))
                self._there.setdefault(next(named, UNNAMED), []).append(node)
        return {kind: len(nodes) for kind, nodes in self._there.items()}

    def submit(self, kind: str, task: dict[str, Any]) -> Future[Reply]:
        busy = {name for name, last in self._last.items() if not last.done()}
        node = next(it for it in self._there[kind] if it["NodeID"] not in busy)
        do = self._do.options(
            scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False),
            num_cpus=node["Resources"]["CPU"],
            num_gpus=node["Resources"].get("GPU", 0),
            max_retries=0,
        )
        future: Future[Reply] = do.remote(self._archive, task).future()
        self._last[node["NodeID"]] = future
        return future

    def close(self) -> None:
        ray.shutdown()
