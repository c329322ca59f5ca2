"""The list of tools, in the order of the work."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from cuteforge.tools.answers import Answer
from cuteforge.tools.benchmark import benchmark
from cuteforge.tools.compile import compile_candidate
from cuteforge.tools.define_task import define_task
from cuteforge.tools.device_info import device_info
from cuteforge.tools.history import history
from cuteforge.tools.job import job
from cuteforge.tools.patch_apply import patch_apply
from cuteforge.tools.run_correctness import run_correctness
from cuteforge.tools.submit_candidate import submit_candidate


class ToolEntry(NamedTuple):
    """A tool and what a client may assume of it: `read_only` calls change nothing, not even the store."""

    function: Callable[..., Awaitable[Answer]]
    title: str
    read_only: bool = False

    @property
    def name(self) -> str:
        """The tool's name: that of its module."""
        return self.function.__module__.rpartition(".")[2]

    @property
    def description(self) -> str:
        """The docstring as one line."""
        return " ".join((self.function.__doc__ or "").split())


TOOLS: tuple[ToolEntry, ...] = (
    ToolEntry(define_task, "Define a task"),
    ToolEntry(submit_candidate, "Submit a candidate"),
    ToolEntry(patch_apply, "Patch a candidate"),
    ToolEntry(compile_candidate, "Compile"),
    ToolEntry(run_correctness, "Check against the reference"),
    ToolEntry(benchmark, "Benchmark"),
    ToolEntry(history, "History of a task"),
    ToolEntry(device_info, "Device and toolchain", read_only=True),
    ToolEntry(job, "Long-running work"),
)
