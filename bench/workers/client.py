"""The parent's end of a worker's pipe: requests with a time limit; a lost process is an exception."""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import tempfile
from collections.abc import Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import TIMEOUT_MAX
from time import monotonic
from typing import Any, NamedTuple

from .. import CHECKOUT
from ..cases.outcome import Skip, TimedOut
from .fresh import start
from .worker import request as line_of

STARTING = 120.0
"""Seconds, at most, until a new process answers: importing torch takes some."""

MAIN = f"import sys; sys.path.insert(0, {str(CHECKOUT)!r}); from bench.workers.worker import main; main()"

Answer = dict[str, Any]


class Lost(Skip):
    """The process is gone."""


class Hung(Lost, TimedOut):
    """The process took too long, and was ended."""

    reason = "timeout"


class Unusable(Lost):
    """A request failed, and the process is of no use any more; `reason` is the outcome's."""

    def __init__(self, reason: str, detail: str):
        super().__init__(detail)
        self.reason = reason


class Refused(Skip):
    """A request failed, and the process lives; `reason` is the outcome's."""

    def __init__(self, reason: str, detail: str):
        super().__init__(detail)
        self.reason = reason


@dataclass(frozen=True)
class Side:
    """Where the code of one side comes from, and which process runs it."""

    label: str
    """What a reader calls it."""
    impls: Path = CHECKOUT
    """The folder in which `impls` lies."""
    python: str = sys.executable
    tree: Path | None = None
    """A tree of `Setting.repository`, where the user's modules differ between the sides; None where they don't."""
    impl: str | None = None
    """The one implementation of this side, where two are compared; None where both sides run the same names."""
    slower: Mapping[str, float] = field(default_factory=dict)
    """Shares by which implementations are made slower, to find out whether that is found."""
    commit: str | None = None
    """Of a revision."""

    @property
    def code(self) -> Path:
        """The folder with the code that is this side's own."""
        return self.tree or self.impls / "impls"


@dataclass(frozen=True)
class Setting:
    """What is the same on both sides."""

    folder: str
    """Where the user started: what lies there can be imported."""
    threads: int | None = 1
    """None for what torch starts with."""
    timeout: float = 300.0
    """Seconds, at most, of one request."""
    quiet: bool = True
    """Whether a worker has an allocator that gives nothing back, and as many cores as threads once it is pinned."""
    repository: Path = CHECKOUT
    """The git repository around `folder`, of which each side may have a tree."""


