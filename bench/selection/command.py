"""Shared by the commands of `python -m bench`: a usage error is one line on stderr with its own exit code."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence

from stats.arguments import USAGE_ERROR

from ..terminal import warn


def complain(message: object, code: int = USAGE_ERROR) -> int:
    """Print a message in one line on stderr; returns the exit code."""
    warn(f"error: {message}")
    return code


def command_line(command: str, arguments: Sequence[str] | None) -> str:
    """Return the command line of `python -m bench COMMAND`; None stands for this process's own arguments."""
    return shlex.join(["python", "-m", "bench", command, *(sys.argv[2:] if arguments is None else arguments)])
