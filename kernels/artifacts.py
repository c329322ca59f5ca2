"""Large results by the hash of their content: binaries, logs, reports, exports."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import tempfile
from pathlib import Path

from cuteforge.kernels.errors import InvalidRequest, NotFound, StoreProblem

_FULL = {errno.ENOSPC, errno.EDQUOT}


def storage_problem(error: OSError, where: Path) -> StoreProblem:
    """What a failed write means for the user of this machine."""
    if error.errno in _FULL:
        return StoreProblem(
            f"The disk that holds '{where}' is full; nothing stored before is lost.",
            "Free space there, or start the server with another `--home`.",
        )
    return StoreProblem(
        f"'{where}' cannot be written: {error.strerror}.", "Check its permissions, or use another `--home`."
    )


class Artifacts:
    """A folder of immutable blobs, safe for several processes: writes are complete or absent."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def path(self, sha: str) -> Path:
        """Where a blob lies or would lie. Raises InvalidRequest unless `sha` is 64 hex digits."""
        if not re.fullmatch(r"[0-9a-f]{64}", sha):
            raise InvalidRequest(f"'{sha[:80]}' is not the hash of an artefact.", "Use 64 hex digits.")
        return self.root / sha[:2] / sha

    def exists(self, sha: str) -> bool:
        """Whether the blob is there."""
        return self.path(sha).is_file()

    def put(self, data: bytes) -> str:
        """Store bytes and return their SHA-256; storing the same bytes again costs no space.

        Raises:
            StoreProblem: the disk is full or cannot be written.
        """
        sha = hashlib.sha256(data).hexdigest()
        place = self.path(sha)
        if place.is_file() and place.stat().st_size == len(data):
            return sha
        try:
            place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            handle, temporary = tempfile.mkstemp(dir=place.parent, prefix=".tmp-")
            try:
                with os.fdopen(handle, "wb") as stream:
                    stream.write(data)
                    stream.flush()
                    os.fsync(stream.fileno())
                os.replace(temporary, place)
            except BaseException:
                Path(temporary).unlink(missing_ok=True)
                raise
        except OSError as error:
            raise storage_problem(error, self.root) from error
        return sha

    def get(self, sha: str) -> bytes:
        """The bytes of a hash.

        Raises:
            NotFound: there is no such blob.
            StoreProblem: it is damaged; the damaged file is removed, so that it can be made again.
        """
        place = self.path(sha)
        try:
            data = place.read_bytes()
        except FileNotFoundError as error:
            raise NotFound(f"Artefact {sha[:12]}… is not stored.", "Compile the candidate again.") from error
        except OSError as error:
            raise storage_problem(error, place) from error
        if hashlib.sha256(data).hexdigest() != sha:
            place.unlink(missing_ok=True)
            raise StoreProblem(
                f"Artefact {sha[:12]}… was damaged on disk and has been removed.",
                "Compile the candidate again.",
            )
        return data
