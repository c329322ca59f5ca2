"""The store's tables, their version, and how an older store becomes the present one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import (
    Boolean,
    Column,
    Connection,
    DateTime,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    func,
    inspect,
    select,
)

from cuteforge.kernels.errors import StoreProblem

metadata = MetaData()

version = Table("schema_version", metadata, Column("version", Integer, nullable=False))

# `json` comes last: SQLite then reads the other columns without the pages that it overflows to.
tasks = Table(
    "tasks",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("name", String(200), nullable=False),
    Column("created_at", DateTime(timezone=True), nullable=False),
    Column("json", Text, nullable=False),
)

candidates = Table(
    "candidates",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("task_id", ForeignKey("tasks.id"), nullable=False),
    Column("parent_id", String(64)),
    Column("seq", Integer, nullable=False),
    Column("language", String(16), nullable=False),
    Column("note", Text, nullable=False),
    Column("created_at", DateTime(timezone=True), nullable=False),
    Column("json", Text, nullable=False),
    Index("candidates_by_task", "task_id", "seq", unique=True),
)

runs = Table(
    "runs",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("number", Integer, nullable=False, unique=True),
    Column("task_id", String(64), nullable=False),
    Column("candidate_id", ForeignKey("candidates.id"), nullable=False),
    Column("kind", String(16), nullable=False),
    Column("ok", Boolean, nullable=False),
    Column("median_ns", Float),
    Column("speedups", Text),
    Column("created_at", DateTime(timezone=True), nullable=False),
    Column("json", Text, nullable=False),
    Index("runs_by_candidate", "candidate_id", "kind", "number"),
    Index("runs_by_task", "task_id", "candidate_id", "kind", "number"),
)

heads = Table(
    "heads",
    metadata,
    Column("task_id", ForeignKey("tasks.id"), primary_key=True),
    Column("best_id", String(64)),
    Column("checked_out", String(64)),
)

jobs = Table(
    "jobs",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("kind", String(32), nullable=False),
    Column("state", String(16), nullable=False),
    Column("owner", String(64), nullable=False),
    Column("progress", Float, nullable=False),
    Column("message", Text, nullable=False),
    Column("request", Text, nullable=False),
    Column("result", Text),
    Column("error", Text),
    Column("created_at", DateTime(timezone=True), nullable=False),
    Column("updated_at", DateTime(timezone=True), nullable=False),
    Index("jobs_by_state", "state"),
)


# What a history shows, in narrow rows that lie together: reading it must touch neither sources nor records.
history = Table(
    "history",
    metadata,
    Column("candidate_id", ForeignKey("candidates.id"), primary_key=True),
    Column("task_id", String(64), nullable=False),
    Column("seq", Integer, nullable=False),
    Column("parent_id", String(64)),
    Column("language", String(16), nullable=False),
    Column("note", Text, nullable=False),
    Column("created_at", DateTime(timezone=True), nullable=False),
    Column("compile_ok", Boolean),
    Column("correct", Boolean),
    Column("median_ns", Float),
    Column("speedups", Text),
    Index("history_by_task", "task_id", "seq"),
)


def outcome(kind: str, ok: bool, median_ns: float | None, speedups: str | None) -> dict[str, Any]:
    """The columns of `history` that a new run of this kind sets."""
    if kind == "benchmark":
        return {"median_ns": median_ns, "speedups": speedups}
    return {"compile_ok" if kind == "compile" else "correct": ok}


def _create_domain(connection: Connection) -> None:
    """1: tasks, candidates and runs."""
    metadata.create_all(connection, tables=[tasks, candidates, runs])


def _add_heads_and_jobs(connection: Connection) -> None:
    """2: which candidate is best or checked out, and jobs that outlive a call."""
    metadata.create_all(connection, tables=[heads, jobs])


def _add_history(connection: Connection) -> None:
    """3: the history in a table of its own, filled from the candidates and their newest runs."""
    metadata.create_all(connection, tables=[history])
    light = ["id", "task_id", "seq", "parent_id", "language", "note", "created_at"]
    into = ["candidate_id", *light[1:]]
    connection.execute(history.insert().from_select(into, select(*(candidates.c[name] for name in light))))
    newest = (
        select(func.max(runs.c.number).label("number")).group_by(runs.c.candidate_id, runs.c.kind).subquery()
    )
    columns = (runs.c.candidate_id, runs.c.kind, runs.c.ok, runs.c.median_ns, runs.c.speedups)
    found = select(*columns).join(newest, runs.c.number == newest.c.number)
    for candidate_id, *run in connection.execute(found).all():
        here = history.c.candidate_id == candidate_id
        connection.execute(history.update().where(here).values(**outcome(*run)))


MIGRATIONS: tuple[Callable[[Connection], None], ...] = (_create_domain, _add_heads_and_jobs, _add_history)
SCHEMA_VERSION = len(MIGRATIONS)


def stored_version(connection: Connection) -> int:
    """The schema version of a database; 0 for an empty one."""
    if not inspect(connection).has_table("schema_version"):
        return 0
    return connection.execute(select(version.c.version)).scalar_one_or_none() or 0


def lock(connection: Connection) -> None:
    """Let no other transaction that calls this go on before this one has ended.

    Sequence numbers are one more than the largest: two writers at a time could take the same one. SQLite has
    one writer anyway.
    """
    connection.execute(select(version.c.version).with_for_update())


def migrate(connection: Connection) -> None:
    """Bring a store to SCHEMA_VERSION inside the caller's transaction.

    Raises:
        StoreProblem: the store was written by a newer Cuteforge.
    """
    found = stored_version(connection)
    if found > SCHEMA_VERSION:
        raise StoreProblem(
            f"The store has schema version {found}; this Cuteforge knows {SCHEMA_VERSION}.",
            "Upgrade Cuteforge, or use another `--home`.",
        )
    if found == SCHEMA_VERSION:
        return
    version.create(connection, checkfirst=True)
    for step in MIGRATIONS[found:]:
        step(connection)
    connection.execute(version.delete())
    connection.execute(version.insert().values(version=SCHEMA_VERSION))
