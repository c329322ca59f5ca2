"""Launch expressions of a `kernel` entry: arithmetic over sizes, scalars and defines, and nothing else.

The text is parsed as a Python expression and evaluated over a whitelist of nodes, never by `eval`.
`a / b` of two integers is C's division towards zero, as in the kernel's own source. Imported by the
in-sandbox harness, so it needs the standard library only.
"""

from __future__ import annotations

import ast
import math
import operator
import struct
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal

from cuteforge.kernels.errors import InvalidRequest

Number = int | float | bool
CType = Literal["i32", "i64", "u32", "f32", "f64"]

MAX_LENGTH = 500
_MAX_DEPTH = 40
_INT_LIMIT = 1 << 63
CASTS: dict[str, CType] = {"i32": "i32", "i64": "i64", "u32": "u32", "f32": "f32", "f64": "f64"}
_RANGES = {
    "i32": (-(1 << 31), (1 << 31) - 1),
    "u32": (0, (1 << 32) - 1),
    "i64": (-_INT_LIMIT, _INT_LIMIT - 1),
}


@dataclass(frozen=True)
class Pointer:
    """An argument that is the address of a tensor."""

    name: str


@dataclass(frozen=True)
class Scalar:
    """An argument by value; `ctype` is set by a cast, else the kernel's parameter decides the width."""

    value: Number
    ctype: CType | None = None


def _divide(a: Number, b: Number) -> Number:
    if b == 0:
        raise InvalidRequest("A launch expression divides by zero.", "Guard it: `max(n, 1)`.")
    if isinstance(a, int) and isinstance(b, int):
        quotient = abs(a) // abs(b)
        return quotient if (a >= 0) == (b >= 0) else -quotient
    return a / b


def _integers(apply: Callable[[int, int], int]) -> Callable[[Number, Number], Number]:
    def checked(a: Number, b: Number) -> Number:
        if not isinstance(a, int) or not isinstance(b, int):
            raise InvalidRequest("A bit operation in a launch expression got a float.", "Use integers.")
        return apply(a, b)

    return checked


def _shift(apply: Callable[[int, int], int]) -> Callable[[Number, Number], Number]:
    def checked(a: int, b: int) -> int:
        if not 0 <= b < 64:
            raise InvalidRequest(f"A launch expression shifts by {b}.", "Shift by 0 to 63.")
        return apply(a, b)

    return _integers(checked)


def _floor_divide(a: Number, b: Number) -> Number:
    if b == 0:
        raise InvalidRequest("A launch expression divides by zero.", "Guard it: `max(n, 1)`.")
    return a // b


def _modulo(a: Number, b: Number) -> Number:
    if b == 0:
        raise InvalidRequest("A launch expression takes a remainder by zero.", "Guard it: `max(n, 1)`.")
    return a % b


def _ceil_div(a: Number, b: Number) -> Number:
    return -_floor_divide(-a, b)


def _align_up(a: Number, b: Number) -> Number:
    return _ceil_div(a, b) * b


def _cast(ctype: CType, value: Number) -> Number:
    """The value as C would convert it, so that `f64(n) / 2` is a division of floats; refused if it does not fit."""
    if ctype == "f64":
        return float(value)
    if ctype == "f32":
        try:
            rounded: float = struct.unpack("f", struct.pack("f", value))[0]
        except OverflowError as error:
            raise _too_wide(ctype, value) from error
        return rounded
    whole = int(value)
    low, high = _RANGES[ctype]
    if not low <= whole <= high:
        raise _too_wide(ctype, value)
    return whole


def _too_wide(ctype: CType, value: Number) -> InvalidRequest:
    return InvalidRequest(
        f"A launch expression is {value}, which {ctype} cannot hold.",
        "Use a wider type in the kernel and in the cast.",
    )


