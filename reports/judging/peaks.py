"""What GPUs compute by their makers' data sheets: products of dense matrices, in TFLOP per second."""

from __future__ import annotations

import pandas as pd

A100 = {"float64": 19.5, "float32": 19.5, "tf32": 156.0, "bfloat16": 312.0, "float16": 312.0}
"""NVIDIA A100 Tensor Core GPU, data sheet, 2021; float64 on tensor cores, in all of NVIDIA's that have them."""

HOPPER = {"float64": 66.9, "float32": 66.9, "tf32": 494.7, "bfloat16": 989.4, "float16": 989.4}
"""NVIDIA H100 (SXM5) and H200 Tensor Core GPU, data sheets, 2023: half of what they give with sparsity; digits of the
architecture's white paper, 2022.
"""

PEAKS = {
    "NVIDIA A100-SXM4-40GB": A100,
    "NVIDIA A100-SXM4-80GB": A100,
    "NVIDIA A100-PCIE-40GB": A100,
    "NVIDIA A100 80GB PCIe": A100,
    "NVIDIA H100 80GB HBM3": HOPPER,
    "NVIDIA H200": HOPPER,
    # NVIDIA H100 (PCIe) data sheet, 2022
    "NVIDIA H100 PCIe": {"float64": 51.2, "float32": 51.2, "tf32": 378.0, "bfloat16": 756.0, "float16": 756.0},
    # NVIDIA L4 and L40S data sheets, 2023; the L40S's numbers without sparsity are printed beside those with it
    "NVIDIA L4": {"float32": 30.3, "tf32": 60.0, "bfloat16": 121.0, "float16": 121.0},
    "NVIDIA L40S": {"float32": 91.6, "tf32": 183.0, "bfloat16": 362.0, "float16": 362.0},
    # NVIDIA Ada GPU Architecture, white paper, 2022: sums in float32, as torch has them
    "NVIDIA GeForce RTX 4090": {"float32": 82.6, "tf32": 82.6, "bfloat16": 165.2, "float16": 165.2},
    # NVIDIA HGX B200, data sheet, 2024, an eighth of the board
    "NVIDIA B200": {"float64": 37.0, "float32": 75.0, "tf32": 1100.0, "bfloat16": 2250.0, "float16": 2250.0},
    # AMD Instinct MI300X, data sheet, 2023: matrix units
    "AMD Instinct MI300X": {"float64": 163.4, "float32": 163.4, "tf32": 653.7, "bfloat16": 1307.4, "float16": 1307.4},
}
"""By the name that torch has for a GPU, as a whole: a part of one (MIG), or another variant, has none."""


def shares(frame: pd.DataFrame, gpu: object) -> pd.Series[float]:
    """The rate of a row, `tflops_per_s`, over the GPU's peak in the dtype of its products; NaN where none is known."""
    formats = frame["dtype"].astype(object)
    if "autocast" in frame:
        formats = frame["autocast"].where(frame["autocast"].notna(), formats)
    if "tf32" in frame:
        formats = formats.where(frame["tf32"].fillna(False).astype(bool).eq(False), "tf32")
    peaks = formats.map(PEAKS.get(str(gpu), {})).astype(float)
    return frame["tflops_per_s"] / peaks.where(frame["device"] == "cuda")
