"""Implementations that are measured: one file per method, one line here per file, in the order of explanation."""

from . import (  # noqa: F401
    loop,
    single_head,
    mask_after_softmax,
    wrapper,
    fused,
    packed,
    einsum,
    sdpa,
    torch_mha,
    online,
    split,
    flex,
    flash_triton,
    ragged,
    absorbed,
    paged,
    packages,
    backends,
)
from .layer import LayerShape
from .registry import COMPILE, FORMS, Impl, Limits, add, get, make, register, registered

__all__ = ["COMPILE", "FORMS", "Impl", "LayerShape", "Limits", "add", "get", "make", "register", "registered"]
