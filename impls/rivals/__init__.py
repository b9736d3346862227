"""Attention of other libraries on the CPU, one file a library: each in a process of its own, on as many threads as torch."""

from . import jax, numpy, onnxruntime, openvino, zentorch  # noqa: F401
