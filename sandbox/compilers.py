"""The compiler of this machine: picks the driver, keeps artefact, log and cache, and disassembles."""

from __future__ import annotations

import importlib.metadata
import platform
import re
import time
from dataclasses import replace
from typing import Literal, Protocol

import anyio
import anyio.to_thread

from cuteforge.kernels.candidate import Candidate
from cuteforge.kernels.errors import EnvironmentProblem, InvalidRequest, NotFound
from cuteforge.kernels.header import task_header
from cuteforge.kernels.records import CompileRecord, Diagnostic, Provenance
from cuteforge.kernels.task import Task
from cuteforge.sandbox import build, devices
from cuteforge.sandbox.bubblewrap import SandboxSpec, SandboxStatus
from cuteforge.sandbox.build import Built, Job
from cuteforge.sandbox.compile_cache import CompileCache, FolderCache, cache_key
from cuteforge.sandbox.compile_gxx import compile_cpp
from cuteforge.sandbox.compile_nvcc import compile_launcher
from cuteforge.sandbox.compile_nvrtc import NvrtcWorker, compile_kernel
from cuteforge.sandbox.compile_python import compile_module
from cuteforge.sandbox.executor import Progress, no_progress
from cuteforge.sandbox.flags import check_flags, macros
from cuteforge.sandbox.process import Limits, run
from cuteforge.sandbox.resources import MAX_NAME, renamed
from cuteforge.sandbox.toolchain import Toolchain

__all__ = ["ArtifactStore", "CompileCache", "Compiler", "FolderCache", "Tool", "tool_of"]

Tool = Literal["nvcc", "nvrtc", "g++", "python"]

_SASS_BYTES = 32 << 20
_SPECIFIC_CODE = re.compile(r"\b(?:wgmma|tcgen05|setmaxnreg)\b|\bGMMA::|\bSM(?:90|100|103|120)_\w")


class ArtifactStore(Protocol):
    """Bytes by content hash. Called in threads."""

    def put(self, data: bytes) -> str:
        """Store bytes; returns their SHA-256."""
        ...

    def get(self, sha: str) -> bytes:
        """The bytes of a hash. Raises NotFound."""
        ...


def tool_of(candidate: Candidate) -> Tool:
    """Which compiler a candidate is for."""
    if candidate.language == "python":
        return "python"
    if candidate.language == "cpp":
        return "g++"
    return "nvrtc" if candidate.entry.kind == "kernel" else "nvcc"