class WorkerClient:
    """A worker process of one side."""

    def __init__(self, side: Side, setting: Setting):
        folder = Path(setting.folder)
        if side.tree:
            below = side.tree / folder.relative_to(setting.repository)
            folder = below if below.is_dir() else side.tree
        given = {
            "impls": str(side.impls),
            "folder": str(folder),
            "trees": [str(setting.repository), str(side.tree)] if side.tree else None,
            "threads": setting.threads,
            "slower": dict(side.slower),
        }
        self._timeout = setting.timeout
        self._deadline = 0.0
        self._patience = 0.0
        self._unread = b""
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115  (as long as the process lives)
        self._process = start(
            [side.python, "-P", "-c", MAIN, json.dumps(given)],
            quiet=setting.quiet,
            threads=setting.threads or 1,
            pinned=False,
            cwd=folder,
            stdin=-1,
            stdout=-1,
            stderr=self._stderr,
            bufsize=0,
        )

    def ask(self, do: str, timeout: float | None = None, **details: Any) -> Answer:
        """Raises `Refused` when it fails, and `Lost` when the process is gone or doesn't answer in time."""
        self.send(do, timeout, **details)
        return self.receive()

    def send(self, do: str, timeout: float | None = None, **details: Any) -> None:
        """Ask, and leave the answer for `receive`; raises `Lost`."""
        assert self._process.stdin
        self._patience = min(self._timeout if timeout is None else timeout, TIMEOUT_MAX)
        self._deadline = monotonic() + self._patience
        try:
            self._process.stdin.write(line_of(do, **details).encode())
        except OSError:
            raise Lost(self._exit_reason()) from None

    def receive(self) -> Answer:
        """The answer to what was sent; raises as `ask` does."""
        answer: Answer = json.loads(self._line())
        if "failed" in answer:
            raise (Unusable if answer.get("unusable") else Refused)(answer["failed"], answer["detail"])
        return answer

    def fileno(self) -> int:
        """Of the pipe that the answer comes from, so that several can be waited for."""
        assert self._process.stdout
        return self._process.stdout.fileno()

    def close(self) -> None:
        """End the process, and let go of its pipes."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._stderr):
            if pipe:
                pipe.close()

    @property
    def left(self) -> float:
        """Seconds until an answer is too late."""
        return max(0.0, self._deadline - monotonic())

    def _line(self) -> bytes:
        while b"\n" not in self._unread:
            if not select.select([self], [], [], self.left)[0]:
                self._process.kill()
                raise Hung(f"took longer than {self._patience:g} s (--cell-timeout): its process was ended")
            if not (read := os.read(self.fileno(), 1 << 16)):
                raise Lost(self._exit_reason())
            self._unread += read
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def _exit_reason(self) -> str:
        """How the process ended, with the last thing it said."""
        code = self._process.wait()
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        self._stderr.seek(0)
        said = self._stderr.read().decode(errors="replace").strip().splitlines()
        return f"ended its process ({how})" + (f": {said[-1]}" if said else "")


class Request(NamedTuple):
    """What to ask a worker for."""

    client: WorkerClient
    do: str
    details: dict[str, Any]
    threaded: bool = False
    """Whether its calls use several threads: they would wait at each parallel region for a core that another worker uses, so
    that it is made while no other is.
    """


Script = Generator[Request, Answer, None]
"""What is asked of one worker after another: yields requests, and gets the answer of each, or what it raised."""


def together(scripts: Sequence[Script]) -> None:
    """Run scripts side by side, each with a worker of its own, in this one thread: a child ends with its parent's thread."""
    asked: dict[Script, Request] = {}
    waiting: dict[Script, Request] = {}
    for script in scripts:
        _advance(script, asked, None)
    while asked or waiting:
        for script, request in list(asked.items()):
            if waiting and any(it.threaded for it in (request, *waiting.values())):
                break  # in the order in which they were asked
            del asked[script]
            try:
                request.client.send(request.do, **request.details)
            except Skip as outcome:
                _advance(script, asked, outcome)
            else:
                waiting[script] = request
        clients = [it.client for it in waiting.values()]
        answered = select.select(clients, [], [], min((it.left for it in clients), default=0.0))[0]
        for script, request in list(waiting.items()):
            if request.client in answered or not request.client.left:
                del waiting[script]
                try:
                    answer: Answer | Skip = request.client.receive()
                except Skip as outcome:
                    answer = outcome
                _advance(script, asked, answer)


def _advance(script: Script, asked: dict[Script, Request], answer: Answer | Skip | None) -> None:
    """Give a script its answer, and take what it asks next."""
    with suppress(StopIteration):
        asked[script] = script.throw(answer) if isinstance(answer, Skip) else script.send(answer)  # type: ignore[arg-type]


def checking(
    client: WorkerClient, what: str, impl: str, case: Mapping[str, Any], threaded: bool, keep: bool = True
) -> Generator[Request, Answer, Answer]:
    """Check a cell for correctness; gives the answer of `Tasks.check`, with the seconds of both requests."""
    probed = yield Request(client, "probe", {"what": what, "impl": impl, "case": case})
    found = yield Request(client, "check", {"what": what, "keep": keep}, threaded)
    spent = {it: probed["spent"].get(it, 0.0) + s for it, s in found["spent"].items()}
    return found | {"spent": spent}
