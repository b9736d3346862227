"""What a cluster is to the driver: nodes, each of some type, and one task at a time on each of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

Task = dict[str, Any]
"""What a node is to do; see `node.do`."""

Result = dict[str, Any]
"""What it answered, with the `node` that it came from; or why it is `lost`, the node or the process that did the task there."""


class Engine(Protocol):
    """Where tasks run."""

    def nodes(self) -> Mapping[str, str]:
        """Every node that is there now, with its type."""

    def start(self, node: str, task: Task) -> None:
        """Begin a task on a node that has none."""

    def ended(self, seconds: float) -> list[tuple[str, Result]]:
        """The nodes whose tasks have ended, with what came of each; waits so many seconds, at most, for the first."""

    def close(self) -> None:
        """End what is still running."""
