"""The executor of this machine: sandboxed processes beside the server, one GPU or the CPU."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from cuteforge.kernels.artifacts import Artifacts
from cuteforge.kernels.candidate import Candidate
from cuteforge.kernels.errors import EnvironmentProblem
from cuteforge.kernels.model import utc_now
from cuteforge.kernels.records import (
    BenchmarkRecord,
    CompileRecord,
    CorrectnessRecord,
    Provenance,
)
from cuteforge.kernels.stats import geometric_mean
from cuteforge.kernels.task import SpecCard, Task, TaskDefinition
from cuteforge.sandbox import bubblewrap, devices, evaluation, toolchain
from cuteforge.sandbox.compilers import Compiler, FolderCache
from cuteforge.sandbox.executor import (
    BenchmarkOptions,
    CheckOptions,
    DeviceReport,
    Found,
    Gpu,
    Participant,
    Progress,
    no_progress,
)
from cuteforge.sandbox.leases import lease, lease_path
from cuteforge.sandbox.pool import WarmPool, Worker, start_worker
from cuteforge.sandbox.process import Limits

_DERIVE_TIMEOUT_S = 120.0
_CALL_TIMEOUT_S = 30.0
_MANY_CORES = 8


@dataclass(frozen=True)
class LocalOptions:
    """How this machine is used.

    `memory_bytes` bounds each judge and candidate process tree. `warm_workers` is how many sandboxes wait
    with torch imported; None: four on a machine of many cores, else two.
    """

    folder: Path
    cuda_home: Path | None = None
    cutlass: Path | None = None
    bwrap: Path | None = None
    warm_workers: int | None = None
    memory_bytes: int = 16 * 1024**3
    call_timeout_s: float = _CALL_TIMEOUT_S
    extra_readonly: tuple[Path, ...] = field(default=())


class LocalExecutor:
    """See executor.Executor. `open` looks at the machine; nothing is started before the first use."""

    def __init__(
        self,
        options: LocalOptions,
        artifacts: Artifacts,
        tools: toolchain.Toolchain,
        gpus: tuple[Gpu, ...],
        status: bubblewrap.SandboxStatus,
    ) -> None:
        self._options = options
        self._artifacts = artifacts
        self._tools = tools
        self._gpus = gpus
        self._status = status
        self._limits = Limits(
            wall_s=24 * 3600,
            memory_bytes=options.memory_bytes,
            output_bytes=16 * 1024,
            processes=512,
        )
        self._pools: dict[str, WarmPool] = {}
        # Where cores are few, a spare that imports torch would slow the run beside it: it waits for its end.
        self._roomy = devices.cores() >= _MANY_CORES
        self._compiler = Compiler(tools, artifacts, status, FolderCache(options.folder / "compile-cache"))

    @classmethod
    async def open(cls, options: LocalOptions, artifacts: Artifacts) -> LocalExecutor:
        """Find toolchain, GPUs and sandbox, in threads: none of it blocks the event loop."""

        def look() -> tuple[toolchain.Toolchain, tuple[Gpu, ...], bubblewrap.SandboxStatus]:
            return (
                toolchain.discover(options.cuda_home, options.cutlass),
                devices.gpus(),
                bubblewrap.probe(options.bwrap),
            )

        tools, gpus, status = await anyio.to_thread.run_sync(look)
        return cls(options, artifacts, tools, gpus, status)

    @property
    def sandboxed(self) -> bool:
        """Whether candidates are isolated here."""
        return self._status.kind != "none"

    @property
    def has_gpu(self) -> bool:
        """Whether the CUDA target can run here."""
        return bool(self._gpus)

    def _gpu(self, what: str) -> Gpu:
        if not self._gpus:
            raise EnvironmentProblem(
                f"This machine has no usable NVIDIA GPU, so {what} is not possible here.",
                "Compile it (`compile` works for any architecture without a GPU), or define the task with "
                "target `cpu`, or connect to a GPU host.",
            )
        return self._gpus[0]

    def _need_torch(self) -> None:
        if importlib.util.find_spec("torch") is None:
            raise EnvironmentProblem(
                "PyTorch is not installed, and references need it.", "Run `pip install 'cuteforge[gpu]'`."
            )

    def _spec_parts(self, gpu: Gpu | None) -> dict[str, Any]:
        env = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONSAFEPATH": "1"}
        nodes: tuple[str, ...] = ()
        if gpu is not None:
            nodes = devices.device_nodes(gpu)
            if len(self._gpus) > 1:
                env["CUDA_VISIBLE_DEVICES"] = gpu.uuid
            # A candidate's kernels are loaded lazily inside its first call, never inside a timed block.
            env["CUDA_MODULE_LOADING"] = "LAZY"
        else:
            env["CUDA_VISIBLE_DEVICES"] = ""
            # Threads of one participant that spin after their work would slow the next one's.
            env["OMP_WAIT_POLICY"] = "PASSIVE"
        return {"readonly": self._options.extra_readonly, "env": env, "gpu_devices": nodes}

    def _pool(self, gpu: Gpu | None) -> WarmPool:
        key = gpu.uuid if gpu else "cpu"
        if key not in self._pools:
            self._need_torch()
            size = self._options.warm_workers
            if size is None:
                size = 4 if self._roomy else 2
            self._pools[key] = WarmPool(size, self._spec_parts(gpu), self._limits, self._status)
        return self._pools[key]

    def warm_up(self) -> None:
        """Start spare workers for the device that most requests will use."""
        if importlib.util.find_spec("torch") is not None:
            self._pool(self._gpus[0] if self._gpus else None).warm_up()

    def _provenance(
        self, gpu: Gpu | None, compiled: CompileRecord | None, judge: dict[str, Any]
    ) -> Provenance:
        return Provenance(
            cuteforge=importlib.metadata.version("cuteforge"),
            host_os=platform.platform(),
            python=platform.python_version(),
            device=judge.get("device") or (gpu.name if gpu else devices.cpu_name()),
            driver=gpu.driver if gpu else None,
            compiler=compiled.provenance.compiler if compiled else None,
            cutlass=compiled.provenance.cutlass if compiled else None,
            torch=judge.get("torch"),
            sandbox=self._status.kind,
            arch=compiled.arch if compiled else None,
        )

    async def derive(self, definition: TaskDefinition, progress: Progress = no_progress) -> SpecCard:
        """See Executor.derive. Without a GPU the reference of a CUDA task is run on the CPU."""
        gpu = self._gpus[0] if definition.target == "cuda" and self._gpus else None
        workers: list[Worker] = []
        async with evaluation.ending(workers):
            judge = await self._pool(gpu).take(refill=self._roomy)
            workers.append(judge)
            message = {
                "role": "derive",
                "definition": definition.model_dump(mode="json"),
                "device": "cuda" if gpu else "cpu",
            }
            await evaluation.order(judge, message, [])
            verdict = await evaluation.judgement(judge, _DERIVE_TIMEOUT_S, progress, "Deriving the task")
        self._pool(gpu).warm_up()
        return SpecCard.model_validate(verdict.answer["card"])

    async def compile(
        self, task: Task, candidate: Candidate, progress: Progress = no_progress
    ) -> CompileRecord:
        """See Executor.compile."""
        arch = candidate.build.arch or devices.arch_for(self._gpus[0] if self._gpus else None)
        return await self._compiler.compile(task, candidate, arch, progress)

    async def _start_candidate(
        self,
        task: Task,
        candidate: Candidate,
        compiled: CompileRecord,
        gpu: Gpu | None,
        link_fd: int,
    ) -> Worker:
        """A process that has its order to load the candidate; consumes `link_fd`."""
        if compiled.artifact is None:
            os.close(link_fd)
            raise EnvironmentProblem("The compiled artefact is missing.", "Compile the candidate again.")
        fds = [link_fd, evaluation.open_artefact(self._artifacts.path(compiled.artifact))]
        if candidate.language == "python":
            worker = await self._pool(gpu).take(refill=self._roomy)
            config: dict[str, Any] = evaluation.python_config(task, candidate)
            await evaluation.order(worker, {"role": "candidate", "config": config}, fds)
            return worker
        worker = await start_worker(
            "cuteforge.sandbox.harness_native", self._spec_parts(gpu), self._limits, self._status
        )
        await evaluation.order(worker, evaluation.native_config(task, candidate, compiled), fds)
        return worker

    async def check(
        self,
        task: Task,
        candidate: Candidate,
        compiled: CompileRecord,
        options: CheckOptions,
        progress: Progress = no_progress,
    ) -> CorrectnessRecord:
        """See Executor.check."""
        gpu = self._gpu("running it") if task.definition.target == "cuda" else None
        started = anyio.current_time()
        workers: list[Worker] = []
        async with evaluation.ending(workers), self._lease(gpu, False, progress):
            judge_fd, candidate_fd = evaluation.link_pair()
            # The next spare starts when this run is over: its imports would slow it down.
            worker = await self._start_candidate(task, candidate, compiled, gpu, candidate_fd)
            workers.append(worker)
            judge = await self._pool(gpu).take(refill=self._roomy)
            workers.append(judge)
            message = {
                "role": "check",
                "definition": task.definition.model_dump(mode="json"),
                "card": task.card.model_dump(mode="json"),
                "seeds": options.seeds,
                "case": options.case,
                "call_timeout_s": min(self._options.call_timeout_s, options.timeout_s / 2),
            }
            await evaluation.order(judge, message, [judge_fd])
            verdict = await evaluation.judgement(judge, options.timeout_s, progress, "The correctness run")
            ending, tail = await evaluation.how_it_ended(worker, bool(verdict.answer["ok"]))
        self._pool(gpu).warm_up()
        answer = verdict.answer
        if ending:
            _explain(answer, ending)
        return CorrectnessRecord(
            task_id=task.id,
            candidate_id=candidate.id,
            output_tail=tail[-2000:],
            compiled=compiled.artifact,
            seconds=anyio.current_time() - started,
            provenance=self._provenance(gpu, compiled, verdict.provenance),
            created_at=utc_now(),
            **answer,
        )

    async def benchmark(
        self,
        task: Task,
        participants: Sequence[Participant],
        options: BenchmarkOptions,
        progress: Progress = no_progress,
    ) -> BenchmarkRecord:
        """See Executor.benchmark. Holds the device's exclusive lease while it measures."""
        gpu = self._gpu("measuring it") if task.definition.target == "cuda" else None
        subject = participants[0]
        started = anyio.current_time()
        workers: list[Worker] = []
        async with evaluation.ending(workers), self._lease(gpu, True, progress):
            pool = self._pool(gpu)
            if not self._roomy:
                await pool.settle()
            # Before our own processes touch the device.
            noise = await anyio.to_thread.run_sync(devices.foreign_load, gpu)
            links: list[int] = []
            for participant in participants:
                judge_fd, candidate_fd = evaluation.link_pair()
                links.append(judge_fd)
                workers.append(
                    await self._start_candidate(
                        task, participant.candidate, participant.compiled, gpu, candidate_fd
                    )
                )
            judge = await pool.take(refill=self._roomy)
            workers.append(judge)
            message = {
                "role": "benchmark",
                "definition": task.definition.model_dump(mode="json"),
                "card": task.card.model_dump(mode="json"),
                "participants": [{"label": p.label, "candidate_id": p.candidate.id} for p in participants],
                "baselines": list(options.baselines),
                "case": options.case,
                "samples": options.samples,
                "budget_s": options.budget_s,
                "call_timeout_s": min(self._options.call_timeout_s, options.timeout_s / 2),
            }
            await evaluation.order(judge, message, links)
            verdict = await evaluation.judgement(judge, options.timeout_s, progress, "The benchmark")
            ending, _ = await evaluation.how_it_ended(workers[0], bool(verdict.answer["ok"]))
        pool.warm_up()
        answer = verdict.answer
        if ending and not answer["ok"]:
            answer["summary"] = f"{answer['summary']} ({ending})"
        answer["noise"] = [*noise, *answer.get("noise", [])]
        record = BenchmarkRecord(
            task_id=task.id,
            candidate_id=subject.candidate.id,
            compiled=subject.compiled.artifact,
            seconds=anyio.current_time() - started,
            provenance=self._provenance(gpu, subject.compiled, verdict.provenance),
            created_at=utc_now(),
            **answer,
        )
        return _summarise(record)

    def _lease(self, gpu: Gpu | None, exclusive: bool, progress: Progress) -> Any:
        async def waiting() -> None:
            await progress(0.0, "waiting for the device: another server is using it")

        return lease(lease_path(gpu.uuid if gpu else "cpu"), exclusive, waiting)

    async def disassemble(self, compiled: CompileRecord) -> str:
        """See Executor.disassemble."""
        return await self._compiler.disassemble(compiled)

    async def describe(self) -> DeviceReport:
        """See Executor.describe."""
        found = [*toolchain.findings(self._tools)]
        found.append(
            Found(
                name="sandbox",
                ok=self.sandboxed,
                detail=self._status.detail,
                remedy=self._status.remedy,
            )
        )
        spec = importlib.util.find_spec("torch")
        found.append(
            Found(
                name="torch",
                ok=spec is not None,
                detail=importlib.metadata.version("torch") if spec else "not installed",
                remedy="" if spec else "Run `pip install 'cuteforge[gpu]'`.",
            )
        )
        found.append(
            Found(
                name="gpu",
                ok=bool(self._gpus),
                detail=", ".join(g.name for g in self._gpus) or "none: kernels are compiled, not run",
                remedy="" if self._gpus else "Nothing to do for the CPU target and for compiling.",
            )
        )
        return DeviceReport(
            gpus=self._gpus, cpu=devices.cpu_name(), cores=devices.cores(), findings=tuple(found)
        )

    async def aclose(self) -> None:
        """See Executor.aclose."""
        with anyio.CancelScope(shield=True):
            for pool in self._pools.values():
                await pool.aclose()
            await self._compiler.aclose()


