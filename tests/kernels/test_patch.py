"""Patches: what applies, what is refused, and that nothing is ever half-applied or put in a wrong place."""

from __future__ import annotations

import random
import time

import pytest
from pydantic import ValidationError

from cuteforge.kernels.errors import PatchRefused
from cuteforge.kernels.patch import MAX_FUZZY, PatchRequest, PatchResult, apply_patch, unified
from cuteforge.kernels.patch_fuzzy import FUZZY_THRESHOLD
from cuteforge.kernels.patch_match import Text

NAME = "k.cu"


def text_of(count: int = 100) -> str:
    """`count` different lines."""
    return "".join(f"  value_{n} = load({n * n}, {n});\n" for n in range(1, count + 1))


def apply(text: str, patch: str) -> str:
    return apply_patch({NAME: text}, PatchRequest(patch=patch)).files[NAME]


def diff(body: str, header: str = "@@ -1,3 +1,3 @@", name: str = NAME) -> str:
    return f"--- a/{name}\n+++ b/{name}\n{header}\n{body}"


def block(search: str, replace: str, name: str = "") -> str:
    return f"{name}<<<<<<< SEARCH\n{search}=======\n{replace}>>>>>>> REPLACE\n"


def edit(text: str, *edits: dict) -> PatchResult:
    return apply_patch({NAME: text}, PatchRequest.model_validate({"edits": edits}))


def refused(files: dict[str, str] | str, patch: str | list[dict]) -> PatchRefused:
    """The refusal; the files that were handed in are untouched."""
    given = {NAME: files} if isinstance(files, str) else files
    before = dict(given)
    request = {"patch": patch} if isinstance(patch, str) else {"edits": patch}
    with pytest.raises(PatchRefused) as caught:
        apply_patch(given, PatchRequest.model_validate(request))
    assert given == before
    assert caught.value.remedy
    return caught.value


ABC = "a = 1;\nb = 2;\nc = 3;\n"
CHANGE_B = " a = 1;\n-b = 2;\n+b = 9;\n c = 3;\n"
CHANGED = "a = 1;\nb = 9;\nc = 3;\n"


@pytest.mark.parametrize(
    "header",
    [
        "@@ -1,3 +1,3 @@",
        "@@ -1,7 +1,2 @@",
        "@@ -1 +1 @@",
        "@@ -900,3 +2,8 @@ void f()",
        "@@ -0,0 +0,0 @@",
        "@@ @@",
        "@@ ... @@",
    ],
)
def test_wrong_hunk_counts_and_line_numbers_do_no_harm(header: str) -> None:
    assert apply(ABC, diff(CHANGE_B, header)) == CHANGED


def test_a_wrong_count_does_not_swallow_the_next_hunk_or_file() -> None:
    text = text_of()
    lines = text.splitlines()
    patch = diff(f"-{lines[4]}\n+five\n", "@@ -5,40 +5,40 @@") + f"@@ -9,1 +9 @@\n-{lines[8]}\n+nine\n"
    patch += diff("-x\n+y\n", "@@ -1,90 +1,9 @@", name="other.h")
    result = apply_patch({NAME: text, "other.h": "x\n"}, PatchRequest(patch=patch))
    assert result.files == {NAME: text.replace(lines[4], "five").replace(lines[8], "nine"), "other.h": "y\n"}
    assert [m.line for m in result.matches] == [5, 9, 1]
    assert [(s.path, s.added, s.removed) for s in result.stats] == [(NAME, 2, 2), ("other.h", 1, 1)]


def test_blank_context_lines_may_lack_their_leading_space() -> None:
    assert apply("a\n\nb\n\nc\n", diff(" a\n\n-b\n+B\n\n c\n")) == "a\n\nB\n\nc\n"


def test_blank_lines_after_the_last_hunk_are_not_context() -> None:
    assert apply(ABC, diff(CHANGE_B) + "\n\n") == CHANGED


