"""Which phase a task is in, and what is suggested next."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from record_samples import (
    benchmark_record,
    compile_record,
    correctness_record,
    sample_candidate,
    sample_task,
)

from cuteforge.kernels import policy
from cuteforge.kernels.history import Tree
from cuteforge.kernels.rows import HistoryRow

TASK = sample_task()
BEST = sample_candidate(TASK, 1)
ME = sample_candidate(TASK, 2, parent=BEST.id)


def row(seq, cid=None, parent=None, compile_ok=True, correct=True, speedups=None):
    created = datetime(2026, 1, 1, tzinfo=UTC)
    name = cid or f"c_{seq}"
    return HistoryRow(name, parent, seq, "cpp", "", created, compile_ok, correct, speedups or {}, None)


def measured(gains):
    """A first correct candidate, then one for each gain over the best."""
    rows = [row(1)] + [row(n, speedups={"best": gain}) for n, gain in enumerate(gains, 2)]
    return Tree(rows, "c_1")


def failures(count, best_id, **state):
    """`count` failures in a row, the last of them ME, after a correct root where there is a best."""
    rows = [row(1, BEST.id)] if best_id else []
    parent = BEST.id if best_id else None
    for n in range(2, count + 2):
        name = ME.id if n == count + 1 else f"c_{n}"
        rows.append(row(n, name, parent, **state))
        parent = name
    return Tree(rows, best_id)


@pytest.mark.parametrize(
    ("workload", "limit"),
    [
        ("matmul", 6),
        ("attention", 6),
        ("convolution", 6),
        ("reduction", 5),
        ("normalization", 5),
        ("loss", 3),
        ("elementwise", 2),
        ("sparse", 4),
        ("stencil", 4),
        ("scan_sort", 4),
        ("other", 4),
    ],
)
def test_structure_ends_after_as_many_steps_as_the_class_has(workload, limit):
    assert policy.phase(measured([1.5] * (limit - 1)), workload).name == "structure"
    assert policy.phase(measured([1.5] * limit), workload).name == "profile"


@pytest.mark.parametrize(
    ("gains", "name"),
    [
        ([], "structure"),
        ([1.0, 1.0], "structure"),
        ([1.0, 1.0, 1.019], "profile"),
        ([1.0, 1.0, 1.02], "structure"),
        ([1.0, 1.3, 1.0, 1.0], "structure"),
        ([1.3, 1.0, 0.9, 1.01], "profile"),
    ],
)
def test_three_steps_without_a_gain_of_two_percent_end_structure(gains, name):
    assert policy.phase(measured(gains), "matmul").name == name


def test_correctness_lasts_until_a_candidate_is_correct():
    tree = Tree([row(1, correct=False), row(2, compile_ok=False, correct=None)], None)

    assert policy.phase(Tree([], None), "matmul").name == "correctness"
    assert policy.phase(tree, "matmul").name == "correctness"


@pytest.mark.parametrize(("share", "name"), [(94.9, "structure"), (95.0, "done"), (None, "structure")])
def test_task_is_done_near_the_roofline(share, name):
    assert policy.phase(measured([]), "matmul", share).name == name


@pytest.mark.parametrize(
    ("calls", "tool", "base"),
    [
        (policy.after_task(TASK.id, ()), "submit_candidate", None),
        (policy.after_submit(ME.id), "run_correctness", ME.id),
        (policy.after_compile(compile_record(ME)), "run_correctness", ME.id),
        (policy.after_compile(compile_record(ME, ok=False)), "patch_apply", ME.id),
        (
            policy.after_compile(
                compile_record(ME, ok=False), failures(5, None, compile_ok=False, correct=None)
            ),
            "submit_candidate",
            None,
        ),
        (policy.after_check(correctness_record(ME), failures(1, None)), "benchmark", ME.id),
        (
            policy.after_check(correctness_record(ME, ok=False), failures(4, BEST.id, correct=False)),
            "patch_apply",
            ME.id,
        ),
        (
            policy.after_check(correctness_record(ME, ok=False), failures(5, BEST.id, correct=False)),
            "patch_apply",
            BEST.id,
        ),
    ],
)
def test_next_call_and_its_base(calls, tool, base):
    assert calls[0].tool == tool
    assert calls[0].arguments.get("candidate_id") == base
    assert len(calls) <= 3


@pytest.mark.parametrize(
    ("given", "best_id", "tool", "base"),
    [
        ({}, ME.id, "patch_apply", ME.id),
        ({}, BEST.id, "patch_apply", BEST.id),
        ({"ok": False}, BEST.id, "patch_apply", ME.id),
        ({"noise": ("clocks changed",)}, BEST.id, "benchmark", ME.id),
        ({"roofline_pct": 97.0}, ME.id, "history", None),
        ({"roofline_pct": 97.0}, BEST.id, "patch_apply", BEST.id),
    ],
)
def test_after_a_benchmark_the_next_step_starts_from_the_best(given, best_id, tool, base):
    tree = Tree([row(1, BEST.id), row(2, ME.id, BEST.id)], best_id)

    calls = policy.after_benchmark(benchmark_record(ME, **given), tree, "matmul")

    assert calls[0].tool == tool
    assert calls[0].arguments.get("candidate_id") == base
    assert len(calls) <= 3


def test_weak_task_is_said_to_be_weak():
    assert "weak" in policy.after_task(TASK.id, ("the task is weak: zeros pass",))[0].reason
    assert "weak" not in policy.after_task(TASK.id, ())[0].reason
