"""Patches as text: unified diffs and SEARCH/REPLACE blocks, read into changes. Lines end at \\n only."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

from cuteforge.kernels.candidate import check_relative_path
from cuteforge.kernels.errors import PatchRefused

_HUNK = re.compile(r"^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
_SEARCH = re.compile(r"^<{5,9} ?SEARCH\s*$")
_MIDDLE = re.compile(r"^={5,9}\s*$")
_REPLACE = re.compile(r"^>{5,9} ?REPLACE\s*$")
_REFUSED_HEADERS = {
    "rename from": "renames files",
    "rename to": "renames files",
    "copy from": "copies files",
    "old mode": "changes file modes",
    "new mode": "changes file modes",
    "GIT binary patch": "is binary",
    "Binary files": "is binary",
}


@dataclass
class Change:
    """Replace one run of lines by another. Lines are without their ends.

    `at` is the 0-based line where a diff claims it; `before` may be empty (pure insertion), and then `at`
    is the only thing that says where. `ends` is False where the diff marks the new text as having no
    newline at the end of the file, None where it says nothing.
    """

    before: list[str]
    after: list[str]
    at: int | None = None
    ends: bool | None = None


@dataclass
class FileChange:
    """All changes to one file; `path` is None where the patch names none."""

    path: str | None
    kind: Literal["modify", "create", "delete"] = "modify"
    changes: list[Change] = field(default_factory=list)


def split_lines(text: str) -> list[str]:
    """Lines without their ends; a final newline makes no extra line."""
    lines = text.split("\n")
    if lines and lines[-1] == "":
        lines.pop()
    return [line[:-1] if line.endswith("\r") else line for line in lines]


def parse(patch: str) -> list[FileChange]:
    """A patch in either notation.

    Raises:
        PatchRefused: it is in neither, or asks for what is never done (renames, modes, binary).
    """
    lines = _without_fence(split_lines(patch))
    if any(_SEARCH.match(line) for line in lines):
        return _parse_blocks(lines)
    if any(_HUNK.match(line) or line.startswith("@@") for line in lines):
        return _parse_unified(lines)
    for line in lines:
        _refuse_header(line)
    raise PatchRefused(
        "The patch is neither a unified diff (`@@` hunks) nor SEARCH/REPLACE blocks.",
        "Send one of the two, or `edits` by line number.",
    )


def _without_fence(lines: list[str]) -> list[str]:
    fences = [i for i, line in enumerate(lines) if line.startswith("```")]
    if len(fences) == 2 and not any(line.strip() for line in lines[: fences[0]] + lines[fences[1] + 1 :]):
        return lines[fences[0] + 1 : fences[1]]
    return lines


def _refuse_header(line: str) -> None:
    for start, what in _REFUSED_HEADERS.items():
        if line.startswith(start):
            raise PatchRefused(f"The patch {what} ('{line[:80]}').", "Send only changes of text.")


def checked_path(path: str) -> str:
    """A path of a patch that may be used. Raises PatchRefused for any that leaves the candidate."""
    try:
        return check_relative_path(path)
    except ValueError as error:
        raise PatchRefused(f"The patch names a path that may not be used: {error}.", "Name the file itself.") from error


def _diff_path(line: str) -> str | None:
    path = line[4:].split("\t")[0].strip()
    if path == "/dev/null":
        return None
    return re.sub(r"^[ab]/", "", path)


def _parse_unified(lines: list[str]) -> list[FileChange]:
    found: list[FileChange] = []
    index = 0
    while index < len(lines):
        line = lines[index]
        if not line.startswith("@@"):
            _refuse_header(line)
        is_header = line.startswith("--- ") and index + 1 < len(lines) and lines[index + 1].startswith("+++ ")
        if is_header:
            found.append(_file_of(_diff_path(line), _diff_path(lines[index + 1])))
            index += 2
        elif line.startswith("@@"):
            if not found:
                found.append(FileChange(None))
            change, index = _parse_hunk(lines, index)
            found[-1].changes.append(change)
        else:
            index += 1
    if not any(f.changes for f in found):
        raise PatchRefused("The patch has no hunks.", "Send at least one `@@` hunk.")
    return [f for f in found if f.changes]


def _file_of(old: str | None, new: str | None) -> FileChange:
    if old is None and new is None:
        raise PatchRefused("The patch names no file.", "Name the file after `+++`.")
    if old is not None and new is not None and old != new:
        raise PatchRefused(
            f"The patch renames '{old[:80]}' to '{new[:80]}'.", "Change files under their own names."
        )
    kind: Literal["modify", "create", "delete"] = "create" if old is None else "delete" if new is None else "modify"
    return FileChange(checked_path(new if new is not None else old or ""), kind)


def _starts_next(lines: list[str], index: int) -> bool:
    line = lines[index]
    if line.startswith(("@@", "diff --git ", "index ")):
        return True
    following = lines[index + 1] if index + 1 < len(lines) else ""
    return line.startswith("--- ") and following.startswith("+++ ")


def _parse_hunk(lines: list[str], index: int) -> tuple[Change, int]:
    """One hunk. Its body decides, never its counts: models miscount."""
    header = _HUNK.match(lines[index])
    claimed = int(header[1]) if header else None
    old_count = int(header[2]) if header and header[2] is not None else 1
    index += 1
    change = Change([], [])
    last = " "
    blanks = 0
    while index < len(lines) and not _starts_next(lines, index):
        line = lines[index]
        if line == "":
            # A blank context line that lost its leading space, unless it ends the hunk.
            blanks += 1
        elif line[0] in " -+":
            change.before += [""] * blanks
            change.after += [""] * blanks
            blanks = 0
            last = line[0]
            if line[0] != "+":
                change.before.append(line[1:])
            if line[0] != "-":
                change.after.append(line[1:])
        elif line.startswith("\\"):
            if last != "-":
                change.ends = False
            elif change.ends is None:
                change.ends = True
        else:
            raise PatchRefused(
                f"A line of a hunk starts with neither ' ', '-' nor '+': '{line[:80]}'.",
                "Give every line of a hunk its marker.",
            )
        index += 1
    if change.before == change.after and change.ends is None:
        raise PatchRefused("A hunk changes nothing.", "Send only hunks with `-` or `+` lines.")
    if claimed is not None:
        # `@@ -N,0` inserts after line N.
        change.at = claimed if not change.before and old_count == 0 else max(claimed - 1, 0)
    return change, index


def _parse_blocks(lines: list[str]) -> list[FileChange]:
    found: list[FileChange] = []
    index, name = 0, None
    while index < len(lines):
        line = lines[index]
        if not _SEARCH.match(line):
            stripped = line.strip().strip("`*").strip()
            looks_like_path = re.fullmatch(r"[\w./+-]+\.\w+:?", stripped)
            if looks_like_path:
                name = checked_path(stripped.rstrip(":"))
            index += 1
            continue
        middle = next((i for i in range(index + 1, len(lines)) if _MIDDLE.match(lines[i])), None)
        end = None
        if middle is not None:
            end = next((i for i in range(middle + 1, len(lines)) if _REPLACE.match(lines[i])), None)
        if middle is None or end is None:
            raise PatchRefused(
                "A SEARCH block is not closed.", "Write `<<<<<<< SEARCH`, `=======` and `>>>>>>> REPLACE`."
            )
        change = Change(lines[index + 1 : middle], lines[middle + 1 : end])
        if change.before == change.after:
            raise PatchRefused("A SEARCH/REPLACE block changes nothing.", "Make the two parts differ.")
        if found and found[-1].path == name:
            found[-1].changes.append(change)
        else:
            found.append(FileChange(name, changes=[change]))
        index = end + 1
    return found
