"""Candidates for the CPU: g++ to a shared library that exports `cuteforge_launch`."""

from __future__ import annotations

from cuteforge.kernels.errors import EnvironmentProblem
from cuteforge.sandbox import build
from cuteforge.sandbox.bubblewrap import SandboxStatus
from cuteforge.sandbox.build import Built, Job
from cuteforge.sandbox.toolchain import Toolchain


def command(job: Job, chain: Toolchain) -> list[str]:
    """The g++ call, for the processor of this machine unless a flag names another.

    Raises:
        EnvironmentProblem: g++ is not installed.
    """
    if chain.gxx is None:
        raise EnvironmentProblem(
            "g++ was not found.", "Install it: `apt-get install g++`, `dnf install gcc-c++`."
        )
    argv = [str(chain.gxx), "-std=c++20", "-O3", "-march=native", "-fopenmp", "-Wall", "-shared", "-fPIC"]
    argv += ["-include", "task.h", "-I", "."]
    argv += [f"-D{name}={value}" for name, value in job.macros.items()]
    argv += job.flags
    argv += [f"-Wl,--require-defined={build.LAUNCHER}", "-Wl,-z,defs"]
    return [*argv, "-o", build.LIBRARY, job.candidate.main_file.path, "-lm"]


async def compile_cpp(job: Job, chain: Toolchain, status: SandboxStatus) -> Built:
    """Compile and link.

    Raises:
        EnvironmentProblem: g++ is missing or incomplete.
    """
    argv = command(job, chain)
    async with build.folder(job, chain) as place:
        ended = await build.run(argv, place, chain, status)
        return build.finish(ended, place, job, chain, ())
