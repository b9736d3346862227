"""A worker process: does what is requested over a pipe, for as long as its parent lives.

One JSON line is a request, `{"do": "time", ...}`, and one JSON line its answer; `Tasks` says which there are. What fails is
answered `{"failed": reason, "detail": sentence, "unusable": whether this process can do nothing else now}`. Needs torch,
NumPy and psutil, and no other package.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TextIO


def main() -> None:
    """Its argument is `{"impls": FOLDER, "folder": FOLDER, "trees": [FOLDER, FOLDER], "threads": 1, "slower": {}}` as JSON."""
    given = json.loads(sys.argv[1])
    sys.path.insert(0, given.pop("impls"))  # bench is known by now: `impls` alone comes from there
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    requests, answers = _own_pipes()
    from .tasks import Tasks

    if trees := given.pop("trees"):
        _search(Path(trees[0]), Path(trees[1]), given["folder"])
        given["tree"] = trees[1]
    tasks, process = Tasks(**given), os.getpid()
    gc.freeze()  # a garbage collection, two of which a check makes, looks at torch's modules for 0.1 s
    for line in requests:
        request = json.loads(line)
        try:
            answer = getattr(tasks, request.pop("do"))(**request)
        except BaseException as error:
            answer = _failure(error)
        if os.getpid() != process:
            os._exit(0)  # an implementation forked, and both went on: one of them answers
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _search(repository: Path, tree: Path, folder: str) -> None:
    """Find the user's modules in a tree of their repository, also where an editable installation names the repository."""
    from ..selection.choice import MODULES

    def moved(place: str) -> str:
        there = Path(place).resolve()
        below = tree / there.relative_to(repository) if there.is_relative_to(repository) else None
        return str(below) if below and below.is_dir() else place

    own = [place for place in os.environ.pop(MODULES, "").split(os.pathsep) if place]
    sys.path[2:] = map(moved, [*sys.path[2:], *own, folder, str(tree)])  # the first two are the suite's


def _failure(error: BaseException) -> dict[str, Any]:
    """The answer to a request that raised. A device that computes nothing any more makes the process unusable."""
    from ..cases.outcome import StillWorking, classify
    from ..timing.devices import DEVICES

    outcome = classify(error)
    unusable = isinstance(outcome, StillWorking) or not all(device.works() for device in DEVICES.values())
    return {"failed": outcome.reason, "detail": str(outcome), "unusable": unusable}


def _own_pipes() -> tuple[Iterable[str], TextIO]:
    """The pipes that this process was given, where no implementation finds them: what it prints goes to stderr."""
    requests, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    return requests, answers


def request(do: str, **details: Any) -> str:
    """A line for a worker."""
    return json.dumps({"do": do} | details) + "\n"


if __name__ == "__main__":
    main()
