"""`python -m bench COMMAND`, or `python PATH/TO/bench COMMAND` from anywhere: commands beyond a single pytest run."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module

if not __package__:  # started by path: a package `bench` of the user's must not replace this one
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
    __package__ = "bench"

from stats.arguments import as_typed

from . import console, interrupts, terminal
from .cases.axes import nearest
from .interrupts import UNFINISHED

COMMANDS = {
    "check": "bench.runs.check", "doctor": "bench.runs.doctor", "sweep": "bench.cluster.command", "ab": "commands.ab",
    "bisect": "commands.bisect", "new-kernel": "bench.new:kernel", "new-layer": "bench.new:layer",
}  # fmt: skip
"""Commands, each with the function `(arguments) -> exit code` that implements it (default: `main`)."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command named by the first argument."""
    name, *rest = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    if name in COMMANDS:
        module, _, function = COMMANDS[name].partition(":")
        gc.disable()  # each collection would scan the modules imported so far, torch's for 0.1 s
        try:
            command = getattr(import_module(module), function or "main")
        except Exception as error:
            if "impls" in sys.modules:
                raise
            terminal.warn(f"BROKEN: impls can't be imported: {type(error).__name__}: {error}")
            return 1
        gc.enable()
        interrupts.raise_from_now_on()
        code: int = command(rest)
        return code
    if name in ("-h", "--help"):
        lines = [f"  {name:<10} {console.COMMANDS[name]}" for name in COMMANDS]
        usage = as_typed("usage: python -m bench COMMAND [options]")
        print("\n".join([usage, "", *lines, "", "Each has its own --help."]))
        return 0
    return terminal.complain(f"unknown command {name!r}; known: {', '.join(COMMANDS)}{nearest(name, COMMANDS)}")


def run_from_shell() -> int:
    """Run `main` from a shell: interrupts and broken output end it with one line."""
    terminal.prepare()
    try:
        code = main()
        sys.stdout.flush()
        return code
    except KeyboardInterrupt as why:
        with suppress(OSError):
            sys.stdout.flush()
        said = [str(it) for it in (why, why.__context__) if isinstance(it, KeyboardInterrupt)]  # two, while it ended
        terminal.warn(next(filter(None, said), "interrupted"))
        os._exit(UNFINISHED)  # Python would take seconds to end, and print what a second Ctrl-C interrupts there
    except OSError as error:  # the disk or standard output is full, or the folder was removed
        terminal.close()
        where = "the current folder" if isinstance(error, FileNotFoundError) else "standard output"
        return terminal.complain(f"{error.filename or where}: {error.strerror}", UNFINISHED)


if __name__ == "__main__":
    sys.exit(run_from_shell())
