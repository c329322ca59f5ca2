"""Large results by the hash of their content: binaries, logs, reports, exports."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from cuteforge.kernels.errors import InvalidRequest, NotFound, StoreProblem

_FULL = {errno.ENOSPC, errno.EDQUOT}
_CHUNK = 1 << 20


def storage_problem(error: OSError, where: Path) -> StoreProblem:
    """What a failed write means for the user of this machine."""
    if error.errno in _FULL:
        return StoreProblem(
            f"The disk that holds '{where}' is full; nothing stored before is lost.",
            "Free space there, or start the server with another `--home`.",
        )
    return StoreProblem(
        f"'{where}' cannot be used: {error.strerror}.", "Check its permissions, or use another `--home`."
    )


class Artifacts:
    """A folder of immutable blobs, safe for several processes: writes are complete or absent."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def path(self, sha: str) -> Path:
        """Where a blob lies or would lie. Raises InvalidRequest unless `sha` is 64 hex digits."""
        if not isinstance(sha, str) or not re.fullmatch(r"[0-9a-f]{64}", sha):
            raise InvalidRequest(f"{str(sha)[:80]!r} is not the hash of an artefact.", "Use 64 hex digits.")
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
        self._keep(sha, len(data), (data,))
        return sha

    def put_file(self, source: Path) -> str:
        """Store a copy of a file, of any size, and return its SHA-256.

        Raises:
            StoreProblem: as `put`; or the file cannot be read, or changed while it was read.
        """
        try:
            with source.open("rb") as stream:
                sha = hashlib.file_digest(stream, "sha256").hexdigest()
                size = stream.tell()
                stream.seek(0)
                self._keep(sha, size, _chunks(stream))
        except OSError as error:
            raise storage_problem(error, source) from error
        return sha

    def _keep(self, sha: str, size: int, chunks: Iterable[bytes]) -> None:
        place = self.path(sha)
        try:
            try:
                if place.stat().st_size == size and _is_sound(place, sha):
                    return
            except FileNotFoundError:
                place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            handle, temporary = tempfile.mkstemp(dir=place.parent, prefix=".tmp-")
            try:
                written = hashlib.sha256()
                with os.fdopen(handle, "wb") as stream:
                    for chunk in chunks:
                        stream.write(chunk)
                        written.update(chunk)
                    stream.flush()
                    os.fsync(stream.fileno())
                if written.hexdigest() != sha:
                    raise StoreProblem("A file changed while it was stored.", "Store it again.")
                os.replace(temporary, place)
            except BaseException:
                Path(temporary).unlink(missing_ok=True)
                raise
        except OSError as error:
            raise storage_problem(error, self.root) from error

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
            try:
                place.unlink(missing_ok=True)
            except OSError as error:
                raise storage_problem(error, place) from error
            raise StoreProblem(
                f"Artefact {sha[:12]}… was damaged on disk and has been removed.",
                "Compile the candidate again.",
            )
        return data


def _is_sound(place: Path, sha: str) -> bool:
    with place.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest() == sha


def _chunks(stream: BinaryIO) -> Iterator[bytes]:
    while chunk := stream.read(_CHUNK):
        yield chunk
