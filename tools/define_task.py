"""The tool `define_task`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from cuteforge.tools.answers import Answer
from cuteforge.tools.host import Host

Workload = Literal[
    "", "matmul", "attention", "convolution", "reduction", "normalization", "loss", "elementwise", "sparse",
    "stencil", "scan_sort", "other",
]  # fmt: skip


async def define_task(
    host: Host,
    name: str = "",
    source: Annotated[str, Field(description="Python text; or give path")] = "",
    path: Annotated[str, Field(description="file under an allowed root")] = "",
    inputs: Annotated[
        list[dict[str, Any]],
        Field(
            description="for reference(): one per argument, {name, shape: ['rows', 128, 'rows*4'], dtype, low, "
            "high}, or a scalar {name, value}"
        ),
    ] = [],  # noqa: B006
    cases: Annotated[
        list[dict[str, Any]],
        Field(description="[{name, sizes: {rows: 4096}}]; for Model, sizes replace module constants"),
    ] = [],  # noqa: B006
    target: Annotated[
        Literal["auto", "cuda", "cpu"], Field(description="auto: cuda if the machine has a GPU, else cpu")
    ] = "auto",
    dtype: Annotated[str, Field(description="cast floating tensors, e.g. bfloat16")] = "",
    rtol: Annotated[float | None, Field(description="with atol; default: derived from the oracle")] = None,
    atol: float | None = None,
    workload: Annotated[Workload, Field(description="default: inferred")] = "",
    description: str = "",
) -> Answer:
    """Define what a kernel must compute, from a PyTorch reference: KernelBench's `Model` + `get_inputs`,
    or `reference(*inputs)` with input specs. Answers the task id, the spec card (shapes, bytes, FLOPs), the
    C prototype to implement, and warns of weak tasks."""
    tolerance: dict[str, float | None] | None = None
    if rtol is not None or atol is not None:
        tolerance = {"rtol": rtol, "atol": atol}
    request = {
        "name": name.strip() or None,
        "source": source or None if path else source,
        "path": path or None,
        "inputs": inputs or None,
        "cases": cases or None,
        "target": None if target == "auto" else target,
        "dtype": dtype or None,
        "tolerance": tolerance,
        "workload": workload or None,
        "description": description or None,
    }
    return await host.run("derive", name, lambda bench, progress: bench.define_task(request, progress))