def _explain(answer: dict[str, Any], ending: str) -> None:
    """Say how the process ended beside the failures that its end caused."""
    for result in answer.get("results", []):
        if result.get("failure") and "ended" in result["failure"]:
            result["failure"] = f"{result['failure']}: it {ending}"
    if not answer["ok"] and "ended" in answer["summary"]:
        answer["summary"] = f"{answer['summary']}: it {ending}"


def _summarise(record: BenchmarkRecord) -> BenchmarkRecord:
    """Verdict and geometric mean speedup by baseline, over the cases.

    The verdict over several cases is that of all of them when they agree; when some are faster and some
    slower it is `indistinguishable`, and otherwise that of the cases that could be told apart.
    """
    by_baseline: dict[str, list[tuple[float, str]]] = {}
    for case in record.cases:
        for comparison in case.comparisons:
            by_baseline.setdefault(comparison.baseline, []).append((comparison.speedup, comparison.verdict))
    means = {label: geometric_mean([s for s, _ in pairs]) for label, pairs in by_baseline.items()}
    verdicts: dict[str, Any] = {}
    for label, pairs in by_baseline.items():
        told = {verdict for _, verdict in pairs} - {"indistinguishable"}
        verdicts[label] = told.pop() if len(told) == 1 else "indistinguishable"
    summary = record.summary
    if record.ok:
        parts = [f"{means[label]:.2f}x against {label} ({verdicts[label]})" for label in means]
        summary = "; ".join(parts) or "timed; no baseline took part"
    return record.model_copy(update={"geomean_speedup": means, "verdicts": verdicts, "summary": summary})
