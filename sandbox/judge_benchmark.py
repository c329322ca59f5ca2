"""The judge's benchmark: candidate and baselines in alternating blocks, on one device, by two clocks.

A sample is one block of calls in a row, rotating over buffer sets with different contents and addresses,
timed by CUDA events around the block (CPU target: a monotonic clock) and divided by the number of calls. A
block is long enough that the events' own cost, 15 µs around a block, stays below about 1 %. The order of
the participants is reversed in every other round, so that drift cancels in the paired ratios.

The candidate's process reads the events; the judge's wall clock around each block bounds what it can claim.
Imported only inside the sandbox, in the judge's process.
"""

from __future__ import annotations

import functools
import math
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import torch

from cuteforge.kernels.errors import InvalidRequest
from cuteforge.kernels.records import BenchmarkCase, Comparison, IntegrityCheck, Timing
from cuteforge.kernels.stats import compare as compare_times
from cuteforge.kernels.stats import median_interval
from cuteforge.kernels.task import Case, CaseCard, SpecCard, TaskDefinition
from cuteforge.sandbox.buffers import BufferSet
from cuteforge.sandbox.compare import bound_for, compare
from cuteforge.sandbox.link import CandidateFailure, CandidateLink, Elapsed
from cuteforge.sandbox.oracle import Oracle
from cuteforge.sandbox.reference import Reference, Values, clone
from cuteforge.sandbox.tensors import memory_for

Say = Callable[[float, str], None]

_MAX_SETS = 16
_MEMORY_SHARE = 0.4
_MAX_CALLS = 2000
_MIN_SAMPLES = 10
_BLOCK_NS = {"cuda": 2e6, "cpu": 2e6}
# One round trip between judge and candidate costs well under this; the rest of the wall clock must be work.
_ROUND_TRIP_NS = 1.0e6
_CLOCK_SHARE = 0.25
_NOISY_SPREAD = 0.10
_UNKNOWN_CACHE_BYTES = 32 * 1024**2
# A launch costs the host 2 to 10 µs, from C to eager PyTorch: calls in a row cannot follow faster.
_LAUNCH_BOUND_NS = 10e3


class Runner(Protocol):
    """One participant: runs a block of calls over buffer sets and says how long it took."""

    label: str

    def block(self, keys: list[int], calls: int) -> Elapsed:
        """Time `calls` calls in a row, rotating over `keys`."""
        ...


class CandidateRunner:
    """A candidate in its own process."""

    def __init__(self, label: str, candidate_id: str, link: CandidateLink) -> None:
        self.label = label
        self.candidate_id = candidate_id
        self.link = link

    def block(self, keys: list[int], calls: int) -> Elapsed:
        """See Runner.block."""
        return self.link.timed(keys, calls)


class ReferenceRunner:
    """The reference, eager or compiled, in the judge's own process."""

    def __init__(self, label: str, call: Callable[..., Any], arguments: list[Values], device: str) -> None:
        self.label = label
        self._call = call
        self._arguments = arguments
        self._device = device

    @torch.no_grad()
    def block(self, keys: list[int], calls: int) -> Elapsed:
        """See Runner.block."""
        chosen = [self._arguments[keys[i % len(keys)]] for i in range(calls)]
        if self._device == "cuda":
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            torch.cuda.synchronize()
            wall = time.perf_counter_ns()
            start.record()
            for values in chosen:
                self._call(*values)
            end.record()
            end.synchronize()
            wall = time.perf_counter_ns() - wall
            return Elapsed(start.elapsed_time(end) * 1e6, wall)
        wall = time.perf_counter_ns()
        for values in chosen:
            self._call(*values)
        wall = time.perf_counter_ns() - wall
        return Elapsed(float(wall), float(wall))


def cache_bytes(device: str) -> int:
    """Size of the last-level cache: the GPU's L2, or the CPU's largest cache, 32 MiB where unknown."""
    if device == "cuda":
        return int(torch.cuda.get_device_properties(0).L2_cache_size)
    largest = 0
    for size in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = size.read_text().strip()
        unit = {"K": 1024, "M": 1024**2}.get(text[-1:], 1)
        largest = max(largest, int(text.rstrip("KMG") or 0) * unit)
    # Virtual machines often hide their caches.
    return largest or _UNKNOWN_CACHE_BYTES


