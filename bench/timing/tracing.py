"""Records the profiler's trace of one call, in a worker."""

from __future__ import annotations

from pathlib import Path

from torch.profiler import profile, schedule

from .cell import Built
from .devices import DEVICES


def write_trace(built: Built, path: Path) -> None:
    """Write the profiler's gzipped Chrome trace of one call, with shapes and allocations, after a warm-up call; within
    `Built.watched`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with profile(
        activities=DEVICES[built.cell.case.device].activities,
        schedule=schedule(wait=0, warmup=1, active=1, repeat=1),
        on_trace_ready=lambda profiler: profiler.export_chrome_trace(str(path)),
        record_shapes=True,
        profile_memory=True,
        acc_events=False,
    ) as profiler:  # fmt: skip
        built.call.run()
        profiler.step()
        kept = built.call.run()  # the output counts as the call's memory: keep it until the trace ends
        profiler.step()
        del kept
