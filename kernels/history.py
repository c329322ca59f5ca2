"""The tree of a task's candidates, and the rule by which `best` moves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from cuteforge.kernels.records import BenchmarkRecord, CorrectnessRecord

_DEEPEST_INDENT = 8
_FEWEST_LINES = 6
_LABELS = 4


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
    for record in (correctness, benchmark):
        if record is not None and record.candidate_id != candidate_id:
            return BestDecision(False, f"the {record.kind} record is of {record.candidate_id}")
    if correctness is None or not correctness.ok:
        return BestDecision(False, "it has not passed the correctness run")
    if best_id == candidate_id:
        return BestDecision(False, "it is the best already")
    if best_id is None:
        return BestDecision(True, "the first correct candidate")
    if benchmark is None or not benchmark.ok:
        return BestDecision(False, "it has no valid benchmark")
    if correctness.compiled is None or benchmark.compiled != correctness.compiled:
        return BestDecision(False, "the binary that was timed is not the one that was checked")
    verdict = benchmark.verdicts.get("best")
    if verdict is None:
        return BestDecision(False, "it was not measured beside the best")
    if verdict != "faster":
        return BestDecision(False, f"it is {verdict} against the best")
    speedup = benchmark.geomean_speedup.get("best")
    by = "" if speedup is None else f"{speedup:.2f}x "
    return BestDecision(True, f"{by}faster than the best before it")


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
        """The tree as indented text of at most `max_lines` lines (6 at least), one for each candidate.

        Best, checked-out and newest candidates are always there, then the path to the best; what is left out
        is counted by its state in the last line. A line says `from #N` where its parent is not the line that
        it is indented under.
        """
        if not self.rows:
            return "no candidates yet"
        shown = self._chosen(max(max_lines, _FEWEST_LINES))
        lines: list[str] = []
        above: dict[int, str] = {}
        for row, depth in self._walk(shown):
            parent = self._by_id.get(row.parent_id or "")
            under = depth > 0 and parent is not None and above.get(depth - 1) == parent.id
            indent = min(depth, _DEEPEST_INDENT)
            if depth > _DEEPEST_INDENT:
                # Such depths share one column: only the line right above is a parent that can be seen.
                under = parent is not None and above.get(-1) == parent.id
            origin = "" if under or parent is None else f" (from #{parent.seq})"
            lines.append("  " * indent + self._line(row) + origin)
            above[depth] = above[-1] = row.id
        hidden = Counter(_state(row) for row in self.rows if row.id not in shown)
        if hidden:
            counts = ", ".join(f"{count} {state}" for state, count in hidden.most_common())
            lines.append(f"… and {hidden.total()} more candidates: {counts} (export shows all)")
        return "\n".join(lines)

    def _chosen(self, max_lines: int) -> set[str]:
        if len(self.rows) <= max_lines:
            return set(self._by_id)
        room = max_lines - 1
        chosen = {i for i in (self.best_id, self.checked_out, self.rows[-1].id) if i in self._by_id}
        path = self.path(self.best_id)
        # A long path keeps its root and what led to the best directly.
        for row in [*path[:1], *reversed(path[1:])][: room // 2]:
            if len(chosen) < room:
                chosen.add(row.id)
        for row in reversed(self.rows):
            if len(chosen) >= room:
                break
            chosen.add(row.id)
        return chosen

    def _walk(self, shown: set[str]) -> Iterator[tuple[Row, int]]:
        """The shown rows, parents first, each with the number of shown ancestors."""
        children: dict[str | None, list[Row]] = {}
        for row in self.rows:
            parent = row.parent_id if row.parent_id in self._by_id else None
            children.setdefault(parent, []).append(row)
        seen: set[str] = set()
        # Every row is tried as a root at last: rows that are each other's ancestors have no other.
        for root in [*children.get(None, []), *self.rows]:
            # A chain of a thousand patches must not be a thousand levels of recursion.
            stack = [(root, 0)]
            while stack:
                row, depth = stack.pop()
                if row.id in seen:
                    continue
                seen.add(row.id)
                if row.id in shown:
                    yield row, depth
                    depth += 1
                stack += [(child, depth) for child in reversed(children.get(row.id, []))]

    def _line(self, row: Row) -> str:
        speeds = list(row.speedups.items())[:_LABELS]
        speed = "".join(f", {value:.2f}x {label}" for label, value in speeds)
        marks = " *best*" if row.id == self.best_id else ""
        marks += " (checked out)" if row.id == self.checked_out else ""
        note = " ".join(row.note.split())
        note = f" - {note[:60]}" if note else ""
        return f"#{row.seq} {row.id} {_state(row)}{speed}{marks}{note}"


def _state(row: Row) -> str:
    if row.compile_ok is False:
        return "does not compile"
    if row.correct is not None:
        return "correct" if row.correct else "wrong"
    return "compiles" if row.compile_ok else "submitted"
