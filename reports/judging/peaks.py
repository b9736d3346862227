"""Peak rates of GPUs by their makers' data sheets: dense matrix products, in TFLOP per second."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

A100 = {"float64": 19.5, "float32": 19.5, "tf32": 156.0, "bfloat16": 312.0, "float16": 312.0}
"""NVIDIA A100 Tensor Core GPU, data sheet 1758950-r4, 2021; float64 on tensor cores, in all of NVIDIA's that have them."""

HOPPER = {"float64": 66.9, "float32": 66.9, "tf32": 494.7, "bfloat16": 989.4, "float16": 989.4}
"""NVIDIA H100 Tensor Core GPU Architecture, white paper, 2022 (SXM5). The data sheets of H100 and H200, 2023, give the same in
whole numbers, with sparsity twice as much.
"""

PEAKS = {
    "NVIDIA A100-SXM4-40GB": A100,
    "NVIDIA A100-SXM4-80GB": A100,
    "NVIDIA A100-PCIE-40GB": A100,
    "NVIDIA A100 80GB PCIe": A100,
    "NVIDIA H100 80GB HBM3": HOPPER,
    "NVIDIA H200": HOPPER,
    # NVIDIA H100 data sheet, 2022, column PCIe: half of its 756 and 1,513 with sparsity
    "NVIDIA H100 PCIe": {"float64": 51.0, "float32": 51.0, "tf32": 378.0, "bfloat16": 756.5, "float16": 756.5},
    # NVIDIA L4 data sheet, 2023: half of its 120 and 242 with sparsity; L40S data sheet, 2023: 183 | 366, 362.05 | 733
    "NVIDIA L4": {"float32": 30.3, "tf32": 60.0, "bfloat16": 121.0, "float16": 121.0},
    "NVIDIA L40S": {"float32": 91.6, "tf32": 183.0, "bfloat16": 362.0, "float16": 362.0},
    # NVIDIA Ada GPU Architecture, white paper 2.02, appendix A, table 2: dense, sums in float32, as torch has them
    "NVIDIA GeForce RTX 4090": {"float32": 82.6, "tf32": 82.6, "bfloat16": 165.2, "float16": 165.2},
    # NVIDIA Blackwell data sheet, column HGX B200, of one GPU: half of its 2.2 and 4.5 PFLOPS with sparsity
    "NVIDIA B200": {"float64": 37.0, "float32": 75.0, "tf32": 1100.0, "bfloat16": 2250.0, "float16": 2250.0},
    # AMD CDNA 3, white paper, 2023: 256, 1024 and 2048 a cycle and compute unit on matrix cores; 304 units at 2.1 GHz
    "AMD Instinct MI300X": {"float64": 163.4, "float32": 163.4, "tf32": 653.7, "bfloat16": 1307.4, "float16": 1307.4},
}
"""Peaks by torch's name of a whole GPU; a part of one (MIG) and unlisted variants have none."""


def share(row: Mapping[str, Any], gpu: object) -> float:
    """Return a row's `tflops_per_s` over the GPU's peak in the dtype of its products; NaN if unknown."""
    of_products = "tf32" if row.get("tf32") else row.get("autocast") or row["dtype"]
    peaks = PEAKS.get(str(gpu), {}) if row["device"] == "cuda" else {}
    return float(row["tflops_per_s"]) / peaks.get(of_products, math.nan)
