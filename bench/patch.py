"""Time of one patch on a 2,000-line file, for each way in which it can be found.

`python bench/patch.py` prints JSON with milliseconds, the median of 15 runs.
"""

from __future__ import annotations

import json
import random
import statistics
import time

from cuteforge.kernels.patch import PatchRequest, apply_patch

LINES = 2000
RUNS = 15
NAME = "kernel.cu"
WORDS = (
    "accumulate alpha bank carry column descriptor epilogue fragment gather halo inverse kept leader mask norm "
    "offset partial query residual shared tile unit value warp xform yield_count zero block stage pipe"
).split()


def source(lines: int = LINES) -> str:
    """CUDA-like text of `lines` lines in functions of ten, with names drawn by a seeded generator."""
    draw = random.Random(7)
    body: list[str] = []
    while len(body) < lines:
        tile, row, total, scale = draw.sample(WORDS, 4)
        name = f"{draw.choice(WORDS)}_{draw.choice(WORDS)}_{len(body)}"
        body += [
            f"__device__ float {name}(const float* __restrict__ {tile}, int {row}, int stride) {{",
            f"  float {total} = {tile}[{row} + {draw.randrange(64)} * stride];",
            f"#pragma unroll {draw.randrange(2, 9)}",
            f"  for (int i = 0; i < {draw.randrange(2, 65)}; ++i) {{",
            f"    {total} = fmaf({total}, {tile}[i * stride + {row}], {draw.random():.3f}f);",
            "    __syncwarp();",
            "  }",
            f"  return {total} * {scale}_factor + {draw.randrange(99)};",
            "}",
            "",
        ]
    return "\n".join(body[:lines]) + "\n"


def requests(text: str) -> dict[str, PatchRequest]:
    """One patch at three quarters of the file: as exact diff, as SEARCH/REPLACE, and misremembered."""
    lines = text.split("\n")
    at = len(lines) * 3 // 4 // 10 * 10
    old = lines[at : at + 8]
    new = [*old[:5], "    __syncthreads();", *old[6:]]
    hunk = "\n".join(f" {x}" if x == y else f"-{x}\n+{y}" for x, y in zip(old, new, strict=True))
    recalled = [*old[:1], old[1].replace(" * stride]", " * pitch]"), *old[2:]]
    fuzzy = "\n".join(f" {x}" if x == y else f"-{x}\n+{y}" for x, y in zip(recalled, new, strict=True))
    header = f"--- a/{NAME}\n+++ b/{NAME}\n@@ -{at + 1},8 +{at + 1},8 @@\n"
    blocks = "<<<<<<< SEARCH\n" + "\n".join(old) + "\n=======\n" + "\n".join(new) + "\n>>>>>>> REPLACE\n"
    return {
        "exact_diff_ms": PatchRequest(patch=f"{header}{hunk}\n"),
        "search_replace_ms": PatchRequest(patch=blocks),
        "fuzzy_ms": PatchRequest(patch=f"{header}{fuzzy}\n"),
    }


def measure() -> dict[str, float]:
    """Median milliseconds of `apply_patch` by the way in which the place is found."""
    text = source()
    found: dict[str, float] = {}
    for name, request in requests(text).items():
        times: list[float] = []
        for _ in range(RUNS):
            start = time.perf_counter()
            result = apply_patch({NAME: text}, request)
            times.append((time.perf_counter() - start) * 1e3)
        expected = "fuzzy" if name == "fuzzy_ms" else "exact"
        if result.matches[0].how != expected:
            raise RuntimeError(f"{name} was found as {result.matches[0].how}, not {expected}")
        found[name] = statistics.median(times)
    return found


if __name__ == "__main__":
    print(json.dumps(measure(), indent=1))
