"""A worker process: executes requests from a pipe until its parent ends.

A request is one message in JSON, `{"do": "time", ...}`, and so is its reply; `Tasks` defines the requests. Failures are
reported as `{"failed": reason, "detail": sentence, "unusable": whether this process can do nothing else now}`. Needs torch,
NumPy and psutil, and no other package.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any


def main() -> None:
    """Run the worker; its argument is `{"pipe": descriptor, "impls": FOLDER, "folder": FOLDER, "repository": FOLDER,
    "tree": FOLDER or null, "threads": 1}`.
    """
    given = json.loads(sys.argv[1])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is handled by the parent
    gc.disable()  # each collection would scan the modules imported so far, torch's for 0.1 s
    pipe = Connection(given.pop("pipe"))
    os.set_inheritable(pipe.fileno(), False)  # a program that an implementation starts would keep it open
    sys.path.insert(0, impls := given.pop("impls"))
    import_module("impls")
    sys.path.remove(impls)  # where a revision of the suite has its other packages, too
    from .tasks import Tasks
    from .tree import Tree, opened, search

    repository, tree = Path(given.pop("repository")), given["tree"]
    if tree:
        search(repository, Path(tree), given["folder"])
        given["tree"] = Tree(given["folder"], Path(tree), repository, opened(repository))
    os.fork = _refuse_fork
    tasks, process = Tasks(**given), os.getpid()
    gc.freeze()  # nor do later ones scan them, two per check
    gc.enable()
    while True:
        request = json.loads(pipe.recv_bytes())
        try:
            reply = getattr(tasks, request.pop("do"))(**request) or {}
        except BaseException as error:
            reply = _failure(error)
        if os.getpid() != process:
            os._exit(0)  # an implementation forked, and both processes continued: only one of them replies
        pipe.send_bytes(json.dumps(reply).encode())


def _refuse_fork() -> int:
    """Replaces `os.fork`: a child that returns to this process's loops would fork again in every further call."""
    raise RuntimeError("os.fork() in a worker process: start a program instead, by subprocess")


def _failure(error: BaseException) -> dict[str, Any]:
    """Return the reply to a failed request. A device that no longer computes makes the process unusable, and so does a failed
    allocation where pages are kept: glibc then takes this thread's memory from another arena, whose pages are not.
    """
    from torch import OutOfMemoryError

    from ..cases.outcome import OutOfMemory, Unusable, classify
    from ..timing.devices import DEVICES
    from ..timing.malloc import keeps_pages

    outcome, cause = classify(error), error.__cause__ or error
    failed = isinstance(outcome, OutOfMemory) and not isinstance(cause, OutOfMemory | OutOfMemoryError)
    works = all(device.works() for device in DEVICES.values())
    unusable = isinstance(outcome, Unusable) or not works or (failed and keeps_pages())
    return {"failed": outcome.reason, "detail": str(outcome), "unusable": unusable}
