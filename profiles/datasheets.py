"""Peak rates of GPUs from their vendor's data sheets, and the time below which no kernel can go."""

from __future__ import annotations

import re
from dataclasses import dataclass

from cuteforge.kernels.dtypes import dtype
from cuteforge.kernels.task import CaseCard


@dataclass(frozen=True)
class DataSheet:
    """Dense peaks at boost clock: bandwidth in bytes/s, rates in FLOP/s; `source` names the document.

    `fp32` is that of the CUDA cores, `fp64` the faster of CUDA and tensor cores, `fp16` that of tensor
    cores with fp32 accumulation, for bf16 too. Tensor rates are given without sparsity.
    """

    name: str
    pattern: str
    bandwidth: float
    fp64: float
    fp32: float
    tf32: float
    fp16: float
    source: str


def _sheet(
    name: str, pattern: str, gb_s: float, fp64: float, fp32: float, tf32: float, fp16: float, source: str
) -> DataSheet:
    return DataSheet(name, pattern, gb_s * 1e9, fp64 * 1e12, fp32 * 1e12, tf32 * 1e12, fp16 * 1e12, source)


# GB/s, then TFLOP/s: fp64, fp32, tf32, fp16. Names as `nvidia-smi` prints them.
SHEETS: tuple[DataSheet, ...] = (
    _sheet("B200", r"B200", 8000, 37, 75, 1125, 2250, "NVIDIA HGX B200 specifications, per GPU"),
    _sheet("H200", r"H200(?! NVL)", 4800, 67, 67, 494.5, 989.5, "NVIDIA H200 data sheet (SXM)"),
    _sheet("H100 SXM", r"H100 (SXM|80GB HBM3)", 3350, 67, 67, 494.5, 989.5, "NVIDIA H100 data sheet (SXM)"),
    _sheet("H100 PCIe", r"H100 PCIe", 2000, 51, 51, 378, 756, "NVIDIA H100 data sheet (PCIe)"),
    _sheet("A100 40GB", r"A100-(SXM4|PCIE)-40GB", 1555, 19.5, 19.5, 156, 312, "NVIDIA A100 data sheet"),
    _sheet("A100 80GB SXM", r"A100-SXM4-80GB", 2039, 19.5, 19.5, 156, 312, "NVIDIA A100 80GB data sheet"),
    _sheet("A100 80GB PCIe", r"A100 80GB PCIe", 1935, 19.5, 19.5, 156, 312, "NVIDIA A100 80GB data sheet"),
    _sheet("L40S", r"L40S", 864, 1.43, 91.6, 183, 362, "NVIDIA L40S data sheet"),
    _sheet("L4", r"L4", 300, 0.47, 30.3, 60, 121, "NVIDIA L4 data sheet"),
    _sheet("RTX 4090", r"RTX 4090", 1008, 1.29, 82.6, 82.6, 165.2, "NVIDIA Ada GPU architecture white paper, appendix A"),
    _sheet("RTX 3090", r"RTX 3090", 936, 0.556, 35.6, 35.6, 71, "NVIDIA Ampere GA102 architecture white paper, appendix A"),
)  # fmt: skip


def sheet_for(gpu_name: str) -> DataSheet | None:
    """The data sheet of a GPU by the driver's name for it; None for one that is not listed.

    >>> sheet_for("NVIDIA H200").bandwidth
    4800000000000.0
    """
    for sheet in SHEETS:
        if re.fullmatch(rf"(?:NVIDIA )?(?:GeForce )?(?:Tesla )?{sheet.pattern}", gpu_name.strip()):
            return sheet
    return None


def _rate(sheet: DataSheet, name: str) -> float | None:
    # Three TF32 products give an fp32 product at full precision (CUTLASS example 27), so an honest fp32
    # kernel may pass the CUDA cores' peak.
    rates = {
        "float64": sheet.fp64,
        "float32": max(sheet.fp32, sheet.tf32 / 3),
        "float16": sheet.fp16,
        "bfloat16": sheet.fp16,
    }
    return rates.get(name)


def floor_ns(card: CaseCard, gpu_name: str) -> float | None:
    """The roofline bound of one case in nanoseconds; None for a GPU that is not listed.

    max(min_bytes / bandwidth, flops / rate): Williams et al., "Roofline", CACM 2009. The rate is the
    highest of the task's floating input types; without FLOPs or floating inputs only bytes count. Data that
    stays in the L2 cache between calls can beat it.
    """
    sheet = sheet_for(gpu_name)
    if sheet is None:
        return None
    seconds = card.min_bytes / sheet.bandwidth
    inputs = (*card.role("input"), *card.role("parameter"))
    rates = [_rate(sheet, t.dtype) for t in inputs if dtype(t.dtype).kind == "float"]
    known = [rate for rate in rates if rate is not None]
    if card.flops is not None and known:
        seconds = max(seconds, card.flops / max(known))
    return seconds * 1e9
