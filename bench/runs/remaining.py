"""How long the timing of a run still takes."""

from __future__ import annotations

from collections.abc import Sequence


def remaining(planned: Sequence[float], passed: float, visits: int, later_batches: int) -> float:
    """Seconds, from what the visits of a batch of processes are planned to take, each, and what the first ones took together.

    Calls that are long are timed in the later visits alone, so those before don't tell what is left; what the plan lacks
    (caches that are filled, answers that are compared) is the same in each.
    """
    lacking = max(0.0, passed - sum(planned[:visits])) / visits
    return (
        sum(planned[visits:])
        + lacking * (len(planned) - visits)
        + later_batches * (sum(planned) + lacking * len(planned))
    )
