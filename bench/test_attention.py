"""What is timed: one call of a layer or its core, its inputs, weights and masks already in place."""

import pytest
import torch

from .clock import replayed

pytestmark = pytest.mark.benchmark(timer=replayed)


def test_forward(measure, call):
    """o = layer(x)"""
    with torch.inference_mode():
        measure(call)


def test_backward(measure, call):
    """o = layer(x), and from a gradient of o the gradients of x and of every weight"""
    measure(call)


def test_decode(measure, call):
    """o = layer(x, cache) for one new token, whose key and value are written to the cache"""
    with torch.inference_mode():
        measure(call)
