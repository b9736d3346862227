"""Clients of worker processes: requests over a pipe, each with a time limit. The request that loses a process raises
`Lost`; the next one gets a new process.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import Pipe
from pathlib import Path
from threading import TIMEOUT_MAX
from time import monotonic
from typing import Any, NamedTuple, Self

from .. import CHECKOUT
from ..cases.outcome import BEGINS, Skip, printable
from ..selection.errors import UsageError
from ..timing.malloc import HUGE_PAGES
from .fresh import quiet_environment, start

STARTING = 300.0
"""Least limit for the first reply of a new process, in seconds, which includes importing torch."""

MAIN = f"import sys; sys.path.insert(0, {str(CHECKOUT)!r}); from bench.workers.worker import main; main()"
"""Program of a worker process."""

Reply = dict[str, Any]
"""Reply to a request, or an object in it, as JSON."""


class Lost(Skip):
    """The process has ended, was killed since it took too long, or is unusable."""


@dataclass(frozen=True)
class Variant:
    """A variant: the source of its code and the process that runs it."""

    label: str = ""
    """Name shown to the user; '' if there is one variant."""
    impls: Path = CHECKOUT
    """Folder that contains the package `impls`."""
    python: str = sys.executable
    versions: str = ""
    """Versions of a compared interpreter."""
    tree: Path | None = None
    """A tree of `WorkerSettings.repository`, if the user's modules differ between the variants; else None."""
    extensions: Path | None = None
    """Folder in which torch's `load_inline` builds; None: the user's cache. If both variants built the same name in one
    folder, the second would import the library of the first.
    """
    impl: str | None = None
    """The variant's implementation if two are compared; None if both variants run the same names."""
    slower: Mapping[str, float] = field(default_factory=dict)
    """Shares by which implementations are slowed down, to test detection."""
    commit: str | None = None
    """Commit of a revision."""


@dataclass(frozen=True)
class WorkerSettings:
    """Settings of worker processes, shared by both variants."""

    folder: str
    """The user's current folder, from which modules can be imported."""
    threads: int | None = 1
    """Threads of a worker, whose allocator then keeps freed memory; None: torch's default, and the user's environment."""
    timeout: float = 300.0
    """Most seconds of one request."""
    repository: Path = CHECKOUT
    """Git repository around `folder`; each variant may have its own tree of it."""
    deterministic: bool = False
    """Whether some case runs under deterministic algorithms."""


class WorkerClient:
    """A worker process of one variant."""

    lost = False
    """Whether a request has raised `Lost`."""

    def __init__(self, variant: Variant, setting: WorkerSettings):
        folder = Path(setting.folder)
        if variant.tree:
            below = variant.tree / folder.relative_to(setting.repository)
            folder = below if below.is_dir() else variant.tree
        self._pipe, theirs = Pipe()
        given = {
            "pipe": theirs.fileno(),
            "impls": variant.impls,
            "folder": folder,
            "repository": setting.repository,
            "tree": variant.tree,
            "threads": setting.threads,
        }
        self.first: Reply = {}
        """Reply to the first request, once that has arrived."""
        self.ready: dict[Any, Any] = {}
        """The caller's data on the cells that are ready to be timed in this process."""
        self._timeout = setting.timeout
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115  (open until the process ends)
        environment = {**quiet_environment(setting.threads), **HUGE_PAGES} if setting.threads else {**os.environ}
        if variant.extensions:
            environment["TORCH_EXTENSIONS_DIR"] = str(variant.extensions)
        if setting.deterministic:  # torch reads it once, at its first product
            environment.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        self._process = start(
            [variant.python, "-P", "-c", MAIN, json.dumps(given, default=str)],
            env=environment,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=self._stderr,
            stderr=self._stderr,
            pass_fds=[theirs.fileno()],
        )
        theirs.close()

    def ask(self, do: str, **details: Any) -> Reply:
        """Send a request and return its reply; raises `Skip` if it fails, and `Lost` if the process can't go on."""
        return self.send(do, **details).receive()

    def send(self, do: str, **details: Any) -> Self:
        """Send a request, whose reply `receive` returns. The limit of the first one includes the start of the process."""
        limit, what = (self._timeout, "") if self.first else (max(STARTING, self._timeout), "to start ")
        self._deadline = monotonic() + min(limit, TIMEOUT_MAX)
        self._overdue = f"took longer than {limit:g} s {what}(--cell-timeout): its process was ended"
        self._printed = os.fstat(self._stderr.fileno()).st_size
        with suppress(OSError):  # it has ended, as `receive` finds
            self._pipe.send_bytes(json.dumps({"do": do} | details).encode())
        return self

    def receive(self) -> Reply:
        """Return the reply to the request sent; raises as `ask` does."""
        if select.select([self], [], [], self.left)[0]:
            try:
                reply: Reply = json.loads(self._pipe.recv_bytes())
            except (EOFError, OSError):
                with suppress(subprocess.TimeoutExpired):  # it closed the pipe alone
                    self._process.wait(self.left)
                    raise self._lose(self._exit_reason()) from None
            else:
                if "failed" in reply:
                    raise (self._lose if reply["unusable"] else Skip)(reply["detail"], reply["failed"])
                return reply
        raise self._lose(f"{self._place()}{self._overdue}", "timeout")

    def fileno(self) -> int:
        """Return the descriptor of the pipe, for waiting on several workers."""
        return self._pipe.fileno()

    def close(self) -> None:
        """End the process and close its pipe; it may be closed already."""
        self._process.kill()
        self._process.wait()
        self._pipe.close()
        self._stderr.close()

    @property
    def left(self) -> float:
        """Seconds until the reply is overdue."""
        return max(0.0, self._deadline - monotonic())

    def _lose(self, detail: str, reason: str | None = None) -> Lost:
        """End the process; returns the exception to raise."""
        self.lost = True
        self._process.kill()
        return Lost(detail, reason)

    def _exit_reason(self) -> str:
        """Describe how the process ended, with the last line of the implementation's since the request."""
        code = self._process.wait()
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        printed = [it for it in self._lines() if not it.startswith(BEGINS)]
        return f"{self._place()}ended its process ({how})" + (f": {printable(printed[-1])}" if printed else "")

    def _place(self) -> str:
        """Return the check that was begun last since the request, and a colon; empty without one."""
        return next((f"{it.removeprefix(BEGINS)}: " for it in reversed(self._lines()) if it.startswith(BEGINS)), "")

    def _lines(self) -> list[str]:
        """Return the lines printed since the request. The process, which may still run, writes at the file's own offset."""
        file = self._stderr.fileno()
        printed = os.pread(file, os.fstat(file).st_size - self._printed, self._printed).decode(errors="replace")
        return [stripped for line in printed.splitlines() if (stripped := line.strip())]


