"""`kernel` candidates: one `__global__` function through NVRTC, with CuTe's headers precompiled.

The generated main file includes the candidate's and then checks, at compile time, that the kernel takes
what `entry.args` passes.
"""

from __future__ import annotations

import base64
import re
import sys
from collections.abc import Iterable
from typing import Any

import anyio
import anyio.to_thread

from cuteforge.kernels.candidate import KernelEntry
from cuteforge.kernels.errors import EnvironmentProblem, InvalidRequest, WorkerDied
from cuteforge.kernels.records import Diagnostic
from cuteforge.sandbox import build
from cuteforge.sandbox.bubblewrap import SandboxSpec, SandboxStatus
from cuteforge.sandbox.build import Built, Job
from cuteforge.sandbox.channel import Channel, ChannelClosed, ChannelViolation
from cuteforge.sandbox.diagnostics import Sources, parse, prefixes
from cuteforge.sandbox.process import Child, Limits, spawn
from cuteforge.sandbox.resources import parse_ptxas
from cuteforge.sandbox.toolchain import Toolchain

MAIN = "cuteforge_entry.cu"
_NAME_MAP = "__nv_name_map"
MISMATCH = "entry args do not match the kernel"
CUTE_PRELUDE = "#include <cute/tensor.hpp>"

_WALL_S = build.LIMITS.wall_s
_START_S = 60.0
_LIMITS = Limits(
    wall_s=30 * 24 * 3600.0, memory_bytes=8 << 30, file_bytes=2 << 30, output_bytes=64 * 1024, processes=64
)
# Precompiled headers lie there: 295 MB each, three at most.
_TMP_BYTES = 2 << 30

# Own traits: no standard header is there in NVRTC.
_TRAITS = """
namespace cuteforge_entry {
template <class T> struct pointer { static constexpr bool value = false; };
template <class T> struct pointer<T*> { static constexpr bool value = true; };
template <class F> struct kernel;
template <class... P> struct kernel<void (*)(P...)> {
  static constexpr int parameters = sizeof...(P);
  static constexpr bool pointers[sizeof...(P) + 1] = {pointer<P>::value..., false};
  static constexpr bool matches(int index, bool tensor) {
    return index >= parameters || pointers[index] == tensor;
  }
};
}
"""

# What <math.h> defines for nvcc and NVRTC does not know.
_MATH_MACROS = (
    "#define INFINITY __int_as_float(0x7f800000)",
    "#define NAN __int_as_float(0x7fffffff)",
)


def prelude(job: Job) -> str:
    """The include that is precompiled: CuTe's, where the candidate uses it unconfigured; else none."""
    texts = [f.text for f in job.candidate.files]
    uses = any(re.search(r"^\s*#\s*include\s*<(cute|cutlass)/", text, re.MULTILINE) for text in texts)
    configures = any(re.search(r"^\s*#\s*define\s+(CUTE|CUTLASS)_", text, re.MULTILINE) for text in texts)
    configures = configures or any(name.startswith(("CUTE_", "CUTLASS_")) for name in job.macros)
    return CUTE_PRELUDE if uses and not configures else ""


def main_text(job: Job, entry: KernelEntry) -> str:
    """The generated main file, without the prelude.

    Macros are text here, not options: a precompiled header serves one set of options only.
    """
    tensors = {t.name for t in job.task.card.cases[0].tensors}
    count = len(entry.args)
    lines = [*_MATH_MACROS, *(f"#define {name} {value}" for name, value in job.macros.items())]
    # As for a launcher: what `task.h` includes is there without asking.
    lines += ['#include "task.h"', f'#include "{job.candidate.main_file.path}"', _TRAITS]
    function = f"cuteforge_entry::kernel<decltype(&{entry.function})>"
    entries = "1 entry" if count == 1 else f"{count} entries"
    claims = [
        (f"parameters == {count}", f"args has {entries}, and the kernel takes another number of parameters")
    ]
    for index, argument in enumerate(entry.args):
        tensor = argument.strip() in tensors
        shown = re.sub(r"[^\w\s+*/%().,-]", "", argument)[:60]
        is_what = "is a tensor, and the parameter is no pointer"
        if not tensor:
            is_what = "is a number, and the parameter is a pointer"
        condition = f"matches({index}, {'true' if tensor else 'false'})"
        claims.append((condition, f"args[{index}], {shown}, {is_what}"))
    lines += [f'static_assert({function}::{condition}, "{MISMATCH}: {text}");' for condition, text in claims]
    return "\n".join(lines) + "\n"


