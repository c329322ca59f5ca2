"""Python candidates are parsed and never executed by the compiler."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from compile_support import MemoryStore, compile_all, task

from cuteforge.kernels.candidate import Candidate, ModuleEntry, SourceFile


def module(text: str, name: str = "m.py", **more: str) -> Candidate:
    files = (SourceFile(path=name, text=text), *(SourceFile(path=f"{p}.py", text=t) for p, t in more.items()))
    return Candidate(task_id=task().id, language="python", files=files, entry=ModuleEntry())


def test_the_artefact_is_the_files(tmp_path: Path) -> None:
    text = f"import pathlib\npathlib.Path({str(tmp_path / 'ran')!r}).touch()\nclass ModelNew: pass\n"
    store = MemoryStore()
    (record,) = compile_all([module(text, helper="x = 1\n")], store)
    assert record.ok
    assert record.compiler == "python"
    assert json.loads(store.get(record.artifact or "")) == {"m.py": text, "helper.py": "x = 1\n"}
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "text",
    [
        "try:\n    import triton\nexcept ImportError:\n    triton = None\nclass ModelNew: pass\n",
        "if True:\n    class ModelNew: pass\n",
        "from helper import Other as ModelNew\n",
        "from helper import *\n",
        "class A: pass\nModelNew = A\n",
    ],
)
def test_every_way_to_bind_the_class_counts(text: str) -> None:
    assert compile_all([module(text)])[0].ok


@pytest.mark.parametrize(
    ("text", "message", "line"),
    [
        ("class ModelNew:\n    def f(self:\n", "SyntaxError", 2),
        ("class ModelNew: pass\nreturn 1\n", "outside function", 2),
        ("def f():\n    class ModelNew: pass\n", "defines no `ModelNew`", None),
        ("x = 1\0\n", "null bytes", None),
        ("(" * 5000 + ")" * 5000, "", None),
    ],
)
def test_a_source_that_cannot_work_is_told(text: str, message: str, line: int | None) -> None:
    (record,) = compile_all([module(text)])
    assert not record.ok
    assert record.artifact is None
    assert message in record.diagnostics[0].message
    if line is not None:
        assert record.diagnostics[0].line == line


def test_a_helper_file_is_checked_too() -> None:
    (record,) = compile_all([module("class ModelNew: pass\n", helper="def (\n")])
    assert record.diagnostics[0].file == "helper.py"
