"""`launcher` candidates in CUDA C++: nvcc to a shared library that exports `cuteforge_launch`."""

from __future__ import annotations

from cuteforge.kernels.errors import EnvironmentProblem
from cuteforge.sandbox import build
from cuteforge.sandbox.bubblewrap import SandboxStatus
from cuteforge.sandbox.build import Built, Job
from cuteforge.sandbox.resources import parse_ptxas
from cuteforge.sandbox.toolchain import Toolchain


def command(job: Job, chain: Toolchain) -> list[str]:
    """The nvcc call; all paths of the candidate are relative to the build folder.

    Raises:
        EnvironmentProblem: nvcc or g++ is not installed.
    """
    if chain.nvcc is None:
        raise EnvironmentProblem("nvcc was not found.", "Run `pip install 'cuteforge[toolchain]'`.")
    if chain.gxx is None:
        raise EnvironmentProblem(
            "g++ was not found, and nvcc needs it.",
            "Install it: `apt-get install g++`, `dnf install gcc-c++`.",
        )
    number = job.arch.removeprefix("sm_")
    argv = [str(chain.nvcc), "-ccbin", str(chain.gxx)]
    argv += ["-gencode", f"arch=compute_{number},code=sm_{number}"]
    argv += [
        "--expt-relaxed-constexpr",
        "-O3",
        "-lineinfo",
        "-shared",
        "-Xcompiler",
        "-fPIC",
        "-Xptxas",
        "-v",
    ]
    argv += [] if any(flag.startswith("-std=") for flag in job.flags) else ["-std=c++17"]
    argv += ["-include", "task.h", "-I", "."]
    for include in chain.includes:
        argv += ["-isystem" if include != chain.cutlass_include else "-I", str(include)]
    for directory in chain.link_dirs:
        argv += ["-L", str(directory)]
    argv += [f"-D{name}={value}" for name, value in job.macros.items()]
    argv += job.flags
    # An entry that is missing, or a function that nobody defines, fails here and not when it is loaded.
    argv += ["-Xlinker", f"--require-defined={build.LAUNCHER}", "-Xlinker", "-z,defs"]
    return [*argv, "-o", build.LIBRARY, job.candidate.main_file.path]


async def compile_launcher(job: Job, chain: Toolchain, status: SandboxStatus) -> Built:
    """Compile and link.

    Raises:
        EnvironmentProblem: the toolchain is incomplete or does not fit together.
    """
    argv = command(job, chain)
    async with build.folder(job, chain) as place:
        ended = await build.run(argv, place, chain, status)
        return build.finish(ended, place, job, chain, parse_ptxas(ended.stderr_tail + ended.stdout_tail))
