"""Imported before all else: what is needed takes seconds to import, and Ctrl-C meanwhile is one line."""

from __future__ import annotations

import os
import signal
import sys

from . import INSTALLED

UNFINISHED = 2
"""Exit code of what was interrupted."""

_CAPTURED = "_pytest" in sys.modules
"""Whether pytest came first: what is printed then is shown when an exception ends it."""

_STDERR = os.dup(2) if sys.stderr else 2


def end_in_one_line(*_: object) -> None:
    os.write(_STDERR, b"attention-bench: interrupted\n" if INSTALLED else b"bench: interrupted\n")
    if _CAPTURED:
        raise SystemExit(UNFINISHED)
    os._exit(UNFINISHED)  # no module that is being imported makes something else of it


def started() -> None:
    """From now on Ctrl-C is a KeyboardInterrupt: there is something to finish."""
    handler = signal.getsignal(signal.SIGINT)
    if getattr(handler, "__name__", "") == end_in_one_line.__name__:  # this module's, or its twin's by another name
        signal.signal(signal.SIGINT, signal.default_int_handler)


if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else it is ignored, as behind a shell's `&`
    signal.signal(signal.SIGINT, end_in_one_line)
