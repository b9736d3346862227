"""Reasons for a missing row: `unsupported`, `wrong`, `out_of_memory`, `timeout` and `error`. They are part of the run file's
format.
"""

from __future__ import annotations

import os
import sysconfig
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path

from .. import CHECKOUT


class Skip(Exception):
    """Ends a cell without a row; the message is the `detail` of its entry among the skipped."""

    reason = "error"

    def __init__(self, detail: str, reason: str | None = None):
        """`reason`: by default that of the class."""
        super().__init__(detail)
        self.reason = reason or self.reason


class Unsupported(Skip):
    """The implementation declares the case unsupported."""

    reason = "unsupported"


class Wrong(Skip):
    """The correctness check failed."""

    reason = "wrong"


class Unusable(Wrong):
    """Threads still work after the call, or compute otherwise; the process can't be used for further measurements."""


class OutOfMemory(Skip):
    reason = "out_of_memory"


BEGINS = "begins: "
"""Start of the line on standard error that names a check before it is made: there a process that ends or hangs was."""


def name_check(check: str) -> None:
    """Name a check on standard error, as `BEGINS` says, also if an implementation has replaced or closed `sys.stderr`."""
    os.write(2, f"\n{BEGINS}{check}\n".encode())


FAILURES = ("wrong", "timeout", "error")
"""Reasons that make a run end with exit code 1."""


OUT_OF_MEMORY = ("can't allocate memory", " error: out of memory", "BLAS_STATUS_ALLOC_FAILED")
"""Other messages of exhausted memory: torch's allocator on the CPU, the driver (CUDA or HIP), its matrix products."""

CANNOT = {
    "No viable backend": "torch has no such kernel for this case",
    "No available kernel": "torch has no such kernel for this case",
    "does not have a deterministic implementation": "has no deterministic form",
    "is not deterministic because it uses CuBLAS": "has no deterministic form",
    "[cudnn_frontend] Error: No ": "cuDNN has no such kernel for this case",
    "out of resource: ": "its kernel needs more shared memory or registers than this GPU has",
}
"""Messages of `scaled_dot_product_attention`, `torch.use_deterministic_algorithms`, cuDNN and Triton, with their meaning."""

LIMITS: dict[str, tuple[str, object]] = {
    "keyword argument 'attn_mask'": ("masks", ("none", "causal")), "keyword argument 'is_causal'": ("masks", ("none",)),
    "keyword argument 'enable_gqa'": ("grouped", False), "keyword argument 'dropout_p'": ("dropout", False),
    "keyword argument 'padding'": ("masks", ("none", "causal")), "keyword argument 'cache'": ("modes", ("forward", "backward")),
    "which autocast gives": ("autocasts", False), "as precise as float32": ("dtypes", ("float32", "bfloat16", "float16")),
    "without overflow": ("dtypes", ("float32", "bfloat16")),
    "same dtype, but got: float != c10::Half": ("dtypes", ("float32",)),
    "does not support backward": ("modes", ("forward", "decode")), "output is detached": ("modes", ("forward", "decode")),
    "autocast=bfloat16: RuntimeError: expected": ("autocasts", False),  # autograd.Function's backward ignores autocast
    "forward() takes 2 positional arguments but 3 were given": ("sources", ("self",)),
    "drops 0.0% of the probs": ("dropout", False),
}  # fmt: skip
"""Words of a failure, and the limit to declare for it: a kernel or layer lacks a keyword, computes in float32, masks by a
number beyond float16, mixes dtypes, has no gradients, or is a layer without a second input or dropout. Of several limits of
one kind the last counts.
"""

OCCUPIED = "busy or unavailable"
"""CUDA's message when another process uses the GPU exclusively."""


def classify(error: BaseException) -> Skip:
    """Return the outcome of a cell for an exception raised by an implementation."""
    import torch

    if isinstance(error, Skip):
        return error
    message = _message(error)
    sentence = f"{in_one_line(error)}{_place(error)}"
    if isinstance(error, torch.OutOfMemoryError | MemoryError) or any(words in message for words in OUT_OF_MEMORY):
        return OutOfMemory(sentence)
    if why := next((why for words, why in CANNOT.items() if words in message), None):
        return Unsupported(f"{why} ({sentence})")
    if OCCUPIED in message:
        return Skip(f"another process uses the GPU exclusively: `nvidia-smi -c 0` lets several use it ({sentence})")
    return Skip(sentence)


def in_one_line(error: BaseException) -> str:
    """Return an exception's type, and of its message the first error of a compiler, or torch's explanation, or else the
    first line, without control characters, such as a terminal's colours.
    """
    lines = _message(error).splitlines() or ["no message"]
    marks = (": error: ", ": fatal error: ", "  Explanation: ")
    explained = (line.strip() for line in lines if any(words in line for words in marks))
    text = next(explained, lines[0])
    return f"{type(error).__name__}: {printable(text)}"


def printable(text: str) -> str:
    """Return a line with escapes for its control characters."""
    return "".join(it if it.isprintable() else ascii(it)[1:-1] for it in text)


def _message(error: BaseException) -> str:
    """Return an exception's message; empty if a user-defined class fails to produce it."""
    try:
        return str(error).strip()
    except Exception:
        return ""


_PACKAGES = {"site-packages", "dist-packages"}
"""Names of folders, in any virtual environment, that don't have the user's code."""

_NOT_THE_USERS = (CHECKOUT / "bench", Path(sysconfig.get_path("stdlib")))
"""Other folders that don't have it."""


def _place(error: BaseException) -> str:
    """Return ` (mine.py:12)`, the last traceback line within the implementation's own code; empty if there is none."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        if path.is_file() and _PACKAGES.isdisjoint(path.parts) and not any(map(path.is_relative_to, _NOT_THE_USERS)):
            return f" ({path.name}:{frame.lineno})"
    return ""


def undeclared(details: Iterable[str]) -> Iterator[str]:
    """Yield hints on how to declare what kernels and layers don't support, from the details of their failures."""
    text = " ".join(details)
    limits = dict(its for words, its in LIMITS.items() if words in text)
    if not limits and "NotImplementedError: " in text:
        limits = {"dtypes": ("float32",)}
    if limits:
        yield f"a kernel or layer declares what it doesn't support, as in `mine.limits = {limits}`: docs/kernels.md"
    if "'LayerShape' object has no attribute" in text:
        yield "a layer is built from a LayerShape, not from a model's configuration: give it a child class: docs/kernels.md"
    if "; the case needs " in text:
        yield "`unless` in a layer's limits excludes cases for which it can't have the weights: docs/kernels.md"
