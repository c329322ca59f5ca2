"""C++ type names as CuTe prints the objects: `(128,32):(32,1)` instead of nested templates."""

from __future__ import annotations

import re

# Qualified, as compilers print them, so that a `C<8>` or `Layout<…>` of someone else's is left alone.
_NAME = r"(?<![\w:])cute::"
_RULES: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(rf"{_NAME}(?:(?:C|Int)<|constant<int, )\(?(-?\d+)U?L?L?\)?>"), r"\1"),
    (re.compile(rf"{_NAME}(_\d+)\b"), r"\1"),
    (re.compile(rf"{_NAME}Underscore\b"), "_"),
)
_TUPLE = re.compile(rf"{_NAME}(?:tuple|Shape|Stride|Step|Coord|Tile|ArithmeticTuple)<([^<>]*)>")
_BASIS = re.compile(rf"{_NAME}ScaledBasis<([^<>,]*)((?:,\s*\d+)*)>")
_LAYOUT = re.compile(rf"{_NAME}Layout<([^<>]*)>")
_SWIZZLE = re.compile(rf"{_NAME}Swizzle<(\d+), (\d+), (-?\d+)>")
_COMPOSED = re.compile(
    rf"{_NAME}ComposedLayout<(Sw\(\d+,\d+,-?\d+\)), (?:cute::)?(?:MixedBits<0U?, \d+U?>|(\d+)), ([^<>]*)>"
)
_STATIC = re.compile(r"(?<=[(,:])_(\d+)(?=[),:]|$)")
_NAMESPACES = re.compile(r"\b(?:cute|cutlass)::(?!detail)")


def _split(text: str) -> list[str]:
    """Split at commas that are in no parentheses."""
    parts, depth, start = [], 0, 0
    for position, ch in enumerate(text):
        depth += (ch == "(") - (ch == ")")
        if ch == "," and depth == 0:
            parts.append(text[start:position].strip())
            start = position + 1
    return [*parts, text[start:].strip()]


def _tuple(match: re.Match[str]) -> str:
    return f"({','.join(_split(match[1]))})" if match[1].strip() else "()"


def _layout(match: re.Match[str]) -> str:
    parts = _split(match[1])
    return (
        f"{parts[0]}:{parts[1]}"
        if len(parts) == 2
        else match[0].replace("Layout<", "Layout{").replace(">", "}")
    )


def _basis(match: re.Match[str]) -> str:
    return match[1].strip() + "".join(f"@{n.strip()}" for n in match[2].split(",") if n.strip())


def cute_text(text: str) -> str:
    """A compiler's message with CuTe's types in CuTe's notation.

    Numbers are compile-time constants; a dynamic extent stays the name of its type.

    >>> cute_text("cute::Layout<cute::tuple<cute::_2, cute::C<2>, int>, cute::tuple<cute::_1, cute::_2, cute::C<0>>>")
    '(2,2,int):(1,2,0)'
    """
    before = None
    while before != text:
        before = text
        for pattern, replacement in _RULES:
            text = pattern.sub(replacement, text)
        text = _BASIS.sub(_basis, text)
        text = _SWIZZLE.sub(r"Sw(\1,\2,\3)", text)
        text = _TUPLE.sub(_tuple, text)
        text = _LAYOUT.sub(_layout, text)
        text = _COMPOSED.sub(lambda m: f"{m[1]} o {m[2] or 0} o {m[3]}", text)
    text = re.sub(r"Sw\((\d+),(\d+),(-?\d+)\)", r"Sw<\1,\2,\3>", text)
    return _NAMESPACES.sub("", _STATIC.sub(r"\1", text))
