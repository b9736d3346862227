"""The parent's end of a worker's pipe: asks, waits for a stated time, and knows when the other end is gone."""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

from .cells import Key
from .fresh import start
from .outcome import NoRow
from .worker import request

CHECKOUT = Path(__file__).resolve().parent.parent

STARTING = 120.0
"""Seconds, at most, until a new process answers: importing torch takes some."""


class Lost(NoRow):
    """The process is gone, or was ended because it hung."""


class Refused(NoRow):
    """A request failed, and the process lives; `reason` is the outcome's."""

    def __init__(self, reason: str, detail: str):
        super().__init__(detail)
        self.reason = reason


@dataclass(frozen=True)
class Side:
    """Where the code of one side comes from, and which process runs it."""

    label: str
    """What a reader calls it."""
    impls: Path
    """The folder in which `impls` lies."""
    python: str = sys.executable
    impl: str | None = None
    """The one implementation of this side, where two are compared; None where both sides run the same names."""
    slower: Mapping[str, float] = field(default_factory=dict)
    """Shares by which implementations are made slower, to find out whether that is found."""


@dataclass(frozen=True)
class Setting:
    """What is the same on both sides."""

    folder: str
    """Where the user started: what lies there can be imported."""
    threads: int = 1
    timeout: float = 300.0
    """Seconds, at most, of one request."""


class Peer:
    """A worker process of one side, quiet, and pinned when it is told to be."""

    def __init__(self, side: Side, setting: Setting):
        told = {
            "impls": str(side.impls),
            "folder": setting.folder,
            "threads": setting.threads,
            "slower": dict(side.slower),
        }
        self._timeout = setting.timeout
        self._unread = b""
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115  (as long as the process lives)
        self._process = start(
            [side.python, "-m", "bench.worker", json.dumps(told)],
            quiet=True,
            threads=setting.threads,
            pinned=False,
            cwd=CHECKOUT,
            stdin=-1,
            stdout=-1,
            stderr=self._stderr,
            bufsize=0,
        )

    def ask(self, do: str, timeout: float | None = None, **details: Any) -> dict[str, Any]:
        """Raises `Refused` when it fails, and `Lost` when there is nobody to answer, any more or in time."""
        assert self._process.stdin
        try:
            self._process.stdin.write(request(do, **details).encode())
        except OSError:
            raise Lost(self._epitaph()) from None
        answer: dict[str, Any] = json.loads(self._line(self._timeout if timeout is None else timeout))
        if "failed" in answer:
            raise Refused(answer["failed"], answer["detail"])
        return answer

    def kill(self) -> None:
        """End the process: who waits for its answer gets `Lost`."""
        self._process.kill()

    def close(self) -> None:
        """End the process, and let go of its pipes."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._stderr):
            if pipe:
                pipe.close()

    def _line(self, seconds: float) -> bytes:
        assert self._process.stdout
        until, pipe = monotonic() + seconds, self._process.stdout
        while b"\n" not in self._unread:
            if not select.select([pipe], [], [], max(0.0, until - monotonic()))[0]:
                self._process.kill()
                raise Lost(f"took longer than {seconds:g} s: its process was ended")
            if not (read := os.read(pipe.fileno(), 1 << 16)):
                raise Lost(self._epitaph())
            self._unread += read
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def _epitaph(self) -> str:
        """How the process ended, with the last thing it said."""
        code = self._process.wait()
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        self._stderr.seek(0)
        said = self._stderr.read().decode(errors="replace").strip().splitlines()
        return f"ended its process ({how})" + (f": {said[-1]}" if said else "")


@dataclass
class Timer:
    """A fresh process that prepares and times what it is asked for by key: a cell's, or a control's."""

    peer: Peer
    cells: Mapping[Key, Mapping[str, Any]]
    """What to send for a cell: the implementation's name on this side, and the case."""

    def prepare(self, key: Key) -> float:
        """Seconds of one warm call."""
        if key in self.cells:
            return float(self.peer.ask("prepare", what=" ".join(key), **self.cells[key])["seconds"])
        return float(self.peer.ask("control", what=" ".join(key), name=key[1])["seconds"])

    def pin(self) -> None:
        self.peer.ask("pin")

    def time(self, key: Key, calls: int, stretches: int, warm: bool) -> float:
        """Seconds of one call in the fastest of so many stretches of calls; with an untimed one before them."""
        answer = self.peer.ask("time", what=" ".join(key), calls=calls, stretches=stretches, warm=warm)
        return float(answer["seconds"])

    def kill(self) -> None:
        self.peer.kill()

    def close(self) -> None:
        self.peer.close()
