"""What the commands share: options about results, mistakes in one line, and exit codes that a script can tell apart."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from . import runs
from .runs import RunError

FINE = 0
REGRESSED = 1
NOT_JUDGED = 2
USAGE_ERROR = 3


class Parser(argparse.ArgumentParser):
    """argparse that tells a mistake in one line, and ends with 3: its own 2 means that nothing could be judged."""

    mistake = USAGE_ERROR

    def error(self, message: str) -> NoReturn:
        sys.exit(complain(f"{message} (--help shows the options)", self.mistake))


def add_results(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--results", type=Path, metavar="DIR",
        help="where runs are (default: ./results if it holds any, else the checkout's)",
    )  # fmt: skip


def results(options: argparse.Namespace) -> Path:
    """The results folder asked for."""
    given: Path | None = options.results
    return given or runs.default_results()


def answered(answer: Callable[[argparse.Namespace], int], options: argparse.Namespace) -> int:
    """The command's exit code; a run that can't be found or read, or a file that can't be written, is told in a line."""
    try:
        return answer(options)
    except RunError as error:
        return complain(str(error))
    except OSError as error:
        return complain(f"{error.filename or 'a file'}: {error.strerror or error}")


def warn(message: str) -> None:
    print(f"reports: warning: {' '.join(message.split())}", file=sys.stderr)


def complain(message: str, code: int = USAGE_ERROR) -> int:
    print(f"reports: error: {' '.join(message.split())}", file=sys.stderr)
    return code
