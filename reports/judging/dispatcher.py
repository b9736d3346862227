"""Generates a module of plain torch, from saved runs, that calls the kernel measured to be fastest.

Selectable kernels are files in `templates/kernels/`, named after the equivalent implementation: a few lines of torch.
"""

from __future__ import annotations

import math
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import groupby, product
from keyword import kwlist
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jinja2 import StrictUndefined, Template

from stats.arguments import as_typed
from stats.axes import AXES
from stats.ratios import UNKNOWN, Ratio

from ..reading import command, fingerprint
from ..reading.runs import Object, Run, RunError
from ..reading.words import SHORT_DTYPE
from .rows import Row, Rows

_TEMPLATES = Path(__file__).parent.parent / "templates"
_SUFFIX = ".py.j2"

SDPA = "sdpa"
"""Implementation that is torch's own choice."""

GRADIENTS = {"forward": False, "decode": False, "backward": True}
"""Modes, and whether gradients are required in them."""

MASKS = {"none": "none", "causal": "causal", "padding": "keys", "causal+padding": "batch", "causal_br": "pairs"}
"""Masks of a case, and those of a call: none; `is_causal`; or a boolean one, (B, 1, 1, T_kv), (B, 1, T, T_kv) or (T,
T_kv).
"""

OF_LAYERS = ("d_model", "source", "qkv_bias", "out_bias", "scope")
"""Axes that affect the layer around a kernel, but not the kernel."""

MAY_LOSE = 0.03
"""Share of SDPA's time by which the upper end of a choice's interval may exceed it. Excluding any loss would keep SDPA
in cases where it is probably much slower.
"""


class Setting(NamedTuple):
    """Properties of a call besides its length."""

    device: str
    """`cpu`, or the name of a GPU."""
    threads: int | None
    dtype: str
    gradients: bool
    mask: str
    """One of the values of `MASKS`."""
    B: int
    H: int
    H_kv: int
    D_h: int
    D_v: int
    T: int | None
    """Number of queries; None if equal to that of keys."""


KeyRange = tuple[int, int, str]
"""First and last number of keys of a range, and its kernel."""

ByLength = dict[int, dict[str, Ratio]]
"""By number of keys, the ratio of each kernel's time to SDPA's."""


def emit(path: Path, runs: Sequence[tuple[Run, Rows]], arguments: Sequence[str]) -> str:
    """Write the module from the given rows of the runs, oldest first, which the arguments of `advise` selected; returns a
    sentence on its contents.

    Raises:
        RunError: another file has that name, or the runs don't belong together or contain no selectable kernel.
        OSError: the file can't be written.
    """
    taken = {*sys.stdlib_module_names, *kwlist, "torch", "numpy", "sdpa", "eager"}
    # transformers loads a kernel of its hub by a name with flash
    if path.suffix != ".py" or not path.stem.isidentifier() or path.stem in taken or "flash" in path.stem:
        raise RunError(
            f"--emit {path}: give a Python module with a new name, without `flash`, such as attention_here.py"
        )
    known = measured(runs)
    if not known:
        raise RunError(
            f"no kernel to choose: measure {SDPA} and at least one of {', '.join(kernels())}, in cases that SDPA supports"
        )
    table = {setting: found for setting, by_length in known.items() if (found := [*key_ranges(by_length)])}
    text = module(path.stem, [run for run, _ in runs], table, arguments)
    if path.exists() and not path.read_bytes().startswith(text[: text.index("\n")].encode()):
        raise RunError(f"--emit {path}: there is another file of that name; choose another one")
    command.write(path, text)
    names = ", ".join(sorted({kernel for found in table.values() for *_, kernel in found}))
    chosen = f"{names} in {len(table)} of {len(known)} settings, else"
    nothing = "no kernel that it can include is a better choice than"
    return f"{path} is written: {chosen if table else nothing} SDPA"


@cache
def kernels() -> dict[str, str]:
    """Return the source of each selectable implementation, by name."""
    files = sorted((_TEMPLATES / "kernels").glob(f"*{_SUFFIX}"))
    return {file.name.removesuffix(_SUFFIX): file.read_text(encoding="utf-8").strip() for file in files}


