"""Launch expressions: what they are worth, and that nothing else is an expression."""

from __future__ import annotations

import importlib.util
import random
import subprocess
import sys
import time

import pytest

from cuteforge.kernels.errors import InvalidRequest
from cuteforge.kernels.launch import MAX_LENGTH, Pointer, Scalar, argument, check, dim3, evaluate

NAMES = {"rows": 7, "cols": 100, "BLOCK": 32, "scale": 0.5, "causal": True, "zero": 0, "minus": -7}


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("1", 1),
        (" rows ", 7),
        ("rows * cols + 1", 701),
        ("rows - cols", -93),
        ("-rows", -7),
        ("+rows", 7),
        ("~rows", -8),
        ("ceil_div(cols, BLOCK)", 4),
        ("ceil_div(96, BLOCK)", 3),
        ("ceil_div(0, BLOCK)", 0),
        ("ceil_div(-7, 2)", -3),
        ("align_up(cols, BLOCK)", 128),
        ("align_up(96, BLOCK)", 96),
        ("min(rows, cols, 3)", 3),
        ("max(rows, cols)", 100),
        ("cols % BLOCK", 4),
        ("1 << rows", 128),
        ("cols >> 2", 25),
        ("1 << 62", 1 << 62),
        ("6 & 3", 2),
        ("6 | 3", 7),
        ("6 ^ 3", 5),
        ("rows if causal else cols", 7),
        ("rows if rows > cols else cols", 100),
        ("rows == 7", True),
        ("rows != 7", False),
        ("rows <= 7", True),
        ("rows >= 8", False),
        ("not causal", False),
        ("scale * 3", 1.5),
        ("0x10 + 0b11 + 1_000", 1019),
        ("1e3", 1000.0),
        ("True", True),
        ("i32(rows)", 7),
        ("9223372036854775807", 2**63 - 1),
        ("(" * 50 + "rows" + ")" * 50, 7),
        ("1 / zero if zero else 5", 5),
        ("(\nrows +\n1)", 8),
    ],
)
def test_values(expression: str, value: float) -> None:
    result = evaluate(expression, NAMES)
    assert result == value
    assert type(result) is type(value)


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("7 / 2", 3),
        ("minus / 2", -3),
        ("7 / -2", -3),
        ("minus / -2", 3),
        ("minus / 7", -1),
        ("3 / 4", 0),
        ("1 / 2.0", 0.5),
        ("rows / scale", 14.0),
        ("9007199254740993 / 1", 9007199254740993),
        ("f64(rows) / 2", 3.5),
        ("rows / f32(2)", 3.5),
        ("i32(7.9) / 2", 3),
        ("i32(-7.9)", -7),
        ("f32(0.1) == 0.1", False),
        ("f32(True)", 1.0),
        ("minus // 2", -4),
        ("7.0 // 2", 3.0),
    ],
)
def test_division_of_integers_is_that_of_c_and_exact(expression: str, value: float) -> None:
    result = evaluate(expression, NAMES)
    assert result == value
    assert type(result) is type(value)


@pytest.mark.parametrize("operator", ["/", "//", "%"])
@pytest.mark.parametrize("zero", ["0", "zero", "0.0", "rows - 7", "False"])
def test_division_by_zero_is_refused(operator: str, zero: str) -> None:
    with pytest.raises(InvalidRequest, match="zero") as caught:
        evaluate(f"cols {operator} ({zero})", NAMES)
    assert "max(n, 1)" in caught.value.remedy


def test_division_by_zero_within_a_function_is_refused() -> None:
    for expression in ("ceil_div(rows, zero)", "align_up(rows, 0)"):
        with pytest.raises(InvalidRequest, match="zero"):
            evaluate(expression, NAMES)


