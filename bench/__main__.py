"""`python -m bench COMMAND`, or `python PATH/TO/bench COMMAND` from anywhere: what is more than one pytest run."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any, TextIO, cast

if not __package__:  # started by its path: no package `bench` of the user's may stand in for this one
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
    __package__ = "bench"

COMMANDS: dict[str, str] = {"doctor": "runs.doctor", "sweep": "runs.replicates", "ab": "ab.ab", "bisect": "ab.bisect"}
"""The commands, each with the module whose `main(arguments) -> exit code` answers to it."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that is named first."""
    name, *rest = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    if name in COMMANDS:
        try:
            command = import_module(f".{COMMANDS[name]}", __package__)
        except Exception as error:
            if "impls" in sys.modules:
                raise
            print(f"bench: BROKEN: impls can't be imported: {type(error).__name__}: {error}", file=sys.stderr)
            return 1
        code: int = command.main(rest)
        return code
    known = ", ".join(COMMANDS)
    if name in ("-h", "--help"):
        print(f"usage: python -m bench COMMAND [options]; commands: {known}")
        return 0
    print(f"bench: error: unknown command {name!r}; known: {known}", file=sys.stderr)
    return 3


class Patient:
    """Standard output whose reader may leave early, as `head` does: the rest is dropped, and the exit code stays."""

    def __init__(self, stream: TextIO):
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with self._listened_to():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with self._listened_to():
            self._stream.flush()

    @contextmanager
    def _listened_to(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())  # what is still in its buffer goes there


if __name__ == "__main__":
    sys.stdout = cast(TextIO, Patient(sys.stdout))
    ended = main()
    sys.stdout.flush()
    sys.exit(ended)
