"""Machine code recorded from `cuobjdump -sass` on a wgmma kernel for sm_90a, and single instructions."""

from __future__ import annotations

from pathlib import Path

import pytest

from cuteforge.profiles.sass import classify, digest, total

TEXT = (Path(__file__).parents[1] / "data" / "compile" / "wgmma.sass").read_text()


def test_tensor_core_instructions_are_counted_by_kind() -> None:
    mix = digest(TEXT)["_Z1kPf"]
    assert mix["tensor core (HGMMA)"] == TEXT.count("HGMMA.64x64x16")
    assert mix["store global 64-bit"] == 16


def test_every_instruction_has_a_class() -> None:
    assert "other" not in digest(TEXT)["_Z1kPf"]
    assert total(TEXT) == digest(TEXT)["_Z1kPf"]


def test_kernels_are_kept_apart_and_padding_is_not_counted() -> None:
    text = "Function : a\n /*0000*/  @!P0 LDG.E.128 R4, desc[UR4][R2.64] ;\n /*0010*/ NOP ;\nFunction : b\n /*0000*/ EXIT ;\n"
    assert digest(text) == {"a": {"load global 128-bit": 1}, "b": {"control": 1}}
    assert total(text) == {"load global 128-bit": 1, "control": 1}


@pytest.mark.parametrize(
    ("mnemonic", "modifiers", "name"),
    [
        ("FFMA", "", "fp32 fma"),
        ("LDG", ".E", "load global"),
        ("STG", ".E.128", "store global 128-bit"),
        ("LDS", ".128", "shared"),
        ("LDSM", ".16.M88.4", "shared"),
        ("HMMA", ".16816.F32", "tensor core (HMMA)"),
        ("LDGSTS", ".E.BYPASS.128", "async copy/TMA"),
        ("UTMALDG", ".2D", "async copy/TMA"),
        ("IMAD", ".WIDE", "integer"),
        ("UIADD3", "", "integer"),
        ("BAR", ".SYNC", "barrier"),
        ("LDL", "", "local memory"),
        ("MUFU", ".EX2", "special function"),
        ("F2FP", ".BF16.F32.PACK_AB", "convert"),
        ("SHFL", ".BFLY", "warp shuffle/vote"),
        ("QQQ", "", "other"),
    ],
)
def test_instructions_are_classed_as_an_engineer_would(mnemonic: str, modifiers: str, name: str) -> None:
    assert classify(mnemonic, modifiers) == name


def test_text_that_is_no_disassembly_is_empty() -> None:
    assert digest("cuobjdump info : no code") == {}
