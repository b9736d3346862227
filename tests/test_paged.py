"""Paged caches: every method gives the output of a contiguous cache, and wrong ones are refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import impls
from bench.cases.case import Case
from bench.cases.outcome import Wrong
from bench.checks.problems import problem_of
from impls.paged import PageByPage, PagedLayer
from impls.paging import in_order, places, write

from .conftest import gated

SMALL = {"T": 1, "T_kv": 50, "B": 3, "H": 4, "D_h": 16, "mode": "decode", "mask": "none", "page": 8}
CHUNK = {"T": 6, "mask": "causal_br"}


@pytest.mark.parametrize(
    "axes",
    [{}, {"H_kv": 2, "dtype": "bfloat16"}, {"page": 1}, {"page": 64}, {"T_kv": 48, "D_v": 8}, CHUNK | {"window": 9}, CHUNK],
    ids=str,
)  # fmt: skip
def test_every_method_gives_the_same_output(short_probes, axes):
    case = Case.of(**(SMALL | axes))
    for name in ("fused", "sdpa", "packed", "page_by_page"):
        assert impls.get(name).refusal(case) is None
        gated(impls.get(name), case)


def test_pages_are_drawn_without_replacement_and_hold_the_contiguous_cache():
    case = Case.of(**SMALL)
    problem, other = problem_of(case), problem_of(case, input_set=2)
    assert problem.pages is not None
    assert other.pages is not None
    _, keys, values = problem.inputs
    assert problem.pages.shape == (3, 7)  # 50 tokens, 8 a page
    assert len(problem.pages.unique()) == 21
    assert not torch.equal(problem.pages, other.pages)
    assert keys.shape == values.shape == (1, 4, 27 * 8, 16)  # a quarter more pages than are used
    where = places(problem.pages, 8, 0, 50)
    assert torch.equal(in_order(keys, problem.pages, 8, 50)[1, 2, 17], keys[0, 2, where[1, 17]])
    assert in_order(keys, problem.pages, 8, 50)[..., -1:, :].isnan().all()  # there to be written to
    assert not in_order(keys, problem.pages, 8, 49).isnan().any()


class InPlace(PagedLayer):
    """Base of wrong layers, itself correct: copies the pages of all requests into one piece, then uses the plain formula."""

    def table(self, pages):
        return pages

    def seen(self, pages):
        """Return the number of tokens that it attends to."""
        return self.shape.max_T

    def over_pages(self, q, k, v, pages):
        pages, seen = self.table(pages), self.seen(pages)
        o = self.core(q, *(in_order(pool, pages, self.page, seen) for pool in (k, v)))
        return o


class TableIsIgnored(InPlace):
    def table(self, pages):
        return torch.arange(pages.numel()).view_as(pages)


class PagesOfTheFirstRequest(InPlace):
    def table(self, pages):
        return pages[:1].expand_as(pages)


class AllOfTheLastPage(InPlace):
    def seen(self, pages):
        return pages.shape[1] * self.page


class LastPageIsLeftOut(InPlace):
    """Ignores a last page that isn't full, as if tokens were counted in whole pages."""

    def seen(self, pages):
        return self.shape.max_T // self.page * self.page


class OneTokenOfTheLastPage(InPlace):
    """Reads only the first token of a last page that isn't full."""

    def seen(self, pages):
        return min(self.shape.max_T, self.shape.max_T // self.page * self.page + 1)


class KeepsTheFirstTable(InPlace):
    """Caches the block table of the first step."""

    first: Tensor | None = None

    def table(self, pages):
        self.first = pages if self.first is None else self.first
        return self.first


class ValuesByTheTableOfTheNext(InPlace):
    def over_pages(self, q, k, v, pages):
        k, v = (in_order(x, table, self.page, self.shape.max_T) for x, table in ((k, pages), (v, pages.roll(1, 0))))
        o = self.core(q, k, v)
        return o


class ClearsThePage(InPlace):
    """Writes the new token and clears the rest of its page."""

    def extend_pages(self, pools, newest, pages):
        last = places(pages, self.page, self.shape.max_T, pages.shape[1] * self.page)
        for pool in pools:
            pool[:, :, last.flatten()] = 0
        return super().extend_pages(pools, newest, pages)


class WritesToTheEndOfThePool(InPlace):
    def extend_pages(self, pools, newest, pages):
        T = newest[0].shape[-2]
        for pool, new in zip(pools, newest, strict=True):
            write(pool, new, pool.shape[-2] - T * torch.arange(1, len(pages) + 1)[:, None] + torch.arange(T))
        return pools


class ValuesOfTheWholePool(InPlace):
    """Multiplies by the whole pool, with zero probs for other pages: zero times NaN is NaN."""

    def over_pages(self, q, k, v, pages):
        own = torch.zeros(len(q), k.shape[-2], dtype=torch.bool)
        own.scatter_(1, places(pages, self.page, 0, self.shape.max_T), True)
        scores = (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(~own[:, None, None], -torch.inf)
        return torch.softmax(scores, -1) @ v


class NoMaximumOverPages(PageByPage):
    """Averages the softmax of each page."""

    def over_pages(self, q, k, v, pages):
        each = [self.core(q, *(in_order(x, page, self.page, self.page) for x in (k, v))) for page in pages.split(1, 1)]
        return torch.stack(each).mean(0)


WRONG = (*InPlace.__subclasses__(), NoMaximumOverPages)


class PageBeforeThatOfTheNewestToken(InPlace):
    """Where that token begins a page."""

    def table(self, pages):
        begins = self.shape.max_T % self.page == 1 and self.page > 1
        return torch.cat([pages[:, :-1], pages[:, -2:-1]], 1) if begins else pages


class FullLastPageIsLeftOut(InPlace):
    def seen(self, pages):
        tokens = self.shape.max_T
        return tokens if tokens % self.page or tokens <= self.page else tokens - self.page


@pytest.mark.parametrize("layer", [PageBeforeThatOfTheNewestToken, FullLastPageIsLeftOut])
def test_pages_of_probes_end_as_those_of_the_case_do_not(layer):
    with pytest.raises(Wrong):
        gated(
            impls.make("mine", layer, limits=impls.Limits(beyond=("page",))),
            Case.of(**SMALL | {"T_kv": 200, "page": 128}),
        )


@pytest.mark.parametrize("layer", WRONG, ids=lambda it: it.__name__)
def test_a_wrong_layer_is_refused(short_probes, layer):
    """In the case itself all pages are full; the probe's last page is not."""
    full = {"T_kv": 48, "page": 16} if layer in (AllOfTheLastPage, LastPageIsLeftOut, OneTokenOfTheLastPage) else {}
    with pytest.raises(Wrong):
        gated(impls.make("mine", layer, limits=impls.Limits(beyond=("page",))), Case.of(**SMALL | full))


def test_the_kernel_from_which_wrong_ones_are_made_passes(short_probes):
    gated(impls.make("mine", InPlace, limits=impls.Limits(beyond=("page",))), Case.of(**SMALL))
