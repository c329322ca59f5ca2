"""The best rule and the tree of candidates."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from record_samples import benchmark_record, correctness_record, sample_candidate, sample_task

from cuteforge.kernels.history import Tree, next_best
from cuteforge.kernels.rows import HistoryRow

TASK = sample_task()
ME = sample_candidate(TASK, 1)
OTHER = sample_candidate(TASK, 2)
PASSED = correctness_record(ME)


def against_best(verdict, **given):
    return benchmark_record(ME, verdicts={"best": verdict}, geomean_speedup={"best": 1.25}, **given)


def row(number, parent=None, **given):
    fields = {"compile_ok": True, "correct": True, "speedups": {}, "median_ns": None, "note": ""} | given
    return HistoryRow(
        id=f"c_{number}",
        parent_id=None if parent is None else f"c_{parent}",
        seq=number,
        language="cpp",
        created_at=datetime(2026, 1, 1, tzinfo=UTC),
        **fields,
    )


@pytest.mark.parametrize(
    ("best", "correctness", "benchmark", "moves", "reason"),
    [
        (None, PASSED, None, True, "first correct"),
        (None, None, None, False, "not passed"),
        (None, correctness_record(ME, ok=False), against_best("faster"), False, "not passed"),
        (ME.id, PASSED, against_best("faster"), False, "already"),
        (OTHER.id, PASSED, None, False, "no valid benchmark"),
        (OTHER.id, PASSED, against_best("faster", ok=False), False, "no valid benchmark"),
        (OTHER.id, PASSED, against_best("faster"), True, "1.25x faster"),
        (OTHER.id, PASSED, against_best("slower"), False, "slower"),
        (OTHER.id, PASSED, against_best("indistinguishable"), False, "indistinguishable"),
        (OTHER.id, PASSED, benchmark_record(ME, verdicts={"eager": "faster"}), False, "not measured beside"),
        (OTHER.id, PASSED, against_best("faster", compiled="cd" * 32), False, "not the one that was checked"),
        (OTHER.id, correctness_record(ME, compiled=None), against_best("faster"), False, "not the one"),
        (OTHER.id, correctness_record(OTHER), against_best("faster"), False, "is of"),
        (OTHER.id, PASSED, benchmark_record(OTHER, verdicts={"best": "faster"}), False, "is of"),
    ],
)
def test_best_moves_only_to_what_is_correct_and_measured_faster(best, correctness, benchmark, moves, reason):
    decision = next_best(best, ME.id, correctness, benchmark)

    assert decision.moves is moves
    assert reason in decision.reason


def test_empty_tree_says_so():
    assert Tree([], None).render() == "no candidates yet"


def test_children_are_indented_under_their_parent():
    lines = Tree([row(1), row(2, 1), row(3, 2), row(4, 1)], "c_3", "c_4").render().splitlines()

    assert [line.split()[0] for line in lines] == ["#1", "#2", "#3", "#4"]
    assert [len(line) - len(line.lstrip()) for line in lines] == [0, 2, 4, 2]
    assert "*best*" in lines[2]
    assert "(checked out)" in lines[3]


@pytest.mark.parametrize("chained", [True, False])
def test_thousand_candidates_are_bounded_and_show_best_checked_out_and_newest(chained):
    rows = [row(n, (n - 1 if chained else 1) if n > 1 else None) for n in range(1, 1001)]

    text = Tree(rows, "c_437", "c_12").render(24)

    lines = text.splitlines()
    assert len(lines) == 24
    assert any("#437 " in line and "*best*" in line for line in lines)
    assert any("#12 " in line and "(checked out)" in line for line in lines)
    assert any("#1000 " in line for line in lines)
    assert "977 more candidates: 977 correct" in lines[-1]
    assert len(text) < 3000


def test_line_names_the_parent_that_is_not_above_it():
    rows = [row(n, n - 1 if n > 1 else None) for n in range(1, 101)]

    lines = Tree(rows, "c_1").render(6).splitlines()

    shown = [int(line.split()[0][1:]) for line in lines[:-1]]
    gap = next(i for i in range(1, len(shown)) if shown[i] != shown[i - 1] + 1)
    assert f"(from #{shown[gap] - 1})" in lines[gap]


def test_rows_that_are_each_others_parents_are_shown_once():
    lines = Tree([row(1, 2), row(2, 1)], None).render().splitlines()

    assert sorted(line.split()[0] for line in lines) == ["#1", "#2"]


def test_path_stops_at_a_missing_parent():
    assert [r.seq for r in Tree([row(2, 1), row(3, 2)], None).path("c_3")] == [2, 3]


def test_repairs_count_failures_in_a_row():
    wrong, broken = {"correct": False}, {"compile_ok": False, "correct": None}
    tree = Tree([row(1), row(2, 1, **wrong), row(3, 2, **broken), row(4, 3, **wrong)], "c_1")

    assert [tree.repairs(f"c_{n}") for n in (1, 2, 3, 4)] == [0, 1, 2, 3]


def test_note_of_several_lines_stays_on_one_line():
    text = Tree([row(1, note="one\ntwo\n" + "x" * 500)], None).render()

    assert "one two" in text
    assert len(text.splitlines()) == 1
    assert len(text) < 120
