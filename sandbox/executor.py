"""What runs work: the protocol every executor follows, and the report it gives of its machine."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from pydantic import Field

from cuteforge.kernels.candidate import Candidate
from cuteforge.kernels.model import Frozen
from cuteforge.kernels.records import BenchmarkRecord, CompileRecord, CorrectnessRecord
from cuteforge.kernels.task import SpecCard, Task, TaskDefinition

Progress = Callable[[float, str], Awaitable[None]]
"""Called with a fraction in [0, 1] and a short text."""


async def no_progress(fraction: float, message: str) -> None:
    """A `Progress` that tells nobody."""


class CheckOptions(Frozen):
    """How thorough a correctness run is."""

    seeds: int = Field(default=5, ge=1, le=100)
    case: str | None = None
    timeout_s: float = Field(default=120, gt=0)


class Participant(Frozen):
    """A compiled candidate that takes part in a benchmark under a label: `candidate`, `parent`, `best`."""

    label: str
    candidate: Candidate
    compiled: CompileRecord


class BenchmarkOptions(Frozen):
    """Which built-in baselines run, and for how long."""

    baselines: tuple[str, ...] = Field(default=("eager",), description="of `eager`, `compile`")
    case: str | None = None
    samples: int = Field(default=100, ge=10, le=2000)
    budget_s: float = Field(default=20, gt=0)
    timeout_s: float = Field(default=300, gt=0)


class Gpu(Frozen):
    """One GPU as the driver reports it."""

    index: int
    name: str
    uuid: str
    compute_capability: str
    memory_bytes: int
    driver: str


class Found(Frozen):
    """One tool or capability of the machine: present or not, from where, and how to get it."""

    name: str
    ok: bool
    detail: str = ""
    remedy: str = ""


class DeviceReport(Frozen):
    """What this machine can do: the answer of `doctor` and `device_info`."""

    gpus: tuple[Gpu, ...] = ()
    cpu: str
    cores: int
    findings: tuple[Found, ...]


class Executor(Protocol):
    """Runs derivations, compilations and evaluations somewhere, each in its own sandbox.

    Every method raises `EnvironmentProblem` when the machine lacks what it needs, `WorkerDied` when a
    process of Cuteforge's own ended, and `DeadlineExceeded` at its deadline. Cancelling a call ends its
    process tree. A candidate that fails, crashes or hangs is a record with `ok=False`.
    """

    async def derive(self, definition: TaskDefinition, progress: Progress = no_progress) -> SpecCard:
        """Run the reference to derive shapes, FLOPs and workload class.

        Raises InvalidRequest with the reference's own error when it cannot be run.
        """
        ...

    async def compile(
        self, task: Task, candidate: Candidate, progress: Progress = no_progress
    ) -> CompileRecord:
        """Compile a candidate; errors in its source are diagnostics of a record with `ok=False`."""
        ...

    async def check(
        self,
        task: Task,
        candidate: Candidate,
        compiled: CompileRecord,
        options: CheckOptions,
        progress: Progress = no_progress,
    ) -> CorrectnessRecord:
        """Judge a compiled candidate against the reference."""
        ...

    async def benchmark(
        self,
        task: Task,
        participants: Sequence[Participant],
        options: BenchmarkOptions,
        progress: Progress = no_progress,
    ) -> BenchmarkRecord:
        """Time participants and built-in baselines interleaved; the first participant is the candidate."""
        ...

    async def disassemble(self, compiled: CompileRecord) -> str:
        """The SASS text of a compiled CUDA candidate, as `cuobjdump -sass` prints it.

        Raises EnvironmentProblem when no disassembler is found.
        """
        ...

    async def describe(self) -> DeviceReport:
        """Look at the machine; never raises for something missing."""
        ...

    async def aclose(self) -> None:
        """End every process this executor started."""
        ...
