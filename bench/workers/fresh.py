"""Fresh processes: gone when their parent is, and quiet when that is asked for."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from ..selection.allocator import KEEP

QUIET: Mapping[str, str] = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    **KEEP,
    "KINETO_LOG_LEVEL": "99",
}
"""What has to be set before a process starts: one thread, and an allocator that gives nothing back."""

ENDING = (signal.SIGINT, signal.SIGTERM)
"""Signals that ask for an end."""

PR_SET_PDEATHSIG = 1
"""Of Linux' prctl."""


def start(
    command: Sequence[str], *, quiet: bool = False, threads: int = 1, pinned: bool = True, **options: Any
) -> subprocess.Popen[Any]:
    """A process that ends with this one, even when this one is killed; a quiet one has so many threads, a core for each.

    One that is not `pinned` is to call `pin` itself, when it has made ready. `options` are `subprocess.Popen`'s. Call it in
    the main thread: to the kernel, the parent is the thread.
    """

    def before() -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if quiet and pinned:
            pin(threads)

    count = {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    env = os.environ | QUIET | count if quiet else None
    # What a signal raises while the interpreter's own hooks run at the fork is swallowed: it waits until they are done.
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        return subprocess.Popen(command, env=env, preexec_fn=before, **options)
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)


def pin(cores: int = 1) -> None:
    """Stay on these cores from now on, where that can be: the last of those allowed, since the first serve interrupts."""
    if hasattr(os, "sched_setaffinity"):
        mine = sorted(os.sched_getaffinity(0))[-cores:]
        for thread in os.listdir("/proc/self/task"):  # each has an affinity of its own
            os.sched_setaffinity(int(thread), mine)
