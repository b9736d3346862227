"""Blocks and models: attention's share of a step, and the predicted and measured effect of another kernel."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from statistics import fmean, median
from typing import Any, NamedTuple

from stats import estimate
from stats.ratios import UNKNOWN, Ratio

from ..reading import words
from ..reading.axes import setting
from .rows import Row, Rows, ratio, trusted, varying

OF_MODELS = ("block", "model")

AROUND = ("scope", "model", "d_model", "window")
"""Axes in which a core differs from the block that contains it, whose own windows are a column."""


class ModelStep(NamedTuple):
    """One implementation in one block or model. Seconds are per call; `setting` lists the distinguishing axes."""

    impl: str
    setting: str
    seconds: float
    parts: Mapping[str, float]
    """Seconds by part; their sum is the time of a call with recording."""
    share: Ratio
    """Share of the core in the step."""
    blocks: int
    depth: int
    """Number of blocks of the whole model."""
    hot: float
    """Seconds of the core called alone, repeatedly on the same inputs; NaN if not measured."""
    cold: float
    """Seconds of the core called alone with cold caches."""
    measured: Ratio
    """Measured ratio of the step to the baseline implementation's."""
    predicted: Ratio
    """Predicted ratio, from the baseline's share and the ratio of the cores called alone."""

    @property
    def inside(self) -> float:
        """Seconds of one core in the step."""
        return self.parts["core"] / self.blocks

    @property
    def whole(self) -> float:
        """Seconds of a step of the whole model, with all of its blocks."""
        return self.seconds * self._recorded / sum(self.parts.values())

    @property
    def whole_share(self) -> float:
        """Share of the cores in the step of the whole model."""
        return self.inside * self.depth / self._recorded

    @property
    def _recorded(self) -> float:
        """Seconds of `whole` with recording, which may have been slower than the timed calls."""
        one = sum(self.parts.get(part, 0.0) for part in ("block", "projections", "core", "mlp")) / self.blocks
        return sum(self.parts.values()) + (self.depth - self.blocks) * one


def model_steps(every: Rows, baseline: str) -> Iterator[ModelStep]:
    """Yield every row of a block or a model whose parts are known."""
    rows = trusted(every)
    of_models = [row for row in rows if row["scope"] in OF_MODELS and isinstance(row.get("parts_s"), Mapping)]
    cores = {_core(row, row["impl"], row.get("window")): row for row in rows if row["scope"] == "core"}
    bases = {row["id"]: row for row in of_models if row["impl"] == baseline}
    axes = varying([row for row in every if row["scope"] in OF_MODELS])
    for row in of_models:
        # the rows of the cores of its blocks, empty where one was not measured
        own, others = (
            [cores.get(_core(row, impl, window), {}) for window in row["windows"]] for impl in (row["impl"], baseline)
        )
        hot, cold = (fmean(core.get(name) or math.nan for core in own) for name in ("median", "cold_s"))
        measured = predicted = UNKNOWN
        if base := bases.get(row["id"]):
            measured = ratio(row, base)
            if all(own) and all(others):
                predicted = _predicted(_share(base), own, others)
        at = {axis: row[axis] for axis in {*axes, "T_kv"} if axis != "T_kv" or row["T_kv"] != row["T"]}
        yield ModelStep(
            row["impl"], words.setting(at, always=at), row["median"], row["parts_s"], _share(row), row["blocks"],
            row["depth"], hot, cold, measured, predicted,
        )  # fmt: skip


def _core(row: Row, impl: str, window: Any) -> tuple[Any, ...]:
    """Return what identifies the core of a block with this window."""
    return impl, window, *setting(row, AROUND)


def nearer(found: Iterable[ModelStep]) -> str:
    """Return a sentence on whether hot or cold times are nearer to a core's time in the model; '' if none was measured cold."""
    off = [(abs(math.log(it.inside / it.hot)), abs(math.log(it.inside / it.cold))) for it in found if it.cold > 0]
    if not off:
        return ""
    hot, cold = (f"{math.exp(median(logs)):.2f}" for logs in zip(*off, strict=True))
    return (
        f"A core's time in the model differs from its hot time by a factor of {hot}, from its cold time by {cold} (medians); "
        f"cold is nearer in {sum(cold < hot for hot, cold in off)} of {len(off)}."
    )


def _predicted(share: Ratio, cores: Rows, bases: Rows) -> Ratio:
    """Return 1 + share · (ratio of the cores' total times - 1); the two errors are independent.

    The ratio of the totals is the mean of the cores' ratios, weighted by the times of `bases`; so are the ends of its interval.
    """
    ratios = zip(*map(ratio, cores, bases), strict=True)
    core = Ratio(*(fmean(bounds, [base["median"] for base in bases]) for bounds in ratios))
    value = 1 + share.value * (core.value - 1)
    half = math.hypot(share.value * (core.high - core.low) / 2, (core.value - 1) * (share.high - share.low) / 2)
    return Ratio(value, value - half, value + half)


def _share(row: Row) -> Ratio:
    """Return the core's share of the parts, with an interval as wide as that of the trimmed mean over recorded calls."""
    value = row["parts_s"]["core"] / sum(row["parts_s"].values())
    low, high = estimate.of_replicates(row["core_shares"]).interval()
    half = (high - low) / 2
    return Ratio(value, max(0.0, value - half), min(1.0, value + half))
