"""Compiler logs as diagnostics at the user's own lines: short, in CuTe notation, with nothing of the host.

Understands nvcc's and NVRTC's front end (EDG), ptxas, nvlink, the linker, g++ and Python.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from cuteforge.kernels.records import Diagnostic, Severity
from cuteforge.sandbox.cute_text import cute_text

MAX_DIAGNOSTICS = 20
MAX_WARNINGS = 10
MAX_MESSAGE = 500
MAX_NOTE = 320
MAX_NOTES = 4
# Longer logs are cut for parsing: what matters comes first, and the whole log is an artefact.
_MAX_LOG = 4_000_000

_SEVERITY = r"(catastrophic error|fatal error|error|warning|remark|note)"
_EDG = re.compile(
    rf"^(?P<file>[^\s(][^(\n]*)\((?P<line>\d+)\): (?P<kind>{_SEVERITY})\s?(?:#?[\w-]+)?: (?P<text>.*)$"
)
_GXX = re.compile(
    rf"^(?P<file>[^\s:][^:\n]*):(?P<line>\d+):(?:(?P<column>\d+):)? (?P<kind>{_SEVERITY}): (?P<text>.*)$"
)
_FRAME = re.compile(r"instantiation of (?P<what>.*) at line (?P<line>\d+)(?: of (?P<file>.+))?$")
_REQUIRED = re.compile(r"^(?P<file>[^\s:][^:\n]*):(?P<line>\d+):(?:\d+:)?\s+required from (?P<what>.*)$")
_TOOL = re.compile(
    r"^(?P<tool>ptxas|nvlink|nvcc|cudafe\+\+|nvrtc)\s*(?:/?\S*?,\s*line \d+;|:)?\s*(?P<kind>fatal|error|warning)\s*: (?P<text>.*)$"
)
_LINKER = re.compile(
    r"^.*?(?:\bld(?:\.\w+)?: |^)(?P<text>.*(?:undefined reference to|required symbol|multiple definition of|cannot find|undefined symbol).*)$"
)
_UNHELPFUL = re.compile(r"^(ptxas fatal   : Ptx assembly aborted|collect2: error: ld returned)")


@dataclass(frozen=True)
class Sources:
    """The user's files by relative path, and the prefixes that turn a path of the log into a relative one.

    `prefixes` maps a folder of the log to what replaces it: the build folder to nothing, include folders too.
    """

    files: Mapping[str, str]
    prefixes: Mapping[str, str] = field(default_factory=dict)

    def shorten(self, text: str) -> str:
        """`text` without any folder of the host or the sandbox."""
        for prefix in sorted(self.prefixes, key=len, reverse=True):
            text = text.replace(prefix.rstrip("/") + "/", self.prefixes[prefix])
        text = re.sub(
            r"/\S*/tmpxft_\S*?([\w.-]+\.(?:ptx|o|cubin|cpp|ii|gpu|c|stub\.c))\b", r"<generated>", text
        )
        return re.sub(
            r"(?<![\w./<])/(?:tmp|root|home|usr|opt|nix|var|build)/(?:[^\s:;,'\"()]*/)?(?=[^\s/:;,'\"()]+)",
            "",
            text,
        )

    def own(self, path: str) -> str | None:
        """The user's file that a path of the log names, or None."""
        short = self.shorten(path.strip()).removeprefix("./")
        return short if short in self.files else None

    def line(self, path: str | None, number: int | None) -> str | None:
        """One line of a user's file, stripped and bounded."""
        lines = self.files.get(path or "", "").split("\n")
        if number is None or not 1 <= number <= len(lines):
            return None
        return lines[number - 1].strip()[:200] or None


@dataclass(frozen=True)
class _Block:
    """One message of the log before it is attributed."""

    kind: Severity
    text: str
    path: str | None = None
    line: int | None = None
    column: int | None = None
    frames: tuple[tuple[str, str, int], ...] = ()  # what, path, line; innermost first
    notes: tuple[str, ...] = ()


def _kind(word: str) -> Severity:
    if "error" in word or word == "fatal":
        return "error"
    return "warning" if word == "warning" else "note"


def _bounded(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1].rstrip() + "…"


def _edg_block(match: re.Match[str], body: list[str]) -> _Block:
    text = match["text"]
    frames: list[tuple[str, str, int]] = []
    carets = [i for i, line in enumerate(body) if line.strip() == "^"]
    detected = next(
        (i for i, line in enumerate(body) if line.lstrip().startswith("detected during")), len(body)
    )
    # Lines before the source line continue the message: argument types, candidates.
    first_source = carets[0] - 1 if carets else min(detected, len(body))
    continuation = [line.strip() for line in body[: max(0, first_source)] if line.strip()]
    for line in body[detected:]:
        frame = _FRAME.search(line)
        if frame:
            frames.append((frame["what"], frame["file"] or match["file"], int(frame["line"])))
    return _Block(
        _kind(match["kind"]),
        " ".join([text, *continuation]),
        match["file"],
        int(match["line"]),
        None,
        tuple(frames),
    )