def check_function(function: str) -> str:
    """The name expression of a kernel.

    Raises:
        InvalidRequest: it is not a name with template arguments.
    """
    if not re.fullmatch(r"[A-Za-z_:][\w:]*(\s*<[\w\s:,<>()+*/%&|!?-]*>)?", function.strip(), re.ASCII):
        raise InvalidRequest(
            f"The entry's function {function[:80]!r} is not the name of a kernel.",
            "Give a name, with template arguments if it is a template: `softmax<128, float>`.",
        )
    return function.strip()


class NvrtcWorker:
    """The one NVRTC process: started at the first use, replaced when it has died, one request at a time."""

    def __init__(self, chain: Toolchain, status: SandboxStatus) -> None:
        self._chain = chain
        self._status = status
        self._child: Child | None = None
        self._channel: Channel | None = None
        self._lock = anyio.Lock()

    async def _start(self) -> Channel:
        mine, other = Channel.pair()
        argv = [sys.executable, "-P", "-m", "cuteforge.sandbox.nvrtc_worker", str(other.fileno())]
        argv += [str(self._chain.nvrtc_library)] if self._chain.nvrtc_library else []
        library = self._chain.nvrtc_library
        # NVRTC opens its built-in functions by name alone.
        env = {"LD_LIBRARY_PATH": str(library.parent)} if library else {}
        spec = SandboxSpec(tuple(argv), readonly=self._chain.readonly, env=env, tmp_bytes=_TMP_BYTES)
        try:
            child = await spawn(spec, _LIMITS, (other.fileno(),), self._status)
        except BaseException:
            mine.close()
            raise
        finally:
            other.close()
        self._child, self._channel = child, mine
        ready = await self._exchange(mine, None, _START_S)
        if ready is None:
            tail = (await self._stop()).strip().rpartition("\n")[2][-300:]
            if "ModuleNotFoundError" in tail or "cannot open shared object" in tail or "ImportError" in tail:
                raise EnvironmentProblem(
                    f"NVRTC cannot be used: {tail}", "Run `pip install 'cuteforge[gpu,toolchain]'`."
                )
            raise WorkerDied(f"The NVRTC worker did not start: {tail}", "Run `cuteforge doctor`.")
        return mine

    async def _exchange(
        self, channel: Channel, request: dict[str, Any] | None, timeout_s: float
    ) -> dict[str, Any] | None:
        """Send and receive off the event loop; None when the worker is gone. A cancelled wait ends it."""

        def both() -> dict[str, Any] | None:
            try:
                if request is not None:
                    channel.send(request)
                answer, _ = channel.receive(timeout_s)
            except (ChannelClosed, ChannelViolation, OSError) as error:
                if isinstance(error, TimeoutError):
                    raise
                return None
            return answer

        try:
            return await anyio.to_thread.run_sync(both, abandon_on_cancel=True)
        except BaseException:
            await self._stop()
            raise

    async def _stop(self) -> str:
        """End the worker; returns what it last wrote to stderr."""
        child, channel = self._child, self._channel
        self._child = self._channel = None
        if channel is not None:
            channel.close()
        if child is None:
            return ""
        with anyio.CancelScope(shield=True):
            ended = await child.kill()
        return ended.stderr_tail

    async def call(self, request: dict[str, Any]) -> dict[str, Any]:
        """One compilation, repeated once when the worker dies under it.

        Raises:
            TimeoutError: no answer within the wall limit; the worker was ended.
            WorkerDied: it died twice.
            EnvironmentProblem: NVRTC or its bindings are not installed.
        """
        async with self._lock:
            for _ in range(2):
                alive = self._channel is not None and self._child is not None and self._child.running
                if not alive:
                    await self._stop()
                channel = self._channel or await self._start()
                answer = await self._exchange(channel, request, _WALL_S)
                if answer is not None:
                    if "failure" in answer:
                        raise WorkerDied(f"NVRTC failed: {answer['failure']}.", "Repeat the call.")
                    return answer
                tail = await self._stop()
        raise WorkerDied(
            f"The NVRTC worker ended twice while it compiled this candidate. {tail[-300:]}".strip(),
            "Repeat the call; if it stays so, the source crashes the compiler: make it smaller.",
        )

    @property
    def pid(self) -> int | None:
        """The process's number on the host, while it runs."""
        return self._child.pid if self._child is not None and self._child.running else None

    async def aclose(self) -> None:
        """End the process."""
        await self._stop()


