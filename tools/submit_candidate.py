"""The tool `submit_candidate`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, WithJsonSchema

from cuteforge.tools.answers import Answer
from cuteforge.tools.host import Host, JobKind
from cuteforge.tools.work import silent

# One short line of schema instead of a union for each: models send 256 as well as "256".
Expression = Annotated[str | int, WithJsonSchema({"type": ["string", "integer"]})]
Then = Literal["none", "compile", "check", "evaluate"]
KIND_OF: dict[str, JobKind] = {"compile": "compile", "check": "check", "evaluate": "benchmark"}


async def submit_candidate(
    host: Host,
    task_id: str,
    files: Annotated[dict[str, str], Field(description="name to text; or give path")] = {},  # noqa: B006
    path: Annotated[str, Field(description="file under an allowed root")] = "",
    language: Annotated[
        Literal["auto", "cute", "cuda", "cpp", "python"], Field(description="auto: by suffix and includes")
    ] = "auto",
    function: Annotated[
        str, Field(description="a __global__ function to launch; else cuteforge_launch")
    ] = "",
    grid: Annotated[list[Expression], Field(description='e.g. ["ceil_div(rows*cols, BLOCK)"]')] = [],  # noqa: B006
    block: list[Expression] = [],  # noqa: B006
    shared_bytes: Annotated[Expression, Field(description="dynamic, an expression")] = "",
    args: Annotated[
        list[Expression], Field(description="kernel arguments: tensors, sizes, expressions")
    ] = [],  # noqa: B006
    class_name: Annotated[str, Field(description="python: default ModelNew")] = "",
    defines: Annotated[dict[str, Any], Field(description="-D name to value")] = {},  # noqa: B006
    flags: Annotated[list[str], Field(description="extra compiler flags, from an allow-list")] = [],  # noqa: B006
    arch: Annotated[str, Field(description="e.g. sm_90a; default: this GPU's")] = "",
    parent_id: str = "",
    note: Annotated[str, Field(description="what changed and why")] = "",
    then: Annotated[Then, Field(description="evaluate = compile, check, benchmark")] = "none",
) -> Answer:
    """Store sources as a candidate for a task: cute/cuda (C++), python (ModelNew: Triton, CuTe DSL), or cpp on
    the CPU target. C++ includes "task.h" and defines `cuteforge_launch`, or names a `__global__` function
    with its launch. `then` compiles, checks or evaluates it in the same call."""
    request: dict[str, Any] = {
        "task_id": task_id,
        "files": files or None,
        "path": path or None,
        "language": None if language == "auto" else language,
        "function": function or None,
        "grid": grid or None,
        "block": block or None,
        "shared_bytes": shared_bytes if shared_bytes != "" else None,
        "args": args if args or function else None,
        "class_name": class_name or None,
        "defines": defines or None,
        "flags": flags or None,
        "arch": arch or None,
        "parent_id": parent_id or None,
        "note": note or None,
    }
    if then == "none":
        bench = await host.workbench()
        return await bench.submit_candidate(request, then, silent)
    return await host.run(
        KIND_OF[then], task_id, lambda bench, progress: bench.submit_candidate(request, then, progress)
    )
