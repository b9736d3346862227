"""Records the profiler's trace of one call, in a worker."""

from __future__ import annotations

import gzip
from pathlib import Path

from torch.profiler import profile, schedule

from ..checks.calls import recording
from ..checks.dispatch import trace_of
from .cell import Built
from .devices import DEVICES


def trace(built: Built) -> bytes:
    """Return the profiler's Chrome trace of one call, with shapes and allocations, after a warm-up call."""
    found: list[bytes] = []
    with recording(built.cell.case), profile(
        activities=DEVICES[built.cell.case.device].activities,
        schedule=schedule(wait=0, warmup=1, active=1, repeat=1),
        on_trace_ready=lambda profiler: found.append(trace_of(profiler)),
        record_shapes=True,
        profile_memory=True,
        acc_events=False,
    ) as profiler:  # fmt: skip
        built.call.run()
        profiler.step()
        kept = built.call.run()  # the output counts as the call's memory: keep it until the trace ends
        profiler.step()
        del kept
    return found[0]


def write(trace: bytes, path: Path) -> None:
    """Write the trace, all or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name("part")
    try:
        part.write_bytes(gzip.compress(trace))
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