NEVER = [
    "",
    " ",
    "rows +",
    "rows cols",
    "rows = 3",
    "import os",
    "__import__('os')",
    "__import__('os').system('id')",
    "().__class__",
    "().__class__.__bases__[0].__subclasses__()",
    "rows.__class__",
    "rows.real",
    "10**10**10",
    "2 ** 3",
    "pow(2, 3)",
    "abs(rows)",
    "int(rows)",
    "eval('1')",
    "lambda: 1",
    "(lambda: 1)()",
    "(n := 5)",
    "min(n := 5, 2)",
    "f'{rows}'",
    "f'{().__class__}'",
    "'text'",
    "b'bytes'",
    "'a' * 3",
    "min('a', 'b')",
    "None",
    "...",
    "1j",
    "[1]",
    "(1, 2)",
    "{1}",
    "{1: 2}",
    "[n for n in (1, 2)]",
    "min(*rows)",
    "max(n for n in (1, 2))",
    "rows[0]",
    "rows @ cols",
    "rows and cols",
    "rows or cols",
    "1 < rows < 9",
    "rows is 7",
    "rows in cols",
    "i32(value=rows)",
    "min(rows, key=cols)",
    "ceil_div(rows)",
    "ceil_div(1, 2, 3)",
    "min(1)",
    "max(" + "1, " * 8 + "1)",
    "i32()",
    "i32(1, 2)",
    "ceil_div",
    "min + 1",
    "unknown",
    "await rows",
    "yield",
    "rows # comment\n+",
    "rows; cols",
    "\0",
    "rows\0",
    "(" * 240 + "1" + ")" * 240,
    "-" * 100 + "1",
    "~" * 499 + "1",
    "1" + "+1" * 60,
    "1" * (MAX_LENGTH + 1),
    "9" * 30,
    "9223372036854775808",
    "1e999",
    "0x" + "f" * 400,
]


@pytest.mark.parametrize("expression", NEVER)
def test_anything_else_is_refused_by_both_check_and_evaluate(expression: str) -> None:
    start = time.perf_counter()
    for refuse in (lambda: evaluate(expression, NAMES), lambda: check(expression, NAMES)):
        with pytest.raises(InvalidRequest) as caught:
            refuse()
        assert caught.value.remedy
        assert len(caught.value.explain()) < 500
    assert time.perf_counter() - start < 1


@pytest.mark.parametrize(
    "expression",
    ["1 << 64", "1 << -1", "1 >> 64", "rows << minus", "1 << 63", "1 << 62 << 1", "cols << 60"],
)
def test_shifts_beyond_64_bits_are_refused(expression: str) -> None:
    with pytest.raises(InvalidRequest):
        evaluate(expression, NAMES)


@pytest.mark.parametrize(
    "expression",
    ["scale << 1", "1 & scale", "~scale", "1e3 | 1", "9223372036854775807 + 1", "-9223372036854775807 - 2"],
)
def test_bit_operations_on_floats_and_values_beyond_64_bits_are_refused(expression: str) -> None:
    with pytest.raises(InvalidRequest):
        evaluate(expression, NAMES)


def test_values_that_are_not_finite_are_refused() -> None:
    for expression in ("1e308 * 10", "1e308 * 10 - 1e308 * 10", "x", "min(x, 1)"):
        with pytest.raises(InvalidRequest, match="finite"):
            evaluate(expression, {"x": float("nan")})


def test_repeated_squaring_stops_at_64_bits() -> None:
    with pytest.raises(InvalidRequest, match="64 bits"):
        evaluate("*".join(["9999999999"] * 30), {})


def test_an_unknown_name_lists_the_known_ones() -> None:
    for refuse in (lambda: evaluate("colls", {"b": 1, "a": 2}), lambda: check("colls", ["b", "a"])):
        with pytest.raises(InvalidRequest, match="colls") as caught:
            refuse()
        assert "a, b" in caught.value.remedy


def test_check_looks_into_the_branch_that_is_not_taken() -> None:
    assert evaluate("1 if True else nope", {}) == 1
    with pytest.raises(InvalidRequest, match="nope"):
        check("1 if True else nope", [])


def _random_expression(draw: random.Random, depth: int) -> str:
    if depth == 0 or draw.random() < 0.2:
        return draw.choice(
            ["rows", "cols", "scale", "3", "0", "1.5", "True", "min", "other", "'s'", "2**3", "1e400"]
        )
    parts = [_random_expression(draw, depth - 1) for _ in range(3)]
    forms = ["({0} + {1})", "({0} / {1})", "({0} % {1})", "({0} << {1})", "(-{0})", "(not {0})", "(~{0})"]
    forms += ["min({0}, {1})", "ceil_div({0}, {1})", "({0} if {1} else {2})", "({0} < {1})", "i32({0})"]
    forms += ["({0} < {1} < {2})", "align_up({0})", "({0} and {1})", "({0}, {1})", "{0}.real", "({0} ** {1})"]
    return draw.choice(forms).format(*parts)


def _accepts(call, *given: object) -> bool:
    try:
        call(*given)
    except InvalidRequest:
        return False
    return True