def set_count(case_bytes: int, cache: int, free: int) -> int:
    """Buffer sets so that together they exceed twice the cache, within memory and a fixed maximum."""
    wanted = math.ceil(2 * cache / max(case_bytes, 1)) + 1 if cache else 2
    fits = max(1, int(free * _MEMORY_SHARE / max(case_bytes, 1)))
    return max(1, min(wanted, fits, _MAX_SETS))


class BenchmarkRun:
    """One task's participants over its cases."""

    def __init__(
        self,
        definition: TaskDefinition,
        card: SpecCard,
        runners: list[CandidateRunner],
        baselines: list[str],
        say: Say,
    ) -> None:
        self._definition = definition
        self._card = card
        self._candidates = runners
        self._baselines = baselines
        self._say = say
        self._device = "cuda" if definition.target == "cuda" else "cpu"
        self._memory = memory_for(definition.target)
        self._noise: list[str] = []
        self._cases: list[BenchmarkCase] = []
        self._method = ""
        self._spot_checks = 0
        self._failed_checks: list[str] = []
        self._clock_text: list[str] = []
        self._clock_failed: list[str] = []
        self._failure: str | None = None

    def run(self, samples: int, budget_s: float, only: str | None) -> None:
        """Measure the chosen cases. A candidate's failure ends the run and is its summary."""
        cases = [c for c in self._definition.cases if only in (None, c.name)]
        for number, case in enumerate(cases):
            try:
                self._case(case, samples, budget_s / len(cases), number / len(cases), 1 / len(cases))
            except CandidateFailure as failure:
                self._failure = f"{case.name}: {failure}"
                return

    def _free_bytes(self) -> int:
        if self._device == "cuda":
            return int(torch.cuda.mem_get_info()[0])
        # Host buffers are shared memory of the whole machine: stay modest.
        return 2 * 1024**3

    def _case(self, case: Case, samples: int, budget_s: float, done: float, share: float) -> None:
        card = self._card.case(case.name)
        cache = cache_bytes(self._device)
        count = set_count(card.min_bytes, cache, self._free_bytes())
        reference = Reference(self._definition, case, self._device)
        parameters = [p.detach().clone() for p in reference.parameters.values()]
        oracle = Oracle(reference, sum(t.elements for t in card.tensors))
        sets: list[BufferSet] = []
        try:
            arguments: list[Values] = []
            for key in range(count):
                sets.append(BufferSet(key, card, self._memory, self._definition.target))
                arguments.append(sets[key].fill(reference.inputs(1000 + key), parameters))
            for runner in self._candidates:
                for buffers in sets:
                    buffers.bind(runner.link)
            runners: list[Runner] = [*self._candidates, *self._references(reference, arguments)]
            block = _Rounds(runners, list(range(count)), _BLOCK_NS[self._device], self._say, done, share)
            check = _SpotCheck(self, sets, arguments, reference, oracle)
            times = block.run(samples, budget_s, check)
            self._method = (
                f"{block.describe()}; {count} buffer set(s) of {card.min_bytes / 1e6:.3g} MB rotated "
                f"(last-level cache {cache / 1e6:.3g} MB)"
            )
            self._report(case, runners, block, times)
            for runner in self._candidates:
                for buffers in sets:
                    runner.link.release(buffers.key)
        finally:
            for buffers in sets:
                buffers.free()

    def _references(self, reference: Reference, arguments: list[Values]) -> list[ReferenceRunner]:
        found: list[ReferenceRunner] = []
        for label in self._baselines:
            call = reference.callable()
            if label == "compile":
                compiled = torch.compile(call)
                try:
                    with torch.no_grad():
                        compiled(*arguments[0])
                # Whatever the compiler raises only means that there is no such baseline.
                except Exception as error:  # noqa: BLE001
                    self._noise.append(f"no torch.compile baseline: {type(error).__name__}: {error}"[:300])
                    continue
                call = compiled
            found.append(ReferenceRunner(label, call, arguments, self._device))
        return found

    def spot_check(
        self, buffers: BufferSet, placed: Values, reference: Reference, oracle: Oracle, when: str
    ) -> None:
        """Hold the outputs of a timed call against the reference. Raises CandidateFailure when wrong."""
        expected = reference.run(clone(placed))
        truth = oracle(placed, expected)
        self._spot_checks += 1
        for (card, out), t, e in zip(buffers.outputs(), truth, expected, strict=True):
            bound = bound_for(t, e, self._definition.tolerance)
            _, mismatch = compare(card.name, out, t, e, bound, functools.partial(buffers.unwritten, card))
            if mismatch is not None:
                text = f"output of a timed call is wrong ({when}): {', '.join(mismatch.pattern)}"
                self._failed_checks.append(text)
                raise CandidateFailure(text)
        damage = buffers.damage()
        if damage:
            text = f"a timed call wrote outside its output ({when}): {damage}"
            self._failed_checks.append(text)
            raise CandidateFailure(text)

    def _report(
        self, case: Case, runners: list[Runner], block: _Rounds, times: dict[str, list[float]]
    ) -> None:
        timings: list[Timing] = []
        for runner in runners:
            ns = times[runner.label]
            median, low, high = median_interval(ns)
            timings.append(
                Timing(
                    label=runner.label,
                    candidate_id=runner.candidate_id if isinstance(runner, CandidateRunner) else None,
                    median_ns=median,
                    ci_low_ns=low,
                    ci_high_ns=high,
                    samples=len(ns),
                    calls_per_sample=block.calls[runner.label],
                )
            )
            if self._device == "cuda" and median < _LAUNCH_BOUND_NS:
                self._noise.append(
                    f"{case.name}: {runner.label} takes {median / 1e3:.1f} µs a call, about what a launch costs: "
                    "small differences say nothing of the kernel"
                )
            quarter = statistics.quantiles(ns, n=4)
            if median > 0 and (quarter[2] - quarter[0]) / median > _NOISY_SPREAD:
                spread = (quarter[2] - quarter[0]) / median
                self._noise.append(f"{case.name}: {runner.label} spreads by {spread:.0%} between quartiles")
        self._clocks(case, block)
        candidate = times[runners[0].label]
        comparisons: list[Comparison] = []
        for runner in runners[1:]:
            ratio = compare_times(candidate, times[runner.label])
            comparisons.append(
                Comparison(
                    baseline=runner.label,
                    speedup=ratio.speedup,
                    ci_low=ratio.low,
                    ci_high=ratio.high,
                    verdict=ratio.verdict,
                )
            )
        self._cases.append(
            BenchmarkCase(case=case.name, timings=tuple(timings), comparisons=tuple(comparisons))
        )

    def _clocks(self, case: Case, block: _Rounds) -> None:
        for runner in self._candidates:
            blocks = block.elapsed[runner.label]
            claimed = statistics.median(e.claimed_ns for e in blocks)
            # A busy machine only ever adds to the wall clock: its fastest blocks say what the work takes.
            walls = sorted(e.wall_ns for e in blocks)
            wall = walls[len(walls) // 10]
            text = f"{case.name}/{runner.label}: claimed {claimed / 1e6:.3f} ms of {wall / 1e6:.3f} ms on the wall"
            if any(e.claimed_ns > e.wall_ns for e in blocks) or (
                wall - claimed > _ROUND_TRIP_NS + _CLOCK_SHARE * wall
            ):
                self._clock_failed.append(text)
            else:
                self._clock_text.append(text)

    def outcome(self) -> dict[str, Any]:
        """Timings, comparisons and evidence as JSON-ready data."""
        integrity = [
            IntegrityCheck(
                name="timed outputs",
                status="failed" if self._failed_checks else "passed" if self._spot_checks else "not_possible",
                evidence="; ".join(self._failed_checks)
                or f"{self._spot_checks} timed calls checked, all right",
            ),
            IntegrityCheck(
                name="two clocks agree",
                status="failed" if self._clock_failed else "passed" if self._clock_text else "not_possible",
                evidence="; ".join(self._clock_failed or self._clock_text) or "nothing was timed",
            ),
        ]
        summary = self._failure or ""
        if self._clock_failed and not summary:
            summary = f"the candidate's times do not fit the judge's clock: {'; '.join(self._clock_failed)}"
        return {
            "ok": not summary,
            "summary": summary,
            "method": self._method,
            "cases": [c.model_dump(mode="json") for c in self._cases],
            "noise": self._noise,
            "integrity": [c.model_dump(mode="json") for c in integrity],
        }


class _SpotCheck:
    """Checks the last call of chosen timed blocks of the candidate under test."""

    def __init__(
        self,
        run: BenchmarkRun,
        sets: list[BufferSet],
        arguments: list[Values],
        reference: Reference,
        oracle: Oracle,
    ) -> None:
        self._run = run
        self._sets = sets
        self._arguments = arguments
        self._reference = reference
        self._oracle = oracle

    def prepare(self, key: int) -> None:
        """Poison the outputs that the block's last call must write."""
        self._sets[key].poison_outputs()

    def verify(self, key: int, when: str) -> None:
        """Compare them. Raises CandidateFailure when wrong."""
        self._run.spot_check(self._sets[key], self._arguments[key], self._reference, self._oracle, when)


class _Rounds:
    """Alternating blocks of all runners until enough samples or the budget's end."""

    def __init__(
        self, runners: list[Runner], keys: list[int], block_ns: float, say: Say, done: float, share: float
    ) -> None:
        self._runners = runners
        self._keys = keys
        self._block_ns = block_ns
        self._say = say
        self._done, self._share = done, share
        self.calls: dict[str, int] = {}
        self.elapsed: dict[str, list[Elapsed]] = {r.label: [] for r in runners}

    def describe(self) -> str:
        """The method in words."""
        calls = ", ".join(f"{label} {n}" for label, n in self.calls.items())
        return f"alternating blocks of calls in a row ({calls}), order reversed every other round"

    def _calibrate(self, samples: int, budget_s: float) -> None:
        each: dict[str, float] = {}
        for runner in self._runners:
            runner.block(self._keys, len(self._keys))
            first = runner.block(self._keys, 1)
            calls = max(1, min(_MAX_CALLS, int(self._block_ns / max(first.claimed_ns, 1))))
            again = runner.block(self._keys, calls)
            each[runner.label] = max(again.claimed_ns / calls, 1.0)
        per_round_ns = budget_s * 1e9 / samples
        for label, ns in each.items():
            fair = per_round_ns / len(self._runners)
            self.calls[label] = max(1, min(_MAX_CALLS, math.ceil(min(self._block_ns, fair) / ns)))

    def run(self, samples: int, budget_s: float, check: _SpotCheck) -> dict[str, list[float]]:
        """Nanoseconds per call, in the same order for every label."""
        self._calibrate(samples, budget_s)
        times: dict[str, list[float]] = {r.label: [] for r in self._runners}
        checked = {0, samples - 1, random.SystemRandom().randrange(samples)}
        deadline = time.monotonic() + budget_s
        subject = self._runners[0].label
        for number in range(samples):
            late = time.monotonic() > deadline and number >= _MIN_SAMPLES
            order = self._runners if number % 2 == 0 else self._runners[::-1]
            # Rotate the start, so that every set is as often first.
            turn = number % len(self._keys)
            keys = self._keys[turn:] + self._keys[:turn]
            for runner in order:
                calls = self.calls[runner.label]
                watched = runner.label == subject and (number in checked or late)
                last_key = keys[(calls - 1) % len(keys)]
                if watched:
                    check.prepare(last_key)
                elapsed = runner.block(keys, calls)
                self.elapsed[runner.label].append(elapsed)
                times[runner.label].append(elapsed.claimed_ns / calls)
                if watched:
                    check.verify(last_key, f"round {number + 1}")
            if number % 10 == 0:
                self._say(self._done + self._share * number / samples, f"round {number + 1} of {samples}")
            if late:
                break
        return times


def case_bytes(card: CaseCard) -> int:
    """Bytes of all tensors of a case."""
    return sum(t.nbytes for t in card.tensors)


__all__ = ["BenchmarkRun", "CandidateRunner", "InvalidRequest", "cache_bytes", "set_count"]
