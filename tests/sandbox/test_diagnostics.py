"""Logs recorded from nvcc 13.0 (folders replaced) become diagnostics at the user's own lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from cuteforge.kernels.records import Diagnostic
from cuteforge.sandbox.cute_text import cute_text
from cuteforge.sandbox.diagnostics import Sources, from_syntax_error, parse

DATA = Path(__file__).parents[1] / "data" / "compile"
FOLDERS = {"/build": "", "/cutlass/include": ""}


def recorded(name: str) -> tuple[Diagnostic, ...]:
    sources = Sources({f"{name}.cu": (DATA / f"{name}.cu").read_text()}, FOLDERS)
    return parse((DATA / f"{name}.nvcc.log").read_text(), sources)


def read(log: str, **files: str) -> tuple[Diagnostic, ...]:
    return parse(log, Sources({name.replace("_", "."): text for name, text in files.items()}, FOLDERS))


def test_an_assertion_deep_in_cute_is_told_at_the_users_call() -> None:
    first = recorded("mma_copy_mismatch")[0]
    assert (first.file, first.line) == ("mma_copy_mismatch.cu", 14)
    assert first.source_line is not None
    assert "make_tiled_copy_B" in first.source_line
    assert "TiledCopy uses too few vals for selected CopyAtom" in first.message
    assert "(2,2,1):(1,2,0)" in " ".join(first.notes)


def test_eight_kilobytes_of_templates_become_under_400_tokens() -> None:
    assert (DATA / "mma_copy_mismatch.nvcc.log").stat().st_size > 7500
    told = "".join(d.model_dump_json(exclude_none=True) for d in recorded("mma_copy_mismatch"))
    assert len(told) / 4 < 400


def test_follow_on_errors_are_folded_under_the_first() -> None:
    found = recorded("dynamic_owning_tensor")
    assert len(found) == 1
    assert (found[0].file, found[0].line) == ("dynamic_owning_tensor.cu", 4)
    assert "Dynamic owning tensors not supported" in found[0].message
    assert "2 follow-on errors at the same line folded" in found[0].notes


def test_errors_come_before_warnings() -> None:
    found = recorded("missing_semicolon")
    assert [(d.severity, d.line) for d in found] == [("error", 4), ("warning", 3)]
    assert found[0].message == 'expected a ";"'


def test_nothing_of_the_host_is_told() -> None:
    log = "/home/someone/secret/k.cu(2): error: cannot open /home/someone/secret/x.h\n"
    found = read(log, k_cu="a\nb\n")
    assert "someone" not in found[0].model_dump_json()


def test_notes_of_gxx_belong_to_the_error_before_them() -> None:
    log = (
        "k.cpp:2:3: error: no matching function for call to 'f(int)'\n    2 |   f(1);\n      |   ^\n"
        "k.cpp:1:6: note: candidate: 'void f(int, int)'\n"
    )
    found = read(log, k_cpp="void f(int, int);\nint g() { f(1); }\n")
    assert len(found) == 1
    assert (found[0].line, found[0].column) == (2, 3)
    assert found[0].notes == ("k.cpp:1: candidate: 'void f(int, int)'",)


def test_an_error_in_a_standard_header_is_told_at_the_users_line() -> None:
    log = (
        "/usr/include/c++/12/bits/x.h: In instantiation of 'void std::sort(T) [with T = int]':\n"
        "k.cpp:3:7:   required from here\n"
        "/usr/include/c++/12/bits/x.h:10:5: error: invalid type\n"
    )
    found = read(log, k_cpp="1\n2\nsort(3);\n")
    assert (found[0].file, found[0].line, found[0].source_line) == ("k.cpp", 3, "sort(3);")


@pytest.mark.parametrize(
    ("log", "message"),
    [
        ("ptxas error   : Entry function 'k' uses too much shared data (0x61a80 bytes)", "too much shared data"),
        ("nvlink error   : Undefined reference to 'f' in 'x.o'", "Undefined reference to 'f'"),
        ("/usr/bin/ld: /tmp/a.o: in function `g':\na.cpp:(.text+0x2a9): undefined reference to `f()'", "linker: undefined reference to `f()'"),
        ("nvcc fatal   : Value 'x' is not defined for option 'y'", "Value 'x' is not defined"),
    ],
)  # fmt: skip
def test_messages_without_a_line_are_kept(log: str, message: str) -> None:
    errors = read(log, k_cu="")
    assert [d.severity for d in errors] == ["error"]
    assert message in errors[0].message


def test_warnings_inside_headers_are_left_out() -> None:
    assert read("/cutlass/include/cute/x.hpp(3): warning #177-D: unused\n", k_cu="") == ()


def test_the_number_of_diagnostics_is_bounded() -> None:
    log = "".join(f'k.cu({i}): error: identifier "a{i}" is undefined\n\n' for i in range(1, 101))
    found = read(log, k_cu="\n" * 101)
    assert len(found) == 21
    assert found[-1].message == "80 more in the log"


def test_messages_and_notes_are_bounded() -> None:
    found = read(f"k.cu(1): error: {'x' * 5000}\n", k_cu="")
    assert len(found[0].message) == 500


def test_a_python_syntax_error_keeps_its_line() -> None:
    text = "a = 1\nb = (\n"
    with pytest.raises(SyntaxError) as caught:
        compile(text, "m.py", "exec")
    found = from_syntax_error(caught.value, "m.py", text)
    assert (found.file, found.line, found.source_line) == ("m.py", 2, "b = (")


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("cute::tuple<cute::_128, cute::C<32>>", "(128,32)"),
        ("cute::tuple<cute::tuple<cute::_4, int>, cute::Underscore>", "((4,int),_)"),
        (
            "cute::ComposedLayout<cute::Swizzle<3, 3, 4>, cute::MixedBits<0U, 8U>, "
            "cute::Layout<cute::tuple<cute::_8, cute::_1>, cute::tuple<cute::_128, cute::_0>>>",
            "Sw<3,3,4> o 0 o (8,1):(128,0)",
        ),
        ("std::tuple<int, C<8>>", "std::tuple<int, C<8>>"),
        ("a < b and c > d", "a < b and c > d"),
        ("cute::tuple<cute::Layout<", "tuple<Layout<"),
    ],
)
def test_types_are_printed_in_cute_notation(raw: str, shown: str) -> None:
    assert cute_text(raw) == shown
