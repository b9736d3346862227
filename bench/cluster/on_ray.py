"""Ray: the nodes of a running cluster, or of one that is started here. A type is a resource `type:NAME`, else the processor."""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ..selection.mistake import Mistake
from . import node as on_node
from .driver import Result, Task

TYPE = "type:"
"""How a node's resource begins that names its type: `ray start --resources '{"type:a": 1}'`."""

REACHING = 10.0
"""Seconds, at most, in which the head answers."""

ASKING = 60.0
"""Seconds, at most, in which the first nodes say what their processors are; later ones join when they have."""


class OnRay:
    """One task at a time on each node, with all of its cores and GPUs."""

    def __init__(self, address: str | None, archive: bytes):
        ray.cloudpickle.register_pickle_by_value(on_node)
        host, colon, port = (address or "").partition(":")
        try:
            if colon and port.isdigit():  # Ray itself would try for minutes
                socket.create_connection((host, int(port)), REACHING).close()
            ray.init(address=address, log_to_driver=False, logging_level="error")
        except (OSError, RuntimeError, ValueError) as error:
            raise Mistake(f"Ray can't be reached at {address}: {str(error).splitlines()[0]}") from None
        self._archive = ray.put(archive)
        self._there: dict[str, dict[str, Any]] = {}
        """What Ray says of each node."""
        self._kinds: dict[str, Any] = {}
        """By node, a reference to its type."""
        self._patience = ASKING
        self._tasks: dict[Any, str] = {}

    def nodes(self) -> Mapping[str, str]:
        measuring = [it for it in ray.nodes() if it["Alive"] and it["Resources"].get("CPU")]
        self._there = {f"{it['NodeManagerHostname']}-{it['NodeID'][:8]}": it for it in measuring}
        self._kinds = {name: self._kinds.get(name) or self._kind(name) for name in self._there}
        if self._kinds:
            ray.wait([*self._kinds.values()], num_returns=len(self._kinds), timeout=self._patience)
            self._patience = 0.0
        found = {}
        for name, kind in self._kinds.items():
            with suppress(RayError):  # not yet known, or the node is gone
                found[name] = ray.get(kind, timeout=0)
        return found

    def start(self, node: str, task: Task) -> None:
        has = self._there[node]["Resources"]
        whole = {"num_cpus": has["CPU"], "num_gpus": has.get("GPU", 0), "max_retries": 0}
        self._tasks[self._on(node, on_node.do, **whole).remote(self._archive, task)] = node

    def ended(self, seconds: float) -> list[tuple[str, Result]]:
        if not self._tasks:
            time.sleep(seconds)
            return []
        ray.wait([*self._tasks], timeout=seconds)
        ended, _ = ray.wait([*self._tasks], num_returns=len(self._tasks), timeout=0)
        return [(node := self._tasks.pop(it), _result(it, node)) for it in ended]

    def close(self) -> None:
        ray.shutdown()

    def _kind(self, node: str) -> Any:
        """A reference to a node's type: its name, or what its processor is, which the node itself must say."""
        has = self._there[node]["Resources"]
        if named := [resource.removeprefix(TYPE) for resource in has if resource.startswith(TYPE)]:
            return ray.put(named[0])
        gpus = [resource for resource in has if resource.startswith("accelerator_type:")]
        return self._on(node, on_node.model, num_cpus=0).remote(gpus)

    def _on(self, node: str, function: Any, **options: Any) -> Any:
        here = NodeAffinitySchedulingStrategy(self._there[node]["NodeID"], soft=False)
        return ray.remote(function).options(scheduling_strategy=here, **options)


def _result(reference: Any, node: str) -> Result:
    try:
        return dict(ray.get(reference)) | {"node": node}
    except RayError as error:
        return {"lost": f"{type(error).__name__}: {str(error).strip().splitlines()[-1]}"}
