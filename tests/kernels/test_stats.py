"""Verdicts on simulated timings: seeded noise, drift and correlation, with the truth known."""

from __future__ import annotations

import math
import random
import statistics
import time

import pytest

from cuteforge.kernels.stats import MIN_EFFECT, MIN_PAIRS, compare, geometric_mean, median_interval

TRIALS = 40
SAMPLES = 100


def simulated(seed, speedup=1.0, noise=0.01, drift=0.0, correlation=0.0, samples=SAMPLES):
    """Interleaved times of a candidate and a baseline of 100 µs: a common drift, each its own AR(1) noise."""
    draw = random.Random(seed)
    innovation = noise * math.sqrt(1 - correlation**2)
    candidate, baseline = [], []
    a, b = draw.gauss(0, noise), draw.gauss(0, noise)
    for i in range(samples):
        a = correlation * a + draw.gauss(0, innovation)
        b = correlation * b + draw.gauss(0, innovation)
        common = 1 + drift * i / samples
        candidate.append(100_000 / speedup * common * math.exp(a))
        baseline.append(100_000 * common * math.exp(b))
    return candidate, baseline


def verdicts(**how):
    return [compare(*simulated(seed, **how)).verdict for seed in range(TRIALS)]


@pytest.mark.parametrize(
    "how",
    [
        {"noise": 0.01},
        {"noise": 0.01, "drift": 0.3},
        {"noise": 0.05, "drift": 0.3},
        {"noise": 0.03, "drift": -0.2, "correlation": 0.5},
    ],
    ids=["quiet", "drift", "noisy drift", "correlated drift"],
)
def test_a_kernel_against_itself_is_hardly_ever_faster_or_slower(how):
    found = verdicts(**how)
    # A 99 % interval and the 1 % floor of effect: 1 in 100 is expected at the very most.
    assert sum(v != "indistinguishable" for v in found) <= 2


def test_three_percent_is_found_through_one_percent_of_noise():
    assert verdicts(speedup=1.03, noise=0.01, drift=0.2).count("faster") >= 0.95 * TRIALS


def test_three_percent_slower_is_found_too():
    assert verdicts(speedup=1 / 1.03, noise=0.01, drift=0.2).count("slower") >= 0.95 * TRIALS


def test_a_difference_below_the_least_effect_is_no_verdict_however_quiet():
    found = compare(*simulated(1, speedup=1 + MIN_EFFECT / 2, noise=1e-5))
    assert found.low > 1
    assert found.verdict == "indistinguishable"


def test_pairing_cancels_a_drift_that_unpaired_medians_would_blame_on_the_candidate():
    candidate, baseline = simulated(3, noise=0.002, drift=1.0)
    # Had the baseline run first and the candidate afterwards, the drift would look like a slow candidate.
    half = SAMPLES // 2
    apart = statistics.median(baseline[:half]) / statistics.median(candidate[half:])
    assert apart < 0.8
    assert compare(candidate, baseline).verdict == "indistinguishable"


def test_outliers_do_not_move_the_verdict():
    candidate, baseline = simulated(5, speedup=1.2)
    for i in range(0, SAMPLES, 10):
        candidate[i] *= 50
    found = compare(candidate, baseline)
    assert found.verdict == "faster"
    assert found.speedup == pytest.approx(1.2, rel=0.02)


def test_verdicts_of_swapped_participants_mirror_each_other():
    candidate, baseline = simulated(7, speedup=1.5)
    there, back = compare(candidate, baseline), compare(baseline, candidate)
    assert (there.verdict, back.verdict) == ("faster", "slower")
    assert there.speedup == pytest.approx(1 / back.speedup, rel=1e-3)


def test_the_same_samples_give_the_same_interval():
    candidate, baseline = simulated(11)
    assert compare(candidate, baseline) == compare(candidate, baseline)
    assert median_interval(candidate) == median_interval(candidate)


def test_the_state_of_the_global_generator_is_neither_used_nor_changed():
    candidate, _ = simulated(11)
    random.seed(1)
    expected = random.random()
    random.seed(1)
    first = median_interval(candidate)
    assert random.random() == expected
    random.seed(2)
    assert median_interval(candidate) == first


def test_the_interval_holds_the_true_median_about_as_often_as_it_says():
    truth = 100_000.0
    trials, held = 150, 0
    for seed in range(trials):
        _, low, high = median_interval(simulated(seed, noise=0.05)[1], level=0.95)
        held += low <= truth <= high
    # Three standard deviations of the count below 95 %.
    assert held >= (0.95 - 3 * math.sqrt(0.95 * 0.05 / trials)) * trials


def test_correlated_samples_get_a_wider_interval_than_shuffled_ones():
    wider = 0
    for seed in range(20):
        _, samples = simulated(seed, noise=0.05, correlation=0.8)
        shuffled = random.Random(seed).sample(samples, len(samples))
        _, low, high = median_interval(samples)
        _, shuffled_low, shuffled_high = median_interval(shuffled)
        wider += high - low > shuffled_high - shuffled_low
    assert wider >= 16


def test_a_higher_level_is_a_wider_interval_around_the_same_median():
    samples, _ = simulated(13)
    median, low, high = median_interval(samples, 0.8)
    wide_median, wide_low, wide_high = median_interval(samples, 0.99)
    assert wide_median == median == statistics.median(samples)
    assert wide_low <= low <= median <= high <= wide_high


@pytest.mark.parametrize("count", range(1, MIN_PAIRS))
def test_too_few_pairs_are_no_verdict(count):
    found = compare([100.0] * count, [300.0] * count)
    assert found.speedup == 3.0
    assert found.verdict == "indistinguishable"


def test_the_fewest_pairs_that_suffice_do():
    assert compare([100.0] * MIN_PAIRS, [300.0] * MIN_PAIRS).verdict == "faster"


@pytest.mark.parametrize(
    ("candidate", "baseline"),
    [
        ([], []),
        ([1.0], [1.0, 2.0]),
        ([0.0], [1.0]),
        ([1.0], [-1.0]),
        ([math.nan], [1.0]),
        ([math.inf], [1.0]),
    ],
)
def test_samples_that_are_no_pairs_of_times_are_refused(candidate, baseline):
    with pytest.raises(ValueError, match=r"pairs|finite"):
        compare(candidate, baseline)


def test_median_interval_refuses_what_is_no_sample():
    for samples in ([], [math.nan], [1.0, math.inf]):
        with pytest.raises(ValueError, match="finite"):
            median_interval(samples)
    for level in (0.0, 1.0, 95.0):
        with pytest.raises(ValueError, match="level"):
            median_interval([1.0, 2.0], level)


def test_one_sample_is_its_own_interval():
    assert median_interval([7.0]) == (7.0, 7.0, 7.0)


def test_geometric_mean_of_inverse_speedups_is_one():
    assert geometric_mean([4.0, 0.25, 1.0]) == pytest.approx(1.0)
    assert geometric_mean([1e200, 1e200, 1e-200]) == pytest.approx(1e200 ** (1 / 3))


@pytest.mark.parametrize("values", [[], [0.0], [1.0, -1.0], [math.nan], [math.inf]])
def test_geometric_mean_refuses_what_has_none(values):
    with pytest.raises(ValueError, match="above 0"):
        geometric_mean(values)


def test_a_hundred_pairs_take_less_than_sixty_milliseconds():
    candidate, baseline = simulated(17)
    times = []
    for _ in range(5):
        start = time.process_time()
        compare(candidate, baseline)
        times.append(time.process_time() - start)
    assert min(times) < 0.06
