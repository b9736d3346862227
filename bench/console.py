"""`attention-bench COMMAND`: every command of the suite, from any folder. What the user's folder holds changes nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from keyword import iskeyword
from pathlib import Path

from . import starting  # noqa: F401  (Ctrl-C is one line)
from .cases.axes import nearest

HOME = Path(__file__).resolve().parent.parent
"""Where bench, impls and reports lie: a checkout, or what was installed."""

LAUNCH = str(HOME / "bench" / "launch.py")
PYTEST = ("-P", LAUNCH, "-c", str(HOME / "pyproject.toml"), f"--rootdir={HOME}", str(HOME / "bench"))
BENCH, REPORTS = (str(HOME / "bench"),), (str(HOME / "reports"),)

COMMANDS: dict[str, tuple[tuple[str, ...], str]] = {
    "run": (PYTEST, "measure, print a table, and save it: --benchmark-save=NAME"),
    "list": ((*PYTEST, "--list"), "implementations with what they can't do, and sweeps"),
    "sweep": ((*BENCH, "sweep"), "measure in several fresh processes, or on many machines"),
    "doctor": ((*BENCH, "doctor"), "what on this machine will disturb a measurement"),
    "report": (REPORTS, "the page of the newest run, or of those that are named"),
    "advise": ((*REPORTS, "advise"), "which implementation to use, from what was measured"),
    "figure": ((*REPORTS, "figure"), "one figure for a paper or a README"),
    "export": ((*REPORTS, "export"), "rows for other tools: Parquet, CSV, OpenMetrics, a badge, ..."),
    "ab": ((*BENCH, "ab"), "did it get slower? Two revisions, kernels or interpreters by turns"),
    "bisect": ((*BENCH, "bisect"), "which commit, or which torch, made it slower?"),
    "compare": ((*REPORTS, "compare"), "two saved runs, cell by cell"),
    "baseline": ((*REPORTS, "baseline"), "what later runs are compared with"),
    "history": ((*REPORTS, "history"), "every cell over all runs of this machine"),
    "new-kernel": ((), "write FILE (default: mine.py), a kernel to begin with"),
    "completion": ((), 'for bash and zsh: eval "$(attention-bench completion)"'),
}

OWN = {"new-kernel": "[FILE]", "completion": ""}
"""Commands that are answered here, with their arguments."""

KERNEL = '''\
"""A kernel of your own: attention-bench run --impl mine={name}:mine,sdpa,fused --T 256,1024 --benchmark-save=mine"""

import torch


def mine(q, k, v, *, is_causal=False, attn_mask=None, **_):
    """q (B, H, T, D_h), k (B, H, T_kv, D_h), v (B, H, T_kv, D_v) -> o (B, H, T, D_v)"""
    scores = q @ k.mT / q.shape[-1] ** 0.5  # (B, H, T, T_kv)
    if is_causal:  # query i sees key j <= i
        future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(future, -torch.inf)
    if attn_mask is not None:  # True where a key may be seen: padding
        scores = scores.masked_fill(~attn_mask, -torch.inf)
    return scores.softmax(dim=-1) @ v


# What it can't do; the cells beyond are skipped with a sentence. Everything that isn't named here is possible.
mine.limits = {{
    "grouped": False,  # fewer key-value heads than query heads
    "dropout": False,
    # "max_T": 4096,  # longest sequence
    # "dtypes": ("float16", "bfloat16"),
    # "modes": ("forward", "backward", "decode"),
}}
'''

COMPLETION = """\
# Completion of commands and options, for bash and zsh: eval "$(attention-bench completion)"
[ -z "$ZSH_VERSION" ] || {{ autoload -Uz bashcompinit && bashcompinit; }}
_attention_bench() {{
    local word="${{COMP_WORDS[COMP_CWORD]}}" command="${{COMP_WORDS[1]}}" options
    COMPREPLY=()
    if [ "$COMP_CWORD" = 1 ]; then
        COMPREPLY=($(compgen -W "{commands}" -- "$word"))
    elif [[ "$word" == -* ]]; then
        local known="_attention_bench_${{command//-/_}}"
        eval "options=\\"\\$$known\\""
        if [ -z "$options" ]; then
            options="$(attention-bench "$command" --help 2>/dev/null | grep -oE -- '--[A-Za-z][A-Za-z_-]*' | sort -u)"
            eval "$known=\\$options"
        fi
        COMPREPLY=($(compgen -W "$options" -- "$word"))
    fi
}}
complete -o default -F _attention_bench attention-bench
"""

MISTAKE = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code: that of the command; 2 where there is none of that name."""
    name, *rest = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    if name in ("-h", "--help"):
        print(_help())
        return 0
    if name not in COMMANDS:
        return _complain(f"unknown command {name!r}{nearest(name, COMMANDS)} (--help shows all)")
    command, about = COMMANDS[name]
    if name in OWN:
        if rest in (["-h"], ["--help"]):
            print(f"usage: attention-bench {name} {OWN[name]}".rstrip() + f"\n\n{about[0].upper()}{about[1:]}.")
            return 0
        return new_kernel(rest) if name == "new-kernel" else completion(rest)
    if name == "list" and {"-h", "--help"} & {*rest}:
        print(f"usage: attention-bench list\n\nShow {about}.")
        return 0
    if name == "run" and {"-h", "--help"} & {*rest}:
        print(_run_help())
        return 0
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, *command, *rest])