def _blocks(log: str) -> list[_Block]:
    lines = log.split("\n")
    found: list[_Block] = []
    required: list[tuple[str, str, int]] = []
    position = 0
    while position < len(lines):
        line = lines[position].rstrip()
        position += 1
        match = _EDG.match(line)
        if match:
            end = position
            while end < len(lines) and lines[end].strip() and not _EDG.match(lines[end]):
                end += 1
            found.append(_edg_block(match, lines[position:end]))
            position = end
            continue
        match = _REQUIRED.match(line)
        if match:
            required.append((match["what"], match["file"], int(match["line"])))
            continue
        match = _GXX.match(line)
        if match:
            column = int(match["column"]) if match["column"] else None
            kind = _kind(match["kind"])
            frames = tuple(required) if kind != "note" else ()
            found.append(_Block(kind, match["text"], match["file"], int(match["line"]), column, frames))
            if kind != "note":
                required = []
            continue
        if _UNHELPFUL.match(line):
            continue
        match = _TOOL.match(line)
        if match:
            found.append(_Block(_kind(match["kind"]), f"{match['tool']}: {match['text']}"))
            continue
        match = _LINKER.match(line)
        if match:
            # The object file is a temporary one, and an offset into it tells nobody anything.
            text = re.sub(r"^\S*(?:\.o|\.cpp|<artificial>)?:?\(\.\w+[^)]*\): ", "", match["text"].strip())
            found.append(_Block("error", f"linker: {text}"))
    return _with_notes(found)


def _with_notes(blocks: Iterable[_Block]) -> list[_Block]:
    """Each note as a part of the message before it."""
    merged: list[_Block] = []
    for block in blocks:
        if block.kind == "note":
            if merged and block.path is not None:
                merged[-1] = replace(
                    merged[-1], notes=(*merged[-1].notes, f"{block.path}:{block.line}: {block.text}")
                )
            continue
        merged.append(block)
    return merged


def _frame_text(what: str) -> str:
    """A frame as `name [with …]`."""
    signature, _, given = what.strip().strip('"').partition(" [with ")
    signature = re.sub(r'^(?:class|struct|variable|type)?\s*"?', "", signature)
    head = signature.split("(")[0]
    name = head.split()[-1] if head.split() else signature
    name = re.sub(r"^(?:cute|cutlass)::", "", name).split("<")[0].rstrip("&*")
    given = given.rstrip('"').removesuffix("]")
    return f"{name} with {cute_text(given)}" if given else name


def _attribute(block: _Block, sources: Sources) -> Diagnostic:
    path = sources.own(block.path) if block.path else None
    line, column = (block.line, block.column) if path else (None, None)
    notes: list[str] = []
    if path is None and block.path is not None:
        notes.append(f"raised in {sources.shorten(block.path)}:{block.line}")
        for what, frame_path, frame_line in block.frames:
            own = sources.own(frame_path)
            if own is not None:
                path, line = own, frame_line
                notes.append(f"from {_frame_text(what)}" if "required" not in what and what != "here" else "")
                break
    notes += [sources.shorten(note) for note in block.notes]
    return Diagnostic(
        severity=block.kind,
        message=_bounded(sources.shorten(cute_text(block.text)).strip(), MAX_MESSAGE),
        file=path,
        line=line,
        column=column,
        source_line=sources.line(path, line),
        notes=tuple(_bounded(cute_text(note), MAX_NOTE) for note in notes if note)[:MAX_NOTES],
    )


def _fold(found: list[Diagnostic], foreign: list[bool]) -> list[Diagnostic]:
    """Errors inside a library that come from one user's line are follow-ons of the first of them."""
    kept: list[Diagnostic] = []
    folded: dict[int, int] = {}
    place: dict[tuple[str | None, int | None], int] = {}
    for item, is_foreign in zip(found, foreign, strict=True):
        key = (item.file, item.line)
        head = place.get(key)
        same = head is not None and (
            kept[head].message == item.message or (is_foreign and item.severity == "error")
        )
        if head is not None and same and kept[head].severity == item.severity:
            folded[head] = folded.get(head, 0) + (kept[head].message != item.message)
            continue
        if item.severity == "error" and key not in place:
            place[key] = len(kept)
        kept.append(item)
    for index, count in folded.items():
        if count:
            note = f"{count} follow-on error{'s' if count > 1 else ''} at the same line folded"
            kept[index] = kept[index].model_copy(update={"notes": (*kept[index].notes, note)})
    return kept


def parse(log: str, sources: Sources) -> tuple[Diagnostic, ...]:
    """The diagnostics of a compiler's log, errors first, then warnings in the user's own files.

    Messages, notes and their number are bounded; follow-on errors are folded under the first.
    """
    blocks = _blocks(log[:_MAX_LOG])
    # A warning inside a header is the header's author's business.
    blocks = [b for b in blocks if b.kind == "error" or b.path is None or sources.own(b.path)]
    items = [_attribute(block, sources) for block in blocks]
    foreign = [b.path is not None and sources.own(b.path) is None for b in blocks]
    items = _fold(items, foreign)
    errors = [d for d in items if d.severity == "error"]
    warnings = list(dict.fromkeys(d for d in items if d.severity == "warning"))
    kept = [*errors[:MAX_DIAGNOSTICS], *warnings[:MAX_WARNINGS]][:MAX_DIAGNOSTICS]
    dropped = len(errors) + len(warnings) - len(kept)
    if dropped > 0:
        kept.append(Diagnostic(severity="note", message=f"{dropped} more in the log"))
    return tuple(kept)


def from_syntax_error(error: SyntaxError, path: str, text: str) -> Diagnostic:
    """Python's own complaint about a source."""
    lines = text.split("\n")
    line = error.lineno
    source = lines[line - 1].strip()[:200] if line and 1 <= line <= len(lines) else None
    return Diagnostic(
        severity="error",
        message=f"{type(error).__name__}: {error.msg}",
        file=path,
        line=line,
        column=error.offset,
        source_line=source,
    )


def prefixes(build: Iterable[str], includes: Iterable[Path]) -> dict[str, str]:
    """What `Sources` replaces: build and include folders, all with nothing."""
    return dict.fromkeys((*build, *map(str, includes), *(str(i.resolve()) for i in includes)), "")
