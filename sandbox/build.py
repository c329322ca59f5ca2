"""What every compiler driver takes and gives: one build in a private folder, in the sandbox."""

from __future__ import annotations

import asyncio
import contextlib
import re
import tempfile
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cuteforge.kernels.candidate import Candidate
from cuteforge.kernels.errors import CuteforgeError, EnvironmentProblem, InvalidRequest
from cuteforge.kernels.header import prototype, task_header
from cuteforge.kernels.records import Diagnostic, KernelResources
from cuteforge.kernels.task import Task
from cuteforge.sandbox import process
from cuteforge.sandbox.bubblewrap import SandboxSpec, SandboxStatus
from cuteforge.sandbox.diagnostics import Sources, parse, prefixes
from cuteforge.sandbox.elf import exported
from cuteforge.sandbox.process import Ended, Limits
from cuteforge.sandbox.toolchain import Toolchain

INSIDE = "/build"
LIBRARY = "candidate.so"
LAUNCHER = "cuteforge_launch"

LIMITS = Limits(
    wall_s=300,
    memory_bytes=8 << 30,
    file_bytes=2 << 30,
    output_bytes=4 << 20,
    processes=64,
)


@dataclass(frozen=True)
class Job:
    """One compilation: the candidate, its checked flags and macros, and where it is for."""

    task: Task
    candidate: Candidate
    arch: str
    flags: tuple[str, ...]
    macros: Mapping[str, str]

    @property
    def header(self) -> str:
        """The text of `task.h`."""
        return task_header(self.task.definition, self.task.card)

    @property
    def prototype(self) -> str:
        """What a launcher must look like."""
        return prototype(self.task.card, self.task.definition.target)

    def texts(self) -> dict[str, str]:
        """Every file by relative path, `task.h` included."""
        return {**{f.path: f.text for f in self.candidate.files}, "task.h": self.header}


@dataclass(frozen=True)
class Built:
    """What a driver made of a job. `artifact` is None exactly when there are errors."""

    log: str
    diagnostics: tuple[Diagnostic, ...] = ()
    artifact: bytes | None = None
    kernels: tuple[KernelResources, ...] = ()
    lowered_name: str | None = None


@dataclass(frozen=True)
class Folder:
    """A private build folder on the host with the job's files in it."""

    path: Path
    sources: Sources = field(repr=False)

    def read(self, name: str) -> bytes | None:
        """A file that the build made; None when it is missing, empty, or not a plain file."""
        place = self.path / name
        if place.is_symlink() or not place.is_file():
            return None
        return place.read_bytes() or None


def _write(root: Path, texts: Mapping[str, str]) -> None:
    for path, text in texts.items():
        place = root / path
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text, encoding="utf-8", errors="surrogatepass", newline="")
        except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
            raise InvalidRequest(
                f"The file '{path}' collides with another file's folder.", "Rename one of them."
            ) from error


@contextlib.asynccontextmanager
async def folder(job: Job, chain: Toolchain) -> AsyncIterator[Folder]:
    """The job's files in a folder of their own, removed afterwards: nothing of an attempt can go stale."""
    texts = job.texts()
    with tempfile.TemporaryDirectory(prefix="cuteforge-build-", ignore_cleanup_errors=True) as name:
        await asyncio.to_thread(_write, Path(name), texts)
        yield Folder(Path(name), Sources(texts, prefixes((INSIDE, name), chain.includes)))


