"""Ray: the nodes of a running cluster, or of one that is started here. A type is a resource `type:NAME`, else the processor."""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ..selection.mistake import Mistake
from . import node as on_node
from .engine import Result, Task

TYPE = "type:"
"""How a node's resource begins that names its type: `ray start --resources '{"type:a": 1}'`."""

REACHING = 10.0
"""Seconds, at most, in which the head answers."""

ASKING = 60.0
"""Seconds, at most, in which the first nodes say what their processors are; later ones join as soon as they have said it."""


def _answers(address: str | None) -> None:
    """Raises OSError where nobody listens at HOST:PORT: Ray itself would try for minutes."""
    host, colon, port = (address or "").partition(":")
    if colon and port.isdigit():
        socket.create_connection((host, int(port)), REACHING).close()


class OnRay:
    """One task at a time on each node, with all of its cores and GPUs."""

    def __init__(self, address: str | None, archive: bytes):
        ray.cloudpickle.register_pickle_by_value(on_node)
        try:
            _answers(address)
            ray.init(address=address, log_to_driver=False, logging_level="error")
        except (OSError, RuntimeError, ValueError) as error:
            raise Mistake(f"Ray can't be reached at {address}: {str(error).splitlines()[0]}") from None
        self._archive = ray.put(archive)
        self._there: dict[str, dict[str, Any]] = {}
        """What Ray says of each node."""
        self._kinds: dict[str, str] = {}
        self._asked: dict[str, Any] = {}
        """By node, its answer that is on the way: what its processor is."""
        self._patience = ASKING
        self._tasks: dict[Any, str] = {}

    def nodes(self) -> Mapping[str, str]:
        measuring = [it for it in ray.nodes() if it["Alive"] and it["Resources"].get("CPU")]
        self._there = {f"{it['NodeManagerHostname']}-{it['NodeID'][:8]}": it for it in measuring}
        for name, it in self._there.items():
            if name not in self._kinds and name not in self._asked:
                self._ask(name, it)
        self._hear()
        return {name: self._kinds[name] for name in self._there if name in self._kinds}

    def start(self, node: str, task: Task) -> None:
        has = self._there[node]["Resources"]
        whole = {"num_cpus": has["CPU"], "num_gpus": has.get("GPU", 0)}
        self._tasks[self._on(self._there[node], on_node.do, **whole).remote(self._archive, task)] = node

    def ended(self, seconds: float) -> list[tuple[str, Result]]:
        if not self._tasks:
            time.sleep(seconds)
            return []
        ray.wait([*self._tasks], timeout=seconds)
        ended, _ = ray.wait([*self._tasks], num_returns=len(self._tasks), timeout=0)
        return [(node := self._tasks.pop(it), self._result(it, node)) for it in ended]

    def close(self) -> None:
        ray.shutdown()

    def _result(self, reference: Any, node: str) -> Result:
        try:
            result: Result = ray.get(reference)
        except RayTaskError as error:
            return {"lost": str(error).strip().splitlines()[-1]}
        except RayError as error:
            return {"lost": f"{type(error).__name__}: {str(error).splitlines()[0]}"}
        return result | {"node": node}

    def _ask(self, name: str, it: Mapping[str, Any]) -> None:
        """A node's type, where it isn't named: what its processor is, which the node itself must say."""
        named = [resource.removeprefix(TYPE) for resource in it["Resources"] if resource.startswith(TYPE)]
        if named:
            self._kinds[name] = named[0]
        else:
            self._asked[name] = self._on(it, on_node.model, num_cpus=0).remote()

    def _hear(self) -> None:
        """What has been answered by now; the first time all are waited for, since they say what there is to measure."""
        waiting, self._patience = self._patience, 0.0
        if not self._asked:
            return
        answered, _ = ray.wait([*self._asked.values()], num_returns=len(self._asked), timeout=waiting)
        for name in [name for name, reference in self._asked.items() if reference in answered]:
            try:
                model = str(ray.get(self._asked.pop(name)))
            except RayError:
                continue  # it is asked again while it is there
            has = self._there.get(name, {}).get("Resources", ())
            self._kinds[name] = " ".join([model, *(it for it in has if it.startswith("accelerator_type:"))])

    def _on(self, it: Mapping[str, Any], function: Any, **options: Any) -> Any:
        here = NodeAffinitySchedulingStrategy(it["NodeID"], soft=False)
        return ray.remote(function).options(scheduling_strategy=here, max_retries=0, **options)
