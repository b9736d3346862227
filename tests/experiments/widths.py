"""`python -m tests.experiments.widths RUN...`: how intervals of ratios narrow with processes, replayed on runs of several.

Of each pair of implementations in each case: the half-width, in logarithms, root mean square over all choices of K of the run's
processes, over that of K - 1.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from itertools import combinations, pairwise
from pathlib import Path

import numpy as np

from reports.judging.rows import samples_of
from reports.pages.tables import markdown
from reports.reading import runs
from stats import ratios
from stats.ratios import Samples

HEADINGS = ("run", "processes", "pairs", "half-width over that of one process fewer, middle", "widest", "wider")

Widths = dict[tuple[str, str, str], float]


def main() -> None:
    print(markdown(HEADINGS, [line for path in sys.argv[1:] for line in _narrowing(Path(path))]))


def _narrowing(path: Path) -> Iterator[tuple[str, ...]]:
    cases: dict[str, dict[str, Samples]] = {}
    for row in runs.read(path).rows:
        cases.setdefault(row["extra_info"]["id"], {})[row["extra_info"]["impl"]] = samples_of(row)
    known = sorted({it for impls in cases.values() for samples in impls.values() for it in samples.processes})
    usual = [_usual([_widths(cases, set(kept)) for kept in combinations(known, K)]) for K in range(1, len(known) + 1)]
    for K, (fewer, more) in enumerate(pairwise(usual), 2):
        over = np.array([more[pair] / fewer[pair] for pair in fewer if pair in more])
        if over.size:
            yield (
                path.stem,
                str(K),
                str(over.size),
                f"{np.median(over):.2f}",
                f"{over.max():.2f}",
                str((over > 1).sum()),
            )


def _widths(cases: dict[str, dict[str, Samples]], kept: set[int]) -> Widths:
    chosen = {
        case: {impl: of for impl, it in impls.items() if {*(of := _only(it, kept)).processes} == kept}
        for case, impls in cases.items()
    }
    found, _ = ratios.compared({case: impls for case, impls in chosen.items() if len(impls) > 1})
    return {
        (case, a, b): math.log(it.high / it.low) / 2
        for case, over in found.items() for a, of in over.items() for b, it in of.items() if it.known and a < b
    }  # fmt: skip


def _only(it: Samples, kept: set[int]) -> Samples:
    there = [i for i, process in enumerate(it.processes) if process in kept]
    return Samples(*([column[i] for i in there] for column in (it.seconds, it.rounds, it.visits, it.processes)))


def _usual(widths: list[Widths]) -> Widths:
    """Return the root mean square of each pair that has an interval in all choices."""
    shared = set.intersection(*map(set, widths))
    return {pair: math.sqrt(np.mean([it[pair] ** 2 for it in widths])) for pair in shared}


if __name__ == "__main__":
    main()
