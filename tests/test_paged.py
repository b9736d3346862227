"""Paged caches: every method gives the output of a contiguous cache, and wrong ones are refused."""

import pytest
import torch

import impls
from bench.cases.case import Case
from bench.cases.outcome import Wrong
from bench.checks.attention_problems import problem_of
from bench.checks.inputs import copies, same
from bench.checks.revealing_problems import without_queries
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
        gated(impls.get(name), case)


def test_pages_are_drawn_without_replacement_and_hold_the_contiguous_cache():
    case = Case.of(**SMALL)
    problem, other = problem_of(case), problem_of(case, input_set=2)
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

    def seen(self, tokens, page):
        """Return the number of tokens that it attends to."""
        return tokens

    def over_pages(self, q, k, v, pages):
        pages, seen = self.table(pages), self.seen(self.shape.max_T, self.page)
        return self.core(q, *(in_order(pool, pages, self.page, seen) for pool in (k, v)))


def kept(layer, pages):
    layer.first = getattr(layer, "first", pages)
    return layer.first


def changed(part, **changes):
    """Return a layer for each replacement of a part."""
    return [type(name, (InPlace,), {part: change}) for name, change in changes.items()]


def kept_at_its_address(layer, pages):
    """A server's table is one tensor, in which each step writes."""
    if getattr(layer, "place", None) != pages.data_ptr():
        layer.place, layer.first = pages.data_ptr(), pages.clone()
    return layer.first


WRONG = changed(
    "table",
    ignored=lambda layer, pages: torch.arange(pages.numel()).view_as(pages),
    of_the_first_request=lambda layer, pages: pages[:1].expand_as(pages),
    of_the_first_step=kept,
    until_its_address_changes=kept_at_its_address,
)
FULL = changed(
    "seen",
    all_of_the_last_page=lambda layer, tokens, page: -(-tokens // page) * page,
    whole_pages_alone=lambda layer, tokens, page: tokens // page * page,
    one_token_of_the_last_page=lambda layer, tokens, page: min(tokens, tokens // page * page + 1),
)
"""Right where the last page is full, as in the case."""
UNLIKE_PROBES = (
    changed(
        "table",  # where the newest token begins a page, its page is taken for the one before
        page_before_that_of_the_newest_token=lambda layer, pages: (
            torch.cat([pages[:, :-1], pages[:, -2:-1]], 1) if layer.shape.max_T % layer.page == 1 else pages
        ),
    )
    + changed(
        "seen",
        full_last_page_is_left_out=lambda layer, tokens, page: (
            tokens if tokens % page or tokens <= page else tokens - page
        ),
    )
)


class ValuesByTheTableOfTheNext(InPlace):
    def over_pages(self, q, k, v, pages):
        tables = (k, pages), (v, pages.roll(1, 0))
        return self.core(q, *(in_order(x, table, self.page, self.shape.max_T) for x, table in tables))


class ClearsThePage(InPlace):
    """Writes the new token and clears the rest of its page."""

    def extend_pages(self, pools, newest, pages):
        last = places(pages, self.page, self.shape.max_T, pages.shape[1] * self.page)
        for pool in pools:
            pool[:, :, last.flatten()] = 0
        return super().extend_pages(pools, newest, pages)


class WritesOnlyWhereNothingIs(InPlace):
    def extend_pages(self, pools, newest, pages):
        where = places(pages, self.page, self.shape.max_T - newest[0].shape[-2], self.shape.max_T)
        return super().extend_pages(pools, newest, pages) if pools[0][0, :, where].isnan().any() else pools


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


class AveragesThePages(PageByPage):
    """Their softmaxes."""

    def over_pages(self, q, k, v, pages):
        each = [self.core(q, *(in_order(x, page, self.page, self.page) for x in (k, v))) for page in pages.split(1, 1)]
        return torch.stack(each).mean(0)


WRONG += [
    ValuesByTheTableOfTheNext, ClearsThePage, WritesOnlyWhereNothingIs, WritesToTheEndOfThePool, ValuesOfTheWholePool,
    AveragesThePages,
]  # fmt: skip


def held_to(layer, **axes):
    gated(impls.make("mine", layer, limits=impls.Limits(beyond=("page",))), Case.of(**SMALL | axes))


@pytest.mark.parametrize("layer", UNLIKE_PROBES)
def test_pages_of_probes_end_as_those_of_the_case_do_not(layer):
    with pytest.raises(Wrong):
        held_to(layer, T_kv=200, page=128)


@pytest.mark.parametrize("layer", WRONG + FULL, ids=lambda it: it.__name__)
def test_a_wrong_layer_is_refused(short_probes, layer):
    with pytest.raises(Wrong):
        held_to(layer, **{"T_kv": 48, "page": 16} if layer in FULL else {})


def test_nan_of_a_free_page_is_told(short_probes):
    with pytest.raises(Wrong, match=r"NaN or Inf .*; free pages hold NaN; the end of a cache"):
        held_to(ValuesOfTheWholePool)


def test_naming_the_likely_cause_of_a_fault_leaves_later_checks_their_inputs():
    problem = problem_of(Case.of(**SMALL))
    before = copies(problem.inputs)
    without_queries(problem.case)
    assert same(problem.inputs, before)


def test_the_kernel_from_which_wrong_ones_are_made_passes(short_probes):
    held_to(InPlace)