def new_kernel(arguments: Sequence[str]) -> int:
    """Write a kernel to begin with; never over another, nor under a name that means another module."""
    if len(arguments) > 1:
        return _complain(f"new-kernel {' '.join(arguments)}: one FILE, not {len(arguments)}")
    path = Path(arguments[0] if arguments else "mine.py")
    if path.suffix != ".py" or not path.stem.isidentifier() or iskeyword(path.stem):
        return _complain(f"new-kernel {path}: a kernel lies in a module, as in my_kernel.py")
    if path.stem in sys.stdlib_module_names or path.stem in ("torch", "numpy"):
        return _complain(f"new-kernel {path}: {path.stem} is a module of Python's or of torch's; choose another name")
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(KERNEL.format(name=path.stem))
    except OSError as error:
        return _complain(f"{path} can't be written: {error.strerror}")
    there = "" if path.parent == Path() else f"cd {path.parent}; "
    first = f"{there}attention-bench run --impl mine={path.stem}:mine,sdpa,fused --T 256,1024 --benchmark-save=mine"
    print(
        f"{path} is written. Edit it, measure it beside two others, make the page:\n  {first}\n  attention-bench report"
    )
    return 0


def completion(arguments: Sequence[str]) -> int:
    """Print what a shell needs."""
    if arguments:
        return _complain(f"completion {' '.join(arguments)}: takes no arguments")
    print(COMPLETION.format(commands=" ".join(COMMANDS)), end="")
    return 0


def _run_help() -> str:
    """The suite's part of pytest's help, which is as long as ten screens."""
    shown = subprocess.run([sys.executable, *PYTEST, "--help"], capture_output=True, text=True).stdout
    options = shown.partition("\nattention-bench:\n")[2].partition("\n\n")[0]
    return f"""\
usage: attention-bench run [options]

Measure cells: every implementation that is asked for in every case. VALUES are
one or several, as in --T 256,1024; every combination of them is a case.
--benchmark-save=NAME saves the run for `attention-bench report` and the other
commands; without it only the table is printed.

options:
{options}

and pytest's own, such as -k EXPRESSION, -x, -q: `pytest --help` shows them.

Exit code: 0 when every cell was measured, is unsupported or did not fit in
memory; 1 when one is wrong, failed or timed out; 2 when interrupted; 4 for a
mistake on the command line; 5 when no cell is selected."""


def _complain(message: str) -> int:
    print(f"attention-bench: {message}", file=sys.stderr)
    return MISTAKE


def _help() -> str:
    lines = [f"  {name:<11} {about}" for name, (_, about) in COMMANDS.items()]
    return "\n".join(["usage: attention-bench COMMAND [options]", "", *lines, "", "Each has its own --help."])


if __name__ == "__main__":
    sys.exit(main())
