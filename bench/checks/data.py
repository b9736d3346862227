"""Random data of a case, the same in every process: numbers, padding, pages, outliers, compared rows."""

from __future__ import annotations

import math
import zlib
from dataclasses import replace
from itertools import product

import torch
from torch import Tensor

from impls.paging import by_page, places, write

from ..cases.case import Case

OUTLIER = 64.0
"""Size of outliers: in bfloat16, an omitted key is undetectable among thousands unless its value is large."""

WHOLE, WHOLE_WITH_GRADIENTS = 1 << 33, 1 << 31
"""Operations of the reference's forward up to which every row is compared; above, fewer rows are compared."""

SECOND_SET_ROWS = 64
"""Rows compared on the second input set, which only detects results kept from the first."""


def epsilon(case: Case) -> float:
    """Return the unit of tolerances."""
    return torch.finfo(getattr(torch, case.rounding_dtype)).eps


def seeded(case: Case, input_set: int) -> torch.Generator:
    """Return a generator seeded by the case's name, so that all processes and implementations get the same numbers."""
    return torch.Generator().manual_seed(zlib.crc32(f"{replace(case, device='cpu').id}/{input_set}".encode()))


def randn(size: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Return random normal numbers that do not depend on torch's default dtype."""
    return torch.randn(size, generator=generator, dtype=torch.float32)


def in_dtype(tensors: dict[str, Tensor], case: Case) -> dict[str, Tensor]:
    """Return inputs or weights in the case's dtype, on its device."""
    return {name: x.to(case.device, getattr(torch, case.dtype)) for name, x in tensors.items()}


def sizes_of_inputs(case: Case) -> dict[str, tuple[int, ...]]:
    """Return the sizes of a core's q, k and v, or of a layer's x, and the other sequence or the cache, by name."""
    core = case.scope == "core"
    found: dict[str, tuple[int, ...]] = {"q": (case.B, case.H, case.T, case.D_h)}
    if not core:
        found = {"x": (case.B, case.T, case.d_model)}
        if case.source == "cross":
            found["x_kv"] = case.B, case.T_kv, case.d_model
    if core or case.does.cached:
        names = ("k", "v") if core else ("keys", "values") if case.latent is None else ("latents",)
        found |= {name: (case.B, *size) for name, size in zip(names, cache_sizes(case), strict=True)}
    return found


def cache_sizes(case: Case) -> tuple[tuple[int, int, int], ...]:
    """Return the sizes of one batch entry's keys and values, or latents."""
    if case.latent is not None:
        return ((1, case.T_kv, case.latent + (case.rope or 0)),)
    return (case.H_kv, case.T_kv, case.D_h), (case.H_kv, case.T_kv, case.D_v)


def padding(case: Case, input_set: int) -> Tensor | None:
    """Return (B, T_kv), True where a key is a token: the first sequence is full, the last at most half full, others
    have any length.

    Input set 2 has the lengths in reverse order, no full sequence, as many tokens in all if possible, and its shortest
    sequence ends within the prefix if there is one.
    """
    if not case.padded:
        return None
    generator = seeded(case, -1)
    lengths = torch.randint(1, case.T_kv + 1, (case.B,), generator=generator)
    lengths[0] = case.T_kv
    lengths[-1] = min(int(lengths[-1]), max(1, case.T_kv // 2))
    if input_set == 2:
        lengths = lengths.flip(0)
        lengths[-1] = max(1, case.T_kv - 1)
        lengths[0] = min(int(lengths[0]) + 1, max(1, (case.prefix or case.T_kv) // 2))
    return (torch.arange(case.T_kv) < lengths[:, None]).to(case.device)


def rows(case: Case, input_set: int, most: float = math.inf) -> Tensor | None:
    """Return the queries compared, at most `most`: the first, the last, and a random one in each equal part; None for
    all.

    Random, because equidistant rows would hit only a few positions within a kernel's blocks.
    """
    cost = 2 * case.pairs * (case.D_h + case.D_v)
    whole = WHOLE_WITH_GRADIENTS if case.does.gradients else WHOLE
    most = int(min(most, case.T * min(1.0, whole / cost)))
    most = max(1, min(most, SECOND_SET_ROWS) if input_set else most)
    if most >= case.T:
        return None
    edges = torch.linspace(0, case.T, max(2, most) + 1, dtype=torch.float64)
    within = torch.rand(len(edges) - 1, generator=seeded(case, -2 - input_set), dtype=torch.float64)
    rows = (edges[:-1] + within * edges.diff()).long().clamp(max=case.T - 1)
    rows[0], rows[-1] = 0, case.T - 1
    chosen: Tensor = rows.unique()
    return chosen.to(case.device)


def compared(case: Case, padding: Tensor | None, rows: Tensor | None) -> Tensor | None:
    """Return (B, rows), True where a query is a token; None unless queries and keys are the same padded sequence."""
    if padding is None or case.source == "cross":
        return None
    return padding if rows is None else padding[:, rows]


def grad(
    case: Case, size: tuple[int, ...], rows: Tensor | None, compared: Tensor | None, generator: torch.Generator
) -> Tensor | None:
    """Return the gradient of the output, zero in rows that are not compared; None if the mode has no backward."""
    if not case.does.gradients:
        return None
    grad = randn(size, generator).to(case.device, getattr(torch, case.computes))
    keep = torch.zeros(case.B, case.T, dtype=torch.bool, device=case.device)
    keep[:, slice(None) if rows is None else rows] = True if compared is None else compared
    return grad * (keep[:, None, :, None] if len(size) == 4 else keep[:, :, None])


def outliers(case: Case, generator: torch.Generator) -> Tensor:
    """Return outliers (T_kv, 1): OUTLIER or -OUTLIER at the first and last keys, on both sides of edges and at a few
    others, else 0.

    Edges are powers of two, multiples of 16 up to 256, and the edges of two to eight equal parts, also of whole tiles of
    64. A kernel that omits one of these keys has a relative error of about a tenth, whatever the number of keys.
    """
    edges = {1 << power for power in range(4, 24)} | {*range(16, 257, 16)}
    for parts, tile in product(range(2, 9), (1, 64)):
        edges |= {*range(0, case.T_kv, -(-case.T_kv // (parts * tile)) * tile)}
    wanted = {0, 1, case.T_kv - 2, case.T_kv - 1, *edges, *(edge - 1 for edge in edges)}
    wanted |= set(torch.randint(case.T_kv, (3,), generator=generator).tolist())
    found = torch.zeros(case.T_kv, 1)
    if not case.does.gradients:  # gradients would be dominated by the outliers
        found[[place for place in wanted if 0 <= place < case.T_kv]] = OUTLIER
    return found * torch.where(torch.rand(found.shape, generator=generator) < 0.5, -1.0, 1.0)


def pages(case: Case, input_set: int) -> Tensor | None:
    """Return (B, pages of a request), drawn without replacement from the pool; input set 2 has other pages."""
    if not case.page:
        return None
    drawn = torch.randperm(_pages_of_pool(case), generator=seeded(case, -5 if input_set == 2 else -4))
    return drawn[: case.B * _pages_of_request(case)].view(case.B, -1).to(case.device)


def _pages_of_request(case: Case) -> int:
    return -(-case.T_kv // (case.page or 1))


def _pages_of_pool(case: Case) -> int:
    """Return the pool's number of pages: a quarter more than the requests use, at least one more."""
    return case.B * _pages_of_request(case) * 5 // 4 + 1


def in_pool(x: Tensor, pages: Tensor, case: Case) -> Tensor:
    """Return (B, H_kv, T_kv, D) laid out as a pool (1, H_kv, tokens of the pool, D); free pages hold NaN.

    Positions after a request's last token hold large values, which kernels that process whole blocks must multiply by zero
    probs.
    """
    assert case.page is not None
    size = (1, x.shape[1], _pages_of_pool(case) * case.page, x.shape[-1])
    pool = (randn(size, seeded(case, -6)) * OUTLIER).to(x)
    used = torch.zeros(_pages_of_pool(case), dtype=torch.bool, device=x.device).index_fill(0, pages.flatten(), True)
    by_page(pool, case.page)[:, ~used] = torch.nan
    write(pool, x, places(pages, case.page, 0, case.T_kv))
    return pool
