"""Shared by the commands of `python -m bench`: a usage error is one line on stderr with its own exit code."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from pytest_benchmark.utils import parse_save

from stats.arguments import refuse_repeated

from ..terminal import as_typed, warn
from .errors import UsageError

USAGE_ERROR = 3
"""Exit code for usage errors."""


class Parser(argparse.ArgumentParser):
    """argparse with another exit code for usage errors, since 2 is used otherwise."""

    def __init__(self, command: str, usage_error: int = USAGE_ERROR, **options: object):
        super().__init__(prog=as_typed(f"python -m bench {command}"), allow_abbrev=False, **options)  # type: ignore[arg-type]
        self._usage_error = usage_error

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        refuse_repeated(self, sys.argv[1:] if args is None else args)
        return super().parse_known_args(args, namespace)

    def format_help(self) -> str:
        return as_typed(super().format_help())

    def error(self, message: str) -> NoReturn:
        raise SystemExit(complain(f"{message} (--help shows the options)", self._usage_error))


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
