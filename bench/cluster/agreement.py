"""Whether the nodes of a type are one machine, by the control workload that each of them timed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median, median_low, quantiles

from stats.verdict import STILL

from .state import Answer


def disagreements(answers: Sequence[Answer]) -> Iterator[str]:
    """A sentence for every node whose control workload takes longer or shorter than that of the middle one, by more than
    `STILL` beyond what it varies by on either."""
    for name, looks in _looks(answers).items():
        middles = {node: median(seconds) for node, seconds in looks.items()}
        usual = median_low(middles.values())
        of_usual = next(node for node, middle in middles.items() if middle == usual)
        for node, middle in middles.items():
            allowed = STILL + _spread(looks[node]) + _spread(looks[of_usual])
            if abs(middle / usual - 1) > allowed:
                how = "longer" if middle > usual else "less"
                yield (
                    f"nodes differ: the control workload {name!r} takes {abs(middle / usual - 1):.1%} {how} on {node} "
                    f"than on {of_usual}"
                )


def _looks(answers: Sequence[Answer]) -> dict[str, dict[str, list[float]]]:
    """Seconds of every look, by control and node."""
    found: dict[str, dict[str, list[float]]] = {}
    for answer in answers:
        for name, seen in answer.run["controls"]["looks"].items():
            found.setdefault(name, {}).setdefault(answer.node, []).extend(look["seconds"] for look in seen)
    return found


def _spread(seconds: Sequence[float]) -> float:
    """Half the interquartile range, as a share of the median."""
    if len(seconds) < 2:
        return 0.0
    low, middle, high = quantiles(seconds, n=4, method="inclusive")
    return (high - low) / 2 / middle
