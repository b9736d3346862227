"""Command-line rules shared by bench and reports: one-line usage errors, similar names, commands as typed by the
user, wrapped sentences, and lines without padding.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import sys
import textwrap
from argparse import ArgumentParser, _StoreAction
from collections.abc import Iterable, Sequence
from contextlib import suppress
from difflib import get_close_matches
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn

USAGE_ERROR = 3

UNFINISHED = 2
"""Exit code of commands that ended before they were done."""

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that request termination: Ctrl-C, `kill`, a closed terminal."""

_HOME = Path(__file__).resolve().parent.parent
INSTALLED = _HOME.name == "attention_bench" and not (_HOME / "tox.ini").exists()
"""Whether the suite is installed from a wheel: without a checkout, with a single command, `attention-bench`."""

ONE_COMMAND = "ATTENTION_BENCH_COMMAND"
"""Environment variable that is set below the command `attention-bench`, also in a checkout: `python -m attention_bench`."""


SYNONYMS = {
    "gpu": "cuda",
    "batch": "B",
    "heads": "H",
    "seq_len": "T",
    "sliding": "--window",
    "sliding_window": "--window",
    "swa": "--window",
    "alibi": "--bias alibi",
    "additive": "--bias dense",
    "--gpu": "--device cuda",
    "--causal": "--mask causal",
    "--batch": "--B",
    "--seq-len": "--T",
    "--heads": "--H",
    "--kernel": "--impl",
    "--save": "--benchmark-save",
}
"""Names used in other projects or in other options, with the axis, option or value to use here."""


def has_one_command() -> bool:
    """Whether commands are those of `attention-bench`."""
    return INSTALLED or bool(os.environ.get(ONE_COMMAND))


def wrapped(text: str, indent: str = "") -> str:
    """Wrap a sentence to the width of the terminal, in a file or a pipe to 80 columns, lines after the first indented; a
    command, several words between backticks, stays whole, so that it can be pasted.
    """
    whole = re.sub("`[^`]*`", lambda it: it[0].replace(" ", "\0"), text)
    columns = shutil.get_terminal_size().columns
    options: dict[str, Any] = {"break_long_words": False, "break_on_hyphens": False, "subsequent_indent": indent}
    return textwrap.fill(whole, columns, **options).replace("\0", " ")


def as_typed(text: str, here: bool = True) -> str:
    """Replace commands of a checkout's root (`python -m bench ab`, `pytest bench/`) by those that work in the current
    folder: `attention-bench ab` if that is installed, else `python PATH/bench ab`, `pytest PATH/bench/`; not `here`, as
    in a file that others read, by no path.
    """
    if has_one_command():
        text = re.sub("^(?:bench|reports): ", "attention-bench: ", text)
        text = re.sub(r"python -m (?:bench|reports) (?=[a-z])", "attention-bench ", text)
        return text.replace("python -m reports", "attention-bench report").replace(
            "pytest bench/", "attention-bench run"
        )
    with suppress(OSError):  # the current folder was deleted
        if not here or os.path.samefile(".", _HOME):
            return text
    home = shlex.quote(str(_HOME))
    return re.sub(r"python -m (?=bench|reports)|pytest (?=bench/)", lambda it: f"{it[0].split()[0]} {home}/", text)


def nearest(name: str, known: Iterable[str]) -> str:
    """Return `; did you mean ...?`, or an empty string if no known name is similar."""
    known = list(known)
    same = [it for it in known if it.lower() == name.lower()]
    longer = [it for it in known if name in it][:2] if len(name) > 2 else []
    usual = SYNONYMS.get(name, "")
    is_one = usual in known or usual.startswith("--")
    near = [usual] if is_one else same or longer or get_close_matches(name, known, n=1, cutoff=0.65)
    return f"; did you mean {' or '.join(near)}?" if near else ""


def warn(package: str, text: str) -> None:
    """Print one line on stderr, which begins with the name of a package."""
    print(as_typed(f"{package}: {text}"), file=sys.stderr, flush=True)


def why(error: OSError) -> str:
    """Return what can't be used, and why: a file, standard output if it is full, or the current folder if it was removed."""
    if not error.strerror:  # pandas' own
        return str(error)
    where = "the current folder" if isinstance(error, FileNotFoundError) else "standard output"
    return f"{error.filename or where}: {error.strerror}"


def without_padding(text: str) -> str:
    """Remove the spaces at the ends of lines, also between a terminal's control sequences."""
    return re.sub(r"(?: |\x1b\[[\d;]*m)+$", lambda end: end[0].replace(" ", ""), text, flags=re.MULTILINE)


class Parser(ArgumentParser):
    """argparse with one-line errors and an exit code of its own for them, since 2 means that nothing could be judged."""

    def __init__(self, prog: str, usage_error: int = USAGE_ERROR, **options: Any):
        """`prog`: `python -m bench ab`, of which errors name the package."""
        super().__init__(prog=as_typed(prog), allow_abbrev=False, **options)
        self._package, self._usage_error = prog.split()[2], usage_error

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        refuse_misused(self, args)
        return super().parse_known_args(args, namespace)

    def print_help(self, file: Any = None) -> None:
        print(self.format_help(), end="", file=file)  # argparse's own hides errors of standard output

    def format_help(self) -> str:
        return as_typed(super().format_help())

    def error(self, message: str) -> NoReturn:
        unknown = re.match("unrecognized arguments: (--[^ =]+)", message)
        near = get_close_matches(unknown[1], self._option_string_actions, n=1) if unknown else []
        hint = f"; did you mean {near[0]}?" if near else ""
        text = f"{self._package}: error: {' '.join(message.split())}{hint} (--help shows the options)\n"
        self.exit(self._usage_error, as_typed(text))


def refuse_misused(parser: ArgumentParser, words: Sequence[str]) -> None:
    """Call `parser.error` if an option has an empty value (typically of an unset shell variable), is given twice (only the
    last value would count), or has `-` as a file (which would get that name).
    """
    for action in parser._actions:
        given = []
        for word, after in pairwise([*words, None]):
            name, equals, value = str(word).partition("=")
            if name in action.option_strings:
                given.append(name)
                its = value if equals else after
                if name.startswith("--") and action.nargs != 0 and its == "":
                    parser.error(f"{name} is empty: give it a value, or leave it out")
                if action.type is Path and its == "-":
                    parser.error(f"{name} -: give the name of a file")
        if len(given) > 1 and isinstance(action, _StoreAction):
            parser.error(f"{given[0]} is given {len(given)} times: give it once")
