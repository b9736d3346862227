"""Measures calls on the CPU with cold caches, as in a model: inputs and weights move in memory before
each call, and all their locations together exceed the last-level cache.
"""

from __future__ import annotations

import math
from itertools import cycle, islice
from pathlib import Path
from statistics import median

import torch

from .cell import Built
from .devices import free_bytes

CALLS = 7
"""Calls whose median is `cold_s`."""

LONGEST = 0.1
"""Seconds of a hot call above which caches make no difference."""

MOST_PLACES = 64
"""Most locations in rotation; if they are too small together, other memory is written beside each."""

CACHES = Path("/sys/devices/system/cpu/cpu0/cache")


def last_level_cache() -> int | None:
    """Return the size of the last-level cache in bytes; None if the system doesn't provide it."""
    return max((int(it.read_text().rstrip("K\n")) << 10 for it in CACHES.glob("index*/size")), default=None)


def cold_s(built: Built, hot_s: float) -> float | None:
    """Return the seconds of a cold call; None if it is long, the cache size unknown, or memory too small for the
    locations.
    """
    cache = last_level_cache()
    tensors = built.tensors
    size = sum(it.nbytes for it in tensors)
    if cache is None or hot_s > LONGEST or 4 * size > free_bytes("cpu"):
        return None
    count = min(MOST_PLACES, 1 + math.ceil(2 * cache / size))
    filler = max(0, 2 * cache // MOST_PLACES - size)
    with torch.inference_mode(False):  # inference tensors would trigger a recompilation
        kept = [it.data for it in tensors]
        places = [([it.clone() for it in kept], torch.ones(filler, dtype=torch.uint8)) for _ in range(count)]
    taken = []
    try:
        for moved, beside in islice(cycle(places), CALLS):  # the least recently written location comes first
            for tensor, data in zip(tensors, moved, strict=True):
                tensor.data = data
            taken.append(built.meter.seconds(built.call.run, 1))
            beside.fill_(2)
    finally:
        for tensor, data in zip(tensors, kept, strict=True):
            tensor.data = data
    return median(taken)
