"""PyTorch's `scaled_dot_product_attention`, which chooses a kernel, and each of its kernels pinned."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from torch import Tensor
from torch.backends.cuda import flash_sdp_enabled, math_sdp_enabled
from torch.compiler import is_compiling
from torch.nn import attention
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from .registry import every_score, register


@register("sdpa", compiled_by_default=True, beyond=("bias", "learned_bias"))
def sdpa(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """`torch.nn.functional.scaled_dot_product_attention`, which chooses a kernel."""
    return scaled_dot_product_attention(q, k, v, **options)


def _pinned(backend: SDPBackend) -> Callable[..., Tensor]:
    """Return SDPA restricted to one kernel: it raises if torch finds that kernel unfit."""
    # The context disables all other kernels, so the flag of another one shows whether it is entered.
    is_free: Callable[[], bool] = flash_sdp_enabled if backend == SDPBackend.MATH else math_sdp_enabled
    kernel = _within(lambda: sdpa_kernel(backend), is_free)
    kernel.__doc__ = f"`scaled_dot_product_attention` with {backend.name} as its only choice."
    return kernel


def _of_version(version: str) -> Callable[..., Tensor]:
    """Return SDPA's flash attention with the kernels of another version, from its package."""

    @contextmanager
    def around() -> Iterator[None]:
        attention.activate_flash_attention_impl(version)
        try:
            with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
                yield
        finally:
            attention.restore_flash_attention_impl()

    kernel = _within(around, lambda: attention.current_flash_attention_impl() != version)
    kernel.__doc__ = f"`scaled_dot_product_attention` with {version} behind FLASH_ATTENTION, as its only choice."
    return kernel


def _within(around: Callable[[], AbstractContextManager[Any]], is_free: Callable[[], bool]) -> Callable[..., Tensor]:
    """Return SDPA that enters a context, unless the caller has entered it.

    The attribute `around` is the context of a timed block of calls, since entering it takes longer than a short call.
    """

    def kernel(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        if not is_compiling() and not is_free():
            return scaled_dot_product_attention(q, k, v, **options)
        with around():
            return scaled_dot_product_attention(q, k, v, **options)

    kernel.around = around  # type: ignore[attr-defined]
    return kernel


PINNED: dict[str, Any] = {"common": False, "pins": "sdpa", "beyond": ("bias",)}
BIASED: dict[str, Any] = PINNED | {"beyond": ("bias", "learned_bias")}

register("sdpa_math", dispatches="math", compiles=False, scores=every_score, **BIASED)(_pinned(SDPBackend.MATH))
register("sdpa_flash", dispatches="flash", **PINNED)(_pinned(SDPBackend.FLASH_ATTENTION))
register("sdpa_efficient", dispatches="efficient", devices=("cuda",), **BIASED)(_pinned(SDPBackend.EFFICIENT_ATTENTION))
register("sdpa_cudnn", dispatches="cudnn", devices=("cuda",), dtypes=("float16", "bfloat16"), **PINNED)(
    _pinned(SDPBackend.CUDNN_ATTENTION)
)


OF_VERSION: dict[str, Any] = {
    "devices": ("cuda",), "dtypes": ("float16", "bfloat16"), "dispatches": "flash", "dropout": False, "compiles": False,
    "alone": True,
}  # fmt: skip

register("sdpa_fa3", package="flash_attn_interface", install="build hopper/ of github.com/Dao-AILab/flash-attention",
         **PINNED | OF_VERSION)(_of_version("FA3"))  # fmt: skip
register("sdpa_fa4", package="flash_attn.cute cutlass", install="pip install --pre flash-attn-4",
         **PINNED | OF_VERSION)(_of_version("FA4"))  # fmt: skip