@pytest.mark.parametrize("patch_end", ["\n", "\r\n"])
@pytest.mark.parametrize("form", [diff(CHANGE_B), block("b = 2;\n", "b = 9;\n")])
@pytest.mark.parametrize("file_end", ["\n", "\r\n"])
def test_a_file_keeps_its_line_ends_whatever_those_of_the_patch(
    patch_end: str, form: str, file_end: str
) -> None:
    result = apply(ABC.replace("\n", file_end), form.replace("\n", patch_end))
    assert result == CHANGED.replace("\n", file_end)


def test_new_lines_in_a_crlf_file_end_in_crlf_also_by_line_edit() -> None:
    edits = {"op": "insert", "start_line": 2, "text": "x\ny\r\n"}
    assert edit("a\r\nb\r\n", edits).files[NAME] == "a\r\nx\r\ny\r\nb\r\n"


def test_appending_to_a_crlf_file_without_a_final_newline_ends_its_last_line_in_crlf() -> None:
    assert edit("a\r\nb", {"op": "insert", "start_line": 3, "text": "c"}).files[NAME] == "a\r\nb\r\nc"


def test_a_file_of_mixed_line_ends_keeps_those_of_the_lines_that_stay() -> None:
    assert apply("a\r\nb\nc\r\nd\r\n", diff(" a\n b\n-c\n+C\n d\n")) == "a\r\nb\nC\r\nd\r\n"


def test_hunks_without_context_delete_and_insert() -> None:
    assert apply(ABC, diff("-b = 2;\n", "@@ -2 +1,0 @@")) == "a = 1;\nc = 3;\n"
    assert apply(ABC, diff("+x\n", "@@ -2,0 +3 @@")) == "a = 1;\nb = 2;\nx\nc = 3;\n"
    assert apply(ABC, diff("+x\n", "@@ -0,0 +1 @@")) == "x\n" + ABC
    assert apply(ABC, diff("+x\n", "@@ -3,0 +4 @@")) == ABC + "x\n"


@pytest.mark.parametrize("header", ["@@ @@", "@@ -9,0 +10 @@", "@@ -2,4 +2,5 @@"])
def test_an_insertion_that_says_no_place_is_refused(header: str) -> None:
    assert "no context" in refused(ABC, diff("+x\n", header)).cause


@pytest.mark.parametrize("claimed", [1, 30, 99, 100_000])
def test_a_hunk_far_from_where_it_says_goes_to_the_one_place_that_fits(claimed: int) -> None:
    text = text_of(200)
    line = text.splitlines()[149]
    result = apply_patch({NAME: text}, PatchRequest(patch=diff(f"-{line}\n+new\n", f"@@ -{claimed} +1 @@")))
    assert result.files[NAME] == text.replace(line, "new")
    assert result.matches[0][1:] == (150, "exact", 1.0)


@pytest.mark.parametrize(
    "patch", [diff(" }\n-x;\n+y;\n", "@@ -2,2 +2,2 @@"), block("}\nx;\n", "}\ny;\n"), block("x;\n", "y;\n")]
)
def test_context_that_fits_two_places_is_refused_with_both_line_numbers(patch: str) -> None:
    first, second = ("3", "7") if "}" not in patch else ("2", "6")
    cause = refused("a\n}\nx;\nb\nc\n}\nx;\n", patch).cause
    assert "2 places" in cause
    assert f"lines {first}, {second}" in cause


def test_two_places_that_differ_in_white_space_only_are_told_apart_by_it_or_refused() -> None:
    text = "  x = 1;\nb\n\tx = 1;\n"
    assert apply(text, block("\tx = 1;\n", "\tx = 2;\n")) == "  x = 1;\nb\n\tx = 2;\n"
    assert "lines 1, 3" in refused(text, block("x  =  1;\n", "x = 2;\n")).cause


def test_two_places_that_are_alike_are_refused_with_both_line_numbers() -> None:
    near = "float acc = lane + 4 * {} + warp_offset_of_tile(row, column);\n"
    cause = refused(near.format("aa") + "mid\n" + near.format("bb"), block(near.format("cc"), "x\n")).cause
    assert "two places" in cause
    assert "1 and 3" in cause


