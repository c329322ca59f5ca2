"""CPU candidates through the real g++ in the real sandbox."""

from __future__ import annotations

import asyncio
import ctypes
from pathlib import Path

import pytest
from compile_support import CPU_RELU, MemoryStore, compile_all, launcher, task, text_of

from cuteforge.kernels.errors import EnvironmentProblem, InvalidRequest
from cuteforge.sandbox.bubblewrap import probe
from cuteforge.sandbox.compilers import Compiler
from cuteforge.sandbox.toolchain import discover


def cpp(text: str, **parts: object) -> object:
    return launcher(text, "k.cpp", "cpp", **parts)


def test_a_kernel_compiles_and_computes(tmp_path: Path) -> None:
    store = MemoryStore()
    (record,) = compile_all([cpp(CPU_RELU)], store)
    assert record.ok
    assert record.compiler == "g++"
    assert record.arch is None
    library = tmp_path / "k.so"
    library.write_bytes(store.get(record.artifact or ""))
    array = ctypes.c_float * 4
    x, y = array(-1, 2, -3, 4), array()
    assert ctypes.CDLL(str(library)).cuteforge_launch(x, y, ctypes.c_int64(2), ctypes.c_int64(2)) == 0
    assert list(y) == [0, 2, 0, 4]


def test_errors_and_warnings_are_told_at_their_lines() -> None:
    wrong, silent = compile_all(
        [cpp(CPU_RELU.replace("y[i] =", "y[j] =")), cpp(CPU_RELU.replace("return 0;", ""))]
    )
    assert (wrong.ok, wrong.diagnostics[0].line, wrong.diagnostics[0].file) == (False, 4, "k.cpp")
    assert "was not declared" in wrong.diagnostics[0].message
    assert (silent.ok, silent.diagnostics[0].severity) == (True, "warning")


def test_a_wrong_or_missing_entry_is_told() -> None:
    wrong, missing = compile_all(
        [cpp(CPU_RELU.replace("int64_t rows", "int rows")), cpp("int f() { return 1; }")]
    )
    assert "int64_t rows" in text_of(wrong)
    assert not wrong.ok
    assert "`cuteforge_launch` is not defined" in text_of(missing)


def test_flags_and_macros_take_effect() -> None:
    text = CPU_RELU + "\n#if !defined(__AVX2__) || SIZE != 4\n#error not set\n#endif\n"
    (record,) = compile_all([cpp(text, flags=("-mavx2",), defines={"SIZE": 4})])
    assert record.ok


def test_further_files_can_be_included() -> None:
    candidate = cpp('#include "sub/part.h"\n' + CPU_RELU)
    files = (*candidate.files, type(candidate.files[0])(path="sub/part.h", text="#pragma once\n"))
    assert compile_all([candidate.model_copy(update={"files": files})])[0].ok


def test_the_wrong_language_for_the_target_is_a_wrong_request() -> None:
    compiler = Compiler(discover(), MemoryStore(), probe())
    with pytest.raises(InvalidRequest, match="target is cuda"):
        asyncio.run(compiler.compile(task("cuda"), cpp(CPU_RELU), "sm_90a"))


def test_a_missing_compiler_is_the_machines_fault() -> None:
    compiler = Compiler(discover().model_copy(update={"gxx": None}), MemoryStore(), probe())
    with pytest.raises(EnvironmentProblem, match=r"g\+\+ was not found"):
        asyncio.run(compiler.compile(task("cpu"), cpp(CPU_RELU), "sm_90a"))


def test_a_record_without_cuda_code_is_not_disassembled() -> None:
    (record,) = compile_all([cpp(CPU_RELU)])
    compiler = Compiler(discover(), MemoryStore(), probe())
    with pytest.raises(InvalidRequest):
        asyncio.run(compiler.disassemble(record))
