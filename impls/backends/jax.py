"""JAX: `jax.nn.dot_product_attention`, the plain formula, as XLA compiles it for the CPU."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import torch
import torch.utils.dlpack
from torch import Tensor

from ..packages import BACKEND, time_first
from ..registry import register


@register("jax", package="jax", dtypes=("float32", "bfloat16"), wide_values=False, **BACKEND)
def jax(q: Tensor, k: Tensor, v: Tensor, *, is_causal: bool = False, scale: float | None = None,
        enable_gqa: bool = False) -> Tensor:  # fmt: skip
    """`jax.nn.dot_product_attention` through `jax.jit`, by dlpack; a core's inputs, heads before tokens, are copied."""
    attend, borrowed = _library(torch.get_num_threads())
    inputs = (borrowed(x.contiguous()) for x in time_first(q, k, v))
    o = attend(*inputs, is_causal=is_causal, scale=scale).block_until_ready()
    return time_first(torch.utils.dlpack.from_dlpack(o))[0]


@lru_cache(maxsize=1)
def _library(threads: int) -> tuple[Callable[..., Any], Callable[[Tensor], Any]]:
    """Return the compiled function, and a converter from tensors to arrays.

    XLA reads the number of threads from `NPROC` when its backend starts: another number needs another backend.
    """
    os.environ["NPROC"] = str(threads)
    from jax import config, jit
    from jax.dlpack import from_dlpack
    from jax.extend.backend import clear_backends
    from jax.nn import dot_product_attention

    # otherwise a thread frees the scores after the call has returned
    config.update("jax_cpu_enable_async_dispatch", False)
    clear_backends()
    return jit(
        partial(dot_product_attention, implementation="xla"), static_argnames=("is_causal", "scale")
    ), from_dlpack
