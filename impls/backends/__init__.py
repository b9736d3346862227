"""Third-party backends on the CPU, one file per library: each in its own process, with as many threads as torch."""

from . import jax, numpy, onnxruntime, openvino, zentorch  # noqa: F401
