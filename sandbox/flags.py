"""The build flags a candidate may ask for: an allow-list, because a compiler's flags can run programs."""

from __future__ import annotations

import re
from typing import Literal

from cuteforge.kernels.candidate import BuildOptions
from cuteforge.kernels.errors import InvalidRequest

Driver = Literal["nvcc", "nvrtc", "g++"]

_COMMON = (r"-std=c\+\+(14|17|20)",)
_CUDA = (
    r"-O[0-3]",
    r"--?use_fast_math",
    r"--?fmad=(true|false)",
    r"--?ftz=(true|false)",
    r"--?prec-div=(true|false)",
    r"--?prec-sqrt=(true|false)",
    r"--?maxrregcount=([1-9][0-9]{0,2})",
    r"-lineinfo|--generate-line-info",
    r"--extra-device-vectorization",
    r"--expt-extended-lambda|--extended-lambda",
    r"--expt-relaxed-constexpr",
)
_PTXAS = (
    r"-O[0-3]",
    r"--?allow-expensive-optimizations(=(true|false))?",
    r"-dlcm=(ca|cg|cs|cv)",
    r"-dscm=(wb|cg|cs|wt)",
)
_GXX = (
    r"-O[0-3]",
    r"-Ofast",
    r"-ffast-math",
    r"-fno-math-errno",
    r"-ffp-contract=(fast|on|off)",
    r"-funroll-loops",
    r"-fopenmp(-simd)?",
    r"-ftree-vectorize",
    r"-mprefer-vector-width=(128|256|512)",
    r"-m(avx|avx2|fma|f16c|bmi|bmi2|avx512(f|bw|cd|dq|vl|vnni|bf16|fp16)|sse4\.[12])",
    r"-m(arch|tune|cpu)=[a-z0-9][a-z0-9_.+-]{0,30}",
)
_REFUSED = (
    (r"-o.*|--output-.*", "where the output goes is Cuteforge's own business"),
    (r"-I.*|-isystem.*|-iquote.*|-include.*|--include-path.*|--pre-include.*", "includes come from the candidate's files and the toolkit; submit the header as a file"),
    (r"@.*|-optf.*|--options-file.*", "options are read from no file"),
    (r"-ccbin.*|--compiler-bindir.*|-B.*|-specs.*|-wrapper.*|-fplugin.*", "it would run another program"),
    (r"-Xcompiler.*|--compiler-options.*|-Xlinker.*|-Wl,.*|--linker-options.*|-Wp,.*|-Wa,.*", "options for other tools are not passed through"),
    (r"-D.*|-U.*|--define-macro.*", "macros are given in `defines`"),
    (r"-arch.*|-gencode.*|--gpu-.*|--generate-code.*", "the architecture is given in `arch`"),
    (r"-l.*|-L.*|--library.*", "no library is linked beyond the CUDA runtime"),
)  # fmt: skip


def _matches(flag: str, patterns: tuple[str, ...]) -> bool:
    return any(re.fullmatch(pattern, flag) for pattern in patterns)


def _refuse(flag: str, allowed: str) -> InvalidRequest:
    reason = next(
        (why for pattern, why in _REFUSED if re.fullmatch(pattern, flag, re.DOTALL)), "it is not on the list"
    )
    return InvalidRequest(f"The flag {flag[:80]!r} is not allowed: {reason}.", f"Allowed: {allowed}.")


def allowed_flags(driver: Driver) -> str:
    """The allow-list of a compiler as one readable line."""
    patterns = _COMMON + (_GXX if driver == "g++" else _CUDA)
    text = ", ".join(p.replace("--?", "-").replace("\\", "") for p in patterns)
    return (
        text
        if driver == "g++"
        else f"{text}, -Xptxas with {', '.join(p.replace('--?', '--') for p in _PTXAS)}"
    )


def check_flags(flags: tuple[str, ...], driver: Driver) -> tuple[str, ...]:
    """The flags as the compiler takes them.

    `-Xptxas X` and `-Xptxas=X,Y` are allowed with a list of their own; for NVRTC they become
    `--ptxas-options`, and flags that it always has or does not know are dropped.

    Raises:
        InvalidRequest: a flag is not on the list; the reason and the list are given.
    """
    listed = _COMMON + (_GXX if driver == "g++" else _CUDA)
    checked: list[str] = []
    pending = list(flags)
    while pending:
        flag = pending.pop(0)
        if driver != "g++" and re.match(r"-Xptxas|--ptxas-options", flag):
            value = flag.partition("=")[2] if "=" in flag.split(",")[0] and not flag.endswith("=") else ""
            if flag in ("-Xptxas", "--ptxas-options"):
                value = pending.pop(0) if pending else ""
            elif not re.match(r"(-Xptxas|--ptxas-options)=", flag):
                raise _refuse(flag, allowed_flags(driver))
            parts = value.split(",")
            for part in parts:
                if not _matches(part, _PTXAS):
                    raise _refuse(part or flag, allowed_flags(driver))
                checked.append(f"--ptxas-options={part}")
            continue
        if not _matches(flag, listed):
            raise _refuse(flag, allowed_flags(driver))
        if driver == "nvrtc" and re.fullmatch(r"-O[0-3]|--expt-.*|-lineinfo|--generate-line-info", flag):
            continue
        checked.append(flag)
    return tuple(checked)


def macros(options: BuildOptions) -> dict[str, str]:
    """The `defines` as macro bodies; booleans are 0 and 1, as in C.

    Raises:
        InvalidRequest: a string that is more than one simple token sequence.
    """
    found: dict[str, str] = {}
    for name, value in options.defines.items():
        text = str(int(value)) if isinstance(value, bool) else str(value)
        # Text goes into a generated source line and an argument vector, never through a shell.
        if (
            not re.fullmatch(r"[\w\s.,:<>()+*/%&|^~!=?\-\[\]]{0,200}", text, re.ASCII)
            or "\n" in text
            or "\r" in text
        ):
            raise InvalidRequest(
                f"The macro {name} has the value {text[:80]!r}, which is not a plain C++ expression.",
                "Use numbers, names and operators on one line.",
            )
        found[name] = text
    return found
