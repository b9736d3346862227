"""Shared by commands: options on results, one-line usage errors, and distinct exit codes."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from stats import arguments
from stats.arguments import INSTALLED, USAGE_ERROR, Parser

from . import runs
from .runs import Run, RunError
from .words import listing

FINE = 0
REGRESSED = 1
NOT_JUDGED = 2


def parser(name: str, description: str, epilog: str = "") -> Parser:
    """Return the parser of a command, `python -m reports NAME`, or of the one without a name."""
    raw = argparse.RawDescriptionHelpFormatter
    return Parser(f"python -m reports {name}".rstrip(), description=description, epilog=epilog, formatter_class=raw)


def add_results(parser: argparse.ArgumentParser) -> None:
    default = "./results" if INSTALLED else "./results if it holds any, else the checkout's"
    parser.add_argument("--results", type=Path, metavar="DIR", help=f"where runs are (default: {default})")


def add_run(parser: argparse.ArgumentParser) -> None:
    """Add the options that select one run."""
    parser.add_argument("--run", metavar="RUN", help="which run to read (default: the newest)")
    add_results(parser)


def results(options: argparse.Namespace) -> Path:
    """Return the requested results folder."""
    given: Path | None = options.results
    return given or runs.default_results()


def chosen(name: str | None, results: Path | None) -> Run:
    """Return the run of a name, the newest without one; `results`: the folder of runs, if it is given.

    Raises:
        RunError: there is none, there are several, or it can't be read.
    """
    folder = results or runs.default_results()
    return next(newest_first(folder)) if name is None else runs.one(name, folder)


def several(names: Sequence[str], results: Path) -> Iterator[Run]:
    """Yield the requested runs. Unreadable ones are skipped with a warning, unless all are.

    Raises:
        RunError: there is nothing to read, or the only run can't be read.
    """
    if not names:
        yield next(newest_first(results))
        return
    paths = {path.resolve(): path for name in names for path in runs.find(name, results)}
    yield from _readable(paths.values())


def newest_first(folder: Path) -> Iterator[Run]:
    """Yield the runs of a folder, newest first. Unreadable ones are skipped with a warning.

    Raises:
        RunError: there is none, or none that can be read.
    """
    if not (files := runs.newest_first(folder)):
        raise RunError(runs.nothing_in(folder))
    yield from _readable(files)


def _readable(files: Iterable[Path]) -> Iterator[Run]:
    """Yield the runs of files. Unreadable ones are named in warnings, or in an error if all are."""
    problems: list[str] = []
    readable = False
    for file in files:
        try:
            run = runs.read(file)
        except RunError as error:
            problems.append(str(error))
        else:
            readable = True
            while problems:
                warn(f"left out: {problems.pop(0)}")
            yield run
    if not readable:
        raise RunError(listing(problems, 1))
    for problem in problems:
        warn(f"left out: {problem}")


def write(path: Path, text: str) -> None:
    """Write a file; raises OSError as `written`."""
    with written(path):
        path.write_text(text, encoding="utf-8")


@contextmanager
def written(path: Path) -> Iterator[None]:
    """Make an OSError name the file that is written, and delete it if it was begun, as on a full disk."""
    try:
        yield
    except OSError as error:
        if error.errno and not error.filename:  # it was opened
            error.filename = str(path)
            if path.is_file() and not path.is_symlink():  # unlike /dev/full and /dev/stdout
                path.unlink()
        raise


def warn(message: str) -> None:
    arguments.warn("reports", f"warning: {' '.join(message.split())}")


def complain(message: str, code: int = USAGE_ERROR) -> int:
    """Print a message in one line on stderr; returns the exit code."""
    arguments.warn("reports", f"error: {' '.join(message.split())}")
    return code
