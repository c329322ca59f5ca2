"""Time of one `put_candidate` and of one history, built and rendered, with 1,000 candidates stored in a task.

`python bench/store.py` prints JSON with milliseconds, the median of 25 runs.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from cuteforge.kernels.candidate import Candidate, LauncherEntry, SourceFile
from cuteforge.kernels.history import Tree
from cuteforge.kernels.records import (
    BenchmarkCase,
    BenchmarkRecord,
    CheckResult,
    CompileRecord,
    CorrectnessRecord,
    Provenance,
    Timing,
)
from cuteforge.kernels.store import AnyRecord, Store
from cuteforge.kernels.task import Case, CaseCard, InputSpec, SpecCard, Task, TaskDefinition, TensorCard

CANDIDATES = 1000
RUNS = 25
SOURCE_LINES = 200
CHECKS = 40
_WHERE = Provenance(cuteforge="0.1.0", host_os="Linux", python="3.11")


def _task() -> Task:
    shape = (4096, 4096)
    tensors = tuple(
        TensorCard(name=n, role=r, dtype="float32", shape=shape, size_names=("rows", "cols"))
        for n, r in (("x", "input"), ("out", "output"))
    )
    card = CaseCard(
        case="default",
        tensors=tensors,
        arguments=("x",),
        sizes={"rows": 4096, "cols": 4096},
        min_bytes=2 * 4 * 4096 * 4096,
        flops=None,
        flops_source="none",
    )
    definition = TaskDefinition(
        name="bench",
        contract="function",
        source="import torch\n\ndef reference(x):\n    return torch.relu(x)\n",
        inputs=(InputSpec(name="x", shape=("rows", "cols")),),
        cases=(Case(sizes={"rows": 4096, "cols": 4096}),),
    )
    return Task(
        definition=definition, card=SpecCard(workload="elementwise", workload_source="given", cases=(card,))
    )


def _candidate(task: Task, number: int, parent: str | None) -> Candidate:
    lines = [f"// attempt {number}", *(f"  out[{n}] = x[{n}] * {n}.0f;" for n in range(SOURCE_LINES))]
    return Candidate(
        task_id=task.id,
        language="cuda",
        files=(SourceFile(path="kernel.cu", text="\n".join(lines)),),
        entry=LauncherEntry(),
        parent_id=parent,
        note=f"attempt {number}",
    )


def _records(candidate: Candidate, number: int) -> list[AnyRecord]:
    """A compilation, a correctness run of many checks, and, for every other candidate, a benchmark."""
    same = {"task_id": candidate.task_id, "candidate_id": candidate.id, "provenance": _WHERE, "seconds": 1.0}
    checks = tuple(CheckResult(case="default", family=f"f{n}", seed=n, ok=True) for n in range(CHECKS))
    made: list[AnyRecord] = [
        CompileRecord(ok=True, compiler="nvcc", **same),
        CorrectnessRecord(ok=number % 2 == 0, summary="", results=checks, **same),
    ]
    if number % 2 == 0:
        timing = Timing(
            label="candidate", median_ns=1e5, ci_low_ns=1e5, ci_high_ns=1e5, samples=100, calls_per_sample=1
        )
        case = BenchmarkCase(case="default", timings=(timing,), comparisons=())
        speedups = {"eager": 1.5, "best": 1.01}
        made.append(BenchmarkRecord(ok=True, summary="", cases=(case,), geomean_speedup=speedups, **same))
    return made


def _median_ms(call: Callable[[int], object]) -> float:
    times: list[float] = []
    for number in range(RUNS):
        start = time.perf_counter()
        call(number)
        times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times)


def measure() -> dict[str, float]:
    """Median milliseconds of a new candidate, and of a history from the store to its text."""
    task = _task()
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder) / "store.db")
        store.put_task(task)
        ids: list[str] = []
        for number in range(CANDIDATES):
            candidate = _candidate(task, number, ids[-1 - number % 3] if len(ids) > 3 else None)
            store.put_candidate(candidate)
            ids.append(candidate.id)
            for record in _records(candidate, number):
                store.put_run(record)
        store.set_head(task.id, best_id=ids[500])
        fresh = [_candidate(task, CANDIDATES + number, ids[-1]) for number in range(RUNS)]

        def history(_: int) -> None:
            head = store.head(task.id)
            tree = Tree(store.history_rows(task.id), head.best_id, head.checked_out)
            if len(tree.rows) < CANDIDATES or ids[500] not in tree.render():
                raise RuntimeError("the history is not complete")

        measured = {
            "candidates": float(CANDIDATES),
            "history_ms": _median_ms(history),
            "put_candidate_ms": _median_ms(lambda number: store.put_candidate(fresh[number])),
        }
        store.close()
        return measured


if __name__ == "__main__":
    print(json.dumps(measure(), indent=1))
