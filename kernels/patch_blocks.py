"""SEARCH/REPLACE blocks, and which of the two notations a patch is in."""

from __future__ import annotations

import re

from cuteforge.kernels.errors import PatchRefused
from cuteforge.kernels.patch_parse import (
    Change,
    FileChange,
    checked_path,
    common_lines,
    parse_unified,
    refuse_header,
    split_lines,
)

_SEARCH = re.compile(r"^<{5,9} ?SEARCH\s*$")
_MIDDLE = re.compile(r"^={5,9}\s*$")
_REPLACE = re.compile(r"^>{5,9} ?REPLACE\s*$")
_LABEL = re.compile(r"^(?:(?:#+|//|[-*])\s+)*(?:(?:file(?:name)?|path):\s*)?", re.IGNORECASE)
_PATH = re.compile(r"[\w./\\+@:-]*\.[A-Za-z]\w{0,8}|[\w.+@-]*(?:/[\w.+@-]+)+")
_WORD = re.compile(r"[A-Za-z]\w+")
_CLOSE = "Write `<<<<<<< SEARCH`, old lines, `=======`, new lines, `>>>>>>> REPLACE`."


def parse(patch: str) -> list[FileChange]:
    """A patch in either notation.

    Raises:
        PatchRefused: it is in neither or in both, is malformed, or asks for what is never done (renames,
            modes, binary, paths outside the candidate).
    """
    if not patch.strip():
        raise PatchRefused("The patch is empty.", "Send at least one change.")
    lines = split_lines(patch)
    if any(_SEARCH.match(line) for line in lines):
        return _parse_blocks(lines)
    if any(line.startswith("@@") for line in lines):
        return parse_unified(lines)
    for line in lines:
        refuse_header(line)
    raise PatchRefused(
        "The patch is neither a unified diff (`@@` hunks) nor SEARCH/REPLACE blocks.",
        "Send one of the two, or `edits` by line number.",
    )


def _path_in(line: str, directly_before: bool) -> str | None:
    """The file that a line outside blocks names, if that is all it does."""
    text = _LABEL.sub("", line.strip()).strip("*`\"' ")
    text = text.removesuffix(":").rstrip("*`\"'")
    if _PATH.fullmatch(text) or (directly_before and text == line.strip() and _WORD.fullmatch(text)):
        return checked_path(text)
    return None


def _parse_blocks(lines: list[str]) -> list[FileChange]:
    found: list[FileChange] = []
    name: str | None = None
    outside = ""
    opened = 0
    before: list[str] | None = None
    after: list[str] | None = None
    for number, line in enumerate(lines, 1):
        if _SEARCH.match(line):
            if before is not None:
                raise PatchRefused(f"The SEARCH block at line {opened} of the patch is not closed.", _CLOSE)
            name = _path_in(outside, directly_before=True) or name
            opened, before, after, outside = number, [], None, ""
        elif before is None:
            if line.startswith(("@@ ", "diff --git ")) or _REPLACE.match(line):
                raise PatchRefused(
                    f"Line {number} of the patch is not inside a SEARCH/REPLACE block: '{line[:80]}'.",
                    "Send one notation only, and close each block once.",
                )
            if line.strip() and not line.startswith("```"):
                outside = line
                name = _path_in(line, directly_before=False) or name
        elif _MIDDLE.match(line):
            if after is not None:
                raise PatchRefused(
                    f"The SEARCH block at line {opened} of the patch has two `=======` lines.",
                    "If one is part of the text, send a unified diff.",
                )
            after = []
        elif _REPLACE.match(line):
            if after is None:
                raise PatchRefused(
                    f"The SEARCH block at line {opened} of the patch has no `=======`.", _CLOSE
                )
            if before == after:
                raise PatchRefused("A SEARCH/REPLACE block changes nothing.", "Make the two parts differ.")
            if not found or found[-1].path != name:
                found.append(FileChange(name))
            found[-1].changes.append(Change(before, after, common_lines(before, after)))
            before = after = None
        elif after is None:
            before.append(line)
        else:
            after.append(line)
    if before is not None:
        raise PatchRefused(f"The SEARCH block at line {opened} of the patch is not closed.", _CLOSE)
    return found