class Request(NamedTuple):
    """A request to a worker."""

    client: WorkerClient
    do: str
    details: dict[str, Any]
    alone: bool = False
    """Whether no other request runs at the same time."""


Script = Generator[Request, Reply, None]
"""A sequence of requests to workers: yields requests, and receives each reply or its exception."""


def run_concurrently(scripts: Sequence[Script]) -> None:
    """Run scripts concurrently, each with its own worker. Uses one thread, since a worker ends with its parent's thread."""
    pending: dict[Script, Request] = {}
    sent: dict[Script, Request] = {}

    def advance(script: Script, reply: Reply | Skip | None = None) -> None:
        """Pass a script its reply, and store its next request."""
        with suppress(StopIteration):
            pending[script] = script.throw(reply) if isinstance(reply, Skip) else script.send(reply)  # type: ignore[arg-type]

    for script in scripts:
        advance(script)
    while pending or sent:
        for script, request in list(pending.items()):
            if sent and any(it.alone for it in (request, *sent.values())):
                break  # it waits for those sent before
            sent[script] = pending.pop(script)
            request.client.send(request.do, **request.details)
        clients = [it.client for it in sent.values()]
        replied = select.select(clients, [], [], min(it.left for it in clients))[0]
        for script, request in list(sent.items()):
            if request.client in replied or not request.client.left:
                del sent[script]
                try:
                    reply: Reply | Skip = request.client.receive()
                except Skip as outcome:
                    reply = outcome
                advance(script, reply)


def checking(
    client: WorkerClient, cell: dict[str, Any], alone: bool, passed: set[str], **options: bool | str
) -> Generator[Request, Reply, Reply]:
    """Check a cell for correctness; returns the reply of `Tasks.check`, which gets the options. `cell`: as in `Tasks.probe`.
    `passed`: checks of the implementation that were passed in any process, and are not repeated; those of this request are
    added.
    """
    reply = yield Request(client, "probe", cell | {"passed": [*passed]})
    passed.update(reply["passed"])
    return (yield Request(client, "check", {"what": cell["what"]} | options, alone))


class NamedWorkers(dict[str, WorkerClient]):
    """The worker processes of a measurement by name, from its creation to `close`. They start at the same time.

    `workers[name]` waits until the process has started, and replaces it if it is lost; raises `Lost` if it can't start, and
    `UsageError` if it can't use the device.
    """

    def __init__(self, names: Iterable[str], begin: Callable[[str], WorkerClient]):
        """`begin`: starts the process of a name, and sends its first request."""
        self._begin = begin
        super().__init__((name, begin(name)) for name in names)

    def __getitem__(self, name: str) -> WorkerClient:
        client = super().__getitem__(name)
        if client.lost:
            client.close()
            client = self[name] = self._begin(name)
        client.first = client.first or client.receive()
        if why := client.first.get("unusable"):
            raise UsageError(why)
        return client

    def close(self) -> None:
        for client in self.values():
            client.close()
