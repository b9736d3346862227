"""Paged caches: a request's tokens lie in pages of one size, anywhere in a pool shared by requests.

Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention", 2023. A pool of keys is
(1, H_kv, tokens, D_h); `pages` (B, pages of a request) is the block table: the pages of each request's tokens, in
order.
"""

from __future__ import annotations

import torch
from torch import Tensor


def places(pages: Tensor, size: int, first: int, last: int) -> Tensor:
    """Return the positions in a pool of these tokens of each request: (B, last - first)."""
    token = torch.arange(first, last, device=pages.device)
    return pages[:, token // size] * size + token % size


def write(pool: Tensor, newest: Tensor, where: Tensor) -> None:
    """Write (B, H_kv, T, D) into a pool, at the positions (B, T)."""
    pool.squeeze(0)[:, where] = newest.transpose(0, 1)


def by_page(pool: Tensor, size: int) -> Tensor:
    """View (1, H_kv, tokens, D) as (H_kv, pages, size, D), without a copy."""
    return pool.squeeze(0).unflatten(1, (-1, size))


def in_order(pool: Tensor, pages: Tensor, size: int, tokens: int) -> Tensor:
    """Return contiguous copies of the requests' tokens in a pool: (B, H_kv, tokens, D)."""
    found = by_page(pool, size).index_select(1, pages.flatten())  # (H_kv, B * pages, size, D)
    requests = found.flatten(1, 2).unflatten(1, (len(pages), -1))  # (H_kv, B, tokens and the rest of a page, D)
    return requests.transpose(0, 1)[..., :tokens, :]
