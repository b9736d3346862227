"""A worker process: executes requests from a pipe until its parent ends.

A request is one JSON line, `{"do": "time", ...}`, and so is its reply; `Tasks` defines the requests. Failures are
reported as `{"failed": reason, "detail": sentence, "unusable": whether this process can do nothing else now}`. A blank
line before a reply means that the request has made its calls. Needs torch, NumPy and psutil, and no other package.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Any, TextIO


def main() -> None:
    """Run the worker; its argument is `{"impls": FOLDER, "folder": FOLDER, "trees": [FOLDER, FOLDER], "threads": 1,
    "slower": {}, "deterministic": false}`.
    """
    given = json.loads(sys.argv[1])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is handled by the parent
    requests, replies = _own_pipes()
    sys.path.insert(0, impls := given.pop("impls"))
    import_module("impls")
    sys.path.remove(impls)  # where a revision of the suite has its other packages, too
    from ..cases.accounting import spent
    from .tasks import Tasks

    if trees := given.pop("trees"):
        _search(Path(trees[0]), Path(trees[1]), given["folder"])
        given["tree"] = trees[1]

    def report_calls_done() -> None:
        replies.write("\n")
        replies.flush()

    tasks, process = Tasks(**given, on_calls_done=report_calls_done), os.getpid()
    gc.freeze()  # each garbage collection, two per check, would scan torch's modules for 0.1 s
    for line in requests:
        request, before = json.loads(line), spent()
        try:
            reply = getattr(tasks, request.pop("do"))(**request)
        except BaseException as error:
            reply = _failure(error)
        if os.getpid() != process:
            os._exit(0)  # an implementation forked, and both processes continued: only one of them replies
        seconds = {purpose: s - before.get(purpose, 0.0) for purpose, s in spent().items() - before.items()}
        replies.write(json.dumps(reply | {"spent": seconds}) + "\n")
        replies.flush()


def _search(repository: Path, tree: Path, folder: str) -> None:
    """Import the user's modules from a tree of their repository, even if it has an editable installation."""
    from ..selection.choice import MODULES

    def moved(place: str) -> str:
        there = Path(place).resolve()
        below = tree / there.relative_to(repository) if there.is_relative_to(repository) else None
        return str(below) if below and below.is_dir() else place

    own = [place for place in os.environ.pop(MODULES, "").split(os.pathsep) if place]
    suite, *others = sys.path
    sys.path[:] = [*map(moved, [*others, *own, folder, str(tree)]), suite]


def _failure(error: BaseException) -> dict[str, Any]:
    """Return the reply to a failed request. A device that no longer computes makes the process unusable."""
    from ..cases.outcome import StillWorking, classify
    from ..timing.devices import DEVICES

    outcome = classify(error)
    unusable = isinstance(outcome, StillWorking) or not all(device.works() for device in DEVICES.values())
    return {"failed": outcome.reason, "detail": str(outcome), "unusable": unusable}


def _own_pipes() -> tuple[Iterable[str], TextIO]:
    """Take over this process's pipes, out of reach of implementations, whose output goes to stderr."""
    requests, replies = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    return requests, replies


if __name__ == "__main__":
    main()
