"""Which kernel to call instead of torch's own choice, by what a call must be like, and from which length to which."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from stats.ratios import UNKNOWN, Ratio

from ..reading import fingerprint
from ..reading.axes import KNOWN_AXES, axis_names
from ..reading.runs import Run, RunError
from ..reading.words import SHORT_DTYPE
from . import frame as fr

SDPA = "sdpa"
"""The implementation that is torch's own choice."""

GRADIENTS = {"forward": False, "decode": False, "backward": True}
"""Modes, and whether gradients are asked for in them."""

MASKS = {"none": "none", "causal": "causal", "padding": "keys", "causal+padding": "batch", "causal_br": "pairs"}
"""Masks of a case, and what a call has: none; `is_causal`; or a boolean one, (B, 1, 1, T_kv), (B, 1, T, T_kv) or (T, T_kv)."""

OF_LAYERS = ("d_model", "source", "qkv_bias", "out_bias", "scope")
"""Axes that change what is around a kernel, and not the kernel."""

MAY_LOSE = 0.03
"""Share of SDPA's time that a choice may lose at the far end of its interval. To lose nothing for certain would leave SDPA
where it is probably slower by far more: docs/measured.md."""

Rows = pd.DataFrame


class Setting(NamedTuple):
    """What a call must be like, beside its length."""

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
    """Queries; None where there are as many as keys."""


@dataclass(frozen=True)
class Stretch:
    """The kernel from one number of keys to another, both included."""

    first: int
    last: int
    kernel: str
    measured: dict[int, Ratio]
    """Its time over that of SDPA at the measured lengths within."""


ByLength = dict[int, dict[str, Ratio]]
"""By number of keys, the time of each kernel over that of SDPA."""


def measured(runs: Sequence[tuple[Run, Rows]], kernels: Collection[str]) -> dict[Setting, ByLength]:
    """What runs say of these kernels. A later run replaces an earlier one, and a core the layer around it: all implementations
    have the same projections, so that a layer is faster where its core is.

    Raises:
        RunError: the runs are of several machines.
    """
    first, *others = [run for run, _ in runs]
    for other in others:
        if differs := fingerprint.differing(first, other) | fingerprint.software(first, other):
            raise RunError(f"{first.name} and {other.name} don't go together: {fingerprint.described(differs)}")
    found: dict[Setting, ByLength] = {}
    for scope in ("layer", "core"):
        for run, frame in runs:
            for _, part in frame[frame["scope"] == scope].groupby("id", sort=False):
                rows = {row["impl"]: row for row in fr.records(part)}
                over = {name: fr.ratio(rows[name], rows[SDPA]) for name in kernels if {name, SDPA} <= rows.keys()}
                if over and (setting := _setting(rows[SDPA], run.machine)):
                    found.setdefault(setting, {})[int(rows[SDPA]["T_kv"])] = over
    return found


def stretches(by_length: ByLength) -> Iterator[Stretch]:
    """Where a kernel is probably faster than SDPA and certainly not much slower, and which most so.

    Between two measured lengths ratios and their intervals are interpolated in log-log; beside one that isn't known nothing is
    chosen.
    """
    keys, lengths = np.arange(min(by_length), max(by_length) + 1), sorted(by_length)
    names = sorted({name for ratios in by_length.values() for name in ratios})
    least, chosen = np.zeros(keys.shape), np.full(keys.shape, -1)
    for i, name in enumerate(names):
        ratios = [by_length[T].get(name, UNKNOWN) for T in lengths]
        value, high = (
            np.interp(np.log(keys), np.log(lengths), np.log(ends))
            for ends in ([it.value for it in ratios], [it.high for it in ratios])
        )
        wins = (high < math.log1p(MAY_LOSE)) & (value < least)
        least[wins], chosen[wins] = value[wins], i
    for a, b in pairwise([0, *np.flatnonzero(np.diff(chosen)) + 1, len(keys)]):
        if chosen[a] >= 0:
            first, last, name = int(keys[a]), int(keys[b - 1]), names[chosen[a]]
            within = {T: by_length[T][name] for T in lengths if first <= T <= last}
            yield Stretch(first, last, name, within)


def _setting(row: Mapping[str, Any], machine: Mapping[str, Any]) -> Setting | None:
    """None of a case that has more to it than a call with at most a boolean mask, without dropout."""
    own = {*Setting._fields, *OF_LAYERS, "T_kv", "mode", "window", "window_right"}
    others = [axis for axis in axis_names() if axis not in own]
    is_usual = all(pd.isna(row[axis]) or row[axis] in KNOWN_AXES[axis].unsaid for axis in others)
    is_known = row["mask"] in MASKS and row["mode"] in GRADIENTS and row["dtype"] in SHORT_DTYPE
    on_gpu = row["device"] == "cuda"
    device = machine.get("gpu") if on_gpu else row["device"]
    sizes = [row[name] for name in ("threads", "B", "H", "H_kv", "D_h", "D_v", "T", "T_kv")]
    if not (is_usual and is_known and isinstance(device, str)) or any(map(pd.isna, sizes)):
        return None
    threads, B, H, H_kv, D_h, D_v, T, T_kv = map(int, sizes)
    windowed = any(pd.notna(row.get(name)) for name in ("window", "window_right"))
    of_call = row["dtype"], GRADIENTS[row["mode"]], "pairs" if windowed else MASKS[row["mask"]]
    return Setting(device, None if on_gpu else threads, *of_call, B, H, H_kv, D_h, D_v, None if T_kv == T else T)
