"""What keeps one implementation from taking the whole run with it: hangs end, and exits are written down first."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn, TextIO

from .outcome import NoRow, TimedOut

GRACE = 10.0
"""Seconds, at most, that a hanging call has to notice that Python interrupted it, before the process is ended."""

Note = Callable[[NoRow], object]
"""Writes down why there is no row."""


@contextmanager
def guarded(seconds: float, note: Note, faults: TextIO | None = None) -> Iterator[None]:
    """Raise `TimedOut` after `seconds`, where Python can be interrupted; where it can't, note it and end the process.

    `os._exit` is noted before it is obeyed. `faults`: where a fatal signal, or a hang that holds even the interpreter's lock,
    leaves its trace; None for stderr.
    """
    grace = min(GRACE, seconds)
    late = TimedOut(f"took longer than {seconds:g} s (--cell-timeout)")

    def interrupt(*_: Any) -> NoReturn:
        raise late

    def give_up() -> None:
        note(TimedOut(f"hung in native code for longer than {seconds:g} s (--cell-timeout): the process was ended"))
        print(f"\nthe process was ended: {late}", file=sys.stderr, flush=True)
        leave(1)

    def noted_exit(code: int) -> NoReturn:
        note(NoRow(f"ended the process with os._exit({code})"))
        leave(code)

    leave, os._exit = os._exit, noted_exit  # type: ignore[assignment]
    watch = threading.Timer(seconds + grace, give_up)
    watch.daemon = True
    watch.start()
    faulthandler.dump_traceback_later(seconds + 2 * grace, exit=True, file=faults or sys.__stderr__)  # type: ignore[arg-type]
    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)  # again every second: an implementation may swallow one
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        faulthandler.cancel_dump_traceback_later()
        watch.cancel()
        os._exit = leave
