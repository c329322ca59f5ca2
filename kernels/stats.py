"""Statistics of timings: medians with bootstrap intervals, and who is faster.

Consecutive samples of a benchmark are correlated (clocks, temperature), so the bootstrap resamples blocks of
neighbours: H. R. Künsch, "The Jackknife and the Bootstrap for General Stationary Observations", Annals of
Statistics 17 (1989). The random generator is seeded: the same samples give the same verdict.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from cuteforge.kernels.records import SpeedVerdict

MIN_EFFECT = 0.01
"""A difference below 1 % is no verdict, however narrow its interval."""

RATIO_LEVEL = 0.99
_RESAMPLES = 1000
_SEED = 20250


class Ratio(NamedTuple):
    """Speedup of the candidate: median of baseline/candidate over pairs, with its 99 % interval."""

    speedup: float
    low: float
    high: float
    verdict: SpeedVerdict


def _bootstrap_medians(samples: Sequence[float]) -> list[float]:
    count = len(samples)
    # Blocks of about the cube root of n: the order Künsch derives for the mean.
    length = max(1, round(count ** (1 / 3)))
    generator = random.Random(_SEED)
    blocks = math.ceil(count / length)
    last = count - length
    doubled = list(samples)
    medians: list[float] = []
    middle = count // 2
    odd = count % 2 == 1
    for _ in range(_RESAMPLES):
        drawn: list[float] = []
        for _ in range(blocks):
            start = int(generator.random() * (last + 1))
            drawn += doubled[start : start + length]
        del drawn[count:]
        drawn.sort()
        medians.append(drawn[middle] if odd else (drawn[middle - 1] + drawn[middle]) / 2)
    medians.sort()
    return medians


def _interval(samples: Sequence[float], level: float) -> tuple[float, float]:
    if len(samples) < 2:
        return samples[0], samples[0]
    medians = _bootstrap_medians(samples)
    tail = (1 - level) / 2
    low = medians[max(0, math.floor(tail * len(medians)))]
    high = medians[min(len(medians) - 1, math.ceil((1 - tail) * len(medians)) - 1)]
    return low, high


def median_interval(samples: Sequence[float], level: float = 0.95) -> tuple[float, float, float]:
    """Median of the samples and the bootstrap interval of it at `level`, in the samples' unit.

    Raises ValueError for no samples.
    """
    if not samples:
        raise ValueError("no samples")
    low, high = _interval(samples, level)
    return statistics.median(samples), low, high


def compare(candidate_ns: Sequence[float], baseline_ns: Sequence[float]) -> Ratio:
    """Compare interleaved samples, pair by pair in the order they were taken.

    `faster` needs the whole 99 % interval of the median ratio above 1 + MIN_EFFECT, `slower` below
    1 / (1 + MIN_EFFECT). Raises ValueError unless both have the same, non-zero number of samples.
    """
    if len(candidate_ns) != len(baseline_ns) or not candidate_ns:
        raise ValueError("samples must come in pairs")
    ratios = [b / c for c, b in zip(candidate_ns, baseline_ns, strict=True)]
    low, high = _interval(ratios, RATIO_LEVEL)
    verdict: SpeedVerdict = "indistinguishable"
    if low > 1 + MIN_EFFECT:
        verdict = "faster"
    elif high < 1 / (1 + MIN_EFFECT):
        verdict = "slower"
    return Ratio(statistics.median(ratios), low, high, verdict)


def geometric_mean(values: Sequence[float]) -> float:
    """Geometric mean of positive values. Raises ValueError for none or for one that is not positive."""
    if not values or any(v <= 0 for v in values):
        raise ValueError("needs positive values")
    return math.exp(sum(math.log(v) for v in values) / len(values))
