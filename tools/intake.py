"""Files that come in by path: only under allowed roots, bounded in size, UTF-8; and writing back to them."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import ValidationError

from cuteforge.kernels.artifacts import storage_problem
from cuteforge.kernels.candidate import Language
from cuteforge.kernels.errors import InvalidRequest
from cuteforge.kernels.task import MAX_SOURCE_BYTES, Contract, Target

_LANGUAGES: dict[str, Language] = {
    ".py": "python",
    ".cpp": "cpp",
    ".cc": "cpp",
    ".cxx": "cpp",
    ".c": "cpp",
    ".cu": "cuda",
}
_CUTE = re.compile(r"#\s*include\s*[<\"]cu(?:te|tlass)/")


def allowed_path(text: str, roots: Sequence[Path]) -> Path:
    """The real path of an existing file, symlinks resolved, if it lies under an allowed root.

    Raises:
        InvalidRequest: it does not exist, is no regular file, or lies outside the roots.
    """
    if not text or "\0" in text or len(text) > 4096:
        raise InvalidRequest("The path is empty or malformed.", "Give a path under an allowed root.")
    real_roots = _real(roots)
    try:
        path = Path(text).expanduser()
        if not path.is_absolute() and real_roots:
            path = real_roots[0] / path
        real = Path(os.path.realpath(path))
        regular = real.is_file()
    except (OSError, RuntimeError, UnicodeEncodeError) as error:
        raise InvalidRequest(f"'{text[:200]}' is not a usable path.", "Name a file under a root.") from error
    if not _inside(real, real_roots):
        names = ", ".join(str(root) for root in real_roots) or "none"
        raise InvalidRequest(
            f"'{text}' is outside the allowed roots ({names}).",
            "Send the source inline, or start the server with `--root FOLDER`.",
        )
    if not regular:
        raise InvalidRequest(f"'{text}' is not a file.", "Check the path, or send the source inline.")
    return real


def _real(roots: Sequence[Path]) -> list[Path]:
    return [Path(os.path.realpath(root)) for root in roots]


def _inside(path: Path, real_roots: Sequence[Path]) -> bool:
    return any(path.is_relative_to(root) for root in real_roots)


def read_bytes(text: str, roots: Sequence[Path]) -> tuple[Path, bytes]:
    """Real path and bytes of a file under the roots, one byte more than MAX_SOURCE_BYTES at most.

    Raises InvalidRequest as `allowed_path` does, and when the file cannot be read.
    """
    path = allowed_path(text, roots)
    try:
        # A FIFO put there since must not block, nor a link be followed.
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(fd, "rb") as stream:
            # A folder on the way may have become a link since: ask the kernel what was opened.
            if not _inside(Path(os.readlink(f"/proc/self/fd/{fd}")), _real(roots)):
                raise InvalidRequest(f"'{text}' is outside the allowed roots.", "Name a file under a root.")
            return path, stream.read(MAX_SOURCE_BYTES + 1)
    except OSError as error:
        raise InvalidRequest(
            f"'{text}' cannot be read: {error.strerror}.", "Check its permissions."
        ) from error


def read_source(text: str, roots: Sequence[Path]) -> tuple[Path, str]:
    """Real path and content of a source file under the roots.

    Raises:
        InvalidRequest: also when it is larger than MAX_SOURCE_BYTES or not UTF-8.
    """
    path, data = read_bytes(text, roots)
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


def write_back(text: str, roots: Sequence[Path], expected: str, content: str) -> Path:
    """Replace a file atomically if its content is still `expected`.

    Raises:
        InvalidRequest: outside the roots, or the file changed meanwhile.
        StoreProblem: the folder cannot be written, or the disk is full; the file is as it was.
    """
    path, present = read_bytes(text, roots)
    if present != expected.encode("utf-8") and present != b"\xef\xbb\xbf" + expected.encode("utf-8"):
        raise InvalidRequest(
            f"'{text}' differs from the candidate that was patched: it changed meanwhile.",
            "Submit the file again and patch that candidate, or leave out write_back.",
        )
    try:
        mode = path.stat().st_mode
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise storage_problem(error, path.parent) from error
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content.encode("utf-8"))
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(temporary, mode & 0o777)
        os.replace(temporary, path)
    except OSError as error:
        Path(temporary).unlink(missing_ok=True)
        raise storage_problem(error, path) from error
    return path


def validation_text(error: ValidationError) -> str:
    """A pydantic error as one short sentence for a model, without the rejected values."""
    parts: list[str] = []
    for item in error.errors(include_url=False, include_input=False)[:4]:
        where = ".".join(str(p) for p in item["loc"])
        said = item["msg"].removeprefix("Value error, ")
        parts.append(f"{where}: {said}" if where else said)
    left = error.error_count() - len(parts)
    return "; ".join(parts) + (f"; and {left} more" if left > 0 else "")


def detect_contract(source: str) -> Contract:
    """`kernelbench` or `function`, by what the source defines at top level.

    Raises:
        InvalidRequest: it defines neither, or `Model` without `get_inputs`.
    """
    # A pattern, not a parser: deep nesting in a source that nobody trusts can crash Python's own parser, and
    # this process serves everybody. The judge, in its sandbox, reports syntax errors.
    names = set(re.findall(r"^(?:async[ \t]+)?(?:def|class)[ \t]+(\w+)", source, re.MULTILINE))
    names |= set(re.findall(r"^(\w+)[ \t]*(?::[^=\n]+)?=[^=]", source, re.MULTILINE))
    if "Model" in names:
        if "get_inputs" not in names:
            raise InvalidRequest(
                "The reference defines `Model` and no `get_inputs`.",
                "Add `def get_inputs(): return [torch.rand(...)]`, as KernelBench does.",
            )
        return "kernelbench"
    if "reference" in names:
        return "function"
    raise InvalidRequest(
        "The reference defines neither `Model` with `get_inputs` nor a function `reference`.",
        "Write one of the two, in Python.",
    )


def guess_language(files: Mapping[str, str], target: Target) -> Language:
    """A candidate's language by the first suffix that tells, and by whether it includes CuTe.

    Raises InvalidRequest when no suffix tells.
    """
    for path in files:
        language = _LANGUAGES.get(Path(path).suffix.lower())
        if language == "cpp" and target == "cuda":
            language = "cuda"
        if language == "cuda" and any(_CUTE.search(text) for text in files.values()):
            return "cute"
        if language is not None:
            return language
    raise InvalidRequest(
        f"The language cannot be told from the names {', '.join(files)}.",
        "Give `language`: cute, cuda, cpp or python.",
    )
