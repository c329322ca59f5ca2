"""A small task and store for the compile tests."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cuteforge.kernels.candidate import BuildOptions, Candidate, KernelEntry, LauncherEntry, SourceFile
from cuteforge.kernels.errors import NotFound
from cuteforge.kernels.records import CompileRecord
from cuteforge.kernels.task import CaseCard, InputSpec, SpecCard, Task, TaskDefinition, TensorCard
from cuteforge.sandbox.bubblewrap import probe
from cuteforge.sandbox.compilers import Compiler
from cuteforge.sandbox.toolchain import discover

DATA = Path(__file__).parents[1] / "data" / "compile"

PROTOTYPE = 'extern "C" int cuteforge_launch(const float* x, float* y, int64_t rows, int64_t cols'
CUDA_RELU = f"""#include "task.h"
__global__ void relu(const float* x, float* y, int64_t n) {{
  int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
  if (i < n) y[i] = fmaxf(x[i], 0.f);
}}
{PROTOTYPE}, cudaStream_t stream) {{
  relu<<<(rows * cols + 255) / 256, 256, 0, stream>>>(x, y, rows * cols);
  return cudaGetLastError();
}}
"""
CPU_RELU = f"""#include <cstdint>
{PROTOTYPE}) {{
  #pragma omp parallel for
  for (int64_t i = 0; i < rows * cols; ++i) y[i] = x[i] > 0 ? x[i] : 0;
  return 0;
}}
"""
KERNEL = "__global__ void relu(const float* x, float* y, int64_t n) {\n  int64_t i = blockIdx.x * (int64_t)BLOCK + threadIdx.x;\n  if (i < n) y[i] = fmaxf(x[i], 0.f);\n}\n"


class MemoryStore:
    """Artefacts by hash, in memory."""

    def __init__(self) -> None:
        self.data: dict[str, bytes] = {}

    def put(self, data: bytes) -> str:
        sha = hashlib.sha256(data).hexdigest()
        self.data[sha] = data
        return sha

    def get(self, sha: str) -> bytes:
        if sha not in self.data:
            raise NotFound(f"no artefact {sha}")
        return self.data[sha]


def task(target: str = "cuda") -> Task:
    """Elementwise, x[rows, cols] -> y[rows, cols], fp32."""
    definition = TaskDefinition(
        name="relu",
        contract="function",
        source="def reference(x):\n    return x.relu()\n",
        inputs=(InputSpec(name="x", shape=("rows", "cols")),),
        target=target,
    )
    tensors = tuple(
        TensorCard(name=n, role=r, dtype="float32", shape=(64, 32), size_names=("rows", "cols"))
        for n, r in (("x", "input"), ("y", "output"))
    )
    fields: dict[str, Any] = {"case": "default", "tensors": tensors, "sizes": {"rows": 64, "cols": 32}}
    fields |= {"min_bytes": 16384, "flops": 2048, "flops_source": "counted"}
    if "arguments" in CaseCard.model_fields:
        fields["arguments"] = ("x",)
    card = SpecCard(workload="elementwise", workload_source="given", cases=(CaseCard(**fields),))
    return Task(definition=definition, card=card)


def launcher(
    text: str, name: str = "k.cu", language: str = "cuda", flags: Sequence[str] = (), **build: Any
) -> Candidate:
    target = "cpu" if language == "cpp" else "cuda"
    return Candidate(
        task_id=task(target).id,
        language=language,
        files=(SourceFile(path=name, text=text),),
        entry=LauncherEntry(),
        build=BuildOptions(flags=tuple(flags), **build),
    )


def kernel(
    text: str, function: str = "relu", args: Sequence[str] = ("x", "y", "rows*cols"),
    files: Sequence[tuple[str, str]] = (), flags: Sequence[str] = (), **defines: Any,
) -> Candidate:  # fmt: skip
    return Candidate(
        task_id=task().id,
        language="cuda",
        files=tuple(SourceFile(path=p, text=t) for p, t in (("k.cu", text), *files)),
        entry=KernelEntry(function=function, grid=("1",), block=("BLOCK",), args=tuple(args)),
        build=BuildOptions(flags=tuple(flags), defines=defines),
    )


def compile_all(
    candidates: Sequence[Candidate], store: MemoryStore | None = None, arch: str = "sm_90a", **parts: Any
) -> list[CompileRecord]:
    """Compile in order with one compiler; its worker is ended after."""

    async def main() -> list[CompileRecord]:
        compiler = Compiler(discover(), store or MemoryStore(), probe(), **parts)
        try:
            return [
                await compiler.compile(task("cpu" if c.language == "cpp" else "cuda"), c, arch)
                for c in candidates
            ]
        finally:
            await compiler.aclose()

    return asyncio.run(main())


def text_of(record: CompileRecord) -> str:
    """All that a record tells a model."""
    return "\n".join(d.model_dump_json(exclude_none=True) for d in record.diagnostics)
