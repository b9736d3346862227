"""Mask efficiency: share of the masked work that an implementation skips.

A case is compared with the same case without its mask. They have separate rounds, so that the ratio is taken visit by
visit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from stats import ratios

from ..reading.axes import KNOWN_AXES, axis_names, setting

COLUMNS = ("work_share", "mask_efficiency", "mask_efficiency_low", "mask_efficiency_high")

Row = Mapping[str, Any]


def of_rows(rows: Sequence[Row]) -> list[tuple[float, ...]]:
    """Return `COLUMNS` for each of a run's rows; NaN if the run lacks the case without its mask.

    `work_share`        visible operations over all operations; for a core the visible share,
    `mask_efficiency`   `work_share` times the time without the mask over that with it: 1 if all masked work is skipped,
                        `work_share` if none is; with its 95 % interval, `mask_efficiency_low`, `mask_efficiency_high`.
    """
    unmasked = {_without_mask(row): row for row in rows if not _masked(row)}
    return [_efficiency(row, unmasked.get(_without_mask(row))) for row in rows]


def skips(row: Row) -> bool:
    """Whether skipping of masked work is significant."""
    return bool(row["mask_efficiency_low"] > row["work_share"])


def _efficiency(row: Row, unmasked: Row | None) -> tuple[float, ...]:
    # padding is counted in full, so that the visible share is unknown
    if unmasked is None or not 0 < row["flops"] < unmasked["flops"] or str(row["mask"]).endswith("padding"):
        return (math.nan,) * len(COLUMNS)
    share = row["flops"] / unmasked["flops"]
    return share, *(share * it for it in ratios.ratio(unmasked["samples"], row["samples"], one_case=False))


def _masked(row: Row) -> bool:
    return not all(row[axis] == "none" or pd.isna(row[axis]) for axis in axis_names() if KNOWN_AXES[axis].masks)


def _without_mask(row: Row) -> tuple[Any, ...]:
    """Return the implementation and the case without its mask."""
    return row["impl"], *setting(row, [axis for axis in axis_names() if KNOWN_AXES[axis].masks])
