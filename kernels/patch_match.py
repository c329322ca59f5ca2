"""Where a change belongs in a file: the one place that fits, or none.

Exact match first, then one that ignores white space, then a fuzzy one. Two places that fit equally are no
place: a wrong edit costs more than a refused one.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Literal

from cuteforge.kernels.errors import PatchRefused
from cuteforge.kernels.patch_fuzzy import FUZZY_LEAD, FUZZY_THRESHOLD, FuzzySearch, Likeness

How = Literal["exact", "whitespace", "fuzzy", "line"]

_SHOWN_LINES = 12
_SHOWN_PLACES = 6


@dataclass(frozen=True)
class Place:
    """Where a run of lines was found, 0-based, and how."""

    line: int
    how: How
    similarity: float


def squeezed(line: str) -> str:
    """A line without any white space."""
    return "".join(line.split())


class _Joined:
    """Lines as one text: `str.find` takes linear time also where lines repeat, a loop over lines does not."""

    def __init__(self, lines: list[str]) -> None:
        self._text = "\n" + "".join([f"{line}\n" for line in lines])
        self._starts = [0, *accumulate(len(line) + 1 for line in lines)]

    def find(self, wanted: list[str], limit: int) -> list[int]:
        """The first `limit` lines at which the wanted ones begin; places may overlap."""
        needle = "\n" + "".join([f"{line}\n" for line in wanted])
        found: list[int] = []
        position = self._text.find(needle)
        while position >= 0 and len(found) < limit:
            found.append(bisect_left(self._starts, position))
            position = self._text.find(needle, position + 1)
        return found


class Text:
    """The lines of one file, prepared once for all changes that a patch makes to it."""

    def __init__(self, path: str, lines: list[str]) -> None:
        self.path = path
        self.lines = lines

    @cached_property
    def _exact(self) -> _Joined:
        return _Joined(self.lines)

    @cached_property
    def _loose_lines(self) -> list[str]:
        return [squeezed(line) for line in self.lines]

    @cached_property
    def _loose(self) -> _Joined:
        return _Joined(self._loose_lines)

    @cached_property
    def _fuzzy(self) -> FuzzySearch:
        return FuzzySearch(self.path, self._loose_lines, self.lines)

    def locate(self, wanted: list[str]) -> Place:
        """The one place of `wanted`, which is not empty.

        Raises:
            PatchRefused: no place, with the numbered text around the nearest one; or several, with their
                numbers.
        """
        found = self._exact.find(wanted, _SHOWN_PLACES + 1)
        if found:
            return self._only(found, wanted, "exact")
        loose = [squeezed(line) for line in wanted]
        if any(loose):
            found = self._loose.find(loose, _SHOWN_PLACES + 1)
            if found:
                return self._only(found, wanted, "whitespace")
        return self._alike(self._fuzzy.ranked(wanted, loose), len(wanted))

    def _only(self, starts: list[int], wanted: list[str], how: How) -> Place:
        if len(starts) == 1:
            return Place(starts[0], how, 1.0)
        many = len(starts) > _SHOWN_PLACES
        numbers = ", ".join(str(start + 1) for start in starts[:_SHOWN_PLACES])
        raise PatchRefused(
            f"The {len(wanted)} context line(s) starting '{wanted[0].strip()[:60]}' fit "
            f"{f'more than {_SHOWN_PLACES}' if many else len(starts)} places in {self.path}: "
            f"lines {numbers}{' and more' if many else ''}.\n" + shown(self.lines, starts[0], len(wanted)),
            "Add context lines until only one place fits, or use `edits` by line number.",
        )

    def _alike(self, ranked: list[Likeness], count: int) -> Place:
        if not ranked:
            raise PatchRefused(
                f"The context is not in {self.path}.\n{shown(self.lines, 0, 8)}",
                "Make the patch from the current text: the file may have changed since you read it.",
            )
        best = ranked[0]
        text = shown(self.lines, best.line, count)
        if best.similarity < FUZZY_THRESHOLD:
            raise PatchRefused(
                f"The context is not in {self.path}. Nearest ({best.similarity:.0%} alike):\n{text}",
                "Make the patch from this text: the file may have changed since you read it.",
            )
        if len(ranked) > 1 and best.similarity - ranked[1].similarity < FUZZY_LEAD:
            raise PatchRefused(
                f"The context fits two places in {self.path} about equally: lines {best.line + 1} and "
                f"{ranked[1].line + 1}.\n{text}",
                "Copy the context from the current text.",
            )
        if best.stranger is not None:
            raise PatchRefused(
                f"The context is like {self.path} at line {best.line + 1} ({best.similarity:.0%}), but line "
                f"{best.stranger + 1} there is another one: "
                f"'{self.lines[best.stranger].strip()[:80]}'.\n{text}",
                "Make the patch from this text: that line would be replaced unseen.",
            )
        return Place(best.line, "fuzzy", best.similarity)


def shown(lines: list[str], start: int, count: int) -> str:
    """Numbered lines around a place, at most a dozen."""
    low = max(0, start - 2)
    high = min(len(lines), start + min(count, _SHOWN_LINES - 4) + 2)
    return "\n".join(f"{number + 1:5d}| {lines[number][:160]}" for number in range(low, high))
