"""`stats.saved`: which unchanged code tells how far a change between two runs may be chance."""

import math
from types import MappingProxyType

import numpy as np
import pytest

from stats import saved
from stats.ratios import Samples

CASES = tuple(f"T{i}" for i in range(8))


def changes(moves, factors=MappingProxyType({}), cases=CASES, changed=()):
    """Return the changes of implementations whose cells changed by `moves`, a log or one for each case."""
    rng, rounds = np.random.default_rng(0), range(12)

    def samples(log):
        return Samples(np.exp(log + rng.normal(0, 0.001, len(rounds))).tolist(), rounds, rounds, [0] * len(rounds))

    return saved.changes(
        {
            (impl, case): (samples(level := math.log(factors.get(impl, 1.0))), samples(level + move))
            for impl, of in moves.items()
            for case, move in zip(cases, np.broadcast_to(of, len(cases)).tolist(), strict=True)
        },
        changed,
    )


STILL = {"sdpa": 0.0, "fused": 0.0, "einsum": 0.0}


@pytest.mark.parametrize(("other", "factor"), [("loops", 30.0), ("fused+compile", 1.0)])
def test_slow_code_and_variants_neither_move_other_verdicts_nor_make_them_less_certain(other, factor):
    found = changes(STILL | {other: 0.5}, {other: factor})
    assert found.spreads["sdpa"] == pytest.approx((saved.SD_OF_CELLS, saved.SD_OF_IMPLEMENTATIONS))
    few = changes({"sdpa": 0.0, "fused": 0.0, other: 0.5}, {other: factor})  # where it would be half of the anchors
    assert few.implementations["sdpa"].mean == pytest.approx(0, abs=0.01)


def test_variants_are_no_placebos_of_plain_code_where_there_is_no_other():
    found = changes({"sdpa": 0.0, "fused+compile": 0.5, "einsum+compile": -0.5})
    assert found.spreads["sdpa"] == pytest.approx((saved.SD_OF_CELLS, saved.SD_OF_IMPLEMENTATIONS))


@pytest.mark.parametrize(
    "others", [["sdpa"], ["sdpa", "sdpa+compile"]], ids=str
)  # a variant is no anchor of plain code
def test_beside_a_single_anchor_whose_own_change_is_unknown_changes_are_less_certain(others):
    found = changes(dict.fromkeys(["mine", *others], 0.0), changed=["mine"])
    expected = math.sqrt(2) * saved.SD_OF_CELLS, math.sqrt(2) * saved.SD_OF_IMPLEMENTATIONS
    assert found.spreads["mine"] == pytest.approx(expected)


def test_changes_of_slow_code_are_less_certain():
    found = changes(STILL | {"loops": 0.0}, {"loops": 30.0})
    assert found.spreads["loops"][1] == pytest.approx(saved.SD_OF_SLOW)
    assert found.cells["loops", "T0"].error >= saved.SD_OF_SLOW


def test_cells_of_unchanged_code_that_scatter_make_cells_less_certain():
    scattered = np.array([0.05, -0.05] * 4)
    assert changes(STILL | {"fused": scattered, "einsum": -scattered}).spreads["sdpa"][0] > 0.05


def test_an_outlying_cell_hardly_moves_its_implementation():
    assert abs(changes(STILL | {"mine": [1.0] + [0.0] * 7}).implementations["mine"].mean) < 0.02


def test_of_two_implementations_the_slower_may_be_too_slow_for_an_anchor():
    found = changes({"sdpa": 0.0, "loops": 0.5}, {"loops": 30.0})
    assert {impl for impl, _ in found.cells} == {"loops"}