class Compiler:
    """Compiles candidates in the sandbox. One for each server; `aclose` ends its worker."""

    def __init__(
        self,
        chain: Toolchain,
        artifacts: ArtifactStore,
        status: SandboxStatus,
        cache: CompileCache | None = None,
    ) -> None:
        self._chain = chain
        self._artifacts = artifacts
        self._status = status
        self._cache = cache
        self._worker = NvrtcWorker(chain, status)

    async def compile(
        self, task: Task, candidate: Candidate, arch: str, progress: Progress = no_progress
    ) -> CompileRecord:
        """Compile for `arch` (`sm_90a`; ignored for the CPU and for Python).

        Errors in the source are diagnostics of a record with `ok=False`, which is cached like any other.

        Raises:
            InvalidRequest: a flag, a macro, the entry's name, the language for this target.
            EnvironmentProblem: a tool is missing or the toolkit does not fit together.
            WorkerDied: the NVRTC worker ended twice.
        """
        tool = tool_of(candidate)
        _check_target(task, candidate)
        started = time.monotonic()
        flags = () if tool == "python" else check_flags(candidate.build.flags, tool)
        job = Job(task, candidate, arch, flags, macros(candidate.build))
        key = self._key(job, tool)
        cached = await self._cached(key, task, candidate)
        if cached is not None:
            return cached.model_copy(update={"seconds": time.monotonic() - started})
        await progress(0.0, f"compiling with {tool}")
        built = await self._build(job, tool)
        built = await self._named(built)
        record = await self._record(job, tool, built, time.monotonic() - started)
        if self._cache is not None:
            await anyio.to_thread.run_sync(self._cache.put, key, record)
        await progress(1.0, "compiled" if record.ok else "compilation failed")
        return record

    async def _build(self, job: Job, tool: Tool) -> Built:
        if tool == "python":
            return compile_module(job.candidate)
        if tool == "g++":
            return await compile_cpp(job, self._chain, self._status)
        if tool == "nvcc":
            return await compile_launcher(job, self._chain, self._status)
        return await compile_kernel(job, self._chain, self._worker)

    def _key(self, job: Job, tool: Tool) -> str:
        candidate = job.candidate
        where = devices.cpu_name() if tool == "g++" else job.arch
        return cache_key(
            1, tool, where, self._chain.identity, importlib.metadata.version("cuteforge"),
            task_header(job.task.definition, job.task.card), job.flags, dict(job.macros),
            [f.model_dump() for f in candidate.files], candidate.entry.model_dump(mode="json"),
            sorted(t.name for t in job.task.card.cases[0].tensors),
        )  # fmt: skip

    async def _cached(self, key: str, task: Task, candidate: Candidate) -> CompileRecord | None:
        if self._cache is None:
            return None
        record = await anyio.to_thread.run_sync(self._cache.get, key)
        if record is None:
            return None
        for sha in (record.artifact, record.log):
            # An artefact may have been removed from the store since.
            if sha is not None and not await anyio.to_thread.run_sync(self._present, sha):
                return None
        return record.model_copy(update={"task_id": task.id, "candidate_id": candidate.id, "cached": True})

    def _present(self, sha: str) -> bool:
        try:
            self._artifacts.get(sha)
        except (NotFound, OSError):
            return False
        return True

    async def _record(self, job: Job, tool: Tool, built: Built, seconds: float) -> CompileRecord:
        async def keep(data: bytes) -> str:
            return await anyio.to_thread.run_sync(self._artifacts.put, data)

        cuda = tool in ("nvcc", "nvrtc")
        return CompileRecord(
            task_id=job.task.id,
            candidate_id=job.candidate.id,
            ok=built.artifact is not None,
            compiler=tool,
            arch=job.arch if cuda else None,
            diagnostics=(*built.diagnostics, *_unfit_arch(job)) if cuda else built.diagnostics,
            kernels=built.kernels,
            lowered_name=built.lowered_name,
            artifact=await keep(built.artifact) if built.artifact is not None else None,
            log=await keep(built.log.encode("utf-8", "replace")) if built.log.strip() else None,
            seconds=seconds,
            provenance=self._provenance(job, tool),
        )

    def _provenance(self, job: Job, tool: Tool) -> Provenance:
        versions = {
            "nvcc": f"nvcc {self._chain.nvcc_version}, g++ {self._chain.gxx_version}",
            "nvrtc": f"NVRTC {self._chain.nvrtc_version}",
            "g++": f"g++ {self._chain.gxx_version}",
            "python": f"Python {platform.python_version()}",
        }
        cuda = tool in ("nvcc", "nvrtc")
        return Provenance(
            cuteforge=importlib.metadata.version("cuteforge"),
            host_os=platform.platform(),
            python=platform.python_version(),
            compiler=versions[tool],
            cutlass=self._chain.cutlass_version if cuda else None,
            sandbox=self._status.kind,
            arch=job.arch if cuda else None,
        )

    async def _named(self, built: Built) -> Built:
        """The same with demangled kernel names, where a demangler is there."""
        kernels = built.kernels
        if not kernels:
            return built
        spec = SandboxSpec(("c++filt", "--", *(k.name[:4000] for k in kernels)))
        ended = await run(spec, Limits(wall_s=10, memory_bytes=1 << 30, output_bytes=1 << 20), self._status)
        lines = ended.stdout_tail.splitlines()
        if not ended.ok or len(lines) != len(kernels):
            return replace(built, kernels=renamed(kernels, {}))
        names = {k.name: line[:MAX_NAME] for k, line in zip(kernels, lines, strict=True)}
        pattern = re.compile("|".join(re.escape(name) for name in names))
        told = tuple(
            d.model_copy(update={"message": pattern.sub(lambda m: names[m[0]], d.message)})
            if "ptxas" in d.message
            else d
            for d in built.diagnostics
        )
        return replace(built, kernels=renamed(kernels, names), diagnostics=told)

    async def disassemble(self, compiled: CompileRecord) -> str:
        """The SASS text of a compiled CUDA candidate, as `cuobjdump -sass` prints it, 32 MiB at most.

        Raises:
            InvalidRequest: the record holds no CUDA code.
            EnvironmentProblem: no disassembler, or it does not read this file.
        """
        if compiled.artifact is None or compiled.compiler not in ("nvcc", "nvrtc"):
            raise InvalidRequest("There is no CUDA code to disassemble.", "Compile a CUDA candidate first.")
        if self._chain.cuobjdump is None or self._chain.nvdisasm is None:
            raise EnvironmentProblem(
                "cuobjdump and nvdisasm were not both found.", "Run `pip install 'cuteforge[toolchain]'`."
            )
        data = await anyio.to_thread.run_sync(self._artifacts.get, compiled.artifact)
        limits = Limits(wall_s=120, memory_bytes=8 << 30, output_bytes=_SASS_BYTES)
        async with build.scratch({"code": data}) as place:
            argv = [str(self._chain.cuobjdump), "-sass", "code"]
            ended = await build.run(argv, place, self._chain, self._status, limits)
        if not ended.ok:
            detail = place.sources.shorten(ended.stderr_tail.strip())[-300:]
            raise EnvironmentProblem(
                f"cuobjdump could not read the code: {detail or ended.reason}",
                "Install a cuobjdump at least as new as the compiler.",
            )
        return ended.stdout_tail

    async def aclose(self) -> None:
        """End the NVRTC worker."""
        await self._worker.aclose()


def _check_target(task: Task, candidate: Candidate) -> None:
    target = task.definition.target
    if candidate.language != "python" and (candidate.language == "cpp") != (target == "cpu"):
        wanted = "`cpp` or `python`" if target == "cpu" else "`cute`, `cuda` or `python`"
        raise InvalidRequest(
            f"The task's target is {target}, and the candidate's language is {candidate.language}.",
            f"Use {wanted}.",
        )


def _unfit_arch(job: Job) -> tuple[Diagnostic, ...]:
    """A warning when code needs the `a` variant of an architecture and the plain one was asked for."""
    number = job.arch.removeprefix("sm_")
    if not number.isdigit() or devices.specific(number) is None:
        return ()
    if not any(_SPECIFIC_CODE.search(f.text) for f in job.candidate.files):
        return ()
    better = devices.specific(number)
    message = (
        f"built for {job.arch}, which lacks the instructions this code names (wgmma, TMA forms); CUTLASS "
        f"compiles them to a printed complaint at run time: use arch {better}"
    )
    return (Diagnostic(severity="warning", message=message),)
