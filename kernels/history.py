"""The tree of a task's candidates, and the rule by which `best` moves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from cuteforge.kernels.records import BenchmarkRecord, CorrectnessRecord


class Row(Protocol):
    """What the tree needs of a candidate; the store's `HistoryRow` is one."""

    @property
    def id(self) -> str: ...
    @property
    def parent_id(self) -> str | None: ...
    @property
    def seq(self) -> int: ...
    @property
    def language(self) -> str: ...
    @property
    def note(self) -> str: ...
    @property
    def compile_ok(self) -> bool | None: ...
    @property
    def correct(self) -> bool | None: ...
    @property
    def speedups(self) -> Mapping[str, float]: ...
    @property
    def median_ns(self) -> float | None: ...


class BestDecision(NamedTuple):
    """Whether `best` moves to a candidate, and why or why not."""

    moves: bool
    reason: str


def next_best(
    best_id: str | None,
    candidate_id: str,
    correctness: CorrectnessRecord | None,
    benchmark: BenchmarkRecord | None,
) -> BestDecision:
    """The best rule: correct, and faster than the present best beyond noise, measured beside it in one run.

    The first correct candidate is best without a benchmark, so that there is something to return to.
    """
    if correctness is None or not correctness.ok:
        return BestDecision(False, "it has not passed the correctness run")
    if best_id == candidate_id:
        return BestDecision(False, "it is the best already")
    if best_id is None:
        return BestDecision(True, "the first correct candidate")
    if benchmark is None or not benchmark.ok:
        return BestDecision(False, "it has no valid benchmark")
    if benchmark.compiled != correctness.compiled:
        return BestDecision(False, "the binary that was timed is not the one that was checked")
    verdict = benchmark.verdicts.get("best")
    if verdict is None:
        return BestDecision(False, "it was not measured beside the best")
    if verdict != "faster":
        return BestDecision(False, f"it is {verdict} against the best")
    return BestDecision(True, f"{benchmark.geomean_speedup['best']:.2f}x faster than the best before it")


class Tree:
    """The candidates of one task in the order they were submitted."""

    def __init__(self, rows: Sequence[Row], best_id: str | None, checked_out: str | None = None) -> None:
        self.rows = sorted(rows, key=lambda r: r.seq)
        self.best_id = best_id
        self.checked_out = checked_out
        self._by_id = {row.id: row for row in self.rows}

    def get(self, candidate_id: str) -> Row | None:
        """The row of a candidate of this task."""
        return self._by_id.get(candidate_id)

    def path(self, candidate_id: str | None) -> list[Row]:
        """From the root to a candidate; stops at a missing parent."""
        path: list[Row] = []
        seen: set[str] = set()
        while candidate_id in self._by_id and candidate_id not in seen:
            seen.add(candidate_id)
            row = self._by_id[candidate_id]
            path.append(row)
            candidate_id = row.parent_id
        return path[::-1]

    def repairs(self, candidate_id: str) -> int:
        """How many candidates in a row, up to this one, failed to compile or to be correct."""
        count = 0
        for row in reversed(self.path(candidate_id)):
            if row.correct or (row.compile_ok is not False and row.correct is not False):
                break
            count += 1
        return count

    def render(self, max_lines: int = 24) -> str:
        """The tree as indented text: the path to the best and the newest candidates, the rest counted."""
        if not self.rows:
            return "no candidates yet"
        shown = {row.id for row in self.path(self.best_id)}
        for row in reversed(self.rows):
            if len(shown) >= max_lines:
                break
            shown.add(row.id)
        children: dict[str | None, list[Row]] = {}
        for row in self.rows:
            parent = row.parent_id if row.parent_id in self._by_id else None
            children.setdefault(parent, []).append(row)
        lines: list[str] = []
        hidden = 0
        # A chain of a thousand patches must not be a thousand levels of recursion, nor of indentation.
        stack = [(row, 0) for row in reversed(children.get(None, []))]
        while stack:
            row, depth = stack.pop()
            if row.id in shown:
                lines.append("  " * min(depth, 8) + self._line(row))
            else:
                hidden += 1
            stack += [(child, depth + 1) for child in reversed(children.get(row.id, []))]
        if hidden:
            lines.append(f"… and {hidden} older candidates (export shows all)")
        return "\n".join(lines)

    def _line(self, row: Row) -> str:
        state = "submitted"
        if row.compile_ok is False:
            state = "does not compile"
        elif row.correct is False:
            state = "wrong"
        elif row.correct:
            state = "correct"
        elif row.compile_ok:
            state = "compiles"
        speed = "".join(f", {value:.2f}x {label}" for label, value in row.speedups.items())
        marks = " *best*" if row.id == self.best_id else ""
        marks += " (checked out)" if row.id == self.checked_out else ""
        note = f" - {row.note[:60]}" if row.note else ""
        return f"#{row.seq} {row.id} {state}{speed}{marks}{note}"
