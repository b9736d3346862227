"""Runs a command as a shell starts it: Ctrl-C and errors of files and of standard output end it in one line. `bench` and
`reports`, which load this module by name, need not both be there.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from stats.arguments import UNFINISHED, warn, why


def run(main: Callable[[Sequence[str]], int], package: str) -> int:
    """Return the exit code of `main(arguments)`; lines on stderr begin with the package's name."""
    prepare()
    try:
        try:
            return main(sys.argv[1:])
        finally:  # also of argparse's SystemExit
            sys.stdout.flush()
    except KeyboardInterrupt as end:
        said = [str(it) for it in (end, end.__context__) if isinstance(it, KeyboardInterrupt)]  # two, while it ended
        warn(package, next(filter(None, said), "interrupted"))
        os._exit(UNFINISHED)  # Python would take seconds to end, and print what a second Ctrl-C interrupts there
    except OSError as error:
        warn(package, f"error: {why(error)}")
        return UNFINISHED


class Output(io.FileIO):
    """A descriptor that drops all output once its reader has closed it, as `head` does. Another error, such as that of a
    full disk, is raised once, as `raised` returns it; later output is dropped.
    """

    def __init__(self, descriptor: int, raised: Callable[[OSError], Exception]):
        super().__init__(descriptor, "w", closefd=False)
        self._raised, self._lost = raised, False

    def write(self, data: Any) -> int:
        try:
            if not self._lost:
                return super().write(data)
        except BrokenPipeError:
            self._lost = True
        except OSError as error:
            self._lost = True
            raise self._raised(error) from None
        return len(data)


def prepare(raised: Callable[[OSError], Exception] = lambda error: error) -> None:
    """Make standard output an `Output`; characters outside its encoding are printed as `\\u2192`."""
    if sys.stdout is None:  # closed by `>&-`
        sys.stdout = open(os.devnull, "w", errors="backslashreplace")  # noqa: SIM115  (open until the process ends)
    elif sys.stdout is (it := sys.__stdout__):
        lines = it.line_buffering or it.write_through  # `python -u`
        buffer = io.BufferedWriter(Output(it.fileno(), raised))
        sys.stdout = io.TextIOWrapper(buffer, it.encoding, "backslashreplace", line_buffering=lines)