def test_line_numbers_refer_to_the_text_before_the_patch() -> None:
    result = edit(
        ABC,
        {"op": "replace", "start_line": 1, "text": "x\n\n\ny\n"},
        {"op": "insert", "start_line": 3, "text": "new"},
        {"op": "delete", "start_line": 2},
    )
    assert result.files[NAME] == "x\n\n\ny\nnew\nc = 3;\n"
    assert [m.line for m in result.matches] == [1, 3, 2]


@pytest.mark.parametrize(
    ("edits", "expected"),
    [
        ([("insert", 2, None, "1\n"), ("insert", 2, None, "2\n")], "a\n1\n2\nb\nc\n"),
        ([("insert", "3", None, "x")], "a\nb\nx\nc\n"),
        ([("insert", 4, None, "x")], "a\nb\nc\nx\n"),
        ([("insert", 1, None, "\n\nx\n\n")], "\n\nx\n\na\nb\nc\n"),
        ([("insert", 1, None, "\n")], "\na\nb\nc\n"),
        ([("replace", 2, 3, "x\n\ny\n")], "a\nx\n\ny\n"),
        ([("delete", 1, "2", "")], "c\n"),
        ([("delete", 3, None, ""), ("delete", 1, None, "")], "b\n"),
        ([("insert", 2, None, "i"), ("replace", 2, None, "r")], "a\ni\nr\nc\n"),
    ],
)
def test_line_edits(edits: list[tuple], expected: str) -> None:
    given = [{"op": op, "start_line": start, "end_line": end, "text": text} for op, start, end, text in edits]
    assert edit("a\nb\nc\n", *given).files[NAME] == expected


@pytest.mark.parametrize(
    ("op", "start", "end"),
    [
        ("insert", 0, None),
        ("insert", 5, None),
        ("insert", -1, None),
        ("insert", 1, 2),
        ("replace", 0, None),
        ("replace", 4, None),
        ("delete", -3, None),
        ("delete", 3, 2),
        ("delete", 2, 4),
        ("replace", 10**30, None),
    ],
)
def test_a_line_edit_outside_the_file_refuses_the_whole_patch(op: str, start: int, end: int | None) -> None:
    good = {"op": "replace", "start_line": 1, "text": "x"}
    cause = refused(ABC, [good, {"op": op, "start_line": start, "end_line": end, "text": "y"}]).cause
    assert "Edit 2" in cause


@pytest.mark.parametrize("start", ["two", 1.5, None, ""])
def test_a_line_number_that_is_none_is_no_request(start: object) -> None:
    with pytest.raises(ValidationError):
        PatchRequest.model_validate({"edits": [{"op": "delete", "start_line": start}]})


def test_a_request_has_exactly_one_form() -> None:
    for request in ({}, {"patch": "x", "edits": [{"op": "delete", "start_line": 1}]}):
        with pytest.raises(ValidationError):
            PatchRequest.model_validate(request)


def test_overlapping_changes_are_refused() -> None:
    replace = {"op": "replace", "start_line": 1, "end_line": 2, "text": "x"}
    assert "overlap" in refused(ABC, [replace, {"op": "delete", "start_line": 2}]).cause
    assert "overlap" in refused(ABC, [replace, {"op": "insert", "start_line": 2, "text": "y"}]).cause
    assert (
        "overlap" in refused(ABC, block("a = 1;\nb = 2;\n", "x\n") + block("b = 2;\nc = 3;\n", "y\n")).cause
    )
    assert "overlap" in refused(ABC, block("b = 2;\n", "x\n") + block("b = 2;\n", "y\n")).cause


@pytest.mark.parametrize(
    "path",
    ["../k.cu", "/etc/passwd", ".git/config", "a/../../k.cu", "a/.git/hooks/x", "\\\\host\\x", "./k.cu"],
)
def test_a_path_outside_the_candidate_is_refused(path: str) -> None:
    refused(ABC, f"--- a/{path}\n+++ b/{path}\n@@ -1,3 +1,3 @@\n{CHANGE_B}")
    refused(ABC, f"--- {path}\n+++ {path}\n@@ -1,3 +1,3 @@\n{CHANGE_B}")
    refused(ABC, f"--- /dev/null\n+++ b/{path}\n@@ -0,0 +1 @@\n+x\n")
    refused(ABC, [{"op": "delete", "start_line": 1, "file": path}])


