"""Kernel entries through the real NVRTC worker in the real sandbox."""

from __future__ import annotations

import asyncio
import os
import signal

import anyio
import pytest
from compile_support import DATA, KERNEL, MemoryStore, compile_all, kernel, task, text_of

from cuteforge.kernels.errors import EnvironmentProblem, InvalidRequest, WorkerDied
from cuteforge.kernels.records import CompileRecord
from cuteforge.sandbox import proctree
from cuteforge.sandbox.bubblewrap import probe
from cuteforge.sandbox.compilers import Compiler
from cuteforge.sandbox.toolchain import discover

CUTE = """#include <cute/tensor.hpp>
using namespace cute;
__global__ void relu(const float* x, float* y, int n) {
  auto g = make_tensor(make_gmem_ptr(x), make_layout(n));
  int i = blockIdx.x * BLOCK + threadIdx.x;
  if (i < n) y[i] = g(i) > 0 ? g(i) : 0.f;
}
"""
TEMPLATE = """#include <cstdint>
#include <cmath>
#include <type_traits>
#include <cuda_bf16.h>
#include "sub/part.cuh"
template <int B, class T> __global__ void relu(const T* __restrict__ x, T* y, int64_t n) {
  int64_t i = blockIdx.x * (int64_t)B + threadIdx.x;
  static_assert(std::is_same_v<T, float>);
  if (i < n) y[i] = clamp(x[i]);
}
"""
PARTS = [
    (
        "sub/part.cuh",
        '#pragma once\n#include "zero.h"\n__device__ float clamp(float v) { return v > ZERO ? v : ZERO; }\n',
    ),
    ("sub/zero.h", "#define ZERO 0.f\n"),
]


@pytest.fixture(scope="module")
def plain() -> list[CompileRecord]:
    """One worker, several candidates without CuTe."""
    return compile_all(
        [
            kernel(KERNEL, BLOCK=128),
            kernel(TEMPLATE, "relu<BLOCK, float>", files=PARTS, BLOCK=64),
            kernel(KERNEL, args=("x", "y"), BLOCK=1),
            kernel(KERNEL, args=("x", "rows", "cols"), BLOCK=1),
            kernel(KERNEL, args=("x", "y", "y"), BLOCK=1),
            kernel(KERNEL, "nope", BLOCK=1),
            kernel(KERNEL.replace("__global__", "__device__"), BLOCK=1),
            kernel(KERNEL.replace("y[i] =", "y[j] ="), BLOCK=1),
            kernel('#include "/etc/passwd"\n' + KERNEL, BLOCK=1),
            kernel(KERNEL, flags=("-use_fast_math", "-O3", "-Xptxas", "-O1"), BLOCK=1),
            kernel((DATA / "missing_semicolon.cu").read_text(), "k", ("x", "y", "rows"), BLOCK=1),
            kernel(TEMPLATE, "relu<BLOCK, float>", files=[PARTS[0]], BLOCK=64),
        ]
    )


def test_a_kernel_compiles_to_a_cubin_with_its_resources(plain: list[CompileRecord]) -> None:
    record = plain[0]
    assert record.ok
    assert (record.compiler, record.lowered_name) == ("nvrtc", "_Z4reluPKfPfx")
    assert record.kernels[0].registers is not None
    assert record.kernels[0].spill_store_bytes == 0


def test_templates_macros_headers_and_standard_names_work(plain: list[CompileRecord]) -> None:
    record = plain[1]
    assert record.ok, text_of(record)
    assert record.lowered_name == "_Z4reluILi64EfEvPKT0_PS0_x"


@pytest.mark.parametrize(
    ("index", "told"),
    [
        (2, "args has 2 entries, and the kernel takes another number of parameters"),
        (3, "args[1], rows, is a number, and the parameter is a pointer"),
        (4, "args[2], y, is a tensor, and the parameter is no pointer"),
    ],
)
def test_arguments_that_do_not_fit_the_kernel_are_told(
    plain: list[CompileRecord], index: int, told: str
) -> None:
    assert not plain[index].ok
    assert plain[index].diagnostics[0].message == f"entry args do not match the kernel: {told}"


def test_a_function_that_is_no_kernel_is_told(plain: list[CompileRecord]) -> None:
    assert [d.message for d in plain[5].diagnostics] == ['entry: identifier "nope" is undefined']
    assert "non-__global__ function" in plain[6].diagnostics[0].message
    assert not plain[6].ok


def test_errors_of_the_source_are_told_alone_and_at_their_lines(plain: list[CompileRecord]) -> None:
    (told,) = plain[7].diagnostics
    assert (told.file, told.line, told.source_line) == ("k.cu", 3, "if (i < n) y[j] = fmaxf(x[i], 0.f);")
    first = plain[10].diagnostics[0]
    assert (first.file, first.message) == ("k.cu", 'expected a ";"')
    assert first.line in (3, 4)


