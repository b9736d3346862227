"""Converts a run to a tidy frame, one row per measured cell; and queries on it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd
from pandas.api.types import is_numeric_dtype

from stats import ratios
from stats.ratios import Ratio, Samples

from ..reading.axes import KNOWN_AXES, axis_names
from ..reading.runs import Run
from . import masking, peaks

#: Seconds, from pytest-benchmark's stats.
STATS = ("median", "q1", "q3", "min", "max", "mean", "stddev", "iqr", "rounds", "iterations")

JUDGED = ("over", "rank_low", "rank_high", "ratio", "ratio_low", "ratio_high", "standing")
_NUMBERS = (
    "error", "error_bound", "peak_bytes", "flops", "bytes", "processes", "page_faults", "kept_pages_s", "fresh_pages_s",
    "switches_voluntary", "switches_involuntary", "roof", "peak_rss_bytes", "calls_compared", "device_s",
)  # fmt: skip

#: Ratio to the next largest beyond which a value is printed in words, so that the axis separates the others.
OFF_THE_CHART = 8.0


def tidy(run: Run) -> pd.DataFrame:
    """Return one row per benchmark: its extra_info, its stats in seconds, and

    `samples`  its timed blocks, for pairing with those of other rows,
    `over`     ratios of its time to each other implementation's of its case, by name (see `ratios.compared`),
    `ratio`    ratio to the baseline implementation, with its interval `ratio_low`, `ratio_high`,
    `speedup`  1 / `ratio`,
    `spread`   interquartile range over median,
    `tflops_per_s`  `flops` over the median,
    `of_peak`  `tflops_per_s` over the data sheet's peak (see `peaks.shares`),
    `launch_share`  share of the median beyond the device's time, `device_s` (CUDA),
    `mask_efficiency`  share of masked work that is skipped, with its interval and `work_share` (see `masking.of_rows`),
    `wrong`    whether this implementation failed the check in any cell of the run, so that it is not ranked,
    `rank_low`, `rank_high`  its ranks by significant differences (see `ratios.ranks`; NaN if unknown),
    `standing` its rank in its case in words (see `ratios.states`), empty if unknown,
    `tied`     whether it is the fastest of its case or tied with it,
    `leads`    whether its median is the smallest of those with a standing.

    `attrs` has `between_processes`, the standard deviation of log ratios between processes, in excess of their visits'.
    Implementations keep the registry's order (unknown ones follow), cases the file's. Never raises on an empty run.
    """
    facts = [{**_facts(row["extra_info"]), **{key: row["stats"].get(key) for key in STATS}} for row in run.rows]
    frame = pd.DataFrame.from_records(facts, columns=_columns(facts))
    for key in (*STATS, *_NUMBERS):
        frame[key] = pd.to_numeric(frame[key], errors="coerce").astype(float)
    frame["impl"] = frame["impl"].astype(str)
    frame["samples"] = pd.Series(list(map(samples_of, run.rows)), dtype=object)
    frame["wrong"] = frame["impl"].isin(run.wrong)
    judged, between = _comparisons(frame, run.baseline_impl)
    frame[[*JUDGED]] = pd.DataFrame(judged, frame.index, JUDGED).astype(dict.fromkeys(JUDGED[1:-1], float))
    frame[[*masking.COLUMNS]] = pd.DataFrame(masking.of_rows(records(frame)), frame.index, masking.COLUMNS, float)
    frame["speedup"] = 1 / frame["ratio"]
    frame["spread"] = (frame["q3"] - frame["q1"]) / frame["median"]
    frame["tflops_per_s"] = frame["flops"] / frame["median"] / 1e12
    frame["of_peak"] = peaks.shares(frame, run.machine.get("gpu"))
    frame["launch_share"] = (1 - frame["device_s"] / frame["median"]).clip(lower=0)
    frame["tied"] = frame["standing"].isin((ratios.FASTEST, ratios.TIED))
    frame["leads"] = frame.index.isin(frame[frame["standing"] != ""].groupby("id")["median"].idxmin())
    frame.attrs["between_processes"] = between
    return frame


def samples_of(row: Mapping[str, Any]) -> Samples:
    """Return the timed blocks of a run file's row."""
    places = (row["extra_info"][f"sample_{what}"] for what in ("rounds", "visits", "processes"))
    return Samples(row["stats"]["data"], *places)


def skipped(run: Run) -> pd.DataFrame:
    """Return one row per cell without numbers: impl, id, reason, detail."""
    return pd.DataFrame(run.skipped, columns=["impl", "id", "reason", "detail"])


def varying(frame: pd.DataFrame) -> list[str]:
    """Return the axes with more than one value in the frame, except derived ones."""
    found = [axis for axis in axis_names() if axis in frame and frame[axis].nunique(dropna=False) > 1]
    for axis, sources in _may_follow():
        known = [source for source in sources if source in found]
        if axis in found and known and frame.groupby(known, dropna=False)[axis].nunique(dropna=False).max() == 1:
            found.remove(axis)
    return found


