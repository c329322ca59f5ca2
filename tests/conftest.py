"""Tests marked `gpu` run where the driver lists a GPU, and are skipped with the reason elsewhere."""

from __future__ import annotations

import shutil
import subprocess

import pytest


def _why_no_gpu() -> str | None:
    """The reason why no GPU can be used, or None when the driver lists one."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return "no GPU: nvidia-smi is not installed"
    try:
        done = subprocess.run([program, "-L"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"no GPU: nvidia-smi -L did not answer ({error})"
    if done.returncode == 0 and "GPU " in done.stdout:
        return None
    said = (done.stdout + done.stderr).strip().splitlines()
    return f"no GPU: nvidia-smi -L said {said[0]!r}" if said else "no GPU: nvidia-smi -L listed none"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    marked = [item for item in items if item.get_closest_marker("gpu") is not None]
    reason = _why_no_gpu() if marked else None
    if reason is not None:
        for item in marked:
            item.add_marker(pytest.mark.skip(reason=reason))