@pytest.mark.parametrize(
    "header",
    [
        "new file mode 120000",
        "deleted file mode 120000",
        "new file mode 100755",
        "index 123..456 120000",
        "index 123..456 160000",
        "old mode 100644\nnew mode 100755",
        "similarity index 90%\nrename from k.cu\nrename to j.cu",
        "copy from k.cu\ncopy to j.cu",
        "GIT binary patch\nliteral 3",
        "Binary files a/k.cu and b/k.cu differ",
    ],
)
@pytest.mark.parametrize("with_hunk", [True, False])
def test_links_modes_renames_copies_and_binary_are_refused(header: str, with_hunk: bool) -> None:
    hunk = diff(CHANGE_B) if with_hunk else ""
    refused(ABC, f"diff --git a/{NAME} b/{NAME}\n{header}\n{hunk}")


def test_a_rename_by_the_file_names_alone_is_refused() -> None:
    assert "renames" in refused(ABC, f"--- a/{NAME}\n+++ b/j.cu\n@@ -1,3 +1,3 @@\n{CHANGE_B}").cause


def test_of_several_files_all_are_changed_or_none() -> None:
    files = {"a.cu": "1\n", "b.cu": "2\n", "c.h": "3\n"}
    good = diff("-1\n+one\n", name="a.cu")
    assert refused(files, good + diff("-nowhere\n+x\n", name="b.cu"))
    done = apply_patch(files, PatchRequest(patch=good + diff("-2\n+two\n", name="b.cu")))
    assert done.files == {"a.cu": "one\n", "b.cu": "two\n", "c.h": "3\n"}
    assert files["a.cu"] == "1\n"
    by_line = [
        {"op": "delete", "start_line": 1, "file": "a.cu"},
        {"op": "delete", "start_line": 9, "file": "b.cu"},
    ]
    refused(files, by_line)


def test_a_new_file_is_made_and_an_old_one_not_overwritten() -> None:
    new = "--- /dev/null\n+++ b/sub/n.h\n@@ -0,0 +1,2 @@\n+x\n+\n"
    assert apply_patch({NAME: ABC}, PatchRequest(patch=new)).files == {NAME: ABC, "sub/n.h": "x\n\n"}
    assert "exists" in refused({NAME: ABC, "sub/n.h": "old\n"}, new).cause
    git = "diff --git a/n.h b/n.h\nnew file mode 100644\nindex 000..abc\n" + new.replace("sub/", "")
    assert apply_patch({NAME: ABC}, PatchRequest(patch=git)).files["n.h"] == "x\n\n"
    empty_search = block("", "x\n", name="n.h\n")
    assert apply_patch({NAME: ABC}, PatchRequest(patch=empty_search)).files["n.h"] == "x\n"
    refused(ABC, new + new)


def test_a_file_is_deleted_with_all_of_its_lines_or_not_at_all() -> None:
    gone = "--- a/n.h\n+++ /dev/null\n@@ -1,2 +0,0 @@\n-x\n-y\n"
    assert apply_patch({NAME: ABC, "n.h": "x\ny\n"}, PatchRequest(patch=gone)).files == {NAME: ABC}
    assert "leaves text" in refused({NAME: ABC, "n.h": "x\ny\nz\n"}, gone).cause
    assert "last file" in refused({"n.h": "x\ny\n"}, gone).cause


NO_END = "\\ No newline at end of file\n"


