"""The exceptions a caller of Cuteforge can meet, each with the remedy for it."""

from __future__ import annotations


class CuteforgeError(Exception):
    """Base of all anticipated failures.

    `str(error)` is one sentence naming the cause; `remedy` says what to do about it. Anything else that
    escapes Cuteforge is a fault of Cuteforge and is logged as one.
    """

    def __init__(self, cause: str, remedy: str = "") -> None:
        super().__init__(cause)
        self.cause = cause
        self.remedy = remedy

    def explain(self) -> str:
        """Cause and remedy as one text for a model or a person."""
        return f"{self.cause} {self.remedy}".strip()


class InvalidRequest(CuteforgeError):
    """The request itself is wrong: a bad id, an empty source, a path outside the roots."""


class NotFound(InvalidRequest):
    """No object of that id is stored."""


class PatchRefused(InvalidRequest):
    """A patch does not apply at exactly one place; `cause` holds the current text around the best match."""


class EnvironmentProblem(CuteforgeError):
    """The machine lacks something that only its user can mend: a GPU, a compiler, a newer driver."""


class StoreProblem(EnvironmentProblem):
    """The store cannot be read or written: a full disk, a schema newer than this version."""


class WorkerDied(CuteforgeError):
    """A process of Cuteforge's own (compile worker, judge) ended before it answered. Worth one retry."""


class DeadlineExceeded(CuteforgeError):
    """Work was stopped at its deadline; its processes are ended."""
