"""The README's table of tools, printed from the tools themselves: `python -m cuteforge.server.tooltable`."""

from __future__ import annotations

from cuteforge.tools.catalogue import TOOLS

BEGIN = "<!-- tools:begin -->"
END = "<!-- tools:end -->"


def table() -> str:
    """The Markdown table, one row for each tool, ending with a newline."""
    rows = ["| tool | what it does |", "|---|---|"]
    rows += [f"| `{entry.name}` | {entry.description.replace('|', chr(92) + '|')} |" for entry in TOOLS]
    return "\n".join(rows) + "\n"


def between_markers(text: str) -> str | None:
    """What stands between the markers of a document; None if it has none."""
    start, end = text.find(BEGIN), text.find(END)
    return None if start < 0 or end < start else text[start + len(BEGIN) : end].strip("\n") + "\n"


if __name__ == "__main__":
    print(table(), end="")
