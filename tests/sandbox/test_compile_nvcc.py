"""Launcher candidates through the real nvcc in the real sandbox."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import anyio
import pytest
from compile_support import CUDA_RELU, PROTOTYPE, MemoryStore, compile_all, launcher, task, text_of

from cuteforge.kernels.errors import CuteforgeError, EnvironmentProblem, InvalidRequest
from cuteforge.profiles.sass import digest
from cuteforge.sandbox.bubblewrap import SandboxStatus, probe
from cuteforge.sandbox.build import environment_problem
from cuteforge.sandbox.compilers import Compiler, FolderCache
from cuteforge.sandbox.elf import exported
from cuteforge.sandbox.toolchain import Toolchain, discover


def test_a_kernel_compiles_links_and_disassembles() -> None:
    store = MemoryStore()

    async def main() -> tuple[bytes, str]:
        compiler = Compiler(discover(), store, probe())
        record = await compiler.compile(task(), launcher(CUDA_RELU), "sm_90a")
        assert record.ok
        assert (record.compiler, record.arch) == ("nvcc", "sm_90a")
        assert record.diagnostics == ()
        (kernel,) = record.kernels
        assert kernel.name == "relu(float const*, float*, long)"
        assert kernel.registers is not None
        assert kernel.registers > 0
        assert (kernel.spill_store_bytes, kernel.static_shared_bytes) == (0, 0)
        assert record.provenance.compiler is not None
        assert "nvcc 1" in record.provenance.compiler
        return store.get(record.artifact or ""), await compiler.disassemble(record)

    library, sass = asyncio.run(main())
    assert "cuteforge_launch" in exported(library)
    (mix,) = digest(sass).values()
    assert mix["load global"] == 1
    assert mix["store global"] == 1


def test_a_wrong_signature_is_told_with_the_right_one() -> None:
    wrong = CUDA_RELU.replace("float* y, int64_t rows", "double* y, int64_t rows").replace(
        "(x, y, rows", "(x, x, rows"
    )
    no_include = wrong.replace('#include "task.h"\n', "")
    for record in compile_all([launcher(wrong), launcher(no_include)]):
        assert not record.ok
        assert record.artifact is None
        assert record.diagnostics[0].file == "k.cu"
        assert f"task.h declares: {PROTOTYPE}, cudaStream_t stream)" in record.diagnostics[0].notes


def test_a_missing_entry_is_told_with_its_prototype() -> None:
    hidden = CUDA_RELU.replace('extern "C" int', 'extern "C" __attribute__((visibility("hidden"))) int', 1)
    for record in compile_all([launcher("__global__ void k() {}\n"), launcher(hidden)]):
        assert not record.ok
        assert "`cuteforge_launch` is not defined, or not exported, by k.cu" in text_of(record)
        assert "cudaStream_t stream)" in text_of(record)


def test_a_function_that_nobody_defines_fails_to_link() -> None:
    text = CUDA_RELU.replace("__global__", "int helper();\n__global__", 1).replace(
        "return cuda", "helper(); return cuda"
    )
    (record,) = compile_all([launcher(text)])
    assert [d.message for d in record.diagnostics] == ["linker: undefined reference to `helper()'"]


def test_too_much_shared_memory_names_the_kernel() -> None:
    text = CUDA_RELU.replace(
        "if (i < n)",
        "__shared__ float big[100000]; big[i] = x[i]; __syncthreads(); y[i] = big[n - i]; if (i < n)",
    )
    (record,) = compile_all([launcher(text)])
    assert "Entry function 'relu(float const*, float*, long)' uses too much shared data" in text_of(record)


def test_a_missing_semicolon_is_told_at_its_line() -> None:
    (record,) = compile_all([launcher(CUDA_RELU.replace("threadIdx.x;", "threadIdx.x"))])
    first = record.diagnostics[0]
    assert (first.file, first.message) == ("k.cu", 'expected a ";"')
    assert first.line in (3, 4)


def test_host_files_are_out_of_reach_of_an_include() -> None:
    store = MemoryStore()
    records = compile_all(
        [launcher(f'#include "{p}"\n' + CUDA_RELU) for p in ("/etc/passwd", "/etc/shadow")], store
    )
    for record in records:
        told = text_of(record) + store.get(record.log or "").decode()
        assert not record.ok
        assert "root:" not in told
        assert str(Path.home()) not in told


def test_flags_outside_the_list_never_reach_the_compiler() -> None:
    with pytest.raises(InvalidRequest, match="not allowed"):
        compile_all([launcher(CUDA_RELU, flags=("-ccbin", "./x.sh"))])


def test_an_unknown_architecture_is_a_wrong_request() -> None:
    with pytest.raises(InvalidRequest, match="does not know this architecture"):
        compile_all([launcher(CUDA_RELU)], arch="sm_77")


def compile_with(chain: Toolchain, status: SandboxStatus | None = None) -> None:
    compiler = Compiler(chain, MemoryStore(), status or probe())
    asyncio.run(compiler.compile(task(), launcher(CUDA_RELU), "sm_90a"))


def test_a_host_compiler_that_is_too_new_is_the_machines_fault(tmp_path: Path) -> None:
    program = tmp_path / "g++"
    program.write_text(f'#!/bin/sh\nexec {discover().gxx} -U__GNUC__ -D__GNUC__=99 "$@"\n')
    program.chmod(0o755)
    chain = discover().model_copy(
        update={"gxx": program, "gxx_version": "99.1.0", "link_dirs": (*discover().link_dirs, tmp_path)}
    )
    with pytest.raises(EnvironmentProblem) as caught:
        compile_with(chain)
    assert "g++ 99.1.0" in caught.value.cause
    assert f"nvcc {discover().nvcc_version}" in caught.value.cause
    assert "Install" in caught.value.remedy


@pytest.mark.parametrize("missing", ["nvcc", "gxx"])
def test_a_missing_compiler_is_the_machines_fault(missing: str) -> None:
    with pytest.raises(EnvironmentProblem, match=r"nvcc|g\+\+"):
        compile_with(discover().model_copy(update={missing: None}))


@pytest.mark.parametrize(
    ("log", "told"),
    [
        ("ptxas x.ptx, line 9; fatal   : Unsupported .version 9.5; current version is '9.0'", "PTX 9.5"),
        ("/usr/bin/ld: cannot find -lcudart_static: No such file", "runtime library is missing"),
        ("sh: 1: cicc: not found", "part of the compiler is missing"),
        ("error: k.o: No space left on device", "disk is full"),
        ("nvrtc: error: failed to open libnvrtc-builtins.so.13.0.", "built-in functions"),
    ],
)
def test_faults_of_the_machine_are_told_from_faults_of_the_source(log: str, told: str) -> None:
    problem = environment_problem(log, discover())
    assert isinstance(problem, CuteforgeError)
    assert told in problem.cause
    assert problem.remedy
    assert environment_problem("k.cu(1): error: identifier is undefined", discover()) is None


def test_cancelling_ends_the_compiler_and_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    async def main() -> None:
        compiler = Compiler(discover(), MemoryStore(), probe())
        with anyio.move_on_after(0.5) as scope:
            await compiler.compile(task(), launcher(CUDA_RELU), "sm_90a")
        assert scope.cancelled_caught

    began = time.monotonic()
    asyncio.run(main())
    assert time.monotonic() - began < 3
    assert list(tmp_path.iterdir()) == []


def test_the_same_input_is_compiled_once(tmp_path: Path) -> None:
    store = MemoryStore()
    cache = FolderCache(tmp_path)
    one = launcher(CUDA_RELU)
    twin = one.model_copy(update={"note": "another note"})
    first, second = compile_all([one, twin], store, cache=cache)
    assert (first.cached, second.cached) == (False, True)
    assert second.artifact == first.artifact
    assert second.seconds < 0.1
    other = launcher(CUDA_RELU, defines={"X": 1})
    assert not compile_all([other], store, cache=cache)[0].cached


def test_a_damaged_or_orphaned_cache_entry_is_rebuilt(tmp_path: Path) -> None:
    cache = FolderCache(tmp_path)
    store = MemoryStore()
    bad = launcher("int x = ;\n")
    assert not compile_all([bad], store, cache=cache)[0].cached
    (entry,) = tmp_path.rglob("*.json")
    entry.write_text(entry.read_text()[:50])
    assert not compile_all([bad], store, cache=cache)[0].cached
    assert compile_all([bad], store, cache=cache)[0].cached
    assert not compile_all([bad], MemoryStore(), cache=cache)[0].cached


def test_a_cache_that_cannot_be_written_does_not_matter(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert not compile_all([launcher("int x = ;\n")], cache=FolderCache(blocked / "cache"))[0].cached


def test_without_isolation_the_same_result() -> None:
    store = MemoryStore()
    compiler = Compiler(discover(), store, SandboxStatus("none", "for the test"))
    record = asyncio.run(compiler.compile(task(), launcher("int x = ;\n"), "sm_90a"))
    assert record.diagnostics[0].file == "k.cu"
    assert os.sep + "tmp" not in text_of(record) + store.get(record.log or "").decode()
