"""Chooses the small cases on which an implementation is checked besides its own: probes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import product

from impls import Impl

from ..cases.case import Case, tokens_of
from ..cases.modes import Point
from ..cases.sweep import misfit
from .data import cache_sizes
from .patterns import PATTERNS

LONG_PROBE = 512
"""Probes up to this length have several batch entries and heads; longer ones cover long ranges only."""

PROBES = (37, 513, 127, 64, 128)
"""Lengths of the probes: 37, less than a tile of 64; 513, one token more than tiles of 64, 128 or 256; 127, one token less
than tiles of 64 or 128; 64, half of a tile of 128, and fewer tiles than a workspace may still hold; and 128, a round
length, for which some kernels have a separate path. A compiled form is probed at the first length only, since each length
is compiled separately: its eager form is probed at all lengths, and it is checked in every pattern in the case itself.

An implementation that declares a length unsupported is probed at the nearest supported length on the same side of
`LONG_PROBE`.
"""

FEW_QUERIES = 2 * len(PATTERNS)
"""Queries up to which a case itself may show too few patterns: of a new token, or of draft tokens."""

FEW_ENTRIES = 4
"""Batch entries of few queries of a layer whose cache is large: a lone query has a late key there; ordinary, very large and
very negative scores.
"""

LARGEST_CACHE = 1 << 26
"""Numbers in the caches of few queries up to which they get more batch entries than their case has, and up to which their
log-sum-exp is checked.
"""

CAP, CAP_WITH_DROPOUT = 50, 4
"""Soft caps of probes: the patterns' large scores exceed the first one; ordinary scores, which probes with dropout have, are
changed by the second one.
"""

LENGTH_WITH_DROPOUT = {"core": 304, "layer": 160}
"""Lengths of the probes with dropout: more than one tile of 64, 128 or (core) 256, by enough keys under a causal mask."""

ROUND = 16
"""A multiple of this counts as a round length: it leaves no partial tile, however small."""


def ragged(probes: Sequence[Case]) -> bool:
    """Whether some length is not round: an implementation limited to round lengths is checked at those alone."""
    return any(probe.max_T % ROUND for probe in probes)


def padded(impl: Impl, probed: Sequence[Case]) -> list[Case]:
    """Return the first probe of a model with padding, which detects models that ignore it, if `impl` supports it."""
    masks = {"causal": "causal+padding", "none": "padding"}
    found = (replace(it, B=max(2, it.B), mask=masks[it.mask]) for it in probed[:1] if it.in_model and it.mask in masks)
    return [it for it in found if impl.refusal(it) is None]


def odd(impl: Impl, probed: Sequence[Case]) -> list[Case]:
    """Return the long probe with one head, if `impl` supports it: an odd number of tiles, which no even number of threads
    divides evenly.
    """
    found = (replace(it, B=1, H=1, H_kv=1, d_model=it.d_model // it.H) for it in probed[1:2] if it.max_T > LONG_PROBE)
    return [it for it in found if misfit(it) is None and impl.refusal(it) is None]


def few_queries(impl: Impl, case: Case) -> Case | None:
    """Return a case of one or a few new tokens at its own length, with every softmax pattern, or four if its cache would
    be too large.

    A layer shows one pattern per token and batch entry, a core one per head too. None if the case itself has enough
    batch entries, or more tokens or requests.
    """
    own = replace(case if impl.core is None else case.core, dropout=0.0, out_dropout=0.0)
    entry = cached_numbers(own) // own.B
    heads = 1 if impl.core is None else case.H
    shown = (case.T + 1) // 2 + heads - 1  # patterns of an entry, of which a late key has the other half
    wanted = max(min(2, case.T), len(PATTERNS) + 1 - shown), FEW_ENTRIES if impl.core is None else 0
    B = next((b for b in wanted if b <= case.B or b * entry <= LARGEST_CACHE), 0)
    few = replace(own, B=max(case.B, B))
    most = FEW_QUERIES if case.T_kv > LONG_PROBE else 1  # probes show what several do at smaller lengths
    if most < case.T or case.requests or not B or few == case or len(PATTERNS) <= case.B:
        return None
    return few if misfit(few) is None and impl.refusal(few) is None else None


def cached_numbers(case: Case) -> int:
    """Return how many numbers the caches of a case hold."""
    return case.B * sum(math.prod(size) for size in cache_sizes(case))


@lru_cache(maxsize=256)
def probes(impl: Impl, case: Case) -> tuple[Case, ...]:
    """Return small cases of the same kind as `case`, with B > 1, H > 1 and ragged lengths, as far as `impl` supports
    them.

    An implementation that supports none of them is probed at the case's own length.
    """
    found = [_first(impl, case, _near(T, impl.limits.max_T)) for T in (PROBES[:1] if impl.compiled else PROBES)]
    own = [_first(impl, case, [case.T_kv if case.does.cached else case.T])]
    return tuple(dict.fromkeys(filter(None, found))) or tuple(filter(None, own))


def _first(impl: Impl, case: Case, lengths: Iterable[int]) -> Case | None:
    """Return the first probe that `impl` supports; None if there is none."""
    return next((probe for T in lengths for probe in _probes_at(case, T) if impl.refusal(probe) is None), None)


def _near(T: int, most: int | None) -> list[int]:
    """Return lengths up to `most` on the same side of `LONG_PROBE` as T, the nearest one first."""
    shortest, longest = (LONG_PROBE + 1, 2 * LONG_PROBE) if T > LONG_PROBE else (2, LONG_PROBE)
    return sorted(range(shortest, min(longest, most or longest) + 1), key=lambda length: abs(length - T))


def _probes_at(case: Case, T: int) -> Iterator[Case]:
    """Yield probes with enough heads to distinguish neighbouring heads or groups; a long probe of a single-headed case
    has one head.

    With keys from another sequence, that sequence is shorter in the short probe and longer in the long one. The
    preferred probe comes first, then less demanding ones: rounder lengths of the other sequence; windows, prefix and
    cap unchanged; fewer heads and batch entries.
    """
    grouped, long = case.H_kv != case.H, T > LONG_PROBE
    H = 4 if grouped else min(case.H, 2) if long else 3
    H_kv = min(case.H_kv, 2) if grouped else H
    B = len(PATTERNS) if case.does.cached else 1 if case.requests or (long and H > 1 and not case.padded) else 2
    shapes = (B, H, H_kv), (B, case.H, case.H_kv), (case.B, case.H, case.H_kv)
    for (b, h, h_kv), shrunk in product(dict.fromkeys(shapes), (True, False)):
        d_model = h * case.D_h if case.d_model == case.H * case.D_h else case.d_model
        for lengths in _lengths(case, T):
            probe = replace(case, B=b, H=h, H_kv=h_kv, d_model=d_model, **lengths)
            probe = _shortened(probe, CAP) if shrunk else probe
            if probe.T_kv > 0 and misfit(probe) is None:
                yield probe


def _lengths(case: Case, T: int) -> Iterator[Point]:
    """Yield axes T and T_kv of a probe, and requests if the case has some: a token, a prompt, a part of one, two tokens."""
    if case.requests:
        part, most = max(1, T // 3), max(2, T // 2)
        yield tokens_of(f"1x1:{most}+1x{part}:{part}+1x{part}:{T}+2x1:{most}")
        return
    others = (T + 9, T + 64, T + 128, T) if T > LONG_PROBE else (T - 9, T - 64, T + 64, T - 128, T + 128, T)
    tokens = min(case.T, T // 2) if case.does.cached else T
    for T_kv in (T,) if case.source == "self" else others:
        yield {"T": tokens, "T_kv": T_kv}


def probe_with_dropout(impl: Impl, case: Case) -> Case | None:
    """Return a case that drops as this one over more than one tile, in a size that shows probs if they are dropped; None if
    `impl` supports none.

    With keys from another sequence, queries are fewer than keys. Heads are as wide as in the case if values may have
    another width.
    """
    for plain in _sizes_with_dropout(impl, replace(case, out_bias=case.out_bias and not case.dropout)):
        for width in dict.fromkeys((case.D_h, plain.T_kv if case.dropout else case.D_h)):
            D_v = plain.T_kv if case.dropout else case.D_v
            probe = replace(plain, D_h=width, D_v=D_v, d_model=plain.H * (D_v if case.dropout else width))
            if impl.refusal(probe) is None:
                return probe
    return None


def _sizes_with_dropout(impl: Impl, case: Case) -> Iterable[Case]:
    """Return the case with two batch entries and four heads, lengths near `LENGTH_WITH_DROPOUT` first, shortened rules
    first.
    """
    H, wanted = impl.limits.heads or 4, LENGTH_WITH_DROPOUT[case.scope]
    H_kv = H if case.H_kv == case.H else min(case.H_kv, 2)
    plain = replace(case, B=2, H=H, H_kv=H_kv, page=None, mode="forward" if case.does.cached else case.mode)
    lengths = sorted(range(2, 2 * wanted), key=lambda length: abs(length - wanted))
    apart = (0,) if case.source == "self" else (33, 0)
    sizes = [replace(plain, T=L - fewer, T_kv=L) for fewer in apart for L in lengths if fewer < L]
    return dict.fromkeys([*(_shortened(it, CAP_WITH_DROPOUT) for it in sizes), *sizes])


def _shortened(case: Case, softcap: int) -> Case:
    """Return a probe with windows and similar lengths that mask some of its keys, a page size, and a cap of at most
    `softcap`: a window as long as the probe would mask no key.

    The last page holds two tokens of 37, as many as others of 64, and the newest one alone of 513.
    """
    most = dict.fromkeys(("window", "window_right", "prefix", "page"), case.T_kv // 4) | {"softcap": softcap}
    if case.T_kv < 64:
        most["page"] = case.T_kv // 5
    sizes = ((name, getattr(case, name)) for name in most)
    return replace(case, **{name: max(1, min(size, most[name])) for name, size in sizes if size is not None})