def _options(job: Job, chain: Toolchain) -> list[str]:
    options = ["-default-device", f"-arch={job.arch}", "-lineinfo", "--ptxas-options=-v"]
    options += [] if any(flag.startswith("-std=") for flag in job.flags) else ["-std=c++17"]
    options += [f"-I{include}" for include in chain.includes]
    return [*options, *job.flags]


async def compile_kernel(job: Job, chain: Toolchain, worker: NvrtcWorker) -> Built:
    """Compile the entry to a cubin.

    Raises:
        InvalidRequest: the entry's function is no name.
        EnvironmentProblem: NVRTC or the CUDA headers are not installed.
        WorkerDied: the worker ended twice.
    """
    entry = job.candidate.entry
    assert isinstance(entry, KernelEntry)
    function = check_function(entry.function)
    if chain.nvrtc_library is None or not chain.cuda_includes:
        raise EnvironmentProblem(
            "NVRTC or the CUDA headers were not found.", "Run `pip install 'cuteforge[toolchain]'`."
        )
    main = main_text(job, entry)
    request = {
        "files": job.texts(),
        "main": main,
        "main_name": MAIN,
        "prelude": prelude(job) if chain.cutlass_include else "",
        "options": _options(job, chain),
        "name": function,
    }
    try:
        answer = await worker.call(request)
    except TimeoutError:
        message = (
            f"compilation was stopped after {_WALL_S:g} s; make the templates smaller or split the kernel"
        )
        return Built("", (Diagnostic(severity="error", message=message),))
    raw = str(answer["log"])
    problem = build.environment_problem(raw, chain)
    if problem is not None:
        raise problem
    sources = Sources({**job.texts(), MAIN: main}, prefixes((str(answer["folder"]),), chain.includes))
    found = _told(parse(raw, sources))
    log = sources.shorten(raw)
    kernels = parse_ptxas(raw)
    lowered = answer.get("lowered")
    if lowered is None and not any(d.severity == "error" for d in found):
        found.insert(0, Diagnostic(severity="error", message=f"NVRTC gave up: {answer['result']}"))
    if lowered is not None and lowered not in {k.name for k in kernels}:
        message = f"entry: `{function}` is not a `__global__` function"
        found.insert(0, Diagnostic(severity="error", message=message))
        lowered = None
    if lowered is None:
        return Built(log, tuple(found))
    # The entry first: other kernels of the file are compiled along.
    kernels = tuple(sorted(kernels, key=lambda k: k.name != lowered))
    return Built(log, tuple(found), base64.b64decode(answer["cubin"]), kernels, str(lowered))


def _of_entry(found: Diagnostic) -> Diagnostic:
    """A complaint about the generated file is one about the entry."""
    if found.file is None and any(_NAME_MAP in note for note in found.notes):
        message = found.message.partition(" Input name expression")[0]
        return found.model_copy(update={"message": f"entry: {message}", "notes": ()})
    if found.file != MAIN:
        return found
    message = found.message.removeprefix("static assertion failed with ").strip('"')
    if not message.startswith(MISMATCH):
        message = f"entry: {message}"
    return found.model_copy(update={"message": message, "file": None, "line": None, "source_line": None})


def _told(found: Iterable[Diagnostic]) -> list[Diagnostic]:
    """The diagnostics with those of the generated checks last, and only where they are no follow-ons."""
    items = [_of_entry(d) for d in found]
    own = [d for d in items if not d.message.startswith("entry: ")]
    of_entry = list(dict.fromkeys(d for d in items if d.message.startswith("entry: ")))
    if any(d.severity == "error" for d in own):
        return own
    return [*of_entry[:1], *own]
