"""PyTorch's own: `scaled_dot_product_attention`, which picks a kernel by itself, and each of its kernels pinned."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.backends.cuda import flash_sdp_enabled, math_sdp_enabled
from torch.compiler import is_compiling
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from .registry import every_score, register


@register("sdpa", compiled_by_default=True, beyond=("bias",))
def sdpa(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """`torch.nn.functional.scaled_dot_product_attention`, which picks a kernel by itself."""
    return scaled_dot_product_attention(q, k, v, **options)


def _pinned(backend: SDPBackend) -> Callable[..., Tensor]:
    """SDPA that has one kernel to choose from: where torch finds it unfit, it raises instead of taking another.

    Its attribute `around` is the context in which a block of calls is timed: entering it takes longer than a short call.
    """
    is_free: Callable[[], bool] = flash_sdp_enabled if backend == SDPBackend.MATH else math_sdp_enabled

    def around() -> Any:
        return sdpa_kernel(backend)

    def kernel(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        if not is_compiling() and not is_free():
            return scaled_dot_product_attention(q, k, v, **options)
        with around():
            return scaled_dot_product_attention(q, k, v, **options)

    kernel.__doc__ = f"`scaled_dot_product_attention` with {backend.name} as its only choice."
    kernel.around = around  # type: ignore[attr-defined]
    return kernel


PINNED: dict[str, Any] = {"common": False, "pins": "sdpa", "beyond": ("bias",)}

register("sdpa_math", dispatches="math", compiles=False, scores=every_score, **PINNED)(_pinned(SDPBackend.MATH))
register("sdpa_flash", dispatches="flash", **PINNED)(_pinned(SDPBackend.FLASH_ATTENTION))
register("sdpa_efficient", dispatches="efficient", devices=("cuda",), **PINNED)(_pinned(SDPBackend.EFFICIENT_ATTENTION))
register("sdpa_cudnn", dispatches="cudnn", devices=("cuda",), dtypes=("float16", "bfloat16"), **PINNED)(
    _pinned(SDPBackend.CUDNN_ATTENTION)
)
