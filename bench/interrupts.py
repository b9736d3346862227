"""Ctrl-C during imports, which take seconds, ends the process with one line. Must be imported before other modules."""

from __future__ import annotations

import os
import signal
import sys

from . import INSTALLED

UNFINISHED = 2
"""Exit code of interrupted commands."""

_CAPTURED = "_pytest" in sys.modules
"""Whether pytest was imported first: it shows captured output if an exception ends it."""

_STDERR = os.dup(2) if sys.stderr else 2


def end_in_one_line(*_: object) -> None:
    os.write(_STDERR, b"attention-bench: interrupted\n" if INSTALLED else b"bench: interrupted\n")
    if _CAPTURED:
        raise SystemExit(UNFINISHED)
    os._exit(UNFINISHED)  # an import in progress can't turn this exit into another exception


def raise_from_now_on() -> None:
    """Make Ctrl-C raise KeyboardInterrupt from now on, since there is work to finish."""
    handler = signal.getsignal(signal.SIGINT)
    if getattr(handler, "__name__", "") == end_in_one_line.__name__:  # of any copy of this module
        signal.signal(signal.SIGINT, signal.default_int_handler)


if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # ignored behind a shell's `&`
    signal.signal(signal.SIGINT, end_in_one_line)