@pytest.mark.parametrize(
    ("text", "body", "expected"),
    [
        ("a\nb", f"-b\n{NO_END}+c\n{NO_END}", "a\nc"),
        ("a\nb", f"-b\n{NO_END}+b\n", "a\nb\n"),
        ("a\nb\n", f"-b\n+b\n{NO_END}", "a\nb"),
        ("a\nb\n", f" a\n-b\n+c\n{NO_END}", "a\nc"),
        ("a\nb", f"-a\n+A\n b\n{NO_END}", "A\nb"),
        ("a\nb", "-a\n+A\n", "A\nb"),
        ("a\r\nb", f"-b\n{NO_END}+b\n", "a\r\nb\r\n"),
    ],
)
def test_the_final_newline_is_what_the_diff_says_or_stays(text: str, body: str, expected: str) -> None:
    assert apply(text, diff(body)) == expected


def test_white_space_may_differ_and_new_lines_take_the_indentation_of_the_file() -> None:
    text = "void f() {\n\tif (x) {\n\t\ty = 1;\n\t}\n}\n"
    patch = block("if  (x) {\n  y=1;\n", "if (x) {\n  y = 2;\n\n  z = 3;\n")
    result = apply_patch({NAME: text}, PatchRequest(patch=patch))
    assert result.matches[0].how == "whitespace"
    assert result.files[NAME].startswith("void f() {\n\tif (x) {\n")
    deep = apply("      a();\n      b();\n", block("  a();\n  b();\n", "  a();\n    c();\n\n  b();\n"))
    assert deep == "      a();\n        c();\n\n      b();\n"


def misremembered(ratio_above: bool) -> tuple[str, str, float]:
    """A line and its memory, just above or just below the fuzzy threshold."""
    line = "abcdefghij = klmnopqrst + uvwxyzabcd + efghijklmn;"
    found = (line, line, 1.0)
    for wrong in range(1, 20):
        memory = line[: 24 - wrong] + "#" * wrong + line[24:]
        try:
            similarity = Text(NAME, ["x", line, "y"]).locate([memory]).similarity
        except PatchRefused:
            return (line, memory, 0.0) if not ratio_above else found
        found = (line, memory, similarity)
    raise AssertionError("no memory was bad enough")


def test_context_just_above_the_fuzzy_threshold_is_found() -> None:
    line, memory, similarity = misremembered(ratio_above=True)
    assert FUZZY_THRESHOLD <= similarity < FUZZY_THRESHOLD + 0.02
    result = apply_patch({NAME: f"x\n{line}\ny\n"}, PatchRequest(patch=block(f"{memory}\n", "new\n")))
    assert result.files[NAME] == "x\nnew\ny\n"
    assert result.matches == ((NAME, 2, "fuzzy", similarity),)


def test_context_just_below_the_fuzzy_threshold_is_refused_with_the_current_text_numbered() -> None:
    line, memory, _ = misremembered(ratio_above=False)
    cause = refused(f"x\n{line}\ny\n", block(f"{memory}\n", "new\n")).cause
    assert f"    2| {line}" in cause
    assert "    3| y" in cause
    assert "84%" in cause or "83%" in cause


def test_fuzzily_found_context_keeps_the_text_of_the_file() -> None:
    text = "// Sum of the rows of one tile\nfloat total = 0.0f;\nfor (int i = lane; i < cols; i += 32)\n"
    patch = diff(
        " // Sum of the rows of a tile\n float total = 0.0f;\n"
        "-for (int i = lane; i < cols; i += 32)\n+for (int i = lane; i < cols; i += 64)\n"
    )
    assert apply(text, patch) == text.replace("+= 32", "+= 64")


def test_too_many_stale_contexts_are_refused() -> None:
    lines = [f"{chr(97 + n % 26) * 40}{n * 7919} = load_{n * n}(tile);" for n in range(MAX_FUZZY + 1)]
    patch = "".join(block(f"{line}//\n", f"{line}!!\n") for line in lines)
    assert "More than" in refused("\n".join(lines), patch).cause


@pytest.mark.parametrize(
    "patch",
    [
        diff(" a = 1;\n b = 2;\n"),
        diff("-b = 2;\n+b = 2;\n"),
        block("b = 2;\n", "b = 2;\n"),
        "",
        " \n",
        "change b to 3 please",
        diff(""),
        "--- a/k.cu\n+++ b/k.cu\n",
    ],
)
def test_a_patch_that_changes_nothing_or_holds_none_is_refused(patch: str) -> None:
    refused(ABC, patch)