def module(
    name: str, runs: Sequence[Run], table: Mapping[Setting, Sequence[KeyRange]], arguments: Sequence[str]
) -> str:
    """Return the module's source."""
    chosen = {kernel for found in table.values() for *_, kernel in found}
    lines = [f"Written by: {as_typed(f'python -m reports advise {shlex.join(arguments)}')}"]
    lines += [f"Machine: {fingerprint.line(runs[-1].machine)}"]
    lines += [
        f"Run: {run.name} of {run.date[:10]}" + (f", commit {run.commit_id}" if run.commit_id else "") for run in runs
    ]
    text = (_TEMPLATES / "dispatcher.py.j2").read_text(encoding="utf-8")
    template = Template(
        text, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True, undefined=StrictUndefined
    )
    source: str = template.render(
        name=name,
        provenance=[re.sub(r"[^\w ·.,:()/+@'*?=-]+", " ", line) for line in lines],  # they go into a docstring
        torch=repr(str(runs[-1].machine.get("torch"))),
        may_lose=f"{MAY_LOSE:.0%}",
        code="\n\n\n".join(code for kernel, code in kernels().items() if kernel in chosen),
        table=[
            (", ".join(f"torch.{it}" if name == "dtype" else repr(it) for name, it in setting._asdict().items()), found)
            for setting, found in sorted(table.items(), key=str)
        ],
    )
    return source


def measured(runs: Sequence[tuple[Run, Rows]]) -> dict[Setting, ByLength]:
    """Return the ratios of the selectable kernels' times to SDPA's, by setting and number of keys.

    Later runs replace earlier ones, and measurements of cores replace those of layers: projections are equal, so that a
    layer is faster if its core is.

    Raises:
        RunError: the runs are of several machines.
    """
    first, *others = [run for run, _ in runs]
    for other in others:
        if differs := fingerprint.differing(first, other) or fingerprint.differing(first, other, software=True):
            raise RunError(f"{first.name} and {other.name} can't be combined: {differs}")
    found: dict[Setting, ByLength] = {}
    wrong = {impl for run, _ in runs for impl in run.wrong}
    for scope, (run, rows) in product(("layer", "core"), runs):
        for row in rows:
            if (row["scope"], row["impl"]) == (scope, SDPA) and (setting := _setting(row, run.machine)):
                # with a boolean mask SDPA's own kernels alone, which like SDPA return 0 for a query without visible keys
                needed = "" if setting.mask in ("none", "causal") else "**options"
                known, T = found.setdefault(setting, {}), row["T_kv"]
                skipped = {cell["impl"] for cell in run.skipped if cell["id"] == row["id"]}
                # a run that requested no selectable kernel replaces nothing
                if T not in known or kernels().keys() & {*row["over"], *skipped}:
                    known[T] = {
                        impl: row["over"][impl].inverse
                        for impl, source in kernels().items()
                        if needed in source and impl in row["over"].keys() - wrong
                    }
    return {setting: by_length for setting, by_length in found.items() if any(by_length.values())}


def key_ranges(by_length: ByLength) -> Iterator[KeyRange]:
    """Yield ranges in which one of the kernels is probably faster than SDPA and certainly not much slower, choosing the
    fastest.

    Ratios and intervals are interpolated in log-log between measured lengths; beside an unknown one, no kernel is
    chosen.
    """
    lengths, names = sorted(by_length), [*kernels()]
    keys = np.arange(lengths[0], lengths[-1] + 1)
    logs = [np.zeros(keys.shape)]  # of SDPA
    for name in names:
        ratios = np.log([by_length[T].get(name, UNKNOWN) for T in lengths])
        value, _, high = (np.interp(np.log(keys), np.log(lengths), ends) for ends in ratios.T)
        logs.append(np.where(high < math.log1p(MAY_LOSE), value, np.inf))
    fastest = dict(zip(keys.tolist(), np.argmin(logs, axis=0).tolist(), strict=True))
    for index, of in groupby(fastest, fastest.__getitem__):
        within = [*of]
        if index:
            yield within[0], within[-1], names[index - 1]


def _setting(row: Row, machine: Object) -> Setting | None:
    """Return a case's setting; None unless it is a call with at most a boolean mask, without dropout."""
    own = {*Setting._fields, *OF_LAYERS, "T_kv", "mode", "window", "window_right"}
    is_usual = all(row[name] in (None, axis.omitted) for name, axis in AXES.items() if name not in own)
    if not (is_usual and row["mask"] in MASKS and row["mode"] in GRADIENTS and row["dtype"] in SHORT_DTYPE):
        return None
    on_gpu = row["device"] == "cuda"
    windowed = (row.get("window"), row.get("window_right")) != (None, None)
    return Setting(
        str(machine.get("gpu") if on_gpu else row["device"]),
        None if on_gpu else row["threads"],
        row["dtype"],
        GRADIENTS[row["mode"]],
        "pairs" if windowed else MASKS[row["mask"]],
        T=None if row["T_kv"] == row["T"] else row["T"],
        **{axis: row[axis] for axis in ("B", "H", "H_kv", "D_h", "D_v")},
    )
