"""The connection below the store: how it is opened, and what its failures mean for the user."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import (
    ArgumentError,
    DBAPIError,
    IntegrityError,
    NoSuchModuleError,
    OperationalError,
    ProgrammingError,
)
from sqlalchemy.exc import TimeoutError as PoolTimeout

from cuteforge.kernels import schema
from cuteforge.kernels.artifacts import storage_problem
from cuteforge.kernels.errors import StoreProblem

T = TypeVar("T")

BUSY_S = 10.0
"""How long a writer waits for another process before it gives up."""

_ATTEMPTS = 5


def _sqlite_problem(error: sqlite3.Error, where: str) -> StoreProblem:
    # Extended codes keep the primary one in their low byte (sqlite.org/rescode.html).
    code = (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF
    if code == sqlite3.SQLITE_FULL:
        return StoreProblem(
            f"The disk that holds '{where}' is full; nothing stored before is lost.",
            "Free space there, or start the server with another `--home`.",
        )
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH):
        return StoreProblem(
            f"The store '{where}' cannot be written: {error}.",
            "Check the permissions of the file and its folder, or use another `--home`.",
        )
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return StoreProblem(
            f"Another process has held the store '{where}' for more than {BUSY_S:.0f} s.",
            "Try again; if it stays so, end the program that has the file open.",
        )
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return StoreProblem(
            f"The store '{where}' is damaged or no SQLite database: {error}.",
            "Move the file away to begin a new store, or put a backup in its place.",
        )
    if code == sqlite3.SQLITE_IOERR:
        return StoreProblem(
            f"The store '{where}' cannot be read or written: {error}.",
            "Check free space and the disk's health, or use another `--home`.",
        )
    return StoreProblem(f"The store '{where}' failed: {error}.", "Move it away to begin a new store.")


def explain(error: DBAPIError, where: str) -> StoreProblem:
    """What a failure of the database means, with its remedy."""
    if isinstance(error.orig, sqlite3.Error):
        return _sqlite_problem(error.orig, where)
    return StoreProblem(
        f"The store '{where}' failed: {error.orig}.", "Check that the database runs and can be reached."
    )


class Database:
    """An engine with its transactions; safe for several threads and, on a file, several processes."""

    def __init__(self, url: str | Path) -> None:
        self._url = _url(url)
        self.where = self._url.render_as_string(hide_password=True)
        self._sqlite = self._url.get_backend_name() == "sqlite"
        if self._sqlite:
            self.where = self._url.database or ""
            folder = Path(self.where).parent
            try:
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            except OSError as error:
                raise storage_problem(error, folder) from error
        self.engine = self._engine()
        try:
            if self._sqlite:
                self._use_wal()
            self._migrate()
        except BaseException:
            self.engine.dispose()
            raise

    def _engine(self) -> Engine:
        try:
            # No cap on connections: threads are the caller's to limit.
            engine = create_engine(self._url, max_overflow=-1, pool_pre_ping=not self._sqlite)
        except (NoSuchModuleError, ImportError) as error:
            raise StoreProblem(
                f"The store '{self.where}' needs a database driver that is not installed: {error}.",
                "Install it beside Cuteforge, or use a SQLite file.",
            ) from error
        if self._sqlite:
            event.listen(engine, "connect", _configure)
            event.listen(engine, "begin", _begin)
        return engine

    def _use_wal(self) -> None:
        # SQLite does not wait for other processes while it changes this mode, so this waits itself.
        deadline = time.monotonic() + BUSY_S
        while True:
            try:
                with self.engine.connect() as connection:
                    raw = connection.connection.driver_connection
                    assert isinstance(raw, sqlite3.Connection)
                    raw.execute("PRAGMA journal_mode=WAL")
                    return
            except sqlite3.OperationalError as error:
                busy = error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY
                if not busy or time.monotonic() > deadline:
                    raise _sqlite_problem(error, self.where) from error
                time.sleep(0.02)
            except sqlite3.Error as error:
                raise _sqlite_problem(error, self.where) from error
            except DBAPIError as error:
                raise explain(error, self.where) from error

    def _migrate(self) -> None:
        for attempt in range(_ATTEMPTS):
            try:
                with self.engine.execution_options(write=True).begin() as connection:
                    schema.migrate(connection, self.where)
                return
            except (IntegrityError, OperationalError, ProgrammingError) as error:
                # Servers other than SQLite let two processes create the tables at once: one is refused.
                if self._sqlite or attempt == _ATTEMPTS - 1:
                    raise explain(error, self.where) from error
                time.sleep(0.1)
            except DBAPIError as error:
                raise explain(error, self.where) from error

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """One consistent view. Raises StoreProblem."""
        with self._translated(), self.engine.begin() as connection:
            yield connection

    def write(self, work: Callable[[Connection], T]) -> T:
        """Run `work` in one transaction, again if another process won a race for the same key.

        Raises StoreProblem.
        """
        writer = self.engine.execution_options(write=True)
        with self._translated():
            for _ in range(_ATTEMPTS - 1):
                try:
                    with writer.begin() as connection:
                        return work(connection)
                except IntegrityError:
                    continue
            with writer.begin() as connection:
                return work(connection)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except DBAPIError as error:
            raise explain(error, self.where) from error
        except PoolTimeout as error:
            raise StoreProblem(f"The store '{self.where}' does not answer.", "Try again.") from error

    def close(self) -> None:
        """Close the connections that are not in use."""
        self.engine.dispose()


def _url(given: str | Path) -> URL:
    if isinstance(given, Path) or "://" not in given:
        return URL.create("sqlite", database=str(Path(given).expanduser().absolute()))
    try:
        url = make_url(given)
    except (ArgumentError, ValueError) as error:
        raise StoreProblem("The store's URL cannot be read.", "Write it as `sqlite:////path/file`.") from error
    if url.get_backend_name() != "sqlite":
        return url
    if not url.database or url.database == ":memory:" or url.database.startswith("file:"):
        raise StoreProblem(
            "A store in memory cannot be shared by threads and processes.", "Give the path of a file."
        )
    return url.set(database=str(Path(url.database).absolute()))


def _configure(connection: Any, _: object) -> None:
    # The driver's own transactions begin late and deferred; `_begin` does it instead.
    connection.isolation_level = None
    for pragma in (f"busy_timeout={BUSY_S * 1000:.0f}", "synchronous=NORMAL", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {pragma}")


def _begin(connection: Connection) -> None:
    # A reader that turns into a writer can fail at once where a writer from the start would wait.
    write = connection.get_execution_options().get("write", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")
