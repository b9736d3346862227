"""`python -m bench COMMAND`, or `python PATH/TO/bench COMMAND` from anywhere: commands beyond a single pytest run."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec

if not __package__:  # started by path: a package `bench` of the user's must not replace this one
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
    __package__, __spec__ = "bench", find_spec("bench.__main__")

from stats import interrupts
from stats.arguments import as_typed, nearest

from . import terminal

COMMANDS = {
    "sweep": ("bench.sweep", "measure in several fresh processes, or on many machines"),
    "check": ("bench.runs.check", "check whether kernels and layers are correct, without timing"),
    "doctor": ("bench.runs.doctor", "find what on this machine will disturb a measurement"),
    "ab": ("commands.ab", "compare revisions, kernels or interpreters: did it get slower?"),
    "bisect": ("commands.bisect", "find the commit, or the version of torch, that made it slower"),
    "new-kernel": ("bench.new:kernel", "write FILE (default: mine.py), a template of a kernel"),
    "new-layer": ("bench.new:layer", "write FILE (default: mine.py), a template of a layer"),
}
"""Commands, each with the function `(arguments) -> exit code` that implements it (default: `main`), and its description."""


def main(arguments: Sequence[str]) -> int:
    """Run the command named by the first argument."""
    name, *rest = arguments or ["--help"]
    if name in COMMANDS:
        module, _, function = COMMANDS[name][0].partition(":")
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
        lines = [f"  {name:<10} {about}" for name, (_, about) in COMMANDS.items()]
        usage = as_typed("usage: python -m bench COMMAND [options]")
        print("\n".join([usage, "", *lines, "", "Each has its own --help."]))
        return 0
    return terminal.complain(f"unknown command {name!r}; known: {', '.join(COMMANDS)}{nearest(name, COMMANDS)}")


if __name__ == "__main__":
    sys.exit(import_module("commands.shell").run(main, "bench"))
