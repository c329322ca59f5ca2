"""Which places of a file are most like some lines that are not in it as they stand."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from functools import cached_property
from typing import NamedTuple

from cuteforge.kernels.errors import PatchRefused

FUZZY_THRESHOLD = 0.85
"""Least mean similarity of lines for a fuzzy match. At 0.85 a misremembered name or literal in a few lines
still matches, and code of the same shape elsewhere in a kernel does not."""

FUZZY_LEAD = 0.05
"""By how much the best fuzzy place must beat the second best."""

LINE_THRESHOLD = 0.6
"""Least similarity of each single line: below it, it is not the line misremembered but another one, which
the patch's author has never seen and would overwrite. `difflib` calls ratios above 0.6 close matches."""

_MAX_SHORTLIST = 12
_MAX_SHIFTS = 3
_MAX_VOTED = 6
_MAX_VOTES = 20
_MAX_CELLS = 20_000_000
"""Bound on compared pairs of characters for one file and patch: about two seconds."""
_CALL_CELLS = 200
"""What a comparison costs besides, in pairs of characters."""

_LINE_CHARS = 400
_WORD = re.compile(r"\w+")
_WORD_OR_END = re.compile(r"\w+|\n")


class Likeness(NamedTuple):
    """How like a place is. `stranger` is a line there that has no likeness to its counterpart; 0-based."""

    similarity: float
    line: int
    stranger: int | None


class FuzzySearch:
    """Searches one file by likeness, in bounded time over all searches.

    `loose` are the file's lines without white space, `lines` the same lines as they are.
    """

    def __init__(self, path: str, loose: list[str], lines: list[str]) -> None:
        self._path = path
        self._loose = loose
        self._lines = lines
        self._cells = 0

    @cached_property
    def _words(self) -> list[list[str]]:
        words: list[list[str]] = [[]]
        for token in _WORD_OR_END.findall("\n".join([line[:_LINE_CHARS] for line in self._lines])):
            if token == "\n":
                words.append([])
            else:
                words[-1].append(token)
        return words

    def ranked(self, wanted: list[str], loose: list[str]) -> list[Likeness]:
        """The places most like `wanted` (`loose`: without white space), the best first; maybe none.

        Similarities near the best one are exact, those that cannot matter are upper bounds.

        Raises:
            PatchRefused: comparing would take too long.
        """
        if len(self._lines) < len(wanted):
            return []
        # A matcher prepares its second text, so each is made once for all places.
        matchers = [difflib.SequenceMatcher(None, "", line[:_LINE_CHARS], autojunk=False) for line in loose]
        places = dict.fromkeys([*self._voted(loose), *self._sharing_words(wanted)])
        found: list[Likeness] = []
        floor = 0.0
        for place in places:
            likeness = self._likeness(place, loose, matchers, floor)
            floor = max(floor, likeness.similarity - FUZZY_LEAD)
            found.append(likeness)
        return sorted(found, key=lambda one: (-one.similarity, one.line))

    def _likeness(
        self, place: int, wanted: list[str], matchers: list[difflib.SequenceMatcher[str]], floor: float
    ) -> Likeness:
        """Mean similarity of lines weighted by length; below `floor` some value below it."""
        have = self._loose[place : place + len(wanted)]
        total = sum(max(len(x), len(y), 1) for x, y in zip(have, wanted, strict=True))
        lost = 0.0
        stranger: int | None = None
        for number, (x, y) in enumerate(zip(have, wanted, strict=True)):
            if x == y:
                continue
            ratio = 0.0
            # Of a very long line only the beginning could be compared, and the rest would go unseen.
            if len(x) <= _LINE_CHARS and len(y) <= _LINE_CHARS:
                self._spend(_CALL_CELLS + len(x) * len(y))
                matchers[number].set_seq1(x)
                ratio = matchers[number].ratio()
            if ratio < LINE_THRESHOLD:
                stranger = place + number
            lost += max(len(x), len(y), 1) * (1 - ratio)
            if lost > (1 - floor) * total:
                break
        return Likeness(1 - lost / total, place, stranger)

    def _spend(self, cells: int) -> None:
        self._cells += cells
        if self._cells > _MAX_CELLS:
            raise PatchRefused(
                f"Context of the patch is not in {self._path}, and is too long and too different to search for "
                "by likeness.",
                "Copy the context from the current text, or use `edits` by line number.",
            )

    def _voted(self, loose: list[str]) -> list[int]:
        """Places at which some lines stand exactly where they should: right to the line in long contexts."""
        votes: Counter[int] = Counter()
        last = len(self._lines) - len(loose)
        positions_of: dict[str, list[int]] = {line: [] for line in loose if len(line) > 2}
        for position, line in enumerate(self._loose):
            if line in positions_of:
                positions_of[line].append(position)
        for number, line in enumerate(loose):
            positions = positions_of.get(line, [])
            if len(positions) <= _MAX_VOTES:
                for position in positions:
                    if 0 <= position - number <= last:
                        votes[position - number] += len(line)
        return [place for place, _ in votes.most_common(_MAX_VOTED)]

    def _sharing_words(self, wanted: list[str]) -> list[int]:
        """Places that share at least half of the words, few of them overlapping each other."""
        count = len(wanted)
        need = Counter(word for line in wanted for word in _WORD.findall(line[:_LINE_CHARS]))
        size = need.total()
        if size == 0:
            return []
        window = dict.fromkeys(need, 0)
        # Only the words that the context has too: most lines of a file have none, or few.
        words = [[word for word in line if word in window] for line in self._words]
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
        picked: list[int] = []
        for place in sorted(range(len(scores)), key=lambda start: -scores[start]):
            if scores[place] * 2 < size or len(picked) == _MAX_SHORTLIST:
                break
            # All shifts of one good place must not crowd out a second one, which would go unnoticed.
            if sum(abs(place - other) < count for other in picked) < _MAX_SHIFTS:
                picked.append(place)
        return picked
