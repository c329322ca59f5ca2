"""Apply a patch to a candidate's files: text in, text out, all of it or nothing.

Three notations: unified diff, SEARCH/REPLACE blocks, and numbered line edits. The first two are found by
their text, so wrong line numbers and counts do no harm; line edits refer to the text before the patch.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

from pydantic import Field, field_validator, model_validator

from cuteforge.kernels.errors import PatchRefused
from cuteforge.kernels.model import Frozen
from cuteforge.kernels.patch_blocks import parse
from cuteforge.kernels.patch_indent import Indentation
from cuteforge.kernels.patch_match import How, Place, Text, shown
from cuteforge.kernels.patch_parse import Change, FileChange, checked_path, split_lines

MAX_PATCH_CHARS = 2_000_000
MAX_FUZZY = 20
"""Changes of one patch that may be placed by likeness: bounds the time, and more show a stale text."""


class LineEdit(Frozen):
    """One edit by 1-based line numbers of the text before the patch.

    `replace` and `delete` take `start_line` to `end_line` (default: that line alone), `insert` puts `text`
    before `start_line`; one past the last line appends. One newline at the end of `text` only ends its last
    line. `file` may be left out where there is only one.
    """

    op: Literal["replace", "insert", "delete"]
    start_line: int
    end_line: int | None = None
    text: str = ""
    file: str | None = None

    @field_validator("start_line", "end_line", mode="before")
    @classmethod
    def _number(cls, value: object) -> object:
        if isinstance(value, bool):
            raise ValueError("a line number is an integer")
        return value


class PatchRequest(Frozen):
    """A patch in exactly one form."""

    patch: str | None = Field(default=None, max_length=MAX_PATCH_CHARS)
    edits: tuple[LineEdit, ...] = ()

    @model_validator(mode="after")
    def _one_form(self) -> PatchRequest:
        if (self.patch is None) == (not self.edits):
            raise ValueError("give either `patch` or `edits`")
        return self


class FileStat(NamedTuple):
    """Lines added to and removed from one file."""

    path: str
    added: int
    removed: int


class Match(NamedTuple):
    """Where one change was applied: 1-based line of the text before the patch."""

    path: str
    line: int
    how: How
    similarity: float


class PatchResult(NamedTuple):
    """The new files, all of them, and what was done."""

    files: dict[str, str]
    stats: tuple[FileStat, ...]
    matches: tuple[Match, ...]


class _Edit(NamedTuple):
    """Replace lines [start, end) by `lines`; `order` keeps insertions at one place in sequence."""

    start: int
    end: int
    lines: list[str]
    order: int
    ends: bool | None = None


def apply_patch(files: Mapping[str, str], request: PatchRequest) -> PatchResult:
    """The files after a patch.

    Raises:
        PatchRefused: it does not fit at exactly one place, overlaps itself, changes nothing, or asks for
            what is never done; nothing is applied then.
    """
    if request.patch is not None:
        changes = parse(request.patch)
        if not changes:
            raise PatchRefused("The patch is empty.", "Send at least one change.")
        result, matches = _apply_changes(files, changes)
    else:
        result, matches = _apply_line_edits(files, request.edits)
    stats = tuple(
        FileStat(path, *_counted(files.get(path, ""), result.get(path, "")))
        for path in sorted(set(files) | set(result))
        if files.get(path) != result.get(path)
    )
    if not stats:
        raise PatchRefused("The patch changes nothing.", "Its new text is what the files hold already.")
    if not result:
        raise PatchRefused("The patch deletes the last file.", "Keep at least one file.")
    return PatchResult(result, stats, tuple(matches))


def _file_for(files: Mapping[str, str], path: str | None, by_content: bool) -> str:
    listed = ", ".join(sorted(files))
    if path is None:
        if len(files) == 1:
            return next(iter(files))
        raise PatchRefused("The patch names no file, and there are several.", f"Name one of: {listed}.")
    if path in files:
        return path
    # Diffs are often made in a folder above or below the candidate's; their content proves the file.
    found = [known for known in files if known.endswith(f"/{path}") or path.endswith(f"/{known}")]
    if by_content and len(found) == 1:
        return found[0]
    raise PatchRefused(f"There is no file '{path[:80]}'.", f"The candidate's files: {listed}.")


def _apply_changes(
    files: Mapping[str, str], changes: Sequence[FileChange]
) -> tuple[dict[str, str], list[Match]]:
    result = dict(files)
    matches: list[Match] = []
    texts: dict[str, Text] = {}
    edits: dict[str, list[_Edit]] = {}
    fuzzy = 0
    for change in changes:
        if _creates(files, change):
            _create(result, change)
            continue
        path = _file_for(files, change.path, by_content=True)
        if path not in result:
            raise PatchRefused(f"The patch deletes {path} and changes it.", "Do one of the two.")
        text = texts.setdefault(path, Text(path, split_lines(files[path])))
        placed = edits.setdefault(path, [])
        for one in change.changes:
            place = _place(text, one)
            matches.append(Match(path, place.line + 1, place.how, place.similarity))
            fuzzy += place.how == "fuzzy"
            if fuzzy > MAX_FUZZY:
                raise PatchRefused(
                    f"More than {MAX_FUZZY} changes have a context that is not the text of the files.",
                    "Make the patch from the current text.",
                )
            placed.append(_edit(text.lines, one, place, len(placed)))
        if change.kind == "delete":
            left = _rebuilt(path, files[path], placed)
            if left.strip():
                raise PatchRefused(
                    f"The patch deletes {path} and leaves text in it.", "Remove all of its lines, or none."
                )
            del result[path]
            del edits[path]
    for path, placed in edits.items():
        result[path] = _rebuilt(path, files[path], placed)
    return result, matches


def _creates(files: Mapping[str, str], change: FileChange) -> bool:
    """Whether a change makes a file: a diff from nothing, or text for no place in a file that is not there."""
    if change.kind == "create" or change.path is None:
        return change.kind == "create"
    first, *others = change.changes
    return change.path not in files and not others and not first.before and not first.at


def _create(result: dict[str, str], change: FileChange) -> None:
    assert change.path is not None
    if result.get(change.path, "").strip():
        raise PatchRefused(f"The patch creates '{change.path}', which exists.", "Change it instead.")
    # A blank "old" line of a new file is a blank new line that lost its `+`; the new text has it.
    if any(line for c in change.changes for line in c.before) or len(change.changes) != 1:
        raise PatchRefused(f"The patch creates '{change.path}' from old text.", "Send only `+` lines.")
    only = change.changes[0]
    result[change.path] = "\n".join(only.after) + ("" if only.ends is False else "\n")


def _place(text: Text, change: Change) -> Place:
    if change.before:
        return text.locate(change.before)
    count = len(text.lines)
    if change.at is not None and change.at <= count:
        return Place(change.at, "line", 1.0)
    if count == 0:
        return Place(0, "line", 1.0)
    raise PatchRefused(
        f"An insertion into {text.path} has no context that says where.\n{shown(text.lines, count - 4, 4)}",
        f"Add context lines; the file has {count} lines.",
    )


def _edit(lines: list[str], change: Change, place: Place, order: int) -> _Edit:
    after = change.after
    if place.how in ("whitespace", "fuzzy"):
        after = _adapted(lines[place.line : place.line + len(change.before)], change)
    return _Edit(place.line, place.line + len(change.before), after, order, change.ends)


def _adapted(current: list[str], change: Change) -> list[str]:
    """The new lines with the file's own context lines, and indented as the file's text is."""
    move = Indentation(zip(change.before, current, strict=True))
    own = {after: current[before] for before, after in change.kept}
    return [own[i] if i in own else move(line) for i, line in enumerate(change.after)]


def _apply_line_edits(
    files: Mapping[str, str], edits: Sequence[LineEdit]
) -> tuple[dict[str, str], list[Match]]:
    by_file: dict[str, list[_Edit]] = {}
    matches: list[Match] = []
    for order, edit in enumerate(edits):
        named = checked_path(edit.file) if edit.file is not None else None
        path = _file_for(files, named, by_content=False)
        count = len(split_lines(files[path]))
        last = edit.end_line if edit.end_line is not None else edit.start_line
        limit = count + 1 if edit.op == "insert" else count
        if not 1 <= edit.start_line <= limit or (
            edit.op != "insert" and not edit.start_line <= last <= count
        ):
            raise PatchRefused(
                f"Edit {order + 1} ({edit.op}) names lines {edit.start_line} to {last}; {path} has {count} lines.",
                "Lines are numbered from 1, in the text before the patch.",
            )
        if edit.op == "insert" and edit.end_line is not None and edit.end_line != edit.start_line:
            raise PatchRefused(f"Edit {order + 1} inserts and has an end_line.", "Leave end_line out.")
        if (edit.op == "delete") != (edit.text == ""):
            what = "a `delete` with a text" if edit.text else f"a `{edit.op}` of nothing"
            raise PatchRefused(
                f"Edit {order + 1} is {what}.",
                "`delete` takes no text; `insert` and `replace` take some, a newline for a blank line.",
            )
        new = [] if edit.op == "delete" else _text_lines(edit.text)
        start = edit.start_line - 1
        end = start if edit.op == "insert" else last
        by_file.setdefault(path, []).append(_Edit(start, end, new, order))
        matches.append(Match(path, edit.start_line, "line", 1.0))
    result = dict(files)
    for path, placed in by_file.items():
        result[path] = _rebuilt(path, files[path], placed)
    return result, matches


def _text_lines(text: str) -> list[str]:
    lines = text.split("\n")
    # One final newline ends the last line; further ones are blank lines that were asked for.
    if len(lines) > 1 and lines[-1] == "":
        lines.pop()
    return [line[:-1] if line.endswith("\r") else line for line in lines]


def _rebuilt(path: str, text: str, edits: Sequence[_Edit]) -> str:
    """The file with all edits, its line ends and final newline kept."""
    parts = text.split("\n")
    final_newline = parts[-1] == ""
    raw = parts[:-1] if final_newline else parts
    if text == "":
        raw, final_newline = [], True
    crlf = sum(line.endswith("\r") for line in parts[:-1]) * 2 > len(parts) - 1
    if raw and crlf and not final_newline:
        # The last line has no end of its own; it needs one if lines come to stand after it.
        raw[-1] += "\r"
    ordered = sorted(edits, key=lambda e: (e.start, e.end, e.order))
    for one, other in pairwise(ordered):
        if one.end > other.start:
            raise PatchRefused(
                f"Two changes overlap in {path}, at lines {one.start + 1} and {other.start + 1}.",
                "Join them into one change.",
            )
    new: list[str] = []
    position = 0
    for edit in ordered:
        new += raw[position : edit.start]
        old = raw[edit.start : edit.end]
        kept = {(line[:-1] if line.endswith("\r") else line): line for line in old}
        # An unchanged line keeps its own end, also in a file of mixed ends.
        new += [kept.get(line, f"{line}\r" if crlf else line) for line in edit.lines]
        position = edit.end
        if edit.ends is not None and edit.end >= len(raw):
            final_newline = edit.ends
    new += raw[position:]
    if not new:
        return ""
    if not final_newline and new[-1].endswith("\r") and crlf:
        new[-1] = new[-1][:-1]
    return "\n".join(new) + ("\n" if final_newline else "")


def _counted(old: str, new: str) -> tuple[int, int]:
    before, after = split_lines(old), split_lines(new)
    low = 0
    while low < min(len(before), len(after)) and before[low] == after[low]:
        low += 1
    high = 0
    while high < min(len(before), len(after)) - low and before[-1 - high] == after[-1 - high]:
        high += 1
    middle_old, middle_new = before[low : len(before) - high], after[low : len(after) - high]
    matcher = difflib.SequenceMatcher(None, middle_old, middle_new, autojunk=True)
    same = sum(block.size for block in matcher.get_matching_blocks())
    # A change of the final newline alone is one line.
    floor = 1 if old != new and middle_old == middle_new == [] else 0
    return max(len(middle_new) - same, floor), max(len(middle_old) - same, floor)


def _with_ends(text: str) -> list[str]:
    """Lines with their ends. `str.splitlines` would also split at form feeds and at U+2028."""
    lines = text.split("\n")
    return [f"{line}\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])


def unified(old: Mapping[str, str], new: Mapping[str, str]) -> str:
    """The difference of two sets of files as a unified diff, for reading."""
    parts: list[str] = []
    for path in sorted(set(old) | set(new)):
        before, after = old.get(path), new.get(path)
        if before != after:
            parts += difflib.unified_diff(
                _with_ends(before or ""),
                _with_ends(after or ""),
                "/dev/null" if before is None else f"a/{path}",
                "/dev/null" if after is None else f"b/{path}",
            )
    return "".join(
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in parts
    )
