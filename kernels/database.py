"""The store's database: how it is opened, its transactions, and what its failures mean to a user."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from cuteforge.kernels.artifacts import storage_problem
from cuteforge.kernels.errors import StoreProblem
from cuteforge.kernels.schema import SCHEMA_VERSION, lock, migrate, stored_version

_BUSY_MS = 15_000
_OPENINGS = 5

_FAILURES = {
    "full": ("its disk is full; nothing stored before is lost", "Free space, or use another `--home`."),
    "readonly": ("it is read-only", "Check its permissions, or use another `--home`."),
    "unable to open": ("it cannot be opened", "Check the folder's permissions, or use another `--home`."),
    "disk i/o": (
        "its disk fails or is full",
        "Free space and check the disk; restore a backup if it is damaged.",
    ),
    "malformed": ("it is damaged", "Restore it from a backup, or move it away to start afresh."),
    "not a database": ("it is no SQLite file", "Move it away, or use another `--home`."),
    "locked": ("another process holds it", "Try again; if it lasts, end the process that holds it."),
}


def _problem(error: SQLAlchemyError, url: sa.URL) -> StoreProblem:
    where = url.database or url.render_as_string(hide_password=True)
    text = str(error.orig if isinstance(error, DBAPIError) else error)
    for sign, (cause, remedy) in _FAILURES.items():
        if sign in text.lower():
            return StoreProblem(f"The store '{where}' cannot be used: {cause}.", remedy)
    return StoreProblem(f"The store '{where}' failed: {text[:300]}.", "Run `cuteforge doctor`.")


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


class Database:
    """An open database of the present schema; `url` is a SQLAlchemy URL or the path of an SQLite file.

    Raises:
        StoreProblem: it cannot be opened, or a newer Cuteforge wrote it.
    """

    def __init__(self, url: str | Path) -> None:
        if isinstance(url, Path):
            try:
                url.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            except OSError as error:
                raise storage_problem(error, url.parent) from error
            self.url = sa.URL.create("sqlite", database=str(url))
        else:
            self.url = _parse(url)
        self._sqlite = self.url.get_backend_name() == "sqlite"
        if self._sqlite and self.url.database in (None, "", ":memory:"):
            raise StoreProblem(
                "A store in memory would be a different one in every thread.", "Give the path of a file."
            )
        arguments: dict[str, Any] = {"timeout": _BUSY_MS / 1000} if self._sqlite else {}
        try:
            self._engine = sa.create_engine(self.url, connect_args=arguments)
        except (SQLAlchemyError, ImportError) as error:
            raise StoreProblem(
                f"The store's URL cannot be used: {error}.",
                "Install the driver that it names, or use SQLite.",
            ) from error
        if self._sqlite:
            sa.event.listen(self._engine, "connect", _prepare_sqlite)
            sa.event.listen(self._engine, "begin", _begin_immediate)
        self._bring_up_to_date()

    def _bring_up_to_date(self) -> None:
        for attempt in range(_OPENINGS):
            with self.reading() as connection:
                found = stored_version(connection)
            if found == SCHEMA_VERSION:
                return
            try:
                with self._engine.begin() as connection:
                    migrate(connection)
                return
            except SQLAlchemyError as error:
                # Elsewhere than in SQLite, two first openings may both create a table: one of them fails.
                if self._sqlite or attempt == _OPENINGS - 1:
                    raise _problem(error, self.url) from error
                time.sleep(0.05 * 2**attempt)

    @contextmanager
    def writing(self) -> Iterator[sa.Connection]:
        """A transaction that is the only writing one; it is kept if the block ends without an error."""
        try:
            with self._engine.begin() as connection:
                if not self._sqlite:
                    lock(connection)
                yield connection
        except SQLAlchemyError as error:
            raise _problem(error, self.url) from error

    @contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        """A connection to read with."""
        try:
            # Autocommit: a read needs no transaction, so it never waits for a writer.
            with self._engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
                yield connection
        except SQLAlchemyError as error:
            raise _problem(error, self.url) from error

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()


def _parse(url: str) -> sa.URL:
    try:
        return sa.make_url(url)
    except SQLAlchemyError as error:
        # The text itself may hold a password: it is not repeated.
        raise StoreProblem(
            "The store's URL is not one of SQLAlchemy's.",
            "Write it as `sqlite:////folder/cuteforge.db` or `postgresql+psycopg://user@host/name`.",
        ) from error