@contextlib.asynccontextmanager
async def scratch(files: Mapping[str, bytes]) -> AsyncIterator[Folder]:
    """A private folder with these files, removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="cuteforge-build-", ignore_cleanup_errors=True) as name:
        for path, data in files.items():
            await asyncio.to_thread((Path(name) / path).write_bytes, data)
        yield Folder(Path(name), Sources({}, prefixes((INSIDE, name), ())))


async def run(
    argv: list[str], place: Folder, chain: Toolchain, status: SandboxStatus, limits: Limits = LIMITS
) -> Ended:
    """A compiler in the sandbox, with the build folder as its working directory."""
    extra_path = {str(tool.parent) for tool in (chain.nvcc, chain.cuobjdump, chain.nvdisasm) if tool}
    spec = SandboxSpec(
        argv=tuple(argv),
        readonly=chain.readonly,
        writable=((place.path, INSIDE),),
        env={
            "PATH": ":".join([*sorted(extra_path), "/usr/local/bin", "/usr/bin", "/bin"]),
            "LC_ALL": "C.UTF-8",
        },
        cwd=INSIDE,
    )
    return await process.run(spec, limits, status)


def stopped(ended: Ended, limits: Limits) -> Diagnostic | None:
    """Why a compiler was ended before it was done, if it was."""
    reasons = {
        "timeout": f"compilation was stopped after {limits.wall_s:g} s",
        "memory": f"compilation was stopped at {(limits.memory_bytes or 0) >> 30} GiB of memory",
        "processes": f"compilation was stopped at {limits.processes} processes",
    }
    if ended.reason not in reasons:
        return None
    return Diagnostic(
        severity="error",
        message=f"{reasons[ended.reason]}; make the templates smaller or split the kernel",
    )


def finish(
    ended: Ended,
    place: Folder,
    job: Job,
    chain: Toolchain,
    kernels: tuple[KernelResources, ...],
    limits: Limits = LIMITS,
) -> Built:
    """The outcome of a compiler that was to make LIBRARY.

    Raises:
        EnvironmentProblem: the log shows that the machine is at fault, not the candidate.
    """
    raw = ended.stderr_tail + ended.stdout_tail
    problem = environment_problem(raw, chain)
    if problem is not None:
        raise problem
    log = place.sources.shorten(raw)
    found = list(parse(raw, place.sources))
    halted = stopped(ended, limits)
    if halted is not None:
        return Built(log, (halted, *found))
    library = place.read(LIBRARY) if ended.ok else None
    if library is not None and LAUNCHER not in exported(library):
        library = None
    if library is None:
        found = explained(found, ended, job)
    return Built(log, tuple(found), library, kernels)


def explained(found: list[Diagnostic], ended: Ended, job: Job) -> list[Diagnostic]:
    """The diagnostics of a failed build, with at least one error, and the prototype where it is at issue."""
    expected = f"define: {job.prototype}"
    errors = [d for d in found if d.severity == "error"]
    if not errors or all("required symbol" in d.message for d in errors):
        others = [d for d in found if d.severity != "error"]
        if ended.ok or errors:
            message = (
                f"the entry `{LAUNCHER}` is not defined, or not exported, by {job.candidate.main_file.path}"
            )
            return [Diagnostic(severity="error", message=message, notes=(expected,)), *others]
        how = f"signal {ended.signal}" if ended.signal else f"exit code {ended.returncode}"
        return [
            Diagnostic(severity="error", message=f"the compiler ended with {how} and no message"),
            *others,
        ]
    return [
        d.model_copy(update={"notes": (*d.notes, f"task.h declares: {job.prototype}")})
        if d.severity == "error" and LAUNCHER in d.message
        else d
        for d in found
    ]


_GNU = re.compile(r"#error -- unsupported (GNU|clang) version! (.*)")
_PTX = re.compile(r"Unsupported \.version (\d+\.\d+); current version is '(\d+\.\d+)'")


def environment_problem(log: str, chain: Toolchain) -> CuteforgeError | None:
    """The error for a log that shows a fault of the machine; None for one that speaks of the source."""
    if match := _GNU.search(log):
        return EnvironmentProblem(
            f"nvcc {chain.nvcc_version} does not support the host compiler g++ {chain.gxx_version}: {match[2][:160]}",
            "Install a g++ that nvcc supports and put it first on PATH, or install a newer CUDA toolkit.",
        )
    if match := _PTX.search(log):
        return EnvironmentProblem(
            f"The CUDA toolkit is mixed: its compiler writes PTX {match[1]} and its assembler reads PTX {match[2]}.",
            f"Install one release: pip install 'nvidia-nvvm=={chain.nvcc_version}' 'nvidia-cuda-crt=={chain.nvcc_version}'.",
        )
    if "Unsupported gpu architecture" in log or "invalid value for --gpu-architecture" in log:
        return InvalidRequest(
            f"The CUDA toolkit {chain.nvcc_version or chain.nvrtc_version} does not know this architecture.",
            "Leave `arch` out, or name one that `nvcc --list-gpu-code` lists; or install a newer toolkit.",
        )
    if "No space left on device" in log:
        return EnvironmentProblem(
            "The disk is full, so nothing can be compiled.", "Free space in the temporary folder."
        )
    if "libnvrtc-builtins" in log and "failed to open" in log:
        return EnvironmentProblem(
            "NVRTC's library of built-in functions is missing.",
            "Reinstall NVRTC: `pip install --force-reinstall 'nvidia-cuda-nvrtc'`.",
        )
    if re.search(r"cannot find -lcudart_static|cannot find -lcudadevrt", log):
        return EnvironmentProblem(
            "The CUDA runtime library is missing.", "Run `pip install 'cuteforge[toolchain]'`."
        )
    if re.search(
        r"cannot execute '(as|ld|cc1plus|collect2)'|(?:cicc|ptxas|cudafe\+\+|nvlink|fatbinary): not found",
        log,
    ):
        return EnvironmentProblem(
            "A part of the compiler is missing on this machine.",
            "Reinstall the CUDA toolkit and g++ (with binutils).",
        )
    return None