def by_case(frame: pd.DataFrame, axes: list[str]) -> Iterator[tuple[Any, pd.DataFrame]]:
    """Split the frame by case, in the order of the values of some axes: numbers sorted, words in file order."""
    if axes:
        ranks = [
            of.rank() if is_numeric_dtype(of := frame[axis]) else pd.factorize(of, use_na_sentinel=False)[0]
            for axis in axes
        ]
        frame = frame.iloc[np.lexsort(ranks[::-1])]
    return iter(frame.groupby("id", sort=False))


def distinct_lengths(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the frame with T_kv missing where it equals T, since self-attention has no separate length of keys.

    Otherwise, self-attention beside decoding or cross-attention would be a separate setting for every T.
    """
    return frame.assign(T_kv=frame["T_kv"].where(frame["T_kv"] != frame["T"]))


def settings(frame: pd.DataFrame) -> dict[str, Any]:
    """Return the axes with a single value in the whole frame, and that value."""
    return {
        axis: frame[axis].iloc[0] for axis in axis_names() if axis in frame and frame[axis].nunique(dropna=False) == 1
    }


def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Return rows as dictionaries from column to value."""
    return frame.to_dict("records")  # type: ignore[return-value]


def plain(value: Any) -> Any:
    """Convert a value to a JSON type."""
    value = value.item() if hasattr(value, "item") else value
    if isinstance(value, float) and value.is_integer():
        return int(value)  # sizes are floats where some are missing, and a browser spells 128.0 as 128: no such option
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int | str) else None if value is pd.NA else str(value)


def trusted(frame: pd.DataFrame) -> pd.DataFrame:
    """Return rows with a number, of implementations that passed every check."""
    return frame[frame["median"].notna() & ~frame["wrong"]]


def ranked(rows: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows of a case sorted by median, those without a rank last."""
    return records(rows.assign(last=rows["standing"] == "").sort_values(["last", "median"]))


def ratio(of: Mapping[str, Any], over: Mapping[str, Any]) -> Ratio:
    """Return the ratio of one row's time to another's in the same run."""
    if of["id"] == over["id"] and over["impl"] in of["over"]:
        return of["over"][over["impl"]]  # type: ignore[no-any-return]
    return ratios.ratio(of["samples"], over["samples"], one_case=of["id"] == over["id"])


def exported(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the frame without columns used only by statistics."""
    return frame.drop(columns=["samples", "over"])


def within(values: Iterable[float]) -> list[float]:
    """Return sorted values without the largest ones, from the first that is OFF_THE_CHART.

    >>> within([1.0, 2.0, 40.0])
    [1.0, 2.0]
    """
    kept = sorted(values)
    beyond = (i for i in range(1, len(kept)) if kept[i] > OFF_THE_CHART * kept[i - 1])
    return kept[: next(beyond, None)]


def _facts(extra: Mapping[str, Any]) -> dict[str, Any]:
    """Return row metadata without per-sample arrays; missing axes get their defaults."""
    defaults = {name: axis.omitted[0] for name, axis in KNOWN_AXES.items() if axis.omitted and axis.omitted != (None,)}
    return {**defaults, **{key: value for key, value in extra.items() if not key.startswith("sample_")}}


def _comparisons(frame: pd.DataFrame, baseline: str | None) -> tuple[list[tuple[Any, ...]], float]:
    """Return `JUDGED` of every row; implementations that failed a check have no rank.

    Also return the standard deviation between processes, in logarithms, that the ratios' intervals include.
    """
    timed = frame.sort_values("median", kind="stable").drop_duplicates(["id", "impl"])
    samples = {case: part.set_index("impl")["samples"].to_dict() for case, part in timed.groupby("id", sort=False)}
    wrong = set(frame.loc[frame["wrong"], "impl"])
    compared, between = ratios.compared(samples)
    found: dict[Any, tuple[Any, ...]] = {}
    for case, pairs in compared.items():
        right = [one for one in samples[case] if one not in wrong]
        right = [one for one in right if len(right) == 1 or any(pairs[one, it].known for it in right if it != one)]
        states, ranks = ratios.states(right, pairs), ratios.ranks(right, pairs)
        for one in samples[case]:
            over = {other: pairs.get((one, other), ratios.SAME) for other in samples[case]}
            it = over.get(baseline or "", ratios.UNKNOWN)
            rank = ranks.get(one, (math.nan, math.nan))
            found[case, one] = over, *rank, *it, states.get(one, "")
    return [found[key] for key in zip(frame["id"], frame["impl"], strict=True)], math.sqrt(between.value)


def _columns(records: list[dict[str, Any]]) -> list[str]:
    always = ("impl", "id", *axis_names(), *STATS, *_NUMBERS, "kernel", "clock")
    return list(dict.fromkeys((*always, *(key for record in records for key in record))))


def _may_follow() -> list[tuple[str, tuple[str, ...]]]:
    """Return the axes that are redundant if derived from others, including head widths from the number of heads, heads
    from a model, and lengths from the requests of a batch.
    """
    known = {name: it.follows for name, it in KNOWN_AXES.items() if it.follows}
    lengths = [("T", ("requests",)), ("T_kv", ("requests",))]
    return [*lengths, *sorted(known.items(), key=lambda it: -len(it[1])), ("D_h", ("H",)), ("H", ("model",))]