def test_host_files_are_out_of_reach(plain: list[CompileRecord]) -> None:
    assert not plain[8].ok
    assert "cannot open source file" in plain[8].diagnostics[0].message
    assert "root" not in text_of(plain[8])


def test_tuning_flags_are_taken(plain: list[CompileRecord]) -> None:
    assert plain[9].ok, text_of(plain[9])


def test_files_of_an_earlier_candidate_are_gone(plain: list[CompileRecord]) -> None:
    assert not plain[11].ok
    assert "zero.h" in text_of(plain[11])


def test_cute_compiles_fast_once_its_header_is_precompiled_and_its_errors_are_readable() -> None:
    dynamic = (DATA / "dynamic_owning_tensor.cu").read_text()
    first, second, wrong = compile_all(
        [kernel(CUTE, BLOCK=128), kernel(CUTE, BLOCK=256), kernel(dynamic, "k", ("y", "rows"), BLOCK=1)]
    )
    assert first.ok, text_of(first)
    assert second.ok
    assert second.seconds < first.seconds / 2
    (told,) = wrong.diagnostics
    assert (told.file, told.line) == ("k.cu", 4)
    assert "Dynamic owning tensors not supported" in told.message
    assert "2 follow-on errors at the same line folded" in told.notes


@pytest.mark.slow
def test_the_plain_variant_of_an_architecture_is_warned_about() -> None:
    wgmma = kernel((DATA / "wgmma_without_a_suffix.cu").read_text(), "k", ("y",), BLOCK=1)
    (record,) = compile_all([wgmma], arch="sm_90")
    assert record.ok
    assert "use arch sm_90a" in record.diagnostics[-1].message
    assert record.diagnostics[-1].severity == "warning"


def run_with(act: object) -> None:
    async def main() -> None:
        compiler = Compiler(discover(), MemoryStore(), probe())
        try:
            await act(compiler)
        finally:
            await compiler.aclose()

    asyncio.run(main())


async def kill_worker(compiler: Compiler, known: set[int]) -> int:
    """Wait until a worker that is not known runs its Python, then kill that."""
    while True:
        pid = compiler._worker.pid
        if pid is not None and pid not in known:
            members = proctree.tree(pid)
            if len(members) >= 3:
                await anyio.sleep(0.3)
                os.kill(members[-1].pid, signal.SIGKILL)
                return pid
        await anyio.sleep(0.01)


def test_a_killed_worker_is_replaced_without_the_caller_noticing() -> None:
    async def act(compiler: Compiler) -> None:
        assert (await compiler.compile(task(), kernel(KERNEL, BLOCK=1), "sm_90a")).ok
        first = await kill_worker(compiler, set())
        assert (await compiler.compile(task(), kernel(KERNEL, BLOCK=2), "sm_90a")).ok
        assert compiler._worker.pid != first

    run_with(act)


def test_a_worker_that_dies_twice_is_reported() -> None:
    async def act(compiler: Compiler) -> None:
        async def killer() -> None:
            known: set[int] = set()
            for _ in range(2):
                known.add(await kill_worker(compiler, known))

        async with anyio.create_task_group() as group:
            group.start_soon(killer)
            with pytest.raises(WorkerDied):
                await compiler.compile(task(), kernel(CUTE, BLOCK=1), "sm_90a")
            group.cancel_scope.cancel()
        assert (await compiler.compile(task(), kernel(KERNEL, BLOCK=2), "sm_90a")).ok

    run_with(act)


def test_cancelling_ends_the_worker_and_the_next_call_works() -> None:
    async def act(compiler: Compiler) -> None:
        with anyio.move_on_after(1.5) as scope:
            await compiler.compile(task(), kernel(CUTE, BLOCK=1), "sm_90a")
        assert scope.cancelled_caught
        assert compiler._worker.pid is None
        assert (await compiler.compile(task(), kernel(KERNEL, BLOCK=2), "sm_90a")).ok

    run_with(act)


def test_closing_leaves_no_process() -> None:
    members: list[proctree.ProcessId] = []

    async def act(compiler: Compiler) -> None:
        await compiler.compile(task(), kernel(KERNEL, BLOCK=1), "sm_90a")
        members.extend(proctree.tree(compiler._worker.pid or 0))

    run_with(act)
    assert len(members) >= 3
    assert not [p for p in members if proctree.alive(p)]


@pytest.mark.parametrize("function", ["relu; int x", "relu\n#include <x>", "", 'relu<"a">', "a b"])
def test_a_function_that_is_no_name_is_a_wrong_request(function: str) -> None:
    with pytest.raises((InvalidRequest, ValueError)):
        compile_all([kernel(KERNEL, function, BLOCK=1)])


def test_a_missing_nvrtc_is_the_machines_fault() -> None:
    compiler = Compiler(discover().model_copy(update={"nvrtc_library": None}), MemoryStore(), probe())
    with pytest.raises(EnvironmentProblem, match="NVRTC"):
        asyncio.run(compiler.compile(task(), kernel(KERNEL, BLOCK=1), "sm_90a"))
