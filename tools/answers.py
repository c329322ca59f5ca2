"""What a tool answers: data for programs, a short text for the model, links, and what to do next."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from cuteforge.kernels.model import Frozen
from cuteforge.kernels.policy import NextCall

MAX_TEXT = 3200
"""Characters of a default answer's text: 800 tokens at four characters each."""


class Link(Frozen):
    """A resource that holds the whole of what an answer shortens."""

    uri: str
    name: str
    mime_type: str = "text/plain"


class Answer(Frozen):
    """The answer of any tool. `ok` is False for what the model itself can mend."""

    ok: bool
    text: str
    data: dict[str, Any] = Field(default_factory=dict)
    links: tuple[Link, ...] = ()
    next: tuple[NextCall, ...] = ()

    def full_text(self) -> str:
        """Text and next steps, cut at MAX_TEXT with a note of what was cut."""
        text = self.text
        steps = [f"next: {step.tool}({_arguments(step)}) - {step.reason}" for step in self.next[:3]]
        tail = "\n".join(steps)
        room = MAX_TEXT - len(tail) - 60
        if len(text) > room:
            text = f"{text[:room]}\n… {len(text) - room} characters more: read the linked resource."
        return f"{text}\n{tail}" if tail else text


def _arguments(step: NextCall) -> str:
    return ", ".join(f"{name}={value}" for name, value in step.arguments.items())


def shorten(text: str, limit: int) -> str:
    """`text` cut at `limit` characters with an ellipsis."""
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
