"""Statistics of timings: medians with bootstrap intervals, and who is faster.

Consecutive samples of a benchmark are correlated (clocks, temperature), so the bootstrap resamples blocks of
neighbours: H. R. Künsch, "The Jackknife and the Bootstrap for General Stationary Observations", Annals of
Statistics 17 (1989). Percentiles of so few blocks make too narrow an interval; they are moved outwards as in
T. C. Hesterberg, "What Teachers Should Know About the Bootstrap", The American Statistician 69 (2015). The random generator is seeded: the same samples give the same verdict.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

from cuteforge.kernels.records import SpeedVerdict

MIN_EFFECT = 0.01
"""A difference below 1 % is no verdict, however narrow its interval."""

RATIO_LEVEL = 0.99
MIN_PAIRS = 8
"""Fewer pairs give no verdict. Without any difference all n ratios fall on one side of 1 with probability
2^(1-n) (the sign test), which is below 1 - RATIO_LEVEL from n = 8 on."""

_RESAMPLES = 2000
_SEED = 20250


class Ratio(NamedTuple):
    """Speedup of the candidate: median of baseline/candidate over pairs, with its 99 % interval."""

    speedup: float
    low: float
    high: float
    verdict: SpeedVerdict


def _bootstrap_medians(samples: Sequence[float], length: int) -> list[float]:
    """Sorted medians of resamples, each put together from runs of `length` neighbours."""
    count = len(samples)
    generator = random.Random(_SEED)
    per_resample = math.ceil(count / length)
    blocks = [tuple(samples[start : start + length]) for start in range(count - length + 1)]
    medians: list[float] = []
    middle = count // 2
    odd = count % 2 == 1
    for _ in range(_RESAMPLES):
        drawn = list(chain.from_iterable(generator.choices(blocks, k=per_resample)))
        del drawn[count:]
        drawn.sort()
        medians.append(drawn[middle] if odd else (drawn[middle - 1] + drawn[middle]) / 2)
    medians.sort()
    return medians


def _expanded_tail(level: float, blocks: float) -> float:
    """The percentile at which a bootstrap of that many blocks holds `level`: Hesterberg's expanded percentile.

    Student's quantile by its expansion in the normal one, Abramowitz and Stegun 26.7.5.
    """
    normal = statistics.NormalDist()
    z, freedom = normal.inv_cdf((1 + level) / 2), max(blocks - 1, 1)
    student = z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
    return normal.cdf(-student * math.sqrt((freedom + 1) / freedom))


def _interval(samples: Sequence[float], level: float) -> tuple[float, float]:
    # Blocks of about the cube root of n: the order Künsch derives for the mean.
    length = max(1, round(len(samples) ** (1 / 3)))
    medians = _bootstrap_medians(samples, length)
    cut = math.floor(_expanded_tail(level, len(samples) / length) * len(medians))
    return medians[cut], medians[-1 - cut]


def median_interval(samples: Sequence[float], level: float = 0.95) -> tuple[float, float, float]:
    """Median of the samples and the bootstrap interval of it at `level` in (0, 1), in the samples' unit.

    A single sample is its own interval. Raises ValueError for no samples and for one that is not finite.

    >>> median_interval([5.0, 5.0, 5.0])
    (5.0, 5.0, 5.0)
    """
    if not samples or not all(math.isfinite(x) for x in samples):
        raise ValueError("needs finite samples")
    if not 0 < level < 1:
        raise ValueError("level lies between 0 and 1")
    low, high = _interval(samples, level)
    return statistics.median(samples), low, high


def compare(candidate_ns: Sequence[float], baseline_ns: Sequence[float]) -> Ratio:
    """Compare interleaved samples, pair by pair in the order they were taken.

    `faster` needs the whole 99 % interval of the median ratio above 1 + MIN_EFFECT, `slower` below
    1 / (1 + MIN_EFFECT). Fewer than MIN_PAIRS pairs are `indistinguishable`, with their range as interval.
    Raises ValueError unless both have the same, non-zero number of samples, all finite and above 0.

    >>> compare([100.0] * 20, [150.0] * 20)
    Ratio(speedup=1.5, low=1.5, high=1.5, verdict='faster')
    """
    if len(candidate_ns) != len(baseline_ns) or not candidate_ns:
        raise ValueError("samples must come in pairs")
    if not all(0 < x < math.inf for samples in (candidate_ns, baseline_ns) for x in samples):
        raise ValueError("times must be finite and above 0")
    ratios = [b / c for c, b in zip(candidate_ns, baseline_ns, strict=True)]
    if len(ratios) < MIN_PAIRS:
        return Ratio(statistics.median(ratios), min(ratios), max(ratios), "indistinguishable")
    low, high = _interval(ratios, RATIO_LEVEL)
    verdict: SpeedVerdict = "indistinguishable"
    if low > 1 + MIN_EFFECT:
        verdict = "faster"
    elif high < 1 / (1 + MIN_EFFECT):
        verdict = "slower"
    return Ratio(statistics.median(ratios), low, high, verdict)


def geometric_mean(values: Sequence[float]) -> float:
    """Geometric mean of positive values. Raises ValueError for none or for one not finite and above 0.

    >>> round(geometric_mean([0.5, 2.0]), 12)
    1.0
    """
    if not values or not all(0 < v < math.inf for v in values):
        raise ValueError("needs finite values above 0")
    return math.exp(sum(math.log(v) for v in values) / len(values))