def test_line_edits_that_change_nothing_are_refused() -> None:
    assert "nothing" in refused(ABC, [{"op": "replace", "start_line": 1, "text": "a = 1;"}]).cause
    assert "nothing" in refused(ABC, [{"op": "insert", "start_line": 1}]).cause


def test_an_empty_search_fills_an_empty_file_only() -> None:
    assert apply("", block("", "x\n")) == "x\n"
    assert "3 lines" in refused(ABC, block("", "x\n")).remedy
    assert refused(ABC, block("\n", "x\n"))


@pytest.mark.parametrize(
    "patch",
    [
        "<<<<<<< SEARCH\na = 1;\n",
        "<<<<<<< SEARCH\na = 1;\n>>>>>>> REPLACE\n",
        "<<<<<<< SEARCH\na = 1;\n=======\nx\n",
        block("a = 1;\n", "x\n=======\n"),
        block("a = 1;\n", "x\n") + ">>>>>>> REPLACE\n",
        block("a = 1;\n", "x\n") + diff(CHANGE_B),
        block("a = 1;\n", "x\n") + "<<<<<<< SEARCH\n" + block("b = 2;\n", "y\n"),
        diff("b = 2;\n"),
        diff(CHANGE_B) + "@@@ -1,3 -1,3 +1,3 @@@\n",
        "*** Begin Patch\n*** Update File: k.cu\n@@\n-b = 2;\n+b = 3;\n*** End Patch\n",
    ],
)
def test_a_malformed_patch_is_refused_as_a_whole(patch: str) -> None:
    refused(ABC, patch)


def test_an_unknown_or_missing_file_name_lists_the_files() -> None:
    files = {"a.cu": "1\n", "sub/b.cu": "2\n"}
    for patch in (diff("-1\n+x\n", name="z.cu"), block("1\n", "x\n"), block("1\n", "x\n", name="z.cu\n")):
        assert "a.cu, sub/b.cu" in refused(files, patch).remedy
    assert "a.cu, sub/b.cu" in refused(files, [{"op": "delete", "start_line": 1}]).remedy


@pytest.mark.parametrize(
    "name",
    ["b.cu\n", "### b.cu\n", "**b.cu**\n", "`b.cu`:\n", "File: b.cu\n", "```cpp\nb.cu\n", "b.cu\n```cuda\n"],
)
def test_search_replace_blocks_may_name_their_file_and_stand_in_a_fence(name: str) -> None:
    files = {"a.cu": "1\n", "b.cu": "1\n"}
    patch = block("1\n", "2\n", name=name) + "```\n"
    assert apply_patch(files, PatchRequest(patch=patch)).files == {"a.cu": "1\n", "b.cu": "2\n"}


@pytest.mark.parametrize("fence", ["```", "```diff", "```cuda"])
def test_a_diff_may_stand_in_a_code_fence_with_prose_around_it(fence: str) -> None:
    assert apply(ABC, f"Here it is:\n\n{fence}\n{diff(CHANGE_B)}```\nThat is all.\n") == CHANGED


@pytest.mark.parametrize("mark", ["\u2028", "\u2029", "\x0c", "\x0b", "\x85", "\x1c", "\r"])
def test_only_a_newline_ends_a_line(mark: str) -> None:
    text = f"a{mark}b\nc\nd\n"
    assert apply(text, block("c\n", f"x{mark}y\n")) == f"a{mark}b\nx{mark}y\nd\n"
    assert (
        edit(text, {"op": "replace", "start_line": 2, "text": f"p{mark}q"}).files[NAME]
        == f"a{mark}b\np{mark}q\nd\n"
    )
    assert apply(text, diff(f" a{mark}b\n-c\n+C\n")) == f"a{mark}b\nC\nd\n"
    changed = f"a{mark}b\nc{mark}c\nd\n"
    assert apply(text, unified({NAME: text}, {NAME: changed})) == changed


