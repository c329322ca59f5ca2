"""The workflow policy: which phase a task is in, and which calls make sense next.

Phases follow CuTeGen: correctness first, then structural changes one at a time, profiling only once the
structure is stable. They advise; nothing here refuses a call.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from pydantic import Field

from cuteforge.kernels.history import Tree
from cuteforge.kernels.model import Frozen
from cuteforge.kernels.records import BenchmarkRecord, CompileRecord, CorrectnessRecord
from cuteforge.kernels.task import WorkloadClass

PhaseName = Literal["correctness", "structure", "profile", "done"]

STRUCTURAL_STEPS: dict[str, int] = {
    "matmul": 6,
    "attention": 6,
    "convolution": 6,
    "reduction": 5,
    "normalization": 5,
    "loss": 3,
    "elementwise": 2,
}
_OTHER_STEPS = 4
PLATEAU_STEPS = 3
PLATEAU_GAIN = 1.02
REPAIR_BUDGET = 5
_NEAR_ROOFLINE_PCT = 95.0


class NextCall(Frozen):
    """A suggested call: tool, why, and the arguments that are known already."""

    tool: str
    reason: str
    arguments: dict[str, str] = Field(default_factory=dict)


class Phase(NamedTuple):
    """Where a task stands."""

    name: PhaseName
    reason: str


def phase(tree: Tree, workload: WorkloadClass, roofline_pct: float | None = None) -> Phase:
    """The phase of a task. `roofline_pct` is the best candidate's share of the roofline floor, if known."""
    correct = [row for row in tree.rows if row.correct]
    if not correct:
        return Phase("correctness", "no candidate is correct yet")
    if roofline_pct is not None and roofline_pct >= _NEAR_ROOFLINE_PCT:
        return Phase("done", f"the best reaches {roofline_pct:.0f} % of the roofline")
    first = correct[0].seq
    steps = [row for row in tree.rows if row.seq > first and row.speedups]
    limit = STRUCTURAL_STEPS.get(workload, _OTHER_STEPS)
    if len(steps) >= limit:
        return Phase(
            "profile", f"{len(steps)} structural steps were measured (limit for {workload}: {limit})"
        )
    gains = [gain for gain in (_gain(row.speedups) for row in steps) if gain is not None]
    recent = gains[-PLATEAU_STEPS:]
    if len(recent) == PLATEAU_STEPS and all(gain < PLATEAU_GAIN for gain in recent):
        return Phase("profile", f"the last {PLATEAU_STEPS} steps gained less than 2 %")
    return Phase("structure", f"{len(steps)} of {limit} structural steps measured")


def _gain(speedups: Mapping[str, float]) -> float | None:
    """Against the best, else the parent; None where it was measured beside neither."""
    return speedups.get("best", speedups.get("parent"))


def after_task(task_id: str, warnings: tuple[str, ...]) -> tuple[NextCall, ...]:
    """What follows a new task."""
    weak = " (the task is weak: see its warnings first)" if any("weak" in w for w in warnings) else ""
    return (
        NextCall(
            tool="submit_candidate",
            reason=f"write the simplest correct kernel against task.h{weak}",
            arguments={"task_id": task_id, "then": "check"},
        ),
    )


def after_submit(candidate_id: str) -> tuple[NextCall, ...]:
    """What follows a candidate that nothing has been done with."""
    return (
        NextCall(
            tool="run_correctness",
            reason="compile it and compare it with the reference",
            arguments={"candidate_id": candidate_id},
        ),
    )


def after_compile(record: CompileRecord, tree: Tree | None = None) -> tuple[NextCall, ...]:
    """What follows a compilation; with the tree, a spent repair budget is seen too."""
    known = {"candidate_id": record.candidate_id}
    if record.ok:
        return (NextCall(tool="run_correctness", reason="it compiles; is it right?", arguments=known),)
    if tree is not None and tree.repairs(record.candidate_id) >= REPAIR_BUDGET:
        return _give_up(record, tree)
    return (
        NextCall(
            tool="patch_apply",
            reason="mend the first diagnostic with the smallest local change",
            arguments={**known, "then": "check"},
        ),
    )


def _give_up(record: CompileRecord | CorrectnessRecord, tree: Tree) -> tuple[NextCall, ...]:
    """Back to the best with another idea, or a new start where there is no best."""
    tries = tree.repairs(record.candidate_id)
    if tree.best_id is None:
        way = NextCall(
            tool="submit_candidate",
            reason=f"{tries} attempts in a row failed: start anew with a simpler kernel",
            arguments={"task_id": record.task_id, "then": "check"},
        )
    else:
        way = NextCall(
            tool="patch_apply",
            reason=f"{tries} attempts in a row failed: go back to the best and try a different idea",
            arguments={"candidate_id": tree.best_id, "then": "evaluate"},
        )
    return (
        way,
        NextCall(tool="history", reason="see what was tried", arguments={"task_id": record.task_id}),
    )


def after_check(record: CorrectnessRecord, tree: Tree) -> tuple[NextCall, ...]:
    """What follows a correctness run; after a spent repair budget: another idea instead of more repairs."""
    known = {"candidate_id": record.candidate_id}
    if record.ok:
        return (NextCall(tool="benchmark", reason="it is correct; is it faster?", arguments=known),)
    if tree.repairs(record.candidate_id) >= REPAIR_BUDGET:
        return _give_up(record, tree)
    return (
        NextCall(
            tool="patch_apply",
            reason="diagnose from the mismatch pattern, then change only what it points at",
            arguments={**known, "then": "check"},
        ),
    )


def after_benchmark(record: BenchmarkRecord, tree: Tree, workload: WorkloadClass) -> tuple[NextCall, ...]:
    """What follows a benchmark: one structural change from the best, never from a regression."""
    base = tree.best_id or record.candidate_id
    is_best = base == record.candidate_id
    stage = phase(tree, workload, _roofline(record) if is_best else None)
    history = {"task_id": record.task_id}
    if stage.name == "done":
        return (
            NextCall(
                tool="history",
                reason=f"{stage.reason}: export what was found",
                arguments={**history, "action": "export"},
            ),
        )
    if not record.ok:
        reason = "the benchmark failed: mend what its summary says"
        base = record.candidate_id
    elif is_best:
        reason = "build on it with one structural change"
    else:
        reason = "this one is not faster: branch from the best with one other structural change"
    steps = [
        NextCall(
            tool="patch_apply",
            reason=f"{reason} ({stage.name}: {stage.reason})",
            arguments={"candidate_id": base, "then": "evaluate"},
        ),
        NextCall(tool="history", reason="see the tree and the best", arguments=history),
    ]
    if record.noise:
        steps.insert(
            0,
            NextCall(
                tool="benchmark",
                reason="the measurement was noisy: repeat it before you trust it",
                arguments={"candidate_id": record.candidate_id},
            ),
        )
    return tuple(steps)


def _roofline(record: BenchmarkRecord) -> float | None:
    """The share of the roofline in the case that is furthest from it; None where one is not known."""
    shares = [case.roofline_pct for case in record.cases]
    known = [share for share in shares if share is not None]
    return min(known) if known and len(known) == len(shares) else None
