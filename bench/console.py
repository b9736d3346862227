"""`attention-bench COMMAND`: every command of the suite, from any folder. What the user's folder holds changes nothing."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from .cases.axes import nearest

HOME = Path(__file__).resolve().parent.parent
"""Where bench, impls and reports lie: a checkout, or what was installed."""

PYTEST = ("-P", "-m", "pytest", "-c", str(HOME / "pyproject.toml"), f"--rootdir={HOME}", str(HOME / "bench"))
BENCH, REPORTS = (str(HOME / "bench"),), (str(HOME / "reports"),)

COMMANDS: dict[str, tuple[tuple[str, ...], str]] = {
    "run": (PYTEST, "measure: pytest's own options, and --sweep, --impl, --T, ..., --benchmark-save=NAME"),
    "list": ((*PYTEST, "--list"), "implementations with what they can't do, and sweeps"),
    "sweep": ((*BENCH, "sweep"), "measure in several fresh processes, as one run"),
    "doctor": ((*BENCH, "doctor"), "what on this machine will disturb a measurement"),
    "report": (REPORTS, "the page of the newest run, or of those that are named"),
    "advise": ((*REPORTS, "advise"), "which implementation to use, from what was measured"),
    "figure": ((*REPORTS, "figure"), "one figure for a paper or a README"),
    "export": ((*REPORTS, "export"), "rows for other tools: Parquet, CSV, OpenMetrics, PyTorch's HUD, a badge"),
    "ab": ((*BENCH, "ab"), "two revisions, implementations or interpreters, interleaved: did it get slower?"),
    "bisect": ((*BENCH, "bisect"), "which commit, or which torch, made it slower?"),
    "compare": ((*REPORTS, "compare"), "two saved runs, cell by cell"),
    "baseline": ((*REPORTS, "baseline"), "what later runs are compared with"),
    "history": ((*REPORTS, "history"), "every cell over all runs of this machine"),
    "new-kernel": ((), "write mine.py, a kernel to begin with: new-kernel [FILE]"),
}

KERNEL = '''\
"""A kernel of your own: attention-bench run --impl mine={name}:mine,sdpa --T 256,1024 --benchmark-save=mine"""

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

MISTAKE = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code: that of the command; 2 where there is none of that name."""
    name, *rest = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    if name in ("-h", "--help"):
        print(_help())
        return 0
    if name not in COMMANDS:
        print(f"attention-bench: unknown command {name!r}{nearest(name, COMMANDS)} (--help shows all)", file=sys.stderr)
        return MISTAKE
    if name == "new-kernel":
        return new_kernel(Path(rest[0] if rest else "mine.py"))
    command, _ = COMMANDS[name]
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, *command, *rest])


def new_kernel(path: Path) -> int:
    """Write a kernel to begin with; never over another."""
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(KERNEL.format(name=path.stem))
    except OSError as error:
        print(f"attention-bench: {path} can't be written: {error.strerror}", file=sys.stderr)
        return MISTAKE
    print(
        f"{path}: edit it, then: attention-bench run --impl mine={path.stem}:mine,sdpa --T 256,1024 --benchmark-save=mine"
    )
    return 0


def _help() -> str:
    lines = [f"  {name:<11} {about}" for name, (_, about) in COMMANDS.items()]
    return "\n".join(["usage: attention-bench COMMAND [options]", "", *lines, "", "Each has its own --help."])


if __name__ == "__main__":
    sys.exit(main())
