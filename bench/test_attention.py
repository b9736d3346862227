"""What is timed: one call of a layer, projections included, its inputs and weights already in place."""

import pytest
import torch

from .clock import replayed

pytestmark = pytest.mark.benchmark(timer=replayed)


def test_forward(measure, layer, inputs):
    x, options = inputs
    with torch.inference_mode():
        measure(lambda: layer(*x, **options))
