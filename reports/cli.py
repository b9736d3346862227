"""What the commands of this room share: one line for a mistake, and the run that is meant."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import NoReturn

from . import runs
from .runs import Run, RunError

USAGE_ERROR = 2


class Parser(argparse.ArgumentParser):
    """argparse without the usage text before an error: one line says what was wrong."""

    def error(self, message: str) -> NoReturn:
        sys.exit(complain(f"{message} (--help shows the options)"))


def add_run(parser: argparse.ArgumentParser) -> None:
    """The options that name one run."""
    parser.add_argument("--run", metavar="RUN", help="which run to read (default: the newest)")
    parser.add_argument(
        "--results", type=Path, metavar="DIR",
        help="where runs are (default: ./results if it holds any, else the checkout's)",
    )  # fmt: skip


def chosen(options: argparse.Namespace) -> Run:
    """The run that `add_run`'s options name.

    Raises:
        RunError: there is none, or it can't be read.
    """
    results = options.results or runs.default_results()
    if options.run is None:
        return newest(results)
    found = runs.find(options.run, results)
    if len(found) > 1:
        raise RunError(f"{options.run!r} means {len(found)} runs; name one: {', '.join(f.stem for f in found)}")
    return runs.read(found[0])


def newest(results: Path) -> Run:
    """The newest run that can be read; a newer one that can't is named in a warning.

    Raises:
        RunError: there is none, or none that can be read.
    """
    if not results.is_dir() or not (files := runs.newest_first(results)):
        raise RunError(f"no run in {results} yet; {runs.HOW_TO_MAKE_ONE}")
    problems = []
    for file in files:
        try:
            run = runs.read(file)
        except RunError as error:
            problems.append(error)
            continue
        for problem in problems:
            warn(f"left out: {problem}")
        return run
    if len(problems) == 1:
        raise problems[0]
    raise RunError(f"none of the {len(problems)} runs in {results} can be read; the newest: {problems[0]}")


def warn(message: str) -> None:
    print(f"reports: warning: {message}", file=sys.stderr)


def complain(message: str) -> int:
    """Says it in one line on stderr; returns the exit code of a user's mistake."""
    print(f"reports: error: {' '.join(message.split())}", file=sys.stderr)
    return USAGE_ERROR
