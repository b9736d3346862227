"""Worker processes of a measurement, by home: each imports the code that it runs, and a lost one is replaced."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .client import STARTING, Answer, WorkerClient

Start = Callable[[str], WorkerClient]
"""Starts the process of a home."""


class Team:
    """One process for each home, from its creation to `close`."""

    def __init__(self, start: Start, imports: Mapping[str, Mapping[str, Any]]):
        """`imports`: by home, the details of the request `cells`, which every process of that home gets first."""
        self._start, self._imports = start, imports
        self.clients: dict[str, WorkerClient] = {}
        for home in imports:
            self._begin(home)

    def known(self, home: str) -> Answer:
        """Return a new process's reply to `cells`; raises `Skip` if the process ends."""
        return self.clients[home].receive()

    def replace(self, home: str) -> Answer:
        """Replace a lost process; returns and raises as `known`."""
        self.clients[home].close()
        self._begin(home)
        return self.known(home)

    def close(self) -> None:
        for client in self.clients.values():
            client.close()

    def _begin(self, home: str) -> None:
        self.clients[home] = self._start(home)
        self.clients[home].send("cells", STARTING, **self._imports[home])
