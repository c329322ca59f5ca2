"""Flags that could run programs or reach files are refused, each with its reason."""

from __future__ import annotations

import pytest

from cuteforge.kernels.candidate import BuildOptions
from cuteforge.kernels.errors import InvalidRequest
from cuteforge.sandbox.flags import check_flags, macros


@pytest.mark.parametrize(
    "flags",
    [
        ("-o", "/etc/x"),
        ("-o/etc/x",),
        ("; rm -rf",),
        ("--compiler-options", "$(id)"),
        ("-ccbin", "./x.sh"),
        ("-ccbin=./x.sh",),
        ("-Xcompiler", "-fplugin=x.so"),
        ("-Xcompiler=-fplugin=x.so",),
        ("-fplugin=x.so",),
        ("@file",),
        ("--options-file", "x"),
        ("-I/etc",),
        ("-I", "/etc"),
        ("-include", "/etc/passwd"),
        ("-isystem/etc",),
        ("-Wl,-rpath,/x",),
        ("-B/tmp",),
        ("-Xptxas", "-o"),
        ("-Xptxas=-v,--output-file=x",),
        ("-Xptxas",),
        ("-O3\n-o",),
        ("-march=native -o x",),
        ("",),
        ("-DX=1",),
        ("-arch=sm_80",),
        ("-maxrregcount=0",),
    ],
)
@pytest.mark.parametrize("driver", ["nvcc", "nvrtc", "g++"])
def test_a_dangerous_or_unknown_flag_is_refused(flags: tuple[str, ...], driver: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_flags(flags, driver)
    assert "not allowed: " in caught.value.cause
    assert caught.value.remedy.startswith("Allowed: ")


def test_the_reason_names_the_kind_of_flag() -> None:
    with pytest.raises(InvalidRequest, match="would run another program"):
        check_flags(("-ccbin", "x"), "nvcc")
    with pytest.raises(InvalidRequest, match="read from no file"):
        check_flags(("@x",), "g++")


@pytest.mark.parametrize(
    "flag",
    ["-O0", "-use_fast_math", "--use_fast_math", "-fmad=false", "-maxrregcount=64", "-std=c++20", "-lineinfo",
     "-ftz=true", "-prec-div=false", "--prec-sqrt=true", "--expt-extended-lambda"],
)  # fmt: skip
def test_tuning_flags_reach_nvcc(flag: str) -> None:
    assert check_flags((flag,), "nvcc") == (flag,)


@pytest.mark.parametrize(
    "flag", ["-O2", "-ffast-math", "-funroll-loops", "-mavx2", "-march=x86-64-v3", "-std=c++20"]
)
def test_tuning_flags_reach_gxx(flag: str) -> None:
    assert check_flags((flag,), "g++") == (flag,)


@pytest.mark.parametrize(
    "flags",
    [("-Xptxas", "-O2,-dlcm=ca"), ("-Xptxas=-O2", "-Xptxas=-dlcm=ca"), ("--ptxas-options=-O2,-dlcm=ca",)],
)
def test_ptxas_flags_are_checked_one_by_one(flags: tuple[str, ...]) -> None:
    assert check_flags(flags, "nvcc") == ("--ptxas-options=-O2", "--ptxas-options=-dlcm=ca")


def test_flags_that_nvrtc_does_not_know_are_dropped_there() -> None:
    assert check_flags(("-O3", "-lineinfo", "-use_fast_math"), "nvrtc") == ("-use_fast_math",)


def test_macros_keep_their_kind() -> None:
    options = BuildOptions(defines={"N": 4, "F": 0.5, "T": "cute::Int<4>", "B": True})
    assert macros(options) == {"N": "4", "F": "0.5", "T": "cute::Int<4>", "B": "1"}


@pytest.mark.parametrize(
    "value", ["1\n#include </etc/passwd>", "a;b", '"x"', "$(id)", "`id`", "x" * 300, "\\"]
)
def test_a_macro_that_is_no_expression_is_refused(value: str) -> None:
    with pytest.raises(InvalidRequest):
        macros(BuildOptions(defines={"X": value}))
