"""The roofline floor: bytes or FLOPs, whichever takes longer, on a device that is known."""

from __future__ import annotations

from typing import Any

import pytest

from cuteforge.kernels.task import CaseCard, TensorCard
from cuteforge.profiles.datasheets import SHEETS, floor_ns, sheet_for


def card(dtype: str, min_bytes: int, flops: int | None) -> CaseCard:
    tensor = TensorCard(name="x", role="input", dtype=dtype, shape=(1,), size_names=("n",))
    fields: dict[str, Any] = {"case": "c", "tensors": (tensor,), "sizes": {}, "flops_source": ""}
    fields |= {"arguments": ("x",)} if "arguments" in CaseCard.model_fields else {}
    return CaseCard(min_bytes=min_bytes, flops=flops, **fields)


@pytest.mark.parametrize(
    ("reported", "name"),
    [
        ("NVIDIA H200", "H200"),
        ("NVIDIA H100 80GB HBM3", "H100 SXM"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("NVIDIA A100-SXM4-40GB", "A100 40GB"),
        ("NVIDIA A100-SXM4-80GB", "A100 80GB SXM"),
        ("NVIDIA A100 80GB PCIe", "A100 80GB PCIe"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("NVIDIA GeForce RTX 3090", "RTX 3090"),
        ("NVIDIA B200", "B200"),
    ],
)
def test_a_device_is_known_by_the_drivers_name(reported: str, name: str) -> None:
    sheet = sheet_for(reported)
    assert sheet is not None
    assert sheet.name == name


@pytest.mark.parametrize(
    "reported", ["NVIDIA GeForce RTX 3090 Ti", "NVIDIA L40", "NVIDIA H200 NVL", "AMD EPYC", ""]
)
def test_a_similar_name_is_not_taken_for_a_known_device(reported: str) -> None:
    assert sheet_for(reported) is None
    assert floor_ns(card("float32", 1, 1), reported) is None


def test_a_copy_is_bound_by_bandwidth() -> None:
    assert floor_ns(card("float32", 4_800_000_000, 1), "NVIDIA H200") == pytest.approx(1e6)


def test_a_matrix_product_is_bound_by_the_rate_of_its_type() -> None:
    flops = 2 * 8192**3
    low = floor_ns(card("bfloat16", 3 * 2 * 8192**2, flops), "NVIDIA H200")
    high = floor_ns(card("float32", 3 * 4 * 8192**2, flops), "NVIDIA H200")
    assert low == pytest.approx(flops / 989.5e12 * 1e9)
    assert high is not None
    assert low is not None
    assert high > 5 * low


def test_integers_and_unknown_flops_leave_the_bytes() -> None:
    assert floor_ns(card("int64", 4800, 10**15), "NVIDIA H200") == pytest.approx(1.0)
    assert floor_ns(card("float32", 4800, None), "NVIDIA H200") == pytest.approx(1.0)


def test_every_sheet_names_its_source_and_is_ordered() -> None:
    for sheet in SHEETS:
        assert "NVIDIA" in sheet.source
        assert sheet.fp64 <= sheet.fp32 <= sheet.tf32 <= sheet.fp16
