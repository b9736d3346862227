"""Ctrl-C, SIGTERM or a closed terminal during imports, which take seconds, ends the process with one line. Must be imported
before slow modules.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress

from .arguments import ENDING, UNFINISHED

_CAPTURED = "_pytest" in sys.modules
"""Whether pytest was imported first: it shows captured output if an exception ends it."""

_STDERR = os.dup(2) if sys.stderr else 2


def end_in_one_line(*_: object) -> None:
    with suppress(OSError):  # of a terminal that is closed
        os.write(_STDERR, b"attention-bench: interrupted\n")
    if _CAPTURED:
        raise SystemExit(UNFINISHED)
    os._exit(UNFINISHED)  # an import in progress can't turn this exit into another exception


def raise_from_now_on() -> None:
    """Make the signals of `ENDING` raise KeyboardInterrupt from now on, since there is work to finish."""
    for number in ENDING:
        if getattr(signal.getsignal(number), "__name__", "") == end_in_one_line.__name__:  # of any copy of this module
            signal.signal(number, signal.default_int_handler)


for number in ENDING:
    if signal.getsignal(number) in (signal.default_int_handler, signal.SIG_DFL):  # ignored behind a shell's `&`
        signal.signal(number, end_in_one_line)
signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
