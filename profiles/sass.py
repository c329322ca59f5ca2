"""What a kernel's machine code is made of: instructions by class, from `cuobjdump -sass` text."""

from __future__ import annotations

import re
from collections import Counter

_FUNCTION = re.compile(r"^\s*Function : (\S+)")
_INSTRUCTION = re.compile(
    r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:\{\s*)?(?:@!?U?P[0-9T]+\s+)?([A-Z][A-Z0-9_]*)((?:\.[A-Za-z0-9_]+)*)"
)

# First match wins. The mnemonics are those of "Instruction Set Reference" in NVIDIA's CUDA Binary
# Utilities manual; a leading U marks the uniform datapath's variant of an instruction.
_CLASSES: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (name, re.compile(pattern))
    for name, pattern in (
        ("async copy/TMA", r"LDGSTS|LDGDEPBAR|UTMA\w*|UBLK\w*|ARRIVES|UTCCP"),
        ("local memory", r"LDL|STL"),
        ("shared", r"LDS|LDSM|STS|STSM|ATOMS|LDTM|STTM"),
        ("atomic", r"ATOM|ATOMG|RED|REDG|REDAS"),
        ("special function", r"MUFU"),
        ("convert", r"F2F|F2FP|F2I|F2IP|I2F|I2FP|I2I|I2IP|FRND|F2F32"),
        ("fp32 fma", r"FFMA|FFMA2|FFMA32I"),
        ("fp32 other", r"FADD|FADD2|FADD32I|FMUL|FMUL2|FMUL32I|FMNMX|FMNMX3|FSETP|FSET|FSEL|FCHK|FSWZADD"),
        ("fp16/bf16", r"HFMA2|HFMA2_32I|HADD2|HADD2_32I|HMUL2|HMUL2_32I|HMNMX2|HSET2|HSETP2"),
        ("fp64", r"DFMA|DADD|DMUL|DSETP|DMNMX"),
        ("barrier", r"BAR|UCGABAR_\w+|SYNCS|USYNCS|MEMBAR|DEPBAR|WARPGROUP|WARPGROUPSET|FENCE|ERRBAR|CCTL|CCTLL|B2R|PREEXIT|ACQBULK|CGAERRBAR|WARPSYNC"),
        ("control", r"BRA|BRX|BRXU|JMP|JMX|EXIT|RET|CALL|BSSY|BSYNC|BREAK|KILL|NANOSLEEP|YIELD|BMOV|BPT|RTT|ELECT|ACQSHMINIT"),
        ("warp shuffle/vote", r"SHFL|VOTE|VOTEU|REDUX|CREDUX|MATCH"),
        ("constant load", r"LDC|LDCU|ULDC"),
        ("move", r"MOV|MOV32I|UMOV|MOVM|S2R|S2UR|CS2R|R2UR|UR2UP|R2P|P2R|UP2UR|UR2R|PRMT|UPRMT|SEL|USEL|SGXT|USGXT|PLOP3|UPLOP3|GETLMEMBASE|SETMAXREG|USETMAXREG|USETSHMSZ"),
        ("integer", r"U?(?:IMAD|IMAD32I|IADD|IADD3|IADD32I|LEA|SHF|SHL|SHR|LOP|LOP3|LOP32I|ISETP|IMNMX|VIMNMX|VIMNMX3|IABS|POPC|FLO|BREV|BMSK|ISCADD|IDP|IDP4A|IMUL|VIADD|VIADDMNMX|VABSDIFF|VABSDIFF4|XMAD|VHMNMX|IMNMX3)"),
        ("texture/surface", r"TEX|TLD|TLD4|TXQ|TXD|SULD|SUST|SUATOM|SURED"),
    )
)  # fmt: skip
_TENSOR = re.compile(r"([HIQBDO]MMA|[HIQB]GMMA|UTC\w*MMA)")


def classify(mnemonic: str, modifiers: str = "") -> str:
    """The class of one instruction: `classify("LDG", ".E.128")` is `load global 128-bit`.

    >>> classify("HGMMA", ".64x64x16.F32.BF16")
    'tensor core (HGMMA)'
    """
    tensor = _TENSOR.fullmatch(mnemonic)
    if tensor:
        return f"tensor core ({tensor[1]})"
    if mnemonic in ("LDG", "STG", "LD", "ST"):
        verb = "load" if mnemonic.startswith("L") else "store"
        space = "global" if mnemonic.endswith("G") else "generic"
        width = re.search(r"\.(64|128|256)\b", modifiers)
        return f"{verb} {space}" + (f" {width[1]}-bit" if width else "")
    for name, pattern in _CLASSES:
        if pattern.fullmatch(mnemonic):
            return name
    return "other"


def digest(text: str) -> dict[str, dict[str, int]]:
    """Instructions by class for each kernel, most frequent class first.

    `text` is what `cuobjdump -sass` prints; kernels are known by their mangled names. NOPs that pad a
    kernel's end are not counted. A kernel that is there for several architectures counts once: the last.
    """
    found: dict[str, Counter[str]] = {}
    current: Counter[str] | None = None
    for line in text.splitlines():
        function = _FUNCTION.match(line)
        if function:
            current = found[function[1]] = Counter()
            continue
        instruction = _INSTRUCTION.match(line)
        if instruction and current is not None and instruction[1] != "NOP":
            current[classify(instruction[1], instruction[2])] += 1
    return {name: dict(counts.most_common()) for name, counts in found.items()}


def total(text: str) -> dict[str, int]:
    """`digest` summed over all kernels: what a compile record keeps as `sass_mix`."""
    counts: Counter[str] = Counter()
    for mix in digest(text).values():
        counts.update(mix)
    return dict(counts.most_common())
