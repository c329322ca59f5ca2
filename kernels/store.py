"""Where tasks, candidates, records and jobs are kept: SQLite by default, any SQLAlchemy URL otherwise.

Calls block; the server makes them in threads. Several processes may use one store at the same time.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import sqlalchemy as sa
from pydantic import TypeAdapter
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from cuteforge.kernels.artifacts import storage_problem
from cuteforge.kernels.candidate import Candidate
from cuteforge.kernels.errors import NotFound, StoreProblem
from cuteforge.kernels.model import utc_now
from cuteforge.kernels.records import BenchmarkRecord, CompileRecord, CorrectnessRecord, Record
from cuteforge.kernels.schema import candidates, heads, jobs, migrate, runs, tasks
from cuteforge.kernels.task import Task

AnyRecord = CompileRecord | CorrectnessRecord | BenchmarkRecord
_RECORD: TypeAdapter[AnyRecord] = TypeAdapter(Record)
_BUSY_MS = 15_000


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
    """What the history shows of a candidate; None where that was never run."""

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


def _aware(moment: datetime) -> datetime:
    # SQLite keeps no time zone; everything is written in UTC.
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _problem(error: SQLAlchemyError, url: sa.URL) -> StoreProblem:
    where = url.database or url.render_as_string(hide_password=True)
    text = str(error.orig if isinstance(error, DBAPIError) else error)
    remedies = {
        "full": ("its disk is full; nothing stored before is lost", "Free space, or use another `--home`."),
        "readonly": ("it is read-only", "Check its permissions, or use another `--home`."),
        "unable to open": ("it cannot be opened", "Check the folder's permissions, or use another `--home`."),
        "disk i/o": ("its disk fails", "Check the disk; restore the store from a backup if it is damaged."),
        "malformed": ("it is damaged", "Restore it from a backup, or move it away to start afresh."),
        "not a database": ("it is no SQLite file", "Move it away, or use another `--home`."),
        "locked": ("another process holds it", "Try again; if it lasts, end the process that holds it."),
    }
    for sign, (cause, remedy) in remedies.items():
        if sign in text.lower():
            return StoreProblem(f"The store '{where}' cannot be used: {cause}.", remedy)
    return StoreProblem(f"The store '{where}' failed: {text[:300]}.", "Run `cuteforge doctor`.")


class Store:
    """See the module. `url` is a SQLAlchemy URL or the path of an SQLite file.

    Raises:
        StoreProblem: it cannot be opened, or a newer Cuteforge wrote it. So does every method when the
            store cannot be read or written.
    """

    def __init__(self, url: str | Path) -> None:
        if isinstance(url, Path):
            try:
                url.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            except OSError as error:
                raise storage_problem(error, url.parent) from error
            self._url = sa.URL.create("sqlite", database=str(url))
        else:
            self._url = sa.make_url(url)
        self._sqlite = self._url.get_backend_name() == "sqlite"
        arguments: dict[str, Any] = {"timeout": _BUSY_MS / 1000} if self._sqlite else {}
        self._engine = sa.create_engine(self._url, connect_args=arguments)
        if self._sqlite:
            sa.event.listen(self._engine, "connect", _prepare_sqlite)
            sa.event.listen(self._engine, "begin", _begin_immediate)
        with self._writing() as connection:
            migrate(connection)

    @contextmanager
    def _writing(self) -> Iterator[sa.Connection]:
        try:
            with self._engine.begin() as connection:
                yield connection
        except SQLAlchemyError as error:
            raise _problem(error, self._url) from error

    @contextmanager
    def _reading(self) -> Iterator[sa.Connection]:
        try:
            # Autocommit: a read needs no transaction, so it never waits for a writer.
            with self._engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
                yield connection
        except SQLAlchemyError as error:
            raise _problem(error, self._url) from error

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()

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
            text = connection.scalar(sa.select(tasks.c.json).where(tasks.c.id == str(task_id)))
        return None if text is None else Task.model_validate_json(text)

    def task(self, task_id: str) -> Task:
        """A task. Raises NotFound naming recent ids."""
        found = self.find_task(task_id)
        if found is None:
            recent = ", ".join(row.id for row in self.tasks(3))
            raise NotFound(
                f"There is no task '{str(task_id)[:80]}'.",
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
            if not connection.scalar(sa.select(tasks.c.id).where(tasks.c.id == candidate.task_id)):
                raise NotFound(f"There is no task '{candidate.task_id}'.", "Define it first.")
            if candidate.parent_id is not None:
                parent_task = connection.scalar(
                    sa.select(candidates.c.task_id).where(candidates.c.id == candidate.parent_id)
                )
                if parent_task != candidate.task_id:
                    raise NotFound(
                        f"The parent '{candidate.parent_id[:80]}' is no candidate of this task.",
                        "Leave parent_id out, or see `history`.",
                    )
            last = connection.scalar(
                sa.select(sa.func.max(candidates.c.seq)).where(candidates.c.task_id == candidate.task_id)
            )
            connection.execute(
                candidates.insert().values(
                    id=candidate.id,
                    task_id=candidate.task_id,
                    parent_id=candidate.parent_id,
                    seq=(last or 0) + 1,
                    language=candidate.language,
                    note=candidate.note,
                    created_at=utc_now(),
                    json=candidate.model_dump_json(),
                )
            )
            return True

    def candidate(self, candidate_id: str) -> Candidate:
        """A candidate. Raises NotFound."""
        query = sa.select(candidates.c.json).where(candidates.c.id == str(candidate_id))
        with self._reading() as connection:
            text = connection.scalar(query)
        if text is None:
            raise NotFound(
                f"There is no candidate '{str(candidate_id)[:80]}'.",
                "`history` with a task id lists the candidates of a task.",
            )
        return Candidate.model_validate_json(text)

    def put_run(self, record: AnyRecord) -> str:
        """Keep a record; returns its run id. Raises NotFound for an unknown candidate."""
        run_id = f"r_{uuid.uuid4().hex[:12]}"
        median: float | None = None
        speedups: str | None = None
        if isinstance(record, BenchmarkRecord) and record.ok:
            speedups = json.dumps(record.geomean_speedup)
            median = record.cases[0].timings[0].median_ns if record.cases else None
        with self._writing() as connection:
            known = sa.select(candidates.c.id).where(candidates.c.id == record.candidate_id)
            if not connection.scalar(known):
                raise NotFound(f"There is no candidate '{record.candidate_id}'.", "Submit it first.")
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
        return run_id

    def run(self, run_id: str) -> AnyRecord:
        """A record by its run id. Raises NotFound."""
        with self._reading() as connection:
            text = connection.scalar(sa.select(runs.c.json).where(runs.c.id == str(run_id)))
        if text is None:
            raise NotFound(f"There is no run '{str(run_id)[:80]}'.", "Run ids come with each answer.")
        return _RECORD.validate_json(text)

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
                query = query.where(column == value)
        with self._reading() as connection:
            found = connection.execute(query.order_by(runs.c.number.desc()).limit(limit))
            return tuple(RunRow(r[0], r[1], r[2], r[3], _aware(r[4])) for r in found)

    def latest(self, candidate_id: str, kind: str) -> tuple[str, AnyRecord] | None:
        """The newest record of one kind for a candidate, with its run id."""
        query = (
            sa.select(runs.c.id, runs.c.json)
            .where(runs.c.candidate_id == str(candidate_id), runs.c.kind == kind)
            .order_by(runs.c.number.desc())
            .limit(1)
        )
        with self._reading() as connection:
            row = connection.execute(query).first()
        return None if row is None else (row[0], _RECORD.validate_json(row[1]))

    def history_rows(self, task_id: str) -> tuple[HistoryRow, ...]:
        """All candidates of a task in order, each with the outcome of its newest run of each kind."""
        newest = (
            sa.select(runs.c.candidate_id, runs.c.kind, sa.func.max(runs.c.number).label("number"))
            .where(runs.c.task_id == str(task_id))
            .group_by(runs.c.candidate_id, runs.c.kind)
            .subquery()
        )
        outcomes = sa.select(
            runs.c.candidate_id, runs.c.kind, runs.c.ok, runs.c.median_ns, runs.c.speedups
        ).join(newest, runs.c.number == newest.c.number)
        columns = candidates.c
        listed = (
            sa.select(
                columns.id,
                columns.parent_id,
                columns.seq,
                columns.language,
                columns.note,
                columns.created_at,
            )
            .where(columns.task_id == str(task_id))
            .order_by(columns.seq)
        )
        found: dict[tuple[str, str], tuple[bool, float | None, str | None]] = {}
        with self._reading() as connection:
            for candidate_id, kind, ok, median, speedups in connection.execute(outcomes):
                found[candidate_id, kind] = (ok, median, speedups)
            rows = connection.execute(listed).all()
        none = (None, None, None)
        history: list[HistoryRow] = []
        for cid, parent, seq, language, note, created in rows:
            _, median, speedups = found.get((cid, "benchmark"), none)
            history.append(
                HistoryRow(
                    cid,
                    parent,
                    seq,
                    language,
                    note,
                    _aware(created),
                    found.get((cid, "compile"), none)[0],
                    found.get((cid, "correctness"), none)[0],
                    json.loads(speedups) if speedups else {},
                    median,
                )
            )
        return tuple(history)

    def head(self, task_id: str) -> Head:
        """Best and checked-out candidate of a task."""
        query = sa.select(heads.c.best_id, heads.c.checked_out).where(heads.c.task_id == str(task_id))
        with self._reading() as connection:
            row = connection.execute(query).first()
        return Head(None, None) if row is None else Head(row[0], row[1])

    def set_head(self, task_id: str, **changes: str | None) -> None:
        """Set `best_id` or `checked_out`, leaving the other as it is."""
        with self._writing() as connection:
            here = heads.c.task_id == task_id
            if connection.execute(heads.update().where(here).values(**changes)).rowcount == 0:
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
        """Change what is given of a job."""
        values: dict[str, Any] = {
            "state": state,
            "progress": progress,
            "message": message,
            "result": None if result is None else json.dumps(dict(result)),
            "error": error,
        }
        values = {key: value for key, value in values.items() if value is not None}
        with self._writing() as connection:
            connection.execute(
                jobs.update().where(jobs.c.id == job_id).values(**values, updated_at=utc_now())
            )

    def job(self, job_id: str) -> JobRow:
        """A job. Raises NotFound."""
        with self._reading() as connection:
            row = connection.execute(sa.select(*_JOB_COLUMNS).where(jobs.c.id == str(job_id))).first()
        if row is None:
            raise NotFound(
                f"There is no job '{str(job_id)[:80]}'.", "Job ids come with answers of long calls."
            )
        return _job(row)

    def unfinished_jobs(self) -> tuple[JobRow, ...]:
        """Jobs that have not ended, oldest first."""
        query = (
            sa.select(*_JOB_COLUMNS)
            .where(jobs.c.state.in_(("queued", "running")))
            .order_by(jobs.c.created_at)
        )
        with self._reading() as connection:
            return tuple(_job(row) for row in connection.execute(query))


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


def _job(row: sa.Row[Any]) -> JobRow:
    values = list(row)
    values[6] = json.loads(values[6])
    values[7] = json.loads(values[7]) if values[7] else None
    values[9], values[10] = _aware(values[9]), _aware(values[10])
    return JobRow(*values)


def _prepare_sqlite(connection: Any, _: Any) -> None:
    # SQLAlchemy opens transactions itself (see `_begin_immediate`), not sqlite3.
    connection.isolation_level = None
    cursor = connection.cursor()
    for pragma in (f"busy_timeout={_BUSY_MS}", "journal_mode=WAL", "synchronous=NORMAL", "foreign_keys=ON"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _begin_immediate(connection: sa.Connection) -> None:
    # A transaction that reads first and writes later could otherwise fail as locked, without waiting.
    if connection.get_execution_options().get("isolation_level") != "AUTOCOMMIT":
        connection.exec_driver_sql("BEGIN IMMEDIATE")
