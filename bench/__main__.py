"""`python -m bench COMMAND`: what is more than one pytest run."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module

COMMANDS: dict[str, str] = {"doctor": "doctor", "sweep": "replicates", "ab": "ab"}
"""The commands, each with the module of this room whose `main(arguments) -> exit code` answers to it."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that is named first."""
    name, *rest = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    if name in COMMANDS:
        code: int = import_module(f".{COMMANDS[name]}", __package__).main(rest)
        return code
    known = ", ".join(COMMANDS)
    if name in ("-h", "--help"):
        print(f"usage: python -m bench COMMAND [options]; commands: {known}")
        return 0
    print(f"bench: error: unknown command {name!r}; known: {known}", file=sys.stderr)
    return 3


def piped() -> int:
    """`main`, where a reader such as `head` may have seen enough before all is said."""
    try:
        code = main()
        sys.stdout.flush()
    except BrokenPipeError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())  # nobody listens: the last flush must not fail again
        return 0
    return code


if __name__ == "__main__":
    sys.exit(piped())
