"""Logs: structlog on stderr, readable at a terminal and JSON lines otherwise.

structlog is imported with the first record, not before: a start that has nothing to say does not pay for it.
"""

from __future__ import annotations

import logging
import sys
from typing import Any

from cuteforge.server.config import LogLevel

_LOGGER = "cuteforge"


class StructuredHandler(logging.Handler):
    """Formats every record of the standard library's logging, the SDK's included, through structlog."""

    def __init__(self) -> None:
        super().__init__()
        self._stream: logging.StreamHandler[Any] | None = None

    def _build(self) -> logging.StreamHandler[Any]:
        import structlog

        shared: list[Any] = [
            structlog.stdlib.add_log_level,
            structlog.stdlib.add_logger_name,
            structlog.stdlib.ExtraAdder(),
            structlog.processors.TimeStamper(fmt="iso", utc=True),
        ]
        if sys.stderr.isatty():
            final: list[Any] = [
                structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
            ]
        else:
            # Without local variables: they hold the users' sources.
            frames = structlog.tracebacks.ExceptionDictTransformer(show_locals=False, max_frames=20)
            final = [structlog.processors.ExceptionRenderer(frames), structlog.processors.JSONRenderer()]
        stream = logging.StreamHandler(sys.stderr)
        stream.setFormatter(
            structlog.stdlib.ProcessorFormatter(
                foreign_pre_chain=shared,
                processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *final],
            )
        )
        return stream

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record."""
        if self._stream is None:
            self._stream = self._build()
        self._stream.emit(record)


def configure(level: LogLevel) -> None:
    """Send all logs to stderr. Call it before the SDK's server is built, which leaves a set-up root alone."""
    root = logging.getLogger()
    root.handlers[:] = [StructuredHandler()]
    root.setLevel(level)
    # One line for each HTTP request or SDK step is noise beside a log of work.
    for name in ("mcp", "httpx", "httpx2", "uvicorn.access"):
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))


def logger() -> logging.Logger:
    """Cuteforge's own logger; pass fields as `extra={…}`."""
    return logging.getLogger(_LOGGER)
