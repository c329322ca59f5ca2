"""What comes in by path or inline is checked before anything is made of it."""

import os
import resource
import stat

import pytest

from cuteforge.kernels.errors import InvalidRequest, StoreProblem
from cuteforge.tools.intake import detect_contract, guess_language, read_source, write_back


@pytest.mark.parametrize(
    ("source", "contract"),
    [
        ("def reference(x):\n    return x\n", "function"),
        ("reference = torch.relu\n", "function"),
        ("class Model(nn.Module):\n    pass\ndef get_inputs():\n    return []\n", "kernelbench"),
        ("class Model:\n    pass\nget_inputs: object = lambda: []\n", "kernelbench"),
    ],
)
def test_contract_is_told_from_the_names_at_module_level(source, contract):
    assert detect_contract(source) == contract


@pytest.mark.parametrize(
    "source",
    ["    def reference(x): pass\n", "# def reference(x)\n", "reference == 1\n", "class Models: pass\n"],
)
def test_names_elsewhere_do_not_count(source):
    with pytest.raises(InvalidRequest):
        detect_contract(source)


def test_nesting_that_crashes_parsers_is_harmless():
    assert detect_contract("def reference(x): return " + "-" * 900_000 + "1") == "function"


@pytest.mark.parametrize(
    ("files", "target", "language"),
    [
        ({"a.cu": "#include <cute/tensor.hpp>"}, "cuda", "cute"),
        ({"a.cu": '#include "util.h"'}, "cuda", "cuda"),
        ({"util.h": "# include <cutlass/cutlass.h>", "a.cu": "x"}, "cuda", "cute"),
        ({"a.cpp": "x"}, "cpu", "cpp"),
        ({"a.cpp": "x"}, "cuda", "cuda"),
        ({"a.py": "x"}, "cuda", "python"),
    ],
)
def test_language_is_told_from_suffix_and_includes(files, target, language):
    assert guess_language(files, target) == language


def test_byte_order_mark_is_dropped(tmp_path):
    (tmp_path / "a.cpp").write_bytes(b"\xef\xbb\xbfint x;")
    assert read_source("a.cpp", [tmp_path])[1] == "int x;"


def test_link_inside_the_root_is_followed_and_outside_refused(tmp_path):
    root, outside = tmp_path / "root", tmp_path / "outside"
    root.mkdir()
    outside.mkdir()
    (root / "real.cpp").write_text("int x;")
    (root / "good.cpp").symlink_to("real.cpp")
    (outside / "b.cpp").write_text("int y;")
    (root / "folder").symlink_to(outside)
    assert read_source("good.cpp", [root])[0] == root / "real.cpp"
    with pytest.raises(InvalidRequest, match="outside"):
        read_source("folder/b.cpp", [root])


def test_write_back_keeps_the_mode_and_leaves_no_other_file(tmp_path):
    path = tmp_path / "a.cpp"
    path.write_text("int x;\r\n", newline="")
    path.chmod(0o640)
    write_back("a.cpp", [tmp_path], "int x;\r\n", "int y;\r\n")
    assert path.read_bytes() == b"int y;\r\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert os.listdir(tmp_path) == ["a.cpp"]


def test_write_that_fails_half_way_leaves_the_file_and_nothing_beside_it(tmp_path):
    (tmp_path / "a.cpp").write_text("int x;")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(StoreProblem):
            write_back("a.cpp", [tmp_path], "int x;", "int y;" * 1000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (tmp_path / "a.cpp").read_text() == "int x;"
    assert os.listdir(tmp_path) == ["a.cpp"]
