"""What the store answers besides tasks, candidates and records: light rows, without their JSON."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple


class TaskRow(NamedTuple):
    """One line of the list of tasks."""

    id: str
    name: str
    created_at: datetime
    candidates: int


class RunRow(NamedTuple):
    """One line of a list of runs."""

    id: str
    kind: str
    ok: bool
    candidate_id: str
    created_at: datetime


class HistoryRow(NamedTuple):
    """What the history shows of a candidate; None where that was never run.

    `speedups` holds the geometric mean over cases by baseline, of the newest benchmark if that was ok;
    `median_ns` is the candidate's own median in its first case.
    """

    id: str
    parent_id: str | None
    seq: int
    language: str
    note: str
    created_at: datetime
    compile_ok: bool | None
    correct: bool | None
    speedups: Mapping[str, float]
    median_ns: float | None


class Head(NamedTuple):
    """The best candidate of a task, and the one its user checked out."""

    best_id: str | None
    checked_out: str | None


class JobRow(NamedTuple):
    """A job as it stands; `result` and `error` once it has ended."""

    id: str
    kind: str
    state: str
    owner: str
    progress: float
    message: str
    request: dict[str, Any]
    result: dict[str, Any] | None
    error: str | None
    created_at: datetime
    updated_at: datetime
