"""Rows of a run, one per measured cell: what its file says, and what follows from it; and queries on rows."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, combinations
from pathlib import Path
from typing import Any

import pandas as pd

from stats import estimate, ratios
from stats.axes import AXES, NOTHING
from stats.effects import Key
from stats.ratios import Ratio, Ratios, Samples

from ..reading.axes import AXIS_NAMES, LAYER, setting
from ..reading.run_format import SAMPLES
from ..reading.runs import Object, Run
from . import peaks

Row = Mapping[str, Any]
"""Columns by name. Missing numbers are NaN, missing axes None."""

Rows = Sequence[Row]

STATS = ("median", "q1", "q3", "min", "max", "mean", "stddev", "iqr", "rounds", "iterations")
"""Columns from pytest-benchmark's stats: seconds, and two counts."""

MASKED = ("work_share", "mask_efficiency", "mask_efficiency_low", "mask_efficiency_high")
"""Columns that compare a case with the same one without its mask."""

_NUMBERS = (
    *STATS, "error", "error_bound", "peak_bytes", "flops", "bytes", "processes", "page_faults", "kept_pages_s",
    "fresh_pages_s", "switches_voluntary", "switches_involuntary", "roof", "peak_rss_bytes", "calls_compared", "device_s",
    "rank_low", "rank_high", "ratio", "ratio_low", "ratio_high", "speedup", *MASKED, "spread", "tflops_per_s",
    "launch_share", "of_peak", "error_output", "error_grad", "error_slope", "kept_bytes", "operators", "prepare_s",
    "compile_s", "compile_graphs", "cold_s", "cold_low", "cold_high", "graph_s", "sm_mhz", "power_w", "temperature_c",
    "tokens_per_s", "padding_share", "cache_bytes_per_token", "rows_compared", "calls", "blocks", "depth",
)  # fmt: skip
"""Columns that hold numbers in every row, NaN if missing."""

_SWITCHES = ("repeats", "proved_ragged")
"""Columns that are True, False or missing."""

_OTHERS = (
    "kernel", "clock", "baseline", "standing", "case_hash", "impl_hash", "packages", "pins", "left_out", "compile_cache",
    "throttled", "trace", "process_medians", "process_nodes", "core_shares", "windows", "parts_s",
)  # fmt: skip
"""Columns of text, and last of lists and objects, None if missing."""


def rows_of(run: Run) -> Rows:
    """Return one row per benchmark: its extra_info, its stats in seconds, and

    `samples`  its timed blocks, for pairing with those of other rows,
    `layer`    models whose layer its case is, as the run names them; None without one,
    `over`     ratios of its time to each implementation's of its case, by name (see `ratios.compared`),
    `between_processes`  of the run: the standard deviation of log ratios between processes, in excess of their visits',
    `baseline`  name of the run's baseline implementation,
    `ratio`    ratio to it, with its interval `ratio_low`, `ratio_high`,
    `speedup`  1 / `ratio`,
    `spread`   interquartile range over median,
    `tflops_per_s`  `flops` over the median,
    `of_peak`  `tflops_per_s` over the data sheet's peak (see `peaks.share`),
    `launch_share`  share of the median beyond the device's time, `device_s` (CUDA),
    `work_share`  visible operations over all operations; for a core the visible share; NaN if the run lacks the case without
               its mask,
    `mask_efficiency`  `work_share` times the time without the mask over that with it: 1 if all masked work is skipped,
               `work_share` if none is; with its 95 % interval, `mask_efficiency_low`, `mask_efficiency_high`,
    `wrong`    whether this implementation failed the check in any cell of the run, so that it is not ranked,
    `rank_low`, `rank_high`  its ranks by significant differences (see `ratios.ranks`; NaN if unknown),
    `standing` its rank in its case in words (see `ratios.ranks`), None if unknown,
    `tied`     whether it is the fastest of its case or tied with it,
    `leads`    whether its median is the smallest of those with a standing.
    """
    rows = [_measured(row, run.machine.get("gpu")) for row in run.rows]
    cases = estimate.grouped((row["id"], row) for row in rows)
    samples = {case: {row["impl"]: row["samples"] for row in of} for case, of in cases.items()}
    compared, between = ratios.compared(samples)
    for case, of in cases.items():
        _judge(of, compared[case], run)
    masks = [axis for axis in AXIS_NAMES if AXES[axis].masks]
    cells = [((row["impl"], *setting(row, masks)), row) for row in rows]
    unmasked = {cell: row for cell, row in cells if all(row[axis] in ("none", None) for axis in masks)}
    for cell, row in cells:
        row.update(zip(MASKED, _efficiency(row, unmasked.get(cell)), strict=True))
        row |= {"between_processes": math.sqrt(between.value), LAYER: run.models.get(row["id"])}
    return rows


