"""`attention-bench COMMAND`: every command of the suite, from any folder and independent of that folder's contents."""

from __future__ import annotations

import os
import platform
import re
import signal
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path

from . import interrupts  # noqa: F401  (Ctrl-C is one line)
from .cases.axes import nearest

HOME = Path(__file__).resolve().parent.parent
"""Folder of bench, impls and reports: a checkout or an installation."""

LAUNCH = str(HOME / "bench" / "launch.py")
PYTEST = ("-P", LAUNCH, "-c", str(HOME / "pyproject.toml"), f"--rootdir={HOME}", "-o", "verbosity_test_cases=0",
          str(HOME / "bench"))  # fmt: skip
COMMANDS = {
    "run": "measure, print a table, and save it: --benchmark-save=NAME",
    "list": "print implementations with their limits, sweeps, and models",
    "sweep": "measure in several fresh processes, or on many machines",
    "check": "check whether kernels and layers are correct, without timing",
    "doctor": "find what on this machine will disturb a measurement",
    "report": "write the page of the newest run, or of the named runs",
    "advise": "print the fastest implementation of each case of a saved run",
    "figure": "draw one figure for a paper or a README",
    "export": "write rows for other tools: Parquet or CSV",
    "conformance": "print a table of what is correct, from output of check --json",
    "ab": "compare two revisions, kernels or interpreters: did it get slower?",
    "bisect": "find the commit, or the version of torch, that made it slower",
    "compare": "compare two saved runs: did it get slower?",
    "baseline": "set or show the run that later runs are compared with",
    "history": "find when it got slower, over all runs of this machine",
    "new-kernel": "write FILE (default: mine.py), a template of a kernel",
    "new-layer": "write FILE (default: mine.py), a template of a layer",
    "completion": "print completion for bash and zsh, to append to ~/.bashrc or ~/.zshrc",
}
"""Commands in the order of the help, with their descriptions."""

OF_BENCH = ("sweep", "check", "doctor", "ab", "bisect", "new-kernel", "new-layer")
"""Commands of `python -m bench`."""

WITHOUT_OPTIONS = ("completion", "list")

COMPLETION = """\
# Completion for bash and zsh: attention-bench completion >> ~/.bashrc (or ~/.zshrc)
[ -z "$ZSH_VERSION" ] || { autoload -Uz bashcompinit && bashcompinit; }
_attention_bench() {
    local word="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}" list="" known=""
    case "$COMP_CWORD:$before" in
        1:*) known="COMMANDS" ;;
VALUES
        *) case "${COMP_WORDS[1]}" in
OPTIONS
            esac ;;
    esac
    [[ "$word" != *,* || "$word" == -* ]] || list="${word%,*},"
    COMPREPLY=($(compgen -P "$list" -W "$known" -- "${word##*,}"))
}
complete -o default -F _attention_bench attention-bench
"""

USAGE_ERROR = 3


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns its exit code, or 3 for an unknown command."""
    if arguments is None:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # a reader that closes early, as `head` does, ends it quietly
        arguments = sys.argv[1:]
    name, *rest = list(arguments) or ["--help"]
    if name in ("-h", "--help"):
        print(_help())
        return 0
    if name == "--version":
        project = tomllib.loads((HOME / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        print(f"attention-bench {project['version']}, torch {version('torch')}, Python {platform.python_version()}")
        return 0
    if name not in COMMANDS:
        return _complain(f"unknown command {name!r}{nearest(name, COMMANDS)} (--help shows all)")
    if name in (*WITHOUT_OPTIONS, "run") and {"-h", "--help"} & {*rest}:
        usage, about = f"usage: attention-bench {name}", COMMANDS[name]
        print(_run_help() if name == "run" else f"{usage}\n\n{about[0].upper()}{about[1:]}.")
        return 0
    if name == "completion":
        return completion(rest)
    named = os.environ | {"ATTENTION_BENCH_COMMAND": name}  # makes `stats.arguments.as_typed` print `attention-bench`
    os.execve(sys.executable, [*_command(name), *rest], named)


def _command(name: str) -> list[str]:
    if name in ("run", "list"):
        return [sys.executable, *PYTEST, *["--list"] * (name == "list")]
    return [sys.executable, str(HOME / ("bench" if name in OF_BENCH else "reports")), name]


def completion(arguments: Sequence[str]) -> int:
    """Print shell completions: commands, options, and values of options."""
    if arguments:
        return _complain(f"completion {' '.join(arguments)}: takes no arguments: the script is for both bash and zsh")
    sys.path.insert(0, str(HOME))
    from impls import registered

    from .cases.case import AXES
    from .cases.sweep import SWEEPS

    names = [impl.name for impl in registered()]
    known = {"sweep": [*SWEEPS], "impl": names, "baseline": names}
    known |= {name: ["on", "off"] if it.kind == "switch" else [*it.values] for name, it in AXES.items()}
    values = [f'        *:--{name}) known="{" ".join(words)}" ;;' for name, words in known.items() if words]
    with ThreadPoolExecutor() as pool:
        of_commands = zip(COMMANDS, pool.map(_options, COMMANDS), strict=True)
        options = [f'            {name}) known="{" ".join(of)}" ;;' for name, of in of_commands]
    filled = {"COMMANDS": " ".join(COMMANDS), "VALUES": "\n".join(values), "OPTIONS": "\n".join(options)}
    print(re.sub("COMMANDS|VALUES|OPTIONS", lambda found: filled[found[0]], COMPLETION), end="")
    return 0


def _options(command: str) -> list[str]:
    """Return the long options shown in a command's help."""
    if command in WITHOUT_OPTIONS:
        return []
    shown = "" if command == "run" else _help_of(command)
    shown += _run_help() if command in ("run", "sweep") else ""
    return sorted({*re.findall(r"^ .*?(--[A-Za-z][\w-]*)", shown, re.MULTILINE)})


def _help_of(command: str) -> str:
    return subprocess.run([*_command(command), "--help"], capture_output=True, text=True).stdout


def _run_help() -> str:
    """Return the suite's part of pytest's help, which is ten screens long."""
    options = _help_of("run").partition("\nattention-bench:\n")[2].partition("\n\n")[0]
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


def _complain(message: str) -> int:
    print(f"attention-bench: error: {message}", file=sys.stderr)
    return USAGE_ERROR


def _help() -> str:
    lines = [f"  {name:<12} {about}" for name, about in COMMANDS.items()]
    end = "Each has its own --help; --version shows versions."
    return "\n".join(["usage: attention-bench COMMAND [options]", "", *lines, "", end])


if __name__ == "__main__":
    sys.exit(main())
