"""New lines of a patch indented as the file is, where the patch's context is indented otherwise."""

from __future__ import annotations

from collections.abc import Iterable


def indent_of(line: str) -> str:
    """The blanks and tabs in front of a line."""
    return line[: len(line) - len(line.lstrip(" \t"))]


class Indentation:
    """The file's indentation for each of the patch's, learnt from lines that both have.

    >>> move = Indentation([("    a {", "\\ta {"), ("        b;", "\\t\\tb;")])
    >>> move("            c;")
    '\\t\\t\\tc;'
    """

    def __init__(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Learn from pairs (line as the patch has it, line as the file has it)."""
        self._known: dict[str, str] = {}
        for want, have in pairs:
            if want.strip():
                self._known.setdefault(indent_of(want), indent_of(have))
        self._step = self._find_step()

    def __call__(self, line: str) -> str:
        """A new line of the patch with the file's indentation; blank lines and directives at its edge stay."""
        indent = indent_of(line)
        if not self._known or not line.strip() or line.startswith("#"):
            return line
        return self._moved(indent) + line[len(indent) :]

    def _find_step(self) -> tuple[str, str] | None:
        """One level of indentation: in the patch, in the file."""
        known = sorted(self._known.items(), key=lambda pair: len(pair[0]))
        for i, (want, have) in enumerate(known):
            for deeper_want, deeper_have in known[i + 1 :]:
                if deeper_want.startswith(want) and deeper_have.startswith(have) and deeper_have != have:
                    return deeper_want[len(want) :], deeper_have[len(have) :]
        # One depth alone tells the step only where one side has tabs and the other has blanks.
        for want, have in known:
            levels = min(len(want), len(have))
            if levels and {*want, *have} == {" ", "\t"} and len({*want}) == len({*have}) == 1:
                return want[: len(want) // levels], have[: len(have) // levels]
        return None

    def _levels(self, rest: str) -> str:
        if self._step is None:
            return rest
        want, have = self._step
        count = 0
        while rest.startswith(want):
            rest = rest[len(want) :]
            count += 1
        return have * count + rest

    def _moved(self, indent: str) -> str:
        within = [want for want in self._known if indent.startswith(want)]
        if within:
            base = max(within, key=len)
            return self._known[base] + self._levels(indent[len(base) :])
        shallowest = min(self._known, key=len)
        have = self._known[shallowest]
        if not shallowest.startswith(indent):
            return indent
        less = self._levels(shallowest[len(indent) :])
        return have.removesuffix(less) if have.endswith(less) else ""
