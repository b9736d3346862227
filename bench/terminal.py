"""Output streams that tolerate a closed reader."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO, cast

from stats.arguments import USAGE_ERROR, as_typed


class TolerantStream:
    """Stream whose reader may close it early, as `head` does: further output is dropped, the exit code is unchanged.

    Further output is dropped after another error, such as that of a full disk, too: it is raised once, `raised` from it.
    """

    def __init__(self, stream: TextIO, raised: Callable[[OSError], Exception] = lambda error: error):
        self._stream, self._raised = stream, raised
        self._lost = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with self._tolerating_closed_reader():
            if not self._lost:
                self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with self._tolerating_closed_reader():
            if self._lost:
                close()  # again, since pytest's capture restores the descriptor
            self._stream.flush()

    @contextmanager
    def _tolerating_closed_reader(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            close()
        except OSError as error:
            close()
            self._lost = True
            raise self._raised(error) from None


def prepare(raised: Callable[[OSError], Exception] = lambda error: error) -> None:
    """Make standard output a `TolerantStream`; characters outside its encoding are printed as `\\u2192`."""
    if sys.stdout is None:  # closed by `>&-`
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  (as long as the process lives)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
        sys.stdout = cast(TextIO, TolerantStream(sys.stdout, raised))


def close() -> None:
    """Drop buffered and further output."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def warn(text: str) -> None:
    """Print one line on stderr, prefixed with the command's name."""
    print(as_typed(f"bench: {text}"), file=sys.stderr, flush=True)


def complain(message: object, code: int = USAGE_ERROR) -> int:
    """Print an error in one line on stderr; returns the exit code."""
    warn(f"error: {message}")
    return code
