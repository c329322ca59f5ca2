"""Places that look right and are not: what a search by likeness must see before it edits anything."""

from __future__ import annotations

import time

import pytest
from pydantic import ValidationError

from cuteforge.kernels.errors import PatchRefused
from cuteforge.kernels.patch import PatchRequest, apply_patch
from cuteforge.kernels.patch_indent import Indentation

NAME = "k.cu"


def replace(search: list[str], by: list[str]) -> str:
    return "\n".join(["<<<<<<< SEARCH", *search, "=======", *by, ">>>>>>> REPLACE", ""])


def apply(text: str, patch: str) -> str:
    return apply_patch({NAME: text}, PatchRequest(patch=patch)).files[NAME]


def refusal(text: str, patch: str) -> str:
    with pytest.raises(PatchRefused) as caught:
        apply(text, patch)
    return caught.value.cause


def function(name: str, lines: int) -> list[str]:
    body = [f"  float v{i} = load_{i}(tile, row_{i}) * scale_{i};" for i in range(lines)]
    return [f"void {name}() {{", *body, "}", ""]


@pytest.mark.parametrize("lines", [1, 2, 12, 60, 200])
def test_of_two_copies_of_a_long_function_neither_is_chosen_by_likeness(lines: int) -> None:
    first, second = function("alpha", lines), function("beta", lines)
    recalled = first[1 : lines + 1]
    recalled[lines // 2] = recalled[lines // 2].replace("load", "lead")
    cause = refusal("\n".join(first + second), replace(recalled, ["x"]))
    assert "two places" in cause
    assert f"lines 2 and {lines + 5}" in cause


def test_a_function_is_found_by_likeness_where_its_name_tells_it_from_its_copy() -> None:
    first, second = function("accumulate_rows_of_tile", 2), function("zero_columns", 2)
    recalled = [second[0], second[1].replace("load", "lead")]
    text = "\n".join(first + second)
    assert apply(text, replace(recalled, ["x"])) == "\n".join([*first, "x", *second[2:]])


def test_a_line_never_seen_by_the_patch_is_not_overwritten_by_likeness() -> None:
    recalled = function("alpha", 12)[:-1]
    current = list(recalled)
    current[7] = "  if (lane == 0) abort();"
    cause = refusal("\n".join(current), replace(recalled, ["x"]))
    assert "line 8" in cause
    assert "if (lane == 0) abort();" in cause


def test_lines_too_long_to_compare_are_not_taken_for_alike() -> None:
    assert "not in" in refusal("x" * 450 + "AAAA\nb\n", replace(["x" * 450 + "BBBB"], ["new"]))


def test_lines_without_a_word_are_no_ground_for_likeness() -> None:
    assert "not in" in refusal("a\n}}});\nb\n}}}},;\n", replace(["}}}});"], ["x"]))


def test_a_text_of_repeated_lines_takes_bounded_time() -> None:
    start = time.process_time()
    refusal("a\nb\n" * 50_000, replace(["a", "b"] * 20_000 + ["b"], ["new"]))
    refusal("a\n" * 100_000, replace(["a"] * 50_000, ["new"]))
    assert time.process_time() - start < 20


def test_many_changes_that_differ_in_white_space_take_bounded_time() -> None:
    lines = [f"  int value_{i} = {i * i};" for i in range(2000)]
    hunks = "".join(f"@@ -1 +1 @@\n-int value_{i}={i * i};\n+int value_{i} = -1;\n" for i in range(2000))
    start = time.process_time()
    result = apply("\n".join(lines) + "\n", f"--- a/{NAME}\n+++ b/{NAME}\n{hunks}")
    assert result == "".join(f"  int value_{i} = -1;\n" for i in range(2000))
    assert time.process_time() - start < 5


def test_a_context_that_fits_many_places_names_some_of_them() -> None:
    cause = refusal("x;\n" * 500, replace(["x;"], ["y;"]))
    assert "more than 6 places" in cause
    assert "lines 1, 2, 3, 4, 5, 6 and more" in cause


def test_overlapping_places_are_two_places() -> None:
    assert "lines 1, 2" in refusal("}\n}\n}\nx\n", replace(["}", "}"], ["}"]))


@pytest.mark.parametrize(
    ("current", "search", "by", "expected"),
    [
        # Two blanks a level in the patch, four in the file, of a language in which that matters.
        (
            ["def f():", "    if a:", "        b()", "        c()"],
            ["def f():", "  if a:", "    b()", "    c()"],
            ["def f():", "  if a:", "    b()", "    if d:", "      e()", "  g()"],
            ["def f():", "    if a:", "        b()", "        if d:", "            e()", "    g()"],
        ),
        (
            ["\tfor (;;) {", "\t\ta();", "\t}"],
            ["    for (;;) {", "        a();", "    }"],
            ["    for (;;) {", "        if (x) {", "            a();", "        }", "    }"],
            ["\tfor (;;) {", "\t\tif (x) {", "\t\t\ta();", "\t\t}", "\t}"],
        ),
        (["\tx();"], ["    x();"], ["    if (y)", "        x();"], ["\tif (y)", "\t\tx();"]),
        (["    x();"], ["\tx();"], ["\tif (y)", "\t\tx();"], ["    if (y)", "        x();"]),
        (["a();", "b();"], ["    a();", "    b();"], ["    if (q)", "      b();"], ["if (q)", "  b();"]),
        (
            ["      a();", "      b();"],
            ["  a();", "  b();"],
            ["  a();", "#pragma unroll", "}", "", "  b();"],
            ["      a();", "#pragma unroll", "    }", "", "      b();"],
        ),
        (["  a( );"], ["  a();"], ["    b();", "c();"], ["    b();", "c();"]),
    ],
)
def test_new_lines_are_indented_as_the_file_is(
    current: list[str], search: list[str], by: list[str], expected: list[str]
) -> None:
    text = "\n".join(["first", *current, "last"])
    assert apply(text, replace(search, by)) == "\n".join(["first", *expected, "last"])


def test_indentation_without_anything_to_learn_from_changes_nothing() -> None:
    assert Indentation([("", "")])("  x") == "  x"


@pytest.mark.parametrize("named", ["sub/k.cu", "project/kernels/k.cu"])
def test_a_path_seen_from_another_folder_counts_for_text_and_not_for_line_numbers(named: str) -> None:
    diff = f"--- a/{named}\n+++ b/{named}\n@@ -1 +1 @@\n-a\n+b\n"
    assert apply_patch({NAME: "a\n", "z.h": "a\n"}, PatchRequest(patch=diff)).files[NAME] == "b\n"
    edit = {"op": "delete", "start_line": 1, "file": named}
    with pytest.raises(PatchRefused, match="no file"):
        apply_patch({NAME: "a\n"}, PatchRequest.model_validate({"edits": [edit]}))


def test_an_insertion_by_line_into_an_unknown_file_makes_none() -> None:
    with pytest.raises(PatchRefused, match="no file"):
        apply("a\n", "--- a/z.cu\n+++ b/z.cu\n@@ -3,0 +4 @@\n+x\n")


def test_a_deleted_file_is_not_changed_as_well() -> None:
    gone = "--- a/n.h\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n"
    change = "--- a/n.h\n+++ b/n.h\n@@ -1 +1 @@\n-x\n+y\n"
    for patch in (gone + change, change + gone):
        with pytest.raises(PatchRefused):
            apply_patch({NAME: "a\n", "n.h": "x\n"}, PatchRequest(patch=patch))


def test_blank_lines_of_a_new_file_may_lack_their_plus() -> None:
    patch = "--- /dev/null\n+++ b/n.h\n@@ -0,0 +1,3 @@\n+a\n\n+b\n"
    assert apply_patch({NAME: "a\n"}, PatchRequest(patch=patch)).files["n.h"] == "a\n\nb\n"


@pytest.mark.parametrize("edit", [{"op": "replace"}, {"op": "insert"}, {"op": "delete", "text": "x"}])
def test_a_line_edit_without_its_text_or_with_one_too_many_is_refused(edit: dict) -> None:
    with pytest.raises(PatchRefused, match="Edit 1"):
        apply_patch({NAME: "a\nb\n"}, PatchRequest.model_validate({"edits": [{**edit, "start_line": 1}]}))


def test_a_truth_value_is_no_line_number() -> None:
    with pytest.raises(ValidationError):
        PatchRequest.model_validate({"edits": [{"op": "delete", "start_line": True}]})


def test_a_mail_of_git_format_patch_applies_without_its_signature() -> None:
    head = "From abc Mon Sep 17 00:00:00 2001\nSubject: [PATCH] x\n\n---\n k.cu | 2 +-\n 1 file changed\n\n"
    diff = (
        "diff --git a/k.cu b/k.cu\nindex 1..2 100644\n--- a/k.cu\n+++ b/k.cu\n@@ -1,2 +1,2 @@\n-a\n+c\n b\n"
    )
    assert apply("a\nb\n", f"{head}{diff}-- \n2.40.1\n\n") == "c\nb\n"


def test_removed_lines_that_look_like_a_file_header_are_lines() -> None:
    patch = "--- a/k.cu\n+++ b/k.cu\n@@ -1,2 +1,2 @@\n--- x\n+++ x\n y\n"
    assert apply("-- x\ny\n", patch) == "++ x\ny\n"


@pytest.mark.parametrize(
    "patch",
    [
        # Each would be applied in part if what cannot be read were left out.
        "diff --git a/e.h b/e.h\nnew file mode 100644\nindex 0..1\n--- a/k.cu\n+++ b/k.cu\n@@ -1 +1 @@\n-a\n+c\n"
        "diff --git a/f.h b/f.h\nindex 1..2\n",
        "--- a/k.cu\n+++ b/k.cu\n-a\n+c\n@@ -2 +2 @@\n-b\n+d\n",
        "--- a/k.cu\n+++ b/k.cu\n@@ -1 +1 @@\n-a\n+c\ndiff --git a/n.h b/n.h\n@@ -1 +1 @@\n-b\n+d\n",
        "--- a/k.cu\n@@ -1 +1 @@\n-a\n+c\n",
        "--- a/k.cu\n+++ b/k.cu\n@@ -1 +1 @@\n-a\n+c\n--- a/n.h\n+++ b/n.h\n",
    ],
)
def test_a_diff_of_which_a_part_would_be_left_out_is_refused(patch: str) -> None:
    assert refusal("a\nb\n", patch)
