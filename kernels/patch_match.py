"""Where a change belongs in a file: the one place that fits, or none.

Exact match first, then one that ignores white space, then a fuzzy one. Two places that fit equally are no
place: a wrong edit costs more than a refused one.
"""

from __future__ import annotations

import difflib
import re
from collections import Counter
from dataclasses import dataclass
from typing import Literal

from cuteforge.kernels.errors import PatchRefused

How = Literal["exact", "whitespace", "fuzzy", "line"]

FUZZY_THRESHOLD = 0.85
"""Least mean similarity of lines for a fuzzy match. At 0.85 a misremembered name or literal in a few lines
still matches, and code of the same shape elsewhere in a kernel does not."""

FUZZY_LEAD = 0.05
"""By how much the best fuzzy place must beat the second best."""

_MAX_SHORTLIST = 12
_MAX_CELLS = 4_000_000
"""Bound on compared pairs of characters in one search: about half a second."""

_SHOWN_LINES = 12
_LINE_CHARS = 400
_WORD = re.compile(r"\w+")
_WORD_OR_END = re.compile(r"\w+|\n")


@dataclass(frozen=True)
class Place:
    """Where a run of lines was found, 0-based, and how."""

    line: int
    how: How
    similarity: float


def _occurrences(lines: list[str], wanted: list[str]) -> list[int]:
    first, count = wanted[0], len(wanted)
    return [
        start
        for start in range(len(lines) - count + 1)
        if lines[start] == first and lines[start : start + count] == wanted
    ]


def squeezed(line: str) -> str:
    """A line without any white space."""
    return "".join(line.split())


def locate(path: str, lines: list[str], wanted: list[str]) -> Place:
    """The one place of `wanted` (not empty) in `lines`.

    Raises:
        PatchRefused: no place, with the numbered text around the nearest one; or several, with their numbers.
    """
    exact = _occurrences(lines, wanted)
    if exact:
        return _only(path, lines, exact, wanted, "exact")
    loose_lines, loose_wanted = [squeezed(x) for x in lines], [squeezed(x) for x in wanted]
    if any(loose_wanted):
        loose = _occurrences(loose_lines, loose_wanted)
        if loose:
            return _only(path, lines, loose, wanted, "whitespace")
    return _fuzzy(path, lines, wanted, loose_lines, loose_wanted)


def _only(path: str, lines: list[str], starts: list[int], wanted: list[str], how: How) -> Place:
    if len(starts) == 1:
        return Place(starts[0], how, 1.0)
    numbers = ", ".join(str(s + 1) for s in starts[:6])
    more = f" and {len(starts) - 6} more" if len(starts) > 6 else ""
    raise PatchRefused(
        f"The {len(wanted)} context line(s) starting '{wanted[0].strip()[:60]}' fit {len(starts)} places in "
        f"{path}: lines {numbers}{more}.\n" + shown(lines, starts[0], len(wanted)),
        "Add context lines until only one place fits, or use `edits` by line number.",
    )


class _Comparison:
    """Compares runs of lines, and gives up on a run that cannot come near the best one so far."""

    def __init__(self, path: str, wanted: list[str]) -> None:
        self._path = path
        self._wanted = [line[:_LINE_CHARS] for line in wanted]
        # A matcher prepares its second text, so each is made once for all candidates.
        self._matchers = [difflib.SequenceMatcher(None, "", line, autojunk=False) for line in self._wanted]
        self._cells = 0

    def similarity(self, lines: list[str], floor: float) -> float:
        """Mean similarity of lines weighted by length; below `floor` any value that is below it."""
        pairs = [(x[:_LINE_CHARS], y) for x, y in zip(lines, self._wanted, strict=True)]
        total = sum(max(len(x), len(y), 1) for x, y in pairs)
        lost = 0.0
        for matcher, (x, y) in zip(self._matchers, pairs, strict=True):
            if x == y:
                continue
            self._cells += len(x) * len(y)
            if self._cells > _MAX_CELLS:
                raise PatchRefused(
                    f"A change's context is not in {self._path}, and is too long and too different to search "
                    "for by likeness.",
                    "Copy the context from the current text, or use `edits` by line number.",
                )
            matcher.set_seq1(x)
            lost += max(len(x), len(y), 1) * (1 - matcher.ratio())
            if lost > (1 - floor) * total:
                break
        return 1 - lost / total


def _shortlist(lines: list[str], wanted: list[str]) -> list[int]:
    """Starts that could match best, by the words they share: a full comparison of all would be slow."""
    count = len(wanted)
    if len(lines) < count:
        return []
    need = dict(Counter(word for line in wanted for word in _words(line)))
    size = sum(need.values())
    # Only the words that the context has too: most lines of a file have none, or few.
    words: list[list[str]] = [[]]
    for token in _WORD_OR_END.findall("\n".join([line[:_LINE_CHARS] for line in lines])):
        if token == "\n":
            words.append([])
        elif token in need:
            words[-1].append(token)
    window = dict.fromkeys(need, 0)
    shared = 0
    scores: list[int] = []
    for number, entering in enumerate(words):
        for word in entering:
            shared += window[word] < need[word]
            window[word] += 1
        if number >= count:
            for word in words[number - count]:
                window[word] -= 1
                shared -= window[word] < need[word]
        if number >= count - 1:
            scores.append(shared)
    ranked = sorted(range(len(scores)), key=lambda s: -scores[s])[:_MAX_SHORTLIST]
    return [s for s in ranked if scores[s] * 2 >= size]


def _words(line: str) -> list[str]:
    return _WORD.findall(line[:_LINE_CHARS])


def _fuzzy(
    path: str, lines: list[str], wanted: list[str], loose_lines: list[str], loose_wanted: list[str]
) -> Place:
    count = len(loose_wanted)
    compare = _Comparison(path, loose_wanted)
    scored: list[tuple[float, int]] = []
    floor = 0.0
    for candidate in _shortlist(lines, wanted):
        score = compare.similarity(loose_lines[candidate : candidate + count], floor)
        floor = max(floor, score - FUZZY_LEAD)
        scored.append((score, candidate))
    scored.sort(key=lambda pair: (-pair[0], pair[1]))
    best, start = scored[0] if scored else (0.0, 0)
    if best >= FUZZY_THRESHOLD and (len(scored) == 1 or best - scored[1][0] >= FUZZY_LEAD):
        return Place(start, "fuzzy", best)
    if best >= FUZZY_THRESHOLD:
        second = scored[1][1]
        raise PatchRefused(
            f"The context fits two places in {path} about equally: lines {start + 1} and {second + 1}.\n"
            + shown(lines, start, count),
            "Copy the context from the current text.",
        )
    nearest = (
        f" Nearest ({best:.0%} alike):\n{shown(lines, start, count)}" if scored else f"\n{shown(lines, 0, 8)}"
    )
    raise PatchRefused(
        f"The context is not in {path}.{nearest}",
        "Make the patch from this text: the file may have changed since you read it.",
    )


def shown(lines: list[str], start: int, count: int) -> str:
    """Numbered lines around a place, at most a dozen."""
    low = max(0, start - 2)
    high = min(len(lines), start + min(count, _SHOWN_LINES - 4) + 2)
    return "\n".join(f"{number + 1:5d}| {lines[number][:160]}" for number in range(low, high))
