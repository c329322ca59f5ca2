"""The generated `task.h`: the exact prototype a `launcher` candidate must define."""

from __future__ import annotations

from typing import Literal, NamedTuple

from cuteforge.kernels.dtypes import dtype
from cuteforge.kernels.task import CaseCard, SpecCard, TaskDefinition, TensorCard

_SCALAR_C = {"int64": "int64_t", "float64": "double", "bool": "bool"}


class Argument(NamedTuple):
    """One parameter of the prototype: what it is, its name, and its C++ type."""

    kind: Literal["tensor", "scalar", "size", "stream"]
    name: str
    c_type: str


def _pointer(tensor: TensorCard, target: str) -> str:
    element = dtype(tensor.dtype)
    base = element.c_cuda if target == "cuda" else element.c_cpu
    return f"{base}*" if tensor.role == "output" else f"const {base}*"


def arguments(card: CaseCard, target: str) -> tuple[Argument, ...]:
    """The prototype's parameters in order: inputs, parameters, outputs, scalars, sizes, stream.

    Every case of a task gives the same list; only the values differ.
    """
    tensors = card.role("input") + card.role("parameter") + card.role("output")
    found = [Argument("tensor", t.name, _pointer(t, target)) for t in tensors]
    found += [Argument("scalar", s.name, _SCALAR_C[s.dtype]) for s in card.scalars]
    found += [Argument("size", name, "int64_t") for name in card.sizes]
    if target == "cuda":
        found.append(Argument("stream", "stream", "cudaStream_t"))
    return tuple(found)


def prototype(card: SpecCard, target: str) -> str:
    """The C++ declaration of the launcher, without the semicolon."""
    joined = ", ".join(f"{a.c_type} {a.name}" for a in arguments(card.cases[0], target))
    return f'extern "C" int cuteforge_launch({joined})'


def task_header(definition: TaskDefinition, card: SpecCard) -> str:
    """The text of `task.h`.

    It needs no torch header. A definition of `cuteforge_launch` with other parameter types is a compile
    error, because it conflicts with this `extern "C"` declaration.
    """
    first = card.cases[0]
    if definition.target == "cuda":
        includes = {"<cstdint>", "<cuda_runtime.h>"}
        includes |= {dtype(t.dtype).include_cuda for t in first.tensors} - {""}
    else:
        includes = {"<cstdint>"}
    lines = ["#pragma once"]
    lines += [f"#include {name}" for name in sorted(includes)]
    lines.append("")
    lines.append(
        "// Contiguous row-major tensors; return 0 for success, a cudaError_t or other code otherwise."
    )
    for tensor in first.tensors:
        dims = ", ".join(tensor.size_names)
        note = "  (bfloat16 bits)" if definition.target == "cpu" and tensor.dtype == "bfloat16" else ""
        lines.append(f"//   {tensor.role:9} {tensor.name}[{dims}] {tensor.dtype}{note}")
    lines.append(f"{prototype(card, definition.target)};")
    return "\n".join(lines) + "\n"
