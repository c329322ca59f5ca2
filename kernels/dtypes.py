"""Element types: their size, and what they are called in C++ and in PyTorch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cuteforge.kernels.errors import InvalidRequest

Kind = Literal["float", "int", "bool"]


@dataclass(frozen=True)
class DType:
    """One element type. `c_cuda` and `c_cpu` are the pointee types in `task.h` for each target."""

    name: str
    itemsize: int
    kind: Kind
    c_cuda: str
    c_cpu: str
    include_cuda: str = ""


DTYPES: dict[str, DType] = {
    d.name: d
    for d in (
        DType("float64", 8, "float", "double", "double"),
        DType("float32", 4, "float", "float", "float"),
        DType("float16", 2, "float", "__half", "_Float16", "<cuda_fp16.h>"),
        # g++ has no arithmetic bfloat16 before 13: CPU kernels get the bits.
        DType("bfloat16", 2, "float", "__nv_bfloat16", "uint16_t", "<cuda_bf16.h>"),
        DType("int64", 8, "int", "int64_t", "int64_t"),
        DType("int32", 4, "int", "int32_t", "int32_t"),
        DType("int16", 2, "int", "int16_t", "int16_t"),
        DType("int8", 1, "int", "int8_t", "int8_t"),
        DType("uint8", 1, "int", "uint8_t", "uint8_t"),
        DType("bool", 1, "bool", "bool", "bool"),
    )
}


def dtype(name: str) -> DType:
    """Look up an element type by PyTorch's name for it, with or without `torch.`.

    Raises:
        InvalidRequest: the type is not supported.
    """
    found = DTYPES.get(name.removeprefix("torch."))
    if found is None:
        raise InvalidRequest(
            f"The element type '{name}' is not supported.", f"Use one of {', '.join(DTYPES)}."
        )
    return found
