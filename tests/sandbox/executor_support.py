"""One real executor for a whole test module, called synchronously."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from anyio.from_thread import start_blocking_portal

from cuteforge.kernels.artifacts import Artifacts
from cuteforge.kernels.candidate import Candidate, KernelEntry, LauncherEntry, ModuleEntry, SourceFile
from cuteforge.kernels.records import BenchmarkRecord, CompileRecord, CorrectnessRecord
from cuteforge.kernels.task import Case, InputSpec, Task, TaskDefinition
from cuteforge.sandbox.executor import BenchmarkOptions, CheckOptions, Participant
from cuteforge.sandbox.local import LocalExecutor, LocalOptions

RELU = "import torch\n\n\ndef reference(x):\n    return torch.relu(x)\n"
SOFTMAX = "import torch\n\n\ndef reference(x):\n    return torch.softmax(x, dim=1)\n"


def matrix_task(source: str, target: str, *sizes: tuple[int, int], **more: Any) -> TaskDefinition:
    """A task over one matrix x[rows, cols]."""
    cases = tuple(Case(name=f"{r}x{c}", sizes={"rows": r, "cols": c}) for r, c in sizes)
    spec = InputSpec(name="x", shape=("rows", "cols"), dtype=more.pop("input_dtype", "float32"))
    return TaskDefinition(
        name="test", contract="function", source=source, inputs=(spec,), cases=cases, target=target, **more
    )


def launcher(task: Task, text: str, language: str = "cpp", name: str = "kernel.cpp") -> Candidate:
    """A candidate with a launcher."""
    return Candidate(
        task_id=task.id,
        language=language,
        files=(SourceFile(path=name, text=text),),
        entry=LauncherEntry(),
    )


def kernel(task: Task, text: str, function: str = "k", **launch: Any) -> Candidate:
    """A candidate with a `__global__` function, one thread for each element by default."""
    entry = {
        "grid": ("ceil_div(rows * cols, 256)",),
        "block": ("256",),
        "args": ("x", "out", "rows * cols"),
        **launch,
    }
    return Candidate(
        task_id=task.id,
        language="cute" if "cute/" in text else "cuda",
        files=(SourceFile(path="kernel.cu", text=text),),
        entry=KernelEntry(function=function, **entry),
    )


def module(task: Task, text: str) -> Candidate:
    """A Python candidate."""
    return Candidate(
        task_id=task.id,
        language="python",
        files=(SourceFile(path="model.py", text=text),),
        entry=ModuleEntry(),
    )


class Machine:
    """A synchronous view of a LocalExecutor."""

    def __init__(self, portal: Any, executor: LocalExecutor) -> None:
        self.portal = portal
        self.executor = executor
        self._tasks: dict[str, Task] = {}

    def derive(self, definition: TaskDefinition) -> Task:
        if definition.id not in self._tasks:
            card = self.portal.call(self.executor.derive, definition)
            self._tasks[definition.id] = Task(definition=definition, card=card)
        return self._tasks[definition.id]

    def compile(self, task: Task, candidate: Candidate) -> CompileRecord:
        return self.portal.call(self.executor.compile, task, candidate)

    def check(self, task: Task, candidate: Candidate, **options: Any) -> CorrectnessRecord:
        compiled = self.compile(task, candidate)
        assert compiled.ok, compiled.diagnostics
        return self.portal.call(self.executor.check, task, candidate, compiled, CheckOptions(**options))

    def benchmark(self, task: Task, *candidates: Candidate, **options: Any) -> BenchmarkRecord:
        labels = ["candidate", "best", "parent"]
        participants = [
            Participant(label=label, candidate=c, compiled=self.compile(task, c))
            for label, c in zip(labels, candidates, strict=False)
        ]
        return self.portal.call(self.executor.benchmark, task, participants, BenchmarkOptions(**options))


@contextmanager
def machine(folder: Path, **options: Any) -> Iterator[Machine]:
    """An executor that is closed, with all its processes, at the end."""
    with start_blocking_portal() as portal:
        executor = portal.call(
            LocalExecutor.open, LocalOptions(folder=folder, **options), Artifacts(folder / "artifacts")
        )
        executor_view = Machine(portal, executor)
        portal.call(_warm, executor)
        try:
            yield executor_view
        finally:
            portal.call(executor.aclose)


async def _warm(executor: LocalExecutor) -> None:
    executor.warm_up()
