"""Starts fresh processes, which end with their parent, optionally under controlled conditions."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from stats.arguments import ENDING

from ..timing.malloc import KEEP

PR_SET_PDEATHSIG = 1
"""Option of Linux's prctl: signal sent when the parent ends."""


def quiet_environment(threads: int = 1) -> dict[str, str]:
    """Return the environment of a process that has this many threads and an allocator that returns no memory."""
    return {**os.environ, **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(threads)), **KEEP}


def start(command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
    """Start a process that ends with this one, even if this one is killed.

    `options` are those of `subprocess.Popen`. Must be called in the main thread, which the kernel treats as the parent.
    """

    def before() -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)

    # An exception raised by a signal during the interpreter's fork hooks is lost: delay the signal until they end.
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        return subprocess.Popen(command, preexec_fn=before, **options)
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)


def pin(cores: int = 1) -> None:
    """Pin this process to the last of the allowed cores, if possible, since the first ones serve interrupts."""
    if hasattr(os, "sched_setaffinity"):
        mine = sorted(os.sched_getaffinity(0))[-cores:]
        for thread in os.listdir("/proc/self/task"):  # each thread has its own affinity
            with suppress(ProcessLookupError):  # it has ended
                os.sched_setaffinity(int(thread), mine)
