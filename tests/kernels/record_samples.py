"""Small valid tasks, candidates and records; the keyword arguments replace what a test is about."""

from __future__ import annotations

from typing import Any

from cuteforge.kernels.candidate import Candidate, LauncherEntry, SourceFile
from cuteforge.kernels.records import (
    BenchmarkCase,
    BenchmarkRecord,
    CompileRecord,
    CorrectnessRecord,
    Provenance,
    Timing,
)
from cuteforge.kernels.task import Case, CaseCard, InputSpec, SpecCard, Task, TaskDefinition, TensorCard

WHERE = Provenance(cuteforge="0.1.0", host_os="Linux", python="3.11")
ARTEFACT = "ab" * 32


def sample_task(name: str = "relu") -> Task:
    """relu over x[4, 8]."""
    definition = TaskDefinition(
        name=name,
        contract="function",
        source="import torch\n\ndef reference(x):\n    return torch.relu(x)\n",
        inputs=(InputSpec(name="x", shape=("rows", "cols")),),
        cases=(Case(name="small", sizes={"rows": 4, "cols": 8}),),
        target="cpu",
    )
    tensors = tuple(
        TensorCard(name=n, role=r, dtype="float32", shape=(4, 8), size_names=("rows", "cols"))
        for n, r in (("x", "input"), ("out", "output"))
    )
    card = CaseCard(
        case="small",
        tensors=tensors,
        arguments=("x",),
        sizes={"rows": 4, "cols": 8},
        min_bytes=256,
        flops=32,
        flops_source="one operation for each output element",
    )
    return Task(
        definition=definition,
        card=SpecCard(workload="elementwise", workload_source="inferred", operators=("relu",), cases=(card,)),
    )


def sample_candidate(
    task: Task, number: int = 0, parent: str | None = None, note: str = "", size: int = 0
) -> Candidate:
    """A launcher whose text holds `number` and `size` more bytes."""
    text = f"// attempt {number}\n{'x' * size}\n"
    return Candidate(
        task_id=task.id,
        language="cpp",
        files=(SourceFile(path="k.cpp", text=text),),
        entry=LauncherEntry(),
        parent_id=parent,
        note=note,
    )


def compile_record(candidate: Candidate, ok: bool = True) -> CompileRecord:
    return CompileRecord(
        task_id=candidate.task_id,
        candidate_id=candidate.id,
        ok=ok,
        compiler="g++",
        artifact=ARTEFACT if ok else None,
        seconds=0.5,
        provenance=WHERE,
    )


def correctness_record(
    candidate: Candidate, ok: bool = True, compiled: str | None = ARTEFACT
) -> CorrectnessRecord:
    return CorrectnessRecord(
        task_id=candidate.task_id,
        candidate_id=candidate.id,
        ok=ok,
        summary="passed" if ok else "failed",
        compiled=compiled,
        seconds=1.0,
        provenance=WHERE,
    )


def benchmark_record(
    candidate: Candidate, median_ns: float = 100.0, roofline_pct: float | None = None, **given: Any
) -> BenchmarkRecord:
    """An ok benchmark of one case, 1.5 times as fast as eager unless `given` says otherwise."""
    timing = Timing(
        label="candidate",
        candidate_id=candidate.id,
        median_ns=median_ns,
        ci_low_ns=median_ns,
        ci_high_ns=median_ns,
        samples=10,
        calls_per_sample=1,
    )
    case = BenchmarkCase(case="small", timings=(timing,), comparisons=(), roofline_pct=roofline_pct)
    fields: dict[str, Any] = {
        "ok": True,
        "summary": "measured",
        "cases": (case,),
        "geomean_speedup": {"eager": 1.5},
        "compiled": ARTEFACT,
    }
    return BenchmarkRecord(
        task_id=candidate.task_id,
        candidate_id=candidate.id,
        seconds=2.0,
        provenance=WHERE,
        **(fields | given),
    )
