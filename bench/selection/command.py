"""Shared by the commands of `python -m bench`: a usage error is one line on stderr with its own exit code."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence

from pytest_benchmark.utils import parse_save

from stats.arguments import USAGE_ERROR

from ..terminal import warn
from .errors import UsageError


def complain(message: object, code: int = USAGE_ERROR) -> int:
    """Print a message in one line on stderr; returns the exit code."""
    warn(f"error: {message}")
    return code


def said(command: str, arguments: Sequence[str] | None) -> str:
    """Return the command line for repeating the command."""
    return shlex.join(["python", "-m", "bench", command, *(sys.argv[2:] if arguments is None else arguments)])


def named(name: str, option: str) -> str:
    """Return a run's name that is valid in file names; raises `UsageError`."""
    try:
        return str(parse_save(name))
    except argparse.ArgumentTypeError as error:
        raise UsageError(f"{option} {name!r}: {str(error)[0].lower()}{str(error)[1:]}") from None
