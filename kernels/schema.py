"""The tables of the store, their version, and how an older store becomes a current one."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

from sqlalchemy import (
    Boolean,
    Column,
    Connection,
    DateTime,
    Dialect,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    TypeDecorator,
    UniqueConstraint,
    insert,
    inspect,
    select,
    update,
)

from cuteforge.kernels.errors import StoreProblem

VERSION = 2
"""The version this code reads and writes."""

_Id = String(100)


class UtcTime(TypeDecorator[datetime]):
    """Aware datetimes, kept in UTC without a zone: SQLite has no type for one."""

    impl = DateTime
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Raises ValueError for a datetime without a zone."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError("a stored time needs a zone")
        return value.astimezone(UTC).replace(tzinfo=None)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """The time as it was stored, aware."""
        return None if value is None else value.replace(tzinfo=UTC)


metadata = MetaData()

version_table = Table("cuteforge_schema", metadata, Column("version", Integer, nullable=False))

# `content` is the last column of every table: SQLite then reads the others without the pages it overflows to.
tasks = Table(
    "tasks",
    metadata,
    Column("n", Integer, primary_key=True),
    Column("id", _Id, nullable=False, unique=True),
    Column("name", Text, nullable=False),
    Column("created_at", UtcTime, nullable=False),
    Column("content", Text, nullable=False),
)

candidates = Table(
    "candidates",
    metadata,
    Column("n", Integer, primary_key=True),
    Column("id", _Id, nullable=False, unique=True),
    Column("task_id", _Id, ForeignKey("tasks.id"), nullable=False),
    Column("parent_id", _Id, ForeignKey("candidates.id")),
    Column("seq", Integer, nullable=False),
    Column("language", String(20), nullable=False),
    Column("note", Text, nullable=False),
    Column("created_at", UtcTime, nullable=False),
    Column("content", Text, nullable=False),
    UniqueConstraint("task_id", "seq"),
)

runs = Table(
    "runs",
    metadata,
    Column("n", Integer, primary_key=True),
    Column("id", _Id, nullable=False, unique=True),
    Column("task_id", _Id, ForeignKey("tasks.id"), nullable=False),
    Column("candidate_id", _Id, ForeignKey("candidates.id"), nullable=False),
    Column("kind", String(20), nullable=False),
    Column("ok", Boolean, nullable=False),
    Column("speedups", Text, nullable=False),
    Column("median_ns", Float),
    Column("created_at", UtcTime, nullable=False),
    Column("content", Text, nullable=False),
    Index("runs_by_task", "task_id", "candidate_id", "kind", "n"),
    Index("runs_by_candidate", "candidate_id", "kind", "n"),
)

jobs = Table(
    "jobs",
    metadata,
    Column("n", Integer, primary_key=True),
    Column("id", _Id, nullable=False, unique=True),
    Column("kind", String(40), nullable=False),
    Column("state", String(20), nullable=False, index=True),
    Column("progress", Float, nullable=False),
    Column("message", Text, nullable=False),
    Column("error", Text),
    Column("created_at", UtcTime, nullable=False),
    Column("updated_at", UtcTime, nullable=False),
    Column("request", Text, nullable=False),
    Column("result", Text),
)

heads = Table(
    "heads",
    metadata,
    Column("task_id", _Id, ForeignKey("tasks.id"), primary_key=True),
    Column("best_id", _Id, ForeignKey("candidates.id")),
    Column("best_run", _Id, ForeignKey("runs.id")),
    Column("checked_out", _Id, ForeignKey("candidates.id")),
)


def _to_2(connection: Connection) -> None:
    metadata.create_all(connection, tables=[jobs, heads])


_STEPS: dict[int, Callable[[Connection], None]] = {2: _to_2}
"""The step to each version from the one before it. A step is never changed once released: a version that
alters a table gets a step of its own, and the old form of that table moves into the step that creates it."""


def migrate(connection: Connection, where: str) -> None:
    """Create the tables, or bring an older store up to date; call it in one write transaction.

    Raises:
        StoreProblem: the store is newer than this version, or the database is something else.
    """
    present = set(inspect(connection).get_table_names())
    if version_table.name not in present:
        foreign = present & set(metadata.tables)
        if foreign:
            raise StoreProblem(
                f"'{where}' is a database of something else: it has a table '{min(foreign)}'"
                " and no schema version of Cuteforge.",
                "Give the store another file.",
            )
        metadata.create_all(connection)
        connection.execute(insert(version_table).values(version=VERSION))
        return
    found = connection.execute(select(version_table.c.version)).scalar()
    if found is None or not 1 <= found <= VERSION:
        raise StoreProblem(
            f"The store '{where}' has schema version {found}; this Cuteforge knows versions 1 to {VERSION}.",
            "Upgrade Cuteforge, or start it with another `--home`.",
        )
    for version in range(found + 1, VERSION + 1):
        _STEPS[version](connection)
    if found < VERSION:
        connection.execute(update(version_table).values(version=VERSION))
