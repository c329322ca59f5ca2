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
"""By how much the best fuzzy place must beat the second best that does not overlap it."""

_MAX_SHORTLIST = 12
_SHOWN_LINES = 12
_LINE_CHARS = 400
_WORD = re.compile(r"\w+")


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


def _similarity(a: list[str], b: list[str]) -> float:
    weights = [max(len(x), len(y), 1) for x, y in zip(a, b, strict=True)]
    total = 0.0
    for x, y, weight in zip(a, b, weights, strict=True):
        total += weight * (1.0 if x == y else difflib.SequenceMatcher(None, x, y, autojunk=False).ratio())
    return total / sum(weights)


def _shortlist(lines: list[str], wanted: list[str]) -> list[int]:
    """Starts that could match best, by the words they share: a full comparison of all would be slow."""
    count = len(wanted)
    if len(lines) < count:
        return []
    wanted_words = Counter(word for line in wanted for word in _words(line))
    size = sum(wanted_words.values())
    window: Counter[str] = Counter()
    shared = 0

    def shift(line: str, sign: int) -> None:
        nonlocal shared
        for word in _words(line):
            need = wanted_words.get(word, 0)
            if need:
                before = min(window[word], need)
                window[word] += sign
                shared += min(window[word], need) - before

    for line in lines[:count]:
        shift(line, 1)
    scores = [shared]
    for start in range(1, len(lines) - count + 1):
        shift(lines[start - 1], -1)
        shift(lines[start + count - 1], 1)
        scores.append(shared)
    ranked = sorted(range(len(scores)), key=lambda s: -scores[s])[:_MAX_SHORTLIST]
    return [s for s in ranked if scores[s] * 2 >= size]


def _words(line: str) -> list[str]:
    return _WORD.findall(line[:_LINE_CHARS])


def _fuzzy(
    path: str, lines: list[str], wanted: list[str], loose_lines: list[str], loose_wanted: list[str]
) -> Place:
    count = len(loose_wanted)
    bounded = [line[:_LINE_CHARS] for line in loose_wanted]
    scored = sorted(
        (
            (_similarity([x[:_LINE_CHARS] for x in loose_lines[s : s + count]], bounded), s)
            for s in _shortlist(lines, wanted)
        ),
        key=lambda pair: (-pair[0], pair[1]),
    )
    best, start = scored[0] if scored else (0.0, 0)
    rivals = [score for score, other in scored[1:] if abs(other - start) >= count]
    if best >= FUZZY_THRESHOLD and (not rivals or best - rivals[0] >= FUZZY_LEAD):
        return Place(start, "fuzzy", best)
    if best >= FUZZY_THRESHOLD:
        second = next(other for _, other in scored[1:] if abs(other - start) >= count)
        raise PatchRefused(
            f"The context fits two places in {path} about equally: lines {start + 1} and {second + 1}.\n"
            + shown(lines, start, count),
            "Copy the context from the current text.",
        )
    nearest = f" Nearest ({best:.0%} alike):\n{shown(lines, start, count)}" if scored else f"\n{shown(lines, 0, 8)}"
    raise PatchRefused(
        f"The context is not in {path}.{nearest}",
        "Make the patch from this text: the file may have changed since you read it.",
    )


def shown(lines: list[str], start: int, count: int) -> str:
    """Numbered lines around a place, at most a dozen."""
    low = max(0, start - 2)
    high = min(len(lines), start + min(count, _SHOWN_LINES - 4) + 2)
    return "\n".join(f"{number + 1:5d}| {lines[number][:160]}" for number in range(low, high))
