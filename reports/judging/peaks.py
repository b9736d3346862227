"""Peak rates of GPUs by their makers' data sheets: dense matrix products, in TFLOP per second."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ..reading.runs import Object

COLUMNS = {"float64": 0, "float32": 1, "tf32": 2, "bfloat16": 3, "float16": 3}
"""Dtypes of products, and their position among the peaks of a GPU."""

A100 = (19.5, 19.5, 156.0, 312.0)
"""NVIDIA A100 Tensor Core GPU, data sheet 1758950-r4, 2021; float64 on tensor cores, in all of NVIDIA's that have them."""

HOPPER = (66.9, 66.9, 494.7, 989.4)
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
    "NVIDIA H100 PCIe": (51.0, 51.0, 378.0, 756.5),
    # NVIDIA L4 data sheet, 2023: half of its 120 and 242 with sparsity; L40S data sheet, 2023: 183 | 366, 362.05 | 733
    "NVIDIA L4": (math.nan, 30.3, 60.0, 121.0),
    "NVIDIA L40S": (math.nan, 91.6, 183.0, 362.0),
    # NVIDIA Ada GPU Architecture, white paper 2.02, appendix A, table 2: dense, sums in float32, as torch has them
    "NVIDIA GeForce RTX 4090": (math.nan, 82.6, 82.6, 165.2),
    # NVIDIA Blackwell data sheet, column HGX B200, of one GPU: half of its 2.2 and 4.5 PFLOPS with sparsity
    "NVIDIA B200": (37.0, 75.0, 1100.0, 2250.0),
    # AMD CDNA 3, white paper, 2023: 256, 1024 and 2048 a cycle and compute unit on matrix cores; 304 units at 2.1 GHz
    "AMD Instinct MI300X": (163.4, 163.4, 653.7, 1307.4),
}
"""Peaks by torch's name of a whole GPU; a part of one (MIG) and unlisted variants have none."""


def of_products(row: Mapping[str, Any]) -> str:
    """Return the dtype of a row's products."""
    return "tf32" if row.get("tf32") else str(row.get("autocast") or row["dtype"])


def share(row: Object, gpu: object) -> float:
    """Return a row's `tflops_per_s` over the GPU's peak in the dtype of its products; NaN if unknown."""
    peaks = PEAKS.get(str(gpu)) if row["device"] == "cuda" else None
    return float(row["tflops_per_s"]) / peaks[COLUMNS[of_products(row)]] if peaks else math.nan
