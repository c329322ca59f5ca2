"""Files that come in by path: only under allowed roots, bounded in size, UTF-8; and writing back to them."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from cuteforge.kernels.errors import InvalidRequest
from cuteforge.kernels.task import MAX_SOURCE_BYTES


def allowed_path(text: str, roots: Sequence[Path]) -> Path:
    """The real path of an existing file, symlinks resolved, if it lies under an allowed root.

    Raises:
        InvalidRequest: it does not exist, is no regular file, or lies outside the roots.
    """
    if not text or "\0" in text or len(text) > 4096:
        raise InvalidRequest("The path is empty or malformed.", "Give a path under an allowed root.")
    real_roots = [Path(os.path.realpath(root)) for root in roots]
    path = Path(text).expanduser()
    if not path.is_absolute() and real_roots:
        path = real_roots[0] / path
    real = Path(os.path.realpath(path))
    if not any(real.is_relative_to(root) for root in real_roots):
        names = ", ".join(str(root) for root in real_roots) or "none"
        raise InvalidRequest(
            f"'{text}' is outside the allowed roots ({names}).",
            "Send the source inline, or start the server with `--root FOLDER`.",
        )
    if not real.is_file():
        raise InvalidRequest(f"'{text}' is not a file.", "Check the path, or send the source inline.")
    return real


def read_source(text: str, roots: Sequence[Path]) -> tuple[Path, str]:
    """Real path and content of a source file under the roots.

    Raises:
        InvalidRequest: also when it is larger than MAX_SOURCE_BYTES or not UTF-8.
    """
    path = allowed_path(text, roots)
    try:
        # One byte more than allowed tells "too large" without reading a whole disk image.
        with path.open("rb") as stream:
            data = stream.read(MAX_SOURCE_BYTES + 1)
    except OSError as error:
        raise InvalidRequest(f"'{text}' cannot be read: {error.strerror}.", "Check its permissions.") from error
    return path, decode_source(data, text)


def decode_source(data: bytes, name: str) -> str:
    """Source bytes as text. Raises InvalidRequest when too large, binary or not UTF-8."""
    if len(data) > MAX_SOURCE_BYTES:
        raise InvalidRequest(
            f"'{name}' is larger than {MAX_SOURCE_BYTES // 1000} kB.", "Send only the kernel's own sources."
        )
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidRequest(
            f"'{name}' is not UTF-8 (byte {error.start}).", "Save it as UTF-8 and send it again."
        ) from error
    if "\0" in text:
        raise InvalidRequest(f"'{name}' holds NUL bytes: it is not source text.", "Send a text file.")
    return text


def digest(path: Path) -> str:
    """SHA-256 of a file's content."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def write_back(text: str, roots: Sequence[Path], expected: str, content: str) -> Path:
    """Replace a file atomically if its content is still `expected`.

    Raises:
        InvalidRequest: outside the roots, or the file changed meanwhile.
    """
    path = allowed_path(text, roots)
    present = path.read_bytes()
    if present != expected.encode("utf-8") and present != b"\xef\xbb\xbf" + expected.encode("utf-8"):
        raise InvalidRequest(
            f"'{text}' differs from the candidate that was patched: it changed meanwhile.",
            "Submit the file again and patch that candidate, or leave out write_back.",
        )
    mode = path.stat().st_mode
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content.encode("utf-8"))
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(temporary, mode & 0o777)
        os.replace(temporary, path)
    except OSError as error:
        Path(temporary).unlink(missing_ok=True)
        raise InvalidRequest(
            f"'{text}' could not be written: {error.strerror}.", "Check permissions and free space."
        ) from error
    return path


def validation_text(error: ValidationError) -> str:
    """A pydantic error as one short sentence for a model, without the rejected values."""
    parts: list[str] = []
    for item in error.errors(include_url=False, include_input=False)[:4]:
        where = ".".join(str(p) for p in item["loc"]) or "request"
        parts.append(f"{where}: {item['msg']}")
    left = error.error_count() - len(parts)
    return "; ".join(parts) + (f"; and {left} more" if left > 0 else "")
