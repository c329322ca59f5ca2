"""Where tasks, candidates, records and jobs are kept: SQLite by default, any SQLAlchemy URL otherwise.

Calls block; the server makes them in threads. Several processes may use one store at the same time.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa
from pydantic import TypeAdapter, ValidationError

from cuteforge.kernels.candidate import Candidate
from cuteforge.kernels.database import Database
from cuteforge.kernels.errors import NotFound, StoreProblem
from cuteforge.kernels.model import utc_now
from cuteforge.kernels.records import BenchmarkRecord, CompileRecord, CorrectnessRecord, Record
from cuteforge.kernels.rows import Head, HistoryRow, JobRow, RunRow, TaskRow
from cuteforge.kernels.schema import candidates, heads, history, jobs, outcome, runs, tasks
from cuteforge.kernels.task import Task

T = TypeVar("T")
AnyRecord = CompileRecord | CorrectnessRecord | BenchmarkRecord
_RECORD: TypeAdapter[AnyRecord] = TypeAdapter(Record)
_LONGEST_ID = 64
_UNFINISHED = ("queued", "running")


def _aware(moment: datetime) -> datetime:
    # SQLite keeps no time zone; everything is written in UTC.
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _key(value: object) -> str:
    """An id as it may be looked up; the empty text, which no object has, for what cannot be one."""
    text = str(value)
    return text if len(text) <= _LONGEST_ID and text.isascii() and text.isprintable() else ""


def _shown(value: object) -> str:
    """An id as it may be repeated to its sender: bounded, and without what no client could decode."""
    return str(value)[:80].encode("ascii", "backslashreplace").decode()


def _storable(text: str | None) -> str | None:
    # What a program printed may hold bytes that are no UTF-8, which Python keeps as lone surrogates.
    return None if text is None else text.encode("utf-8", "backslashreplace").decode()


def _decoded(decode: Callable[[str], T], text: str, what: str) -> T:
    try:
        return decode(text)
    except ValidationError as error:
        raise StoreProblem(
            f"The stored {what} cannot be read: {error.errors()[0]['msg']}.",
            "It was damaged or written by another version: upgrade Cuteforge, or make it again.",
        ) from error


class Store:
    """See the module. `url` is a SQLAlchemy URL or the path of an SQLite file.

    Raises:
        StoreProblem: it cannot be opened, or a newer Cuteforge wrote it. So does every method when the
            store cannot be read or written.
    """

    def __init__(self, url: str | Path) -> None:
        self._database = Database(url)
        self._reading = self._database.reading
        self._writing = self._database.writing

    def close(self) -> None:
        """Close all connections."""
        self._database.close()

    def put_task(self, task: Task) -> bool:
        """Keep a task; False if it was there already."""
        with self._writing() as connection:
            if connection.scalar(sa.select(tasks.c.id).where(tasks.c.id == task.id)):
                return False
            connection.execute(
                tasks.insert().values(
                    id=task.id,
                    name=task.definition.name,
                    created_at=utc_now(),
                    json=task.model_dump_json(),
                )
            )
            return True

    def find_task(self, task_id: str) -> Task | None:
        """A task, or None."""
        with self._reading() as connection:
            text = connection.scalar(sa.select(tasks.c.json).where(tasks.c.id == _key(task_id)))
        return None if text is None else _decoded(Task.model_validate_json, text, f"task {task_id}")

    def task(self, task_id: str) -> Task:
        """A task. Raises NotFound naming recent ids."""
        found = self.find_task(task_id)
        if found is None:
            recent = ", ".join(row.id for row in self.tasks(3))
            raise NotFound(
                f"There is no task '{_shown(task_id)}'.",
                f"Recent tasks: {recent}." if recent else "Define one with define_task.",
            )
        return found

    def tasks(self, limit: int = 50) -> tuple[TaskRow, ...]:
        """Tasks, newest first."""
        count = (
            sa.select(sa.func.count())
            .where(candidates.c.task_id == tasks.c.id)
            .correlate(tasks)
            .scalar_subquery()
        )
        query = (
            sa.select(tasks.c.id, tasks.c.name, tasks.c.created_at, count)
            .order_by(tasks.c.created_at.desc(), tasks.c.id)
            .limit(limit)
        )
        with self._reading() as connection:
            return tuple(TaskRow(r[0], r[1], _aware(r[2]), r[3]) for r in connection.execute(query))

    def put_candidate(self, candidate: Candidate) -> bool:
        """Keep a candidate; False if it was there already. Raises NotFound for an unknown task or parent."""
        with self._writing() as connection:
            if connection.scalar(sa.select(candidates.c.id).where(candidates.c.id == candidate.id)):
                return False
            if not connection.scalar(sa.select(tasks.c.id).where(tasks.c.id == _key(candidate.task_id))):
                raise NotFound(f"There is no task '{_shown(candidate.task_id)}'.", "Define it first.")
            if candidate.parent_id is not None:
                parent_task = connection.scalar(
                    sa.select(candidates.c.task_id).where(candidates.c.id == _key(candidate.parent_id))
                )
                if parent_task != candidate.task_id:
                    raise NotFound(
                        f"The parent '{_shown(candidate.parent_id)}' is no candidate of this task.",
                        "Leave parent_id out, or see `history`.",
                    )
            last = connection.scalar(
                sa.select(sa.func.max(candidates.c.seq)).where(candidates.c.task_id == candidate.task_id)
            )
            light = {
                "task_id": candidate.task_id,
                "parent_id": candidate.parent_id,
                "seq": (last or 0) + 1,
                "language": candidate.language,
                "note": candidate.note,
                "created_at": utc_now(),
            }
            connection.execute(
                candidates.insert().values(id=candidate.id, json=candidate.model_dump_json(), **light)
            )
            connection.execute(history.insert().values(candidate_id=candidate.id, **light))
            return True

    def candidate(self, candidate_id: str) -> Candidate:
        """A candidate. Raises NotFound."""
        query = sa.select(candidates.c.json).where(candidates.c.id == _key(candidate_id))
        with self._reading() as connection:
            text = connection.scalar(query)
        if text is None:
            raise NotFound(
                f"There is no candidate '{_shown(candidate_id)}'.",
                "`history` with a task id lists the candidates of a task.",
            )
        return _decoded(Candidate.model_validate_json, text, f"candidate {candidate_id}")

    def put_run(self, record: AnyRecord) -> str:
        """Keep a record; returns its run id. Raises NotFound unless its task has its candidate."""
        run_id = f"r_{uuid.uuid4().hex[:12]}"
        median: float | None = None
        speedups: str | None = None
        if isinstance(record, BenchmarkRecord) and record.ok:
            speedups = json.dumps(record.geomean_speedup)
            median = record.cases[0].timings[0].median_ns if record.cases else None
        with self._writing() as connection:
            owner = sa.select(candidates.c.task_id).where(candidates.c.id == _key(record.candidate_id))
            if connection.scalar(owner) != record.task_id:
                raise NotFound(
                    f"Task '{_shown(record.task_id)}' has no candidate '{_shown(record.candidate_id)}'.",
                    "Submit it first.",
                )
            last = connection.scalar(sa.select(sa.func.max(runs.c.number)))
            connection.execute(
                runs.insert().values(
                    id=run_id,
                    number=(last or 0) + 1,
                    task_id=record.task_id,
                    candidate_id=record.candidate_id,
                    kind=record.kind,
                    ok=record.ok,
                    median_ns=median,
                    speedups=speedups,
                    created_at=record.created_at,
                    json=record.model_dump_json(),
                )
            )
            connection.execute(
                history.update()
                .where(history.c.candidate_id == record.candidate_id)
                .values(**outcome(record.kind, record.ok, median, speedups))
            )
        return run_id

    def run(self, run_id: str) -> AnyRecord:
        """A record by its run id. Raises NotFound."""
        with self._reading() as connection:
            text = connection.scalar(sa.select(runs.c.json).where(runs.c.id == _key(run_id)))
        if text is None:
            raise NotFound(f"There is no run '{_shown(run_id)}'.", "Run ids come with each answer.")
        return _decoded(_RECORD.validate_json, text, f"run {run_id}")

    def runs(
        self,
        task_id: str | None = None,
        candidate_id: str | None = None,
        kind: str | None = None,
        limit: int = 100,
    ) -> tuple[RunRow, ...]:
        """Runs, newest first."""
        query = sa.select(runs.c.id, runs.c.kind, runs.c.ok, runs.c.candidate_id, runs.c.created_at)
        for column, value in (
            (runs.c.task_id, task_id),
            (runs.c.candidate_id, candidate_id),
            (runs.c.kind, kind),
        ):
            if value is not None:
                query = query.where(column == _key(value))
        with self._reading() as connection:
            found = connection.execute(query.order_by(runs.c.number.desc()).limit(limit))
            return tuple(RunRow(r[0], r[1], r[2], r[3], _aware(r[4])) for r in found)

    def latest(self, candidate_id: str, kind: str) -> tuple[str, AnyRecord] | None:
        """The newest record of one kind for a candidate, with its run id."""
        query = (
            sa.select(runs.c.id, runs.c.json)
            .where(runs.c.candidate_id == _key(candidate_id), runs.c.kind == kind)
            .order_by(runs.c.number.desc())
            .limit(1)
        )
        with self._reading() as connection:
            row = connection.execute(query).first()
        return None if row is None else (row[0], _decoded(_RECORD.validate_json, row[1], f"run {row[0]}"))

    def history_rows(self, task_id: str) -> tuple[HistoryRow, ...]:
        """All candidates of a task in order, each with the outcome of its newest run of each kind."""
        columns = history.c
        query = (
            sa.select(
                columns.candidate_id,
                columns.parent_id,
                columns.seq,
                columns.language,
                columns.note,
                columns.created_at,
                columns.compile_ok,
                columns.correct,
                columns.speedups,
                columns.median_ns,
            )
            .where(columns.task_id == _key(task_id))
            .order_by(columns.seq)
        )
        with self._reading() as connection:
            rows = connection.execute(query).all()
        # One call for all: a thousand calls of the decoder take longer than the query.
        speedups = json.loads(f"[{','.join(row[8] or '{}' for row in rows)}]")
        return tuple(
            HistoryRow(*row[:5], _aware(row[5]), row[6], row[7], faster, row[9])
            for row, faster in zip(rows, speedups, strict=True)
        )

    def head(self, task_id: str) -> Head:
        """Best and checked-out candidate of a task."""
        query = sa.select(heads.c.best_id, heads.c.checked_out).where(heads.c.task_id == _key(task_id))
        with self._reading() as connection:
            row = connection.execute(query).first()
        return Head(None, None) if row is None else Head(row[0], row[1])

    def set_head(self, task_id: str, best_id: str | None = None, checked_out: str | None = None) -> None:
        """Set what is given, leaving the other as it is. Raises NotFound for a candidate of no such task."""
        with self._writing() as connection:
            self._move_head(connection, task_id, {"best_id": best_id, "checked_out": checked_out})

    def move_best(self, task_id: str, expected: str | None, best_id: str) -> bool:
        """Make a candidate the best if `expected`, which it was measured against, still is; else False.

        Two servers that measure at the same time could otherwise replace a best by one that is slower.
        Raises NotFound as `set_head` does.
        """
        present = sa.select(heads.c.best_id).where(heads.c.task_id == _key(task_id))
        with self._writing() as connection:
            if connection.scalar(present) != expected:
                return False
            self._move_head(connection, task_id, {"best_id": best_id})
            return True

    def _move_head(self, connection: sa.Connection, task_id: str, changes: dict[str, str | None]) -> None:
        changes = {key: value for key, value in changes.items() if value is not None}
        for candidate_id in changes.values():
            owner = sa.select(candidates.c.task_id).where(candidates.c.id == _key(candidate_id))
            if connection.scalar(owner) != task_id:
                raise NotFound(
                    f"Task '{_shown(task_id)}' has no candidate '{_shown(candidate_id)}'.",
                    "`history` with a task id lists the candidates of a task.",
                )
        here = heads.c.task_id == _key(task_id)
        if changes and connection.execute(heads.update().where(here).values(**changes)).rowcount == 0:
            connection.execute(heads.insert().values(task_id=task_id, **changes))

    def put_job(self, job_id: str, kind: str, owner: str, request: Mapping[str, Any]) -> None:
        """Keep a new job in state `queued`; `owner` is the server process that runs it."""
        now = utc_now()
        with self._writing() as connection:
            connection.execute(
                jobs.insert().values(
                    id=job_id,
                    kind=kind,
                    state="queued",
                    owner=owner,
                    progress=0.0,
                    message="",
                    request=json.dumps(dict(request)),
                    created_at=now,
                    updated_at=now,
                )
            )

    def update_job(
        self,
        job_id: str,
        state: str | None = None,
        progress: float | None = None,
        message: str | None = None,
        result: Mapping[str, Any] | None = None,
        error: str | None = None,
    ) -> None:
        """Change what is given of a job; one that has ended stays as it is. Raises NotFound."""
        values: dict[str, Any] = {
            "state": state,
            "progress": progress,
            "message": _storable(message),
            "result": None if result is None else json.dumps(dict(result)),
            "error": _storable(error),
        }
        values = {key: value for key, value in values.items() if value is not None}
        with self._writing() as connection:
            here = jobs.c.id == _key(job_id)
            before = connection.scalar(sa.select(jobs.c.state).where(here))
            if before is None:
                raise _no_job(job_id)
            if before in _UNFINISHED:
                connection.execute(jobs.update().where(here).values(**values, updated_at=utc_now()))

    def job(self, job_id: str) -> JobRow:
        """A job. Raises NotFound."""
        with self._reading() as connection:
            row = connection.execute(sa.select(*_JOB_COLUMNS).where(jobs.c.id == _key(job_id))).first()
        if row is None:
            raise _no_job(job_id)
        return _job(row)

    def unfinished_jobs(self) -> tuple[JobRow, ...]:
        """Jobs that have not ended, oldest first."""
        query = sa.select(*_JOB_COLUMNS).where(jobs.c.state.in_(_UNFINISHED)).order_by(jobs.c.created_at)
        with self._reading() as connection:
            return tuple(_job(row) for row in connection.execute(query))


def _no_job(job_id: str) -> NotFound:
    return NotFound(f"There is no job '{_shown(job_id)}'.", "Job ids come with answers of long calls.")


_JOB_COLUMNS = (
    jobs.c.id,
    jobs.c.kind,
    jobs.c.state,
    jobs.c.owner,
    jobs.c.progress,
    jobs.c.message,
    jobs.c.request,
    jobs.c.result,
    jobs.c.error,
    jobs.c.created_at,
    jobs.c.updated_at,
)


def _job(row: Iterable[Any]) -> JobRow:
    values = list(row)
    values[6] = json.loads(values[6])
    values[7] = json.loads(values[7]) if values[7] else None
    values[9], values[10] = _aware(values[9]), _aware(values[10])
    return JobRow(*values)