def spent_ms(text: str, patch: str) -> float:
    """The least CPU time of five runs: what the work takes where nothing else interferes."""
    times = []
    for _ in range(5):
        start = time.process_time()
        apply(text, patch)
        times.append((time.process_time() - start) * 1e3)
    return min(times)


@pytest.mark.parametrize("how", ["exact", "replace", "fuzzy"])
def test_a_patch_of_a_file_of_2000_lines_takes_less_than_50_ms(how: str) -> None:
    draw = random.Random(3)
    text = "".join(
        f"  float {draw.choice('xyzuvw')}{n} = tile[{draw.random()}] * lane + bias_{draw.randrange(10**9)};\n"
        for n in range(2000)
    )
    old = text.splitlines(True)[1500:1508]
    if how == "fuzzy":
        old[3] = old[3].replace("lane", "warp")
    search, replace = "".join(old), "".join([*old[:5], "  sync();\n", *old[6:]])
    body = (
        "".join(f" {line}" for line in old[:5]) + f"-{old[5]}+  sync();\n" + "".join(f" {x}" for x in old[6:])
    )
    assert spent_ms(text, diff(body) if how == "exact" else block(search, replace)) < 50


def test_a_patch_of_one_megabyte_takes_bounded_time() -> None:
    draw = random.Random(5)
    text = text_of(2000)
    lines = text.splitlines()
    start = time.perf_counter()
    new = [f"+{draw.random()}" for _ in range(50_000)]
    assert len(apply(text, diff(f" {lines[900]}\n" + "\n".join(new) + "\n"))) > 900_000
    hunks = "@@ -1 +1 @@\n".join(f"-{line}\n+{line}{'x' * 460}\n" for line in lines)
    assert len(hunks) > 1_000_000
    assert apply(text, diff(hunks)).count("x" * 460) == 2000
    # All lines alike, and nothing that fits: the worst case for a search by likeness.
    alike = "".join(f"{'ab' * 190}{n}\n" for n in range(2000))
    memory = "".join(f"{'ba' * 190}{n}\n" for n in range(2000))
    refused(alike, block(memory, "x\n"))
    refused(text, block("a b c d " * 125_000 + "\n", "x\n"))
    assert time.perf_counter() - start < 10


def test_a_patch_beyond_the_limit_is_no_request() -> None:
    with pytest.raises(ValidationError):
        PatchRequest(patch="x" * 2_000_001)


def _random_text(draw: random.Random, end: str) -> list[str]:
    # Every line is its own, so that a hunk fits one place.
    words = [
        "",
        "  ",
        "\t",
        "{ ",
        "} ",
        "-- ",
        "++ ",
        "@@ ",
        "+",
        "-",
        " ",
        "\\ ",
        "caf\u00e9 \u2028",
        "x\x0c",
    ]
    return [f"{draw.choice(words)}{draw.randrange(10**9)}{end}" for _ in range(draw.randrange(1, 60))]


def _edited(draw: random.Random, lines: list[str], end: str) -> list[str]:
    result = list(lines)
    for _ in range(draw.randrange(1, 6)):
        at = draw.randrange(len(result) + 1)
        result[at : at + draw.randrange(4)] = _random_text(draw, end)[: draw.randrange(4)]
    return result


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_applying_the_difference_of_two_texts_gives_the_second(end: str) -> None:
    draw = random.Random(11)
    for _ in range(300):
        before = _random_text(draw, end)
        after = _edited(draw, before, end)
        old, new = "".join(before), "".join(after)
        if draw.random() < 0.3 and len(before) > 2:
            old = old.removesuffix(end)
        if draw.random() < 0.3 and len(after) > 2:
            new = new.removesuffix(end)
        if old == new or not new:
            continue
        patch = unified({NAME: old}, {NAME: new})
        assert apply(old, patch) == new, patch


def test_the_difference_of_two_sets_of_files_makes_changes_and_deletes_files() -> None:
    old = {"a.cu": "1\n2\n", "gone.h": "x\ny\n", "same.h": "s\n"}
    new = {"a.cu": "1\n3\n", "new.h": "n", "same.h": "s\n"}
    assert apply_patch(old, PatchRequest(patch=unified(old, new))).files == new
