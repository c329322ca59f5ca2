"""The demo runs the whole loop for real, and fails when a step does not do what it shows."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from cuteforge.kernels.patch import PatchRequest, apply_patch
from cuteforge.server.demo import example_folder


def demo(*arguments, **env):
    return subprocess.run(
        [sys.executable, "-m", "cuteforge.server.cli", "demo", *arguments],
        capture_output=True, text=True, timeout=280, env={**os.environ, **env}, stdin=subprocess.DEVNULL,
    )  # fmt: skip


@pytest.fixture(scope="module")
def told():
    done = demo("--fast")
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_steps_are_told_in_the_order_of_the_loop(told):
    calls = re.findall(r"^   > (\w+)\(", told, re.MULTILINE)
    loop = [
        "device_info",
        "define_task",
        "submit_candidate",
        "patch_apply",
        "benchmark",
        "patch_apply",
        "history",
    ]
    assert calls[: len(loop)] == loop


def test_bug_is_found_where_it_is_and_mended_by_three_lines(told):
    report, _, later = told.partition("patch_apply(")
    assert "NOT correct" in report
    assert re.search(r"last \d of \d+ columns", report)
    assert re.search(r"softmax\.\w+ \+1 -2", later)
    assert "correct: all" in later


def test_optimisation_is_faster_than_what_it_came_from_and_becomes_best(told):
    assert re.search(r"faster than best: [\d.]+x \[[\d.]+, [\d.]+\]", told)
    assert re.search(r"#3 c_\w+ correct, .*\*best\*", told)


def test_cute_kernel_shows_registers_shared_memory_and_instructions(told):
    assert re.search(r"kernel .*softmax.*: \d+ registers, \d+ B static shared", told)
    assert re.search(r"SASS: .*\d", told)


def test_output_that_is_no_terminal_has_no_colour(told):
    assert "\x1b" not in told


def test_demo_fails_when_a_tool_does(tmp_path):
    done = demo("--fast", CUTEFORGE_BWRAP=str(tmp_path / "none"))
    assert done.returncode == 1
    assert "The demo failed: device_info answered with an error" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("source", "stem"), [("softmax.cpp", "softmax"), ("softmax.cu", "softmax_cuda")])
def test_patches_of_the_example_fit_exactly(source, stem):
    folder: Path = example_folder()
    files = {source: (folder / source).read_text()}
    for name in (f"{stem}_fix.patch", f"{stem}_faster.patch"):
        result = apply_patch(files, PatchRequest(patch=(folder / name).read_text()))
        assert {match.how for match in result.matches} == {"exact"}
        files = result.files
