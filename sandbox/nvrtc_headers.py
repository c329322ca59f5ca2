"""Standard headers for NVRTC, which has none: the names that kernels use, from CCCL's `cuda::std`."""

from __future__ import annotations

_STD = "namespace std { using namespace cuda::std; }\n"


def _from_cccl(name: str) -> str:
    return f"#pragma once\n#include <cuda/std/{name}>\n{_STD}"


_INTEGERS = [f"{sign}int{bits}_t" for sign in ("", "u") for bits in (8, 16, 32, 64)] + [
    "intptr_t",
    "uintptr_t",
]
_CSTDINT = _from_cccl("cstdint") + "".join(f"using cuda::std::{name};\n" for name in _INTEGERS)
_CSTDDEF = _from_cccl("cstddef") + "using cuda::std::size_t;\nusing cuda::std::ptrdiff_t;\n"

_WRAPPED = ("climits", "cfloat", "cmath", "limits", "type_traits", "utility", "tuple", "array", "functional", "algorithm", "numeric", "initializer_list", "complex", "bit")  # fmt: skip

# `printf` and `assert` are built in; of the rest kernels use nothing, but include them.
HEADERS: dict[str, str] = {
    "cstdint": _CSTDINT,
    "stdint.h": _CSTDINT,
    "cstddef": _CSTDDEF,
    "stddef.h": _CSTDDEF,
    **{name: _from_cccl(name) for name in _WRAPPED},
    "limits.h": _from_cccl("climits"),
    "float.h": _from_cccl("cfloat"),
    "math.h": _from_cccl("cmath"),
    **dict.fromkeys(("cstdio", "stdio.h", "cstdlib", "stdlib.h", "cstring", "string.h", "cassert", "assert.h"), "#pragma once\n"),
}  # fmt: skip
