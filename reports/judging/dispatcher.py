"""A function that attends by the kernel that was measured to be fastest: from saved runs to a module of plain torch.

What can be chosen is a file in `templates/kernels/`, called as the implementation that it equals: a few lines of torch.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from keyword import kwlist
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined

from ..reading import units
from ..reading.command import as_typed
from ..reading.runs import Run, RunError
from .stretches import MAY_LOSE, SDPA, ByLength, Setting, Stretch, measured, stretches

_KERNELS = Path(__file__).parent.parent / "templates" / "kernels"
_SUFFIX = ".py.j2"


def emit(path: Path, runs: Sequence[tuple[Run, pd.DataFrame]]) -> str:
    """Write the module, from those rows of the runs, oldest first; what it holds, in a sentence.

    Raises:
        RunError: it can't be written there, or the runs don't go together or hold nothing to choose from.
    """
    taken = {*sys.stdlib_module_names, *kwlist, "torch", "numpy"}
    if path.suffix != ".py" or not path.stem.isidentifier() or path.stem in taken:
        raise RunError(f"--emit {path}: expected a Python module of a name that is free, as attention_here.py")
    every = measured(runs, {name for _, frame in runs for name in frame["impl"]} - {SDPA})
    known = {setting: some for setting, by_length in every.items() if (some := _choosable(setting, by_length))}
    if not known:
        others = ", ".join(kernels())
        raise RunError(
            f"nothing to choose from: no case with a mask that a call can have has {SDPA} and one of {others}"
        )
    table = {setting: found for setting, by_length in known.items() if (found := list(stretches(by_length)))}
    _write(path, module(path.stem, [run for run, _ in runs], table))
    names = sorted({one.kernel for found in table.values() for one in found})
    chosen = (
        f"{', '.join(names)} in {len(table)} of {len(known)} settings, else"
        if names
        else "none of its kernels was faster than"
    )
    faster = {one.kernel for by_length in every.values() for one in stretches(by_length)} - {*kernels()}
    others = f"; faster somewhere, but not in it: {', '.join(sorted(faster))}" if faster else ""
    return f"{path} is written: {chosen} SDPA{others}"


def _choosable(setting: Setting, by_length: ByLength) -> ByLength:
    """Of all implementations those that can be chosen: with a boolean mask SDPA's own kernels alone, which give 0 where a query
    sees no key, as SDPA does."""
    names = {name for name, code in kernels().items() if setting.mask in ("none", "causal") or "**options" in code}
    found = {T: {name: it for name, it in over.items() if name in names} for T, over in by_length.items()}
    return {T: over for T, over in found.items() if over}


def kernels() -> dict[str, str]:
    """The source of each implementation that can be chosen, by its name."""
    files = sorted(_KERNELS.glob(f"*{_SUFFIX}"))
    return {file.name.removesuffix(_SUFFIX): file.read_text(encoding="utf-8").strip() for file in files}


def module(name: str, runs: Sequence[Run], table: Mapping[Setting, Sequence[Stretch]]) -> str:
    """The text of the module."""
    chosen = {one.kernel for found in table.values() for one in found}
    environment = Environment(
        loader=PackageLoader("reports", "templates"), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
        keep_trailing_newline=True,
    )  # fmt: skip
    return environment.get_template("dispatcher.py.j2").render(
        name=name,
        command=as_typed(f"python -m reports advise --emit {name}.py"),
        provenance=list(_provenance(runs)),
        torch=repr(str(runs[-1].machine.get("torch"))),
        may_lose=f"{MAY_LOSE:.0%}",
        code="\n\n\n".join(code for kernel, code in kernels().items() if kernel in chosen),
        table=[
            (_key(setting), [(one, _evidence(one)) for one in found])
            for setting, found in sorted(table.items(), key=str)
        ],
    )


def _write(path: Path, text: str) -> None:
    """Over an older one of its kind, and over nothing else."""
    try:
        if path.exists() and not path.read_bytes().startswith(text[: text.index("\n")].encode()):
            raise RunError(f"--emit {path}: there is another file of that name; choose another one")
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise RunError(f"--emit {path}: {error.strerror or error}") from None


def _key(setting: Setting) -> str:
    """As the module has it: a dtype is one of torch's."""
    return ", ".join(f"torch.{it}" if name == "dtype" else repr(it) for name, it in setting._asdict().items())


def _evidence(stretch: Stretch) -> str:
    """'0.71 (0.66 to 0.76) of SDPA's time at 64'"""
    ratios = [f"{units.bounded(it.value, it.low, it.high)} at {T}" for T, it in stretch.measured.items()]
    return f"of SDPA's time: {', '.join(ratios)}" if ratios else "interpolated"


def _provenance(runs: Sequence[Run]) -> Iterator[str]:
    """Of a run file's words only what can stand in a docstring."""
    machine: Mapping[str, Any] = runs[-1].machine
    parts = [machine.get("cpu"), machine.get("gpu"), f"{machine.get('cores')} cores", f"torch {machine.get('torch')}"]
    said = [f"Machine: {', '.join(str(part) for part in parts if part)}"]
    said += [f"Run: {run.name} of {run.date[:10]}" + f", commit {run.commit_id}" * bool(run.commit_id) for run in runs]
    return (re.sub(r"[^\w .,:()/+@-]+", " ", line) for line in said)