def tidy(rows: Rows) -> pd.DataFrame:
    """Return rows as a frame, without columns used only by statistics. Frames of all runs have the same columns, and the
    type of a column doesn't depend on which of its values are missing.
    """
    judged = ("wrong", "tied", "leads")
    always = ("impl", "id", LAYER, *AXIS_NAMES, *_OTHERS, *judged, *_SWITCHES, *_NUMBERS)
    columns = [it for it in dict.fromkeys(chain(always, *rows)) if it not in ("samples", "over", "between_processes")]
    optional = [name for name, it in AXES.items() if it.kind == "size" and it.omitted is None]
    types: dict[str, Any] = dict.fromkeys(_SWITCHES, "boolean") | dict.fromkeys((*_NUMBERS, *optional), float)
    if not rows:
        kinds = {"size": int, "share": float, "switch": bool, "choice": object}
        types = {name: kinds[it.kind] for name, it in AXES.items()} | dict.fromkeys(judged, bool) | types
    return pd.DataFrame(rows, columns=columns).astype(types).copy()  # else a new column makes pandas warn of fragments


def to_csv(frame: pd.DataFrame, file: Path) -> None:
    """Write a frame as CSV, with lists and objects as JSON."""
    texts = frame.map(lambda it: json.dumps(it, ensure_ascii=False) if isinstance(it, list | dict) else it)
    texts.to_csv(file, index=False)


def key_of(facts: Row) -> Key:
    """Return the implementation and the case of a row's metadata, or of a skipped cell."""
    return str(facts["impl"]), str(facts["id"])


def samples_of(row: Row) -> Samples:
    """Return the timed blocks of a run file's row."""
    return Samples(row["stats"]["data"], *(row["extra_info"][name] for name in SAMPLES))


def varying(rows: Rows) -> list[str]:
    """Return the axes with more than one value, except those that follow from others, including head widths from the
    number of heads, heads from a model, masks from modes, and lengths from the requests of a batch. Models with
    different layers are an axis, `layer`, which all others may follow from.
    """

    def count(axes: Sequence[str]) -> int:
        return len({tuple(map(row.get, axes)) for row in rows})

    layers = count([LAYER])
    found = [LAYER] * (layers > 1) + [axis for axis in AXIS_NAMES if count([LAYER, axis]) > layers]
    follow = ((name, *it.follows) for name, it in AXES.items())
    others = (("D_h", "H"), ("H", "model"), ("mask", "mode"))
    for axis, *sources in (("T", "requests"), ("T_kv", "requests"), *follow, *others):
        known = [source for source in sources if source in found]
        if axis in found and known and count([*known, axis]) == count(known):
            found.remove(axis)
    return found


def trusted(rows: Rows) -> Rows:
    """Return rows of implementations that passed every check."""
    return [row for row in rows if not row["wrong"]]


def ranked(rows: Iterable[Row]) -> Rows:
    """Return the rows of a case sorted by median, those without a rank last."""
    return sorted(rows, key=lambda row: (not row["standing"], row["median"]))


def ratio(of: Row, over: Row) -> Ratio:
    """Return the ratio of one row's time to another's of its case."""
    found: Ratio = of["over"][over["impl"]]
    return found


def _measured(row: Row, gpu: object) -> Object:
    """Return a row's metadata and statistics, without the arrays of samples, and what follows from them alone."""
    axes = {name: None if it.omitted is NOTHING else it.omitted for name, it in AXES.items()}
    found: Object = dict.fromkeys(_OTHERS) | axes
    found |= {key: it for key, it in row["extra_info"].items() if not key.startswith("sample_")}
    found |= {"samples": samples_of(row), **{key: row["stats"].get(key) for key in STATS}}
    found |= {key: math.nan for key in _NUMBERS if not isinstance(found.get(key), int | float)}
    found["spread"] = (found["q3"] - found["q1"]) / found["median"]
    found["tflops_per_s"] = found["flops"] / found["median"] / 1e12
    found["launch_share"] = max(1 - found["device_s"] / found["median"], 0.0)
    return {**found, "of_peak": peaks.share(found, gpu)}


def _efficiency(row: Row, unmasked: Row | None) -> tuple[float, ...]:
    """Return the columns `MASKED`, NaN if unknown. The cases have separate rounds, so that their ratio is taken by visit."""
    # padding is counted in full, so that the visible share is unknown; of a cluster, the nodes may differ
    if (
        unmasked is None
        or not 0 < row["flops"] < unmasked["flops"]
        or str(row["mask"]).endswith("padding")
        or row.get("process_nodes")
    ):
        return (math.nan,) * len(MASKED)
    share = row["flops"] / unmasked["flops"]
    return share, *(share * it for it in ratios.ratio(unmasked["samples"], row["samples"], one_case=False))


def _judge(rows: Iterable[Object], over: Ratios, run: Run) -> None:
    """Add to the rows of one case the columns that compare its implementations. `over`: their ratios, in the order of time.
    Implementations that failed a check have no rank.
    """
    wrong = run.wrong
    right = [one for one in over if one not in wrong]
    known = len(right) == 1 or any(over[a][b].known for a, b in combinations(right, 2))
    ranks = ratios.ranks(right, over) if known else {}
    for row in rows:
        one = row["impl"]
        it = over[one].get(run.baseline_impl, ratios.UNKNOWN)
        state, low, high = ranks.get(one, (None, math.nan, math.nan))
        row |= {
            "over": over[one], "baseline": run.baseline_impl or None, "ratio": it.value, "ratio_low": it.low,
            "ratio_high": it.high, "speedup": 1 / it.value, "wrong": one in wrong, "standing": state, "rank_low": low,
            "rank_high": high, "tied": state in (ratios.FASTEST, ratios.TIED), "leads": right[:1] == [one],
        }  # fmt: skip