_BINARY: dict[type[ast.operator], Callable[[Number, Number], Number]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: _divide,
    ast.FloorDiv: _floor_divide,
    ast.Mod: _modulo,
    ast.LShift: _shift(operator.lshift),
    ast.RShift: _shift(operator.rshift),
    ast.BitAnd: _integers(operator.and_),
    ast.BitOr: _integers(operator.or_),
    ast.BitXor: _integers(operator.xor),
}
_COMPARE: dict[type[ast.cmpop], Callable[[Number, Number], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
_FUNCTIONS: dict[str, tuple[int, int, Callable[..., Number]]] = {
    "ceil_div": (2, 2, _ceil_div),
    "align_up": (2, 2, _align_up),
    "min": (2, 8, min),
    "max": (2, 8, max),
    **{name: (1, 1, partial(_cast, ctype)) for name, ctype in CASTS.items()},
}


def _parse(expression: str) -> ast.expr:
    if not isinstance(expression, str) or not expression.strip():
        raise InvalidRequest("A launch expression is empty.", "Write a number, a size name or an expression.")
    if len(expression) > MAX_LENGTH:
        raise InvalidRequest(
            f"A launch expression has {len(expression)} characters.", f"The limit is {MAX_LENGTH}."
        )
    try:
        return ast.parse(expression.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise InvalidRequest(
            f"'{expression[:80]}' is not a launch expression.",
            "Use numbers, size names, + - * / // % << >>, comparisons, `a if c else b`, ceil_div, align_up, "
            "min and max.",
        ) from error


def _bounded(value: Number, expression: str) -> Number:
    if isinstance(value, float) and not math.isfinite(value):
        raise InvalidRequest(f"'{expression[:80]}' is not finite.", "Mend the expression.")
    if isinstance(value, int) and not -_INT_LIMIT <= value < _INT_LIMIT:
        raise InvalidRequest(f"'{expression[:80]}' does not fit 64 bits.", "Mend the expression.")
    return value


def _known(name: str, allowed: Collection[str]) -> None:
    if name not in allowed:
        known = ", ".join(sorted(allowed)) or "none"
        raise InvalidRequest(
            f"'{name}' is not known to launch expressions of this task.", f"Known names: {known}."
        )


def _too_deep() -> InvalidRequest:
    return InvalidRequest(f"A launch expression is nested more than {_MAX_DEPTH} deep.", "Simplify it.")


def _not_allowed(expression: str) -> InvalidRequest:
    return InvalidRequest(
        f"'{expression[:80]}' uses something that launch expressions do not allow.",
        f"Use numbers, names of sizes, arithmetic, one comparison at a time, `a if c else b` and {', '.join(_FUNCTIONS)}.",
    )


def _check_arity(name: str, count: int) -> None:
    least, most, _ = _FUNCTIONS[name]
    if not least <= count <= most:
        wanted = str(least) if least == most else f"{least} to {most}"
        raise InvalidRequest(
            f"`{name}` in a launch expression takes {wanted} argument(s), not {count}.",
            "Mend the expression.",
        )


class _Evaluator:
    def __init__(self, expression: str, names: Mapping[str, Number]) -> None:
        self._expression = expression
        self._names = names

    def visit(self, node: ast.expr, depth: int = 0) -> Number:
        if depth > _MAX_DEPTH:
            raise _too_deep()
        return _bounded(self._value(node, depth + 1), self._expression)

    def _value(self, node: ast.expr, depth: int) -> Number:
        match node:
            case ast.Constant(value=bool() | int() | float() as value):
                return value
            case ast.Name(id=name):
                _known(name, self._names)
                return self._names[name]
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
                return _BINARY[type(op)](self.visit(left, depth), self.visit(right, depth))
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -self.visit(operand, depth)
            case ast.UnaryOp(op=ast.UAdd(), operand=operand):
                return self.visit(operand, depth)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return not self.visit(operand, depth)
            case ast.UnaryOp(op=ast.Invert(), operand=operand):
                inverted = self.visit(operand, depth)
                if not isinstance(inverted, int):
                    raise InvalidRequest("`~` in a launch expression got a float.", "Use integers.")
                return -1 - inverted
            case ast.IfExp(test=test, body=body, orelse=orelse):
                return self.visit(body if self.visit(test, depth) else orelse, depth)
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARE:
                return _COMPARE[type(op)](self.visit(left, depth), self.visit(right, depth))
            case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _FUNCTIONS:
                _check_arity(name, len(args))
                function = _FUNCTIONS[name][2]
                return function(*(self.visit(a, depth) for a in args))
        raise _not_allowed(self._expression)


def evaluate(expression: str, names: Mapping[str, Number]) -> Number:
    """The value of a launch expression.

    Raises:
        InvalidRequest: not an expression of this language, an unknown name, or a value beyond 64 bits.

    >>> evaluate("ceil_div(rows * cols, 4 * BLOCK)", {"rows": 3, "cols": 100, "BLOCK": 32})
    3
    """
    return _Evaluator(expression, names).visit(_parse(expression))


def check(expression: str, allowed: Collection[str]) -> None:
    """Raise InvalidRequest unless `evaluate` takes the expression for some values of these names."""
    _check_node(_parse(expression), expression, allowed, 0)


def _check_node(node: ast.expr, expression: str, allowed: Collection[str], depth: int) -> None:
    if depth > _MAX_DEPTH:
        raise _too_deep()
    below: list[ast.expr]
    match node:
        case ast.Constant(value=bool() | int() | float() as value):
            _bounded(value, expression)
            below = []
        case ast.Name(id=name):
            _known(name, allowed)
            below = []
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            below = [left, right]
        case ast.UnaryOp(operand=operand):
            below = [operand]
        case ast.IfExp(test=test, body=body, orelse=orelse):
            below = [test, body, orelse]
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARE:
            below = [left, right]
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _FUNCTIONS:
            _check_arity(name, len(args))
            below = args
        case _:
            raise _not_allowed(expression)
    for child in below:
        _check_node(child, expression, allowed, depth + 1)


def argument(expression: str, names: Mapping[str, Number], tensors: Collection[str]) -> Pointer | Scalar:
    """One kernel argument: a tensor's bare name is its address, anything else a value.

    Raises InvalidRequest as `evaluate` does, and for a value that the type of its cast cannot hold.

    >>> argument("i32(n)", {"n": 7}, {"x"})
    Scalar(value=7, ctype='i32')
    """
    tree = _parse(expression)
    if isinstance(tree, ast.Name) and tree.id in tensors:
        return Pointer(tree.id)
    ctype: CType | None = None
    if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name):
        ctype = CASTS.get(tree.func.id)
    return Scalar(evaluate(expression, names), ctype)


def dim3(expressions: Collection[str], names: Mapping[str, Number]) -> tuple[int, int, int]:
    """Grid or block dimensions, missing ones 1. Raises InvalidRequest unless all are integers above 0."""
    values: list[int] = []
    for expression in expressions:
        value = evaluate(expression, names)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or value < 1:
            raise InvalidRequest(
                f"The launch dimension '{expression[:80]}' is {value}.",
                "Dimensions are integers of at least 1: write `max(1, …)` for sizes that can be 0.",
            )
        values.append(int(value))
    if not 1 <= len(values) <= 3:
        raise InvalidRequest("A launch has one to three dimensions.", "Give one to three expressions.")
    x, y, z = (*values, 1, 1)[:3]
    return x, y, z
