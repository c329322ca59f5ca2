"""The judge's correctness run: every case, family and seed, with the integrity checks that cost nothing more.

Imported only inside the sandbox, in the judge's process.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from cuteforge.kernels.records import CheckResult, CheckStatus, ErrorStats, IntegrityCheck, Mismatch
from cuteforge.kernels.task import Case, CaseCard, SpecCard, TaskDefinition
from cuteforge.sandbox import families
from cuteforge.sandbox.buffers import BufferSet
from cuteforge.sandbox.compare import Bound, bound_for, compare
from cuteforge.sandbox.link import CandidateFailure, CandidateLink
from cuteforge.sandbox.memory import Memory
from cuteforge.sandbox.oracle import Oracle
from cuteforge.sandbox.reference import Reference, Values, clone
from cuteforge.sandbox.tensors import memory_for

Say = Callable[[float, str], None]
_SHOWN_SEEDS = 2
_STOP_AFTER_FAILURES = 3


def draw_seeds(count: int) -> list[int]:
    """The first few seeds are fixed, so that a failure repeats; the others are fresh in every run."""
    fresh = [int.from_bytes(os.urandom(4)) for _ in range(max(0, count - _SHOWN_SEEDS))]
    return [*range(min(count, _SHOWN_SEEDS)), *fresh]


@dataclass
class _Evidence:
    """What the integrity checks saw, over all calls."""

    calls: int = 0
    damaged: dict[str, str] = field(default_factory=dict)
    changed_inputs: list[str] = field(default_factory=list)
    unwritten: int = 0
    repeats: int = 0
    repeats_equal: int = 0
    repeats_wrong: list[str] = field(default_factory=list)

    def checks(self) -> tuple[IntegrityCheck, ...]:
        def check(name: str, failed: bool, bad: str, good: str, possible: bool = True) -> IntegrityCheck:
            status: CheckStatus = "failed" if failed else "passed" if possible else "not_possible"
            evidence = bad if failed else good if possible else "no call returned"
            return IntegrityCheck(name=name, status=status, evidence=evidence)

        called = self.calls > 0
        damage = "; ".join(f"{name}: {where}" for name, where in self.damaged.items())
        return (
            check(
                "guard bands",
                bool(self.damaged),
                f"written outside its output: {damage}",
                f"intact around every output after {self.calls} calls",
                called,
            ),
            check(
                "every element written",
                self.unwritten > 0,
                f"{self.unwritten} elements still held the poison",
                f"no poison left after {self.calls} calls",
                called,
            ),
            check(
                "inputs unchanged",
                bool(self.changed_inputs),
                f"changed: {', '.join(self.changed_inputs)}",
                "mapped read-only for the candidate, and equal to what was drawn",
                called,
            ),
            check(
                "same input twice",
                bool(self.repeats_wrong),
                f"a second call on the same input was wrong: {'; '.join(self.repeats_wrong)}",
                f"{self.repeats_equal} of {self.repeats} second calls were equal bit by bit, the others within "
                "tolerance",
                self.repeats > 0,
            ),
        )


class CorrectnessRun:
    """One candidate against one task. `outcome()` is what the executor makes a record of."""

    def __init__(self, definition: TaskDefinition, card: SpecCard, link: CandidateLink, say: Say) -> None:
        self._definition = definition
        self._card = card
        self._link = link
        self._say = say
        self._device = "cuda" if definition.target == "cuda" else "cpu"
        self._memory: Memory = memory_for(definition.target)
        self._results: list[CheckResult] = []
        self._skipped: dict[str, str] = {}
        self._evidence = _Evidence()
        self._oracle_text = ""
        self._tolerance_text = ""

    def run(self, seeds: int, only: str | None) -> None:
        """Judge the chosen cases. Raises InvalidRequest when the reference itself fails."""
        cases = [c for c in self._definition.cases if only in (None, c.name)]
        for number, case in enumerate(cases):
            if self._failures() >= _STOP_AFTER_FAILURES or not self._link.alive:
                break
            self._case(case, draw_seeds(seeds), number / len(cases), 1 / len(cases))

    def _failures(self) -> int:
        return sum(1 for r in self._results if not r.ok)

    def _case(self, case: Case, seeds: list[int], done: float, share: float) -> None:
        card = self._card.case(case.name)
        reference = Reference(self._definition, case, self._device)
        parameters = [p.detach().clone() for p in reference.parameters.values()]
        oracle = Oracle(reference, sum(t.elements for t in card.tensors))
        buffers = BufferSet(0, card, self._memory, self._definition.target)
        try:
            buffers.bind(self._link)
            plan = [(families.TASK, seed) for seed in seeds]
            plan += [(f, seeds[-1]) for f in families.FAMILIES if f != families.TASK]
            for step, (family, seed) in enumerate(plan):
                self._say(done + share * step / len(plan), f"{case.name}: {family}, input {step + 1}")
                last = step == len(plan) - 1
                self._one(buffers, reference, oracle, parameters, case, family, seed, last)
                if self._failures() >= _STOP_AFTER_FAILURES or not self._link.alive:
                    break
            if self._link.alive:
                self._link.release(0)
        except CandidateFailure as failure:
            self._results.append(
                CheckResult(case=case.name, family=families.TASK, seed=None, ok=False, failure=str(failure))
            )
        finally:
            self._oracle_text = oracle.description
            buffers.free()

    def _one(
        self,
        buffers: BufferSet,
        reference: Reference,
        oracle: Oracle,
        parameters: list[torch.Tensor],
        case: Case,
        family: str,
        seed: int,
        last: bool,
    ) -> None:
        placed = buffers.fill(families.draw(reference, family, seed), parameters)
        expected = reference.run(clone(placed))
        reason = families.unusable(family, expected)
        if reason is not None:
            self._skipped[f"{case.name}: {family}"] = reason
            return
        truth = oracle(placed, expected)
        bounds = [bound_for(t, e, self._definition.tolerance) for t, e in zip(truth, expected, strict=True)]
        self._tolerance_text = self._tolerance_text or bounds[0].describe()
        try:
            stats, mismatch = self._judge(buffers, truth, expected, bounds)
        except CandidateFailure as failure:
            self._results.append(
                CheckResult(case=case.name, family=family, seed=seed, ok=False, failure=str(failure))
            )
            return
        damage = buffers.damage()
        self._evidence.damaged.update(damage)
        failure_text = None
        if damage:
            where = "; ".join(f"{name}: {text}" for name, text in damage.items())
            failure_text = f"wrote outside its output ({where})"
        ok = mismatch is None and not damage
        self._results.append(
            CheckResult(
                case=case.name,
                family=family,
                seed=seed,
                ok=ok,
                stats=stats,
                mismatch=mismatch,
                failure=failure_text,
            )
        )
        if ok and (last or seed == 0):
            self._repeat(buffers, truth, expected, bounds)
            self._inputs_unchanged(placed, reference, family, seed, card=buffers.card)

    def _judge(
        self,
        buffers: BufferSet,
        truth: list[torch.Tensor],
        expected: list[torch.Tensor],
        bounds: list[Bound],
    ) -> tuple[dict[str, ErrorStats], Mismatch | None]:
        buffers.poison_outputs()
        self._link.call(buffers.key)
        self._evidence.calls += 1
        stats: dict[str, ErrorStats] = {}
        worst: Mismatch | None = None
        for (card, out), t, e, bound in zip(buffers.outputs(), truth, expected, bounds, strict=True):

            def unwritten(card: Any = card) -> torch.Tensor:
                mask = buffers.unwritten(card)
                self._evidence.unwritten += int(mask.sum())
                return mask

            stats[card.name], mismatch = compare(card.name, out, t, e, bound, unwritten)
            worst = worst or mismatch
        return stats, worst

    def _repeat(
        self,
        buffers: BufferSet,
        truth: list[torch.Tensor],
        expected: list[torch.Tensor],
        bounds: list[Bound],
    ) -> None:
        before = [out.clone() for _, out in buffers.outputs()]
        self._evidence.repeats += 1
        try:
            _, mismatch = self._judge(buffers, truth, expected, bounds)
        except CandidateFailure as failure:
            self._evidence.repeats_wrong.append(str(failure))
            return
        if mismatch is not None:
            self._evidence.repeats_wrong.append(
                f"{mismatch.output}{list(mismatch.first_index)}: {', '.join(mismatch.pattern) or 'differs'}"
            )
        after = [out for _, out in buffers.outputs()]
        equal = all(torch.equal(_bits(a), _bits(b)) for a, b in zip(before, after, strict=True))
        self._evidence.repeats_equal += equal

    def _inputs_unchanged(
        self, placed: Values, reference: Reference, family: str, seed: int, card: CaseCard
    ) -> None:
        names = iter(t.name for t in card.role("input"))
        for now, drawn in zip(placed, families.draw(reference, family, seed), strict=True):
            if isinstance(now, torch.Tensor):
                name = next(names)
                if not torch.equal(_bits(now), _bits(drawn)):
                    self._evidence.changed_inputs.append(name)

    def outcome(self) -> dict[str, Any]:
        """Verdict, results and evidence as JSON-ready data."""
        integrity = self._evidence.checks()
        failed = [r for r in self._results if not r.ok]
        broken = [c for c in integrity if c.status == "failed"]
        ok = bool(self._results) and not failed and not broken
        if ok:
            summary = f"all {len(self._results)} checks passed"
        elif failed:
            summary = f"{len(failed)} of {len(self._results)} checks failed"
        elif broken:
            summary = f"integrity: {', '.join(c.name for c in broken)}"
        else:
            summary = "nothing was checked"
        return {
            "ok": ok,
            "summary": summary,
            "results": [r.model_dump(mode="json") for r in self._results],
            "integrity": [c.model_dump(mode="json") for c in integrity],
            "oracle": self._oracle_text,
            "tolerance": self._tolerance_text,
            "skipped_families": self._skipped,
        }


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor, so that NaN equals NaN and -0 differs from 0."""
    return tensor.contiguous().reshape(-1).view(torch.uint8)
