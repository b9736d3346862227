"""`attention-bench COMMAND`: every command of the suite, from any folder and independent of that folder's contents."""

from __future__ import annotations

import os
import sys

if str(__package__).startswith("attention_bench"):  # in an installation the packages lie in this one
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.realpath(__file__))))

from stats import interrupts  # noqa: F401  (before slow modules)

# isort: split
import platform
import signal
import subprocess
import tomllib
from collections.abc import Sequence
from importlib.metadata import version

from bench import CHECKOUT, launch
from bench import __main__ as of_bench
from bench.terminal import complain
from reports import __main__ as of_reports
from stats.arguments import ENDING, ONE_COMMAND, nearest

from . import shell

COMMANDS = {
    "run": "measure and print a table; --benchmark-save=NAME saves the run",
    "list": "print implementations with their limits, sweeps, and models",
    **{name: about for name, (_, about) in of_bench.COMMANDS.items()},
    "report": "write the page of the newest run, or of the named runs",
    **{name: about for name, (_, about) in of_reports.COMMANDS.items() if name != "publish"},
}
"""Commands in the order of the help, with their descriptions; `publish` is for the suite's own documentation."""


def from_shell() -> int:
    """Run `main`; messages name commands as those of `attention-bench`."""
    os.environ[ONE_COMMAND] = "attention-bench"
    return shell.run(main, "bench")


def main(arguments: Sequence[str]) -> int:
    """Run a command; returns its exit code, or 3 for an unknown command."""
    name, *rest = arguments or ["--help"]
    if name in ("-h", "--help"):
        print(_help())
    elif name == "--version":
        project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        print(f"attention-bench {project['version']}, torch {version('torch')}, Python {platform.python_version()}")
    elif name not in COMMANDS:
        return complain(f"unknown command {name!r}{nearest(name, COMMANDS)} (--help shows all)")
    elif name == "run" and {"-h", "--help"} & {*rest}:
        print(_run_help())
    elif name == "list" and {"-h", "--help"} & {*rest}:
        print(f"usage: attention-bench list\n\n{COMMANDS[name].capitalize()}.")
    else:
        os.getcwd()  # raises an error if the folder was removed, with which torch and pytest can't be loaded
        signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)  # until that program handles them
        os.execv(sys.executable, [*_command(name), *rest])
    return 0


def _command(name: str) -> list[str]:
    if name in ("run", "list"):
        return [*launch.COMMAND, *launch.OPTIONS, *["--list"] * (name == "list")]
    return [sys.executable, str(CHECKOUT / ("bench" if name in of_bench.COMMANDS else "reports")), name]


def _run_help() -> str:
    """Return the suite's part of pytest's help, which is ten screens long."""
    shown = subprocess.run([*_command("run"), "--help"], capture_output=True, text=True).stdout
    options = shown.partition("\nattention-bench:\n")[2].partition("\n\n")[0]
    return f"""\
usage: attention-bench run [options]

Measure every selected implementation in every selected case. VALUES are one
value or several, as in --T 256,1024; every combination is a case.
--benchmark-save=NAME saves the run for `attention-bench report` and the other
commands; without it only the table is printed.

options:
{options}

and pytest's own, such as -k EXPRESSION, -x, -q: `pytest --help` shows them.

Exit code: 0 when every cell was measured, is unsupported or did not fit in
memory; 1 when one is wrong, failed or timed out; 2 when interrupted; 4 for a
usage error; 5 when no cell is selected."""


def _help() -> str:
    lines = [f"  {name:<12} {about}" for name, about in COMMANDS.items()]
    end = "Each has its own --help; --version shows versions."
    return "\n".join(["usage: attention-bench COMMAND [options]", "", *lines, "", end])


if __name__ == "__main__":
    sys.exit(from_shell())