def test_check_takes_every_expression_that_evaluate_takes_for_all_branches() -> None:
    draw = random.Random(2)
    taken = refused = 0
    for _ in range(3000):
        expression = _random_expression(draw, 3)
        values = [{"rows": r, "cols": 5, "scale": s} for r in (1, 3) for s in (2, 0.5)]
        checked = _accepts(check, expression, values[0])
        evaluated = any(_accepts(evaluate, expression, names) for names in values)
        if evaluated and " if " not in expression:
            assert checked, expression
        taken += checked and evaluated
        refused += not checked and not evaluated
    assert taken > 200
    assert refused > 200


@pytest.mark.filterwarnings("ignore::SyntaxWarning", "ignore::DeprecationWarning")
def test_a_soup_of_tokens_raises_nothing_but_a_refusal() -> None:
    draw = random.Random(4)
    tokens = "rows cols 1 0 2.5 ( ) + - * / // % ** << >> < == if else not , min max ceil_div . [ ] : = ' \" \\ \n".split(
        " "
    )
    for _ in range(3000):
        expression = " ".join(draw.choices(tokens, k=draw.randrange(1, 12)))
        _accepts(check, expression, NAMES)
        _accepts(evaluate, expression, NAMES)
        _accepts(argument, expression, NAMES, ["x"])


@pytest.mark.parametrize("given", [None, 3, 1.5, ["rows"], b"rows"])
def test_what_is_no_text_is_refused(given: object) -> None:
    assert not _accepts(evaluate, given, NAMES)
    assert not _accepts(check, given, NAMES)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("x", Pointer("x")),
        (" x ", Pointer("x")),
        ("rows", Scalar(7)),
        ("rows * cols", Scalar(700)),
        ("i32(rows)", Scalar(7, "i32")),
        ("u32(rows)", Scalar(7, "u32")),
        ("i64(2147483648)", Scalar(2147483648, "i64")),
        ("i32(2.9)", Scalar(2, "i32")),
        ("f32(rows)", Scalar(7.0, "f32")),
        ("f64(scale)", Scalar(0.5, "f64")),
        ("scale", Scalar(0.5)),
        ("max(rows, 9)", Scalar(9)),
    ],
)
def test_arguments(expression: str, expected: Pointer | Scalar) -> None:
    found = argument(expression, NAMES, {"x", "out"})
    assert found == expected
    if isinstance(expected, Scalar) and isinstance(found, Scalar):
        assert type(found.value) is type(expected.value)


@pytest.mark.parametrize(
    "expression",
    [
        "x + 1",
        "i32(x)",
        "unknown",
        "x.data",
        "i32(2147483648)",
        "u32(-1)",
        "u32(minus)",
        "i64(1e30)",
        "i32(1e10)",
        "i32(1 << 40) >> 20",
        "f32(1e39)",
    ],
)
def test_arguments_that_compute_with_addresses_or_overflow_their_cast_are_refused(expression: str) -> None:
    with pytest.raises(InvalidRequest):
        argument(expression, NAMES, {"x"})


@pytest.mark.parametrize(
    ("expressions", "expected"),
    [
        (["rows"], (7, 1, 1)),
        (["rows", "ceil_div(cols, BLOCK)"], (7, 4, 1)),
        (["1", "2", "3"], (1, 2, 3)),
        (["4.0"], (4, 1, 1)),
    ],
)
def test_dimensions(expressions: list[str], expected: tuple[int, int, int]) -> None:
    assert dim3(expressions, NAMES) == expected


@pytest.mark.parametrize(
    "expressions", [[], ["1"] * 4, ["0"], ["zero"], ["-1"], ["1.5"], ["rows", "rows - 7"], ["1e400"], ["x"]]
)
def test_dimensions_below_1_or_of_a_wrong_number_are_refused(expressions: list[str]) -> None:
    with pytest.raises(InvalidRequest):
        dim3(expressions, NAMES)


def test_the_module_loads_without_anything_but_the_standard_library() -> None:
    spec = importlib.util.find_spec("cuteforge.kernels.launch")
    assert spec is not None
    code = (
        "import sys; before = set(sys.modules); import cuteforge.kernels.launch; "
        "new = {m.partition('.')[0] for m in set(sys.modules) - before}; "
        "print(sorted(m for m in new - set(sys.stdlib_module_names) if m != 'cuteforge' and not m.startswith('__')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
