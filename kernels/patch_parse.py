"""Patches as text: unified diffs and SEARCH/REPLACE blocks, read into changes. Lines end at \\n only."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, field
from typing import Literal

from cuteforge.kernels.candidate import check_relative_path
from cuteforge.kernels.errors import PatchRefused

_HUNK = re.compile(r"^@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@")
_MODE = re.compile(r"^(?:new file mode (?!100644$)|deleted file mode 1[26]0000|index \S+ 1[26]0000)")
_VERSION = re.compile(r"^\d+\.\d+")
_PREFIXES = {("a", "b"), ("i", "w"), ("c", "i"), ("c", "w"), ("o", "w")}
_REFUSED_HEADERS = {
    "rename from": "renames files",
    "rename to": "renames files",
    "copy from": "copies files",
    "copy to": "copies files",
    "old mode": "changes file modes",
    "new mode": "changes file modes",
    "GIT binary patch": "is binary",
    "Binary files": "is binary",
    "*** Begin Patch": "is in the `*** Begin Patch` notation",
}
_DIFFED_LINES = 200


@dataclass
class Change:
    """Replace one run of lines by another. Lines are without their ends.

    `kept` pairs the lines that stay: index in `before`, index in `after`. `at` is the number of lines before
    a pure insertion of a diff (`before` empty), the only thing that says where it goes. `ends` is False where
    the diff marks the new text as having no newline at the end of the file, True where it marks only the old
    text so, None where it says nothing.
    """

    before: list[str]
    after: list[str]
    kept: list[tuple[int, int]] = field(default_factory=list)
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
    if "\r" not in text:
        return lines
    return [line[:-1] if line.endswith("\r") else line for line in lines]


def common_lines(before: list[str], after: list[str]) -> list[tuple[int, int]]:
    """Pairs of indices of the lines that both have, in order.

    Equal lines at both ends are always found; between them only up to 200 lines are compared, so that a
    large replacement takes no quadratic time.
    """
    low, limit = 0, min(len(before), len(after))
    while low < limit and before[low] == after[low]:
        low += 1
    high = 0
    while high < limit - low and before[-1 - high] == after[-1 - high]:
        high += 1
    pairs = [(i, i) for i in range(low)]
    old, new = before[low : len(before) - high], after[low : len(after) - high]
    if len(old) <= _DIFFED_LINES and len(new) <= _DIFFED_LINES:
        matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
        for block in matcher.get_matching_blocks():
            pairs += [(low + block.a + i, low + block.b + i) for i in range(block.size)]
    return pairs + [(len(before) - i, len(after) - i) for i in range(high, 0, -1)]


def checked_path(path: str) -> str:
    """A path of a patch that may be used. Raises PatchRefused for any that leaves the candidate."""
    try:
        return check_relative_path(path)
    except ValueError as error:
        raise PatchRefused(
            f"The patch names a path that may not be used: {error}.", "Name the file itself."
        ) from error


def refuse_header(line: str) -> None:
    """Raise PatchRefused for a header of a diff that asks for what is never done."""
    if _MODE.match(line):
        raise PatchRefused(
            f"The patch makes something else than a plain file ('{line[:80]}').", "Send only text."
        )
    for start, what in _REFUSED_HEADERS.items():
        if line.startswith(start):
            raise PatchRefused(
                f"The patch {what} ('{line[:80]}').",
                "Send changes of text, as a unified diff or SEARCH/REPLACE blocks.",
            )


def _is_header(lines: list[str], index: int) -> bool:
    following = lines[index + 1] if index + 1 < len(lines) else ""
    return lines[index].startswith("--- ") and following.startswith("+++ ")


def parse_unified(lines: list[str]) -> list[FileChange]:
    """A unified diff, with or without git's headers, in Markdown fences or with prose around it.

    Raises:
        PatchRefused: a part of it would be left out, or it asks for what is never done.
    """
    found: list[FileChange] = []
    unnamed: str | None = None
    fenced = False
    index = 0
    while index < len(lines):
        line = lines[index]
        waiting = bool(found) and not found[-1].changes
        if line.startswith("@@"):
            if unnamed is not None:
                raise PatchRefused(
                    f"'{unnamed[:80]}' has a hunk and no `---` and `+++` lines.", "Name the file in them."
                )
            if not found:
                found.append(FileChange(None))
            change, index = _parse_hunk(lines, index, fenced)
            found[-1].changes.append(change)
            continue
        if _is_header(lines, index):
            if waiting:
                raise _no_hunks(found[-1].path)
            found.append(_file_of(line, lines[index + 1]))
            unnamed = None
            index += 2
            continue
        refuse_header(line)
        if line.startswith("diff --git "):
            if unnamed is not None:
                raise _no_hunks(unnamed)
            unnamed = line
        elif line.startswith("```"):
            fenced = not fenced
        elif waiting and line.startswith(("+", "-")):
            raise PatchRefused(
                f"A change stands before its `@@` line: '{line[:80]}'.", "Start a hunk with `@@`."
            )
        elif (
            line.startswith(("--- ", "+++ "))
            and lines[index + 1 : index + 2]
            and lines[index + 1][:2] == "@@"
        ):
            raise PatchRefused(f"'{line[:80]}' stands alone.", "Name the file in a `---` and a `+++` line.")
        index += 1
    if unnamed is not None:
        raise _no_hunks(unnamed)
    if not found or not found[-1].changes:
        raise _no_hunks(found[-1].path if found else None)
    return found


def _no_hunks(what: str | None) -> PatchRefused:
    where = f" for '{what[:80]}'" if what else ""
    return PatchRefused(f"The patch has no hunks{where}.", "Send at least one `@@` hunk for each file.")


def _file_of(old_line: str, new_line: str) -> FileChange:
    old, new = (line[4:].split("\t")[0].strip() for line in (old_line, new_line))
    if old == new == "/dev/null":
        raise PatchRefused("The patch names no file.", "Name the file after `+++`.")
    if old == "/dev/null":
        return FileChange(checked_path(re.sub(r"^[ab]/", "", new)), "create")
    if new == "/dev/null":
        return FileChange(checked_path(re.sub(r"^[ab]/", "", old)), "delete")
    if (old[:1], new[:1]) in _PREFIXES and old[1:2] == new[1:2] == "/":
        old, new = old[2:], new[2:]
    checked_path(old)
    checked_path(new)
    if old != new:
        raise PatchRefused(
            f"The patch renames '{old[:80]}' to '{new[:80]}'.", "Change files under their own names."
        )
    return FileChange(new)


def _hunk_ends(lines: list[str], index: int, fenced: bool) -> bool:
    line = lines[index]
    if line.startswith(("@@", "diff --git ", "index ")) or (fenced and line.startswith("```")):
        return True
    if line.rstrip() == "--" and len(lines) - index <= 4:
        # The signature of `git format-patch`: two dashes and git's version.
        return index + 1 < len(lines) and bool(_VERSION.match(lines[index + 1]))
    return _is_header(lines, index) and index + 2 < len(lines) and lines[index + 2].startswith("@@")


def _parse_hunk(lines: list[str], index: int, fenced: bool) -> tuple[Change, int]:
    """One hunk. Its body decides, never its counts: models miscount."""
    if lines[index].startswith("@@@"):
        raise PatchRefused("The patch is a combined diff (`@@@`).", "Send a diff against the current text.")
    header = _HUNK.match(lines[index])
    index += 1
    change = Change([], [])
    last = " "
    blanks = 0
    unended = ""
    while index < len(lines) and not _hunk_ends(lines, index, fenced):
        line = lines[index]
        if line == "":
            # A blank context line that lost its leading space, unless it ends the hunk.
            blanks += 1
        elif line[0] in " -+":
            for _ in range(blanks):
                _add(change, " ", "")
            blanks = 0
            last = line[0]
            _add(change, last, line[1:])
        elif line[0] == "\\":
            unended += last
        else:
            raise PatchRefused(
                f"A line of a hunk starts with neither ' ', '-' nor '+': '{line[:80]}'.",
                "Give every line of a hunk its marker.",
            )
        index += 1
    was_unended, is_unended = (bool({" ", mark} & set(unended)) for mark in "-+")
    if unended:
        change.ends = not is_unended
    if change.before == change.after and was_unended == is_unended:
        raise PatchRefused("A hunk changes nothing.", "Send only hunks with `-` or `+` lines that differ.")
    # `@@ -N,0` inserts after line N. Without context, any other count shows that context was forgotten.
    if header and header[2] is not None and int(header[2]) == 0 and not change.before:
        change.at = int(header[1])
    return change, index


def _add(change: Change, mark: str, text: str) -> None:
    if mark == " ":
        change.kept.append((len(change.before), len(change.after)))
    if mark != "+":
        change.before.append(text)
    if mark != "-":
        change.after.append(text)
