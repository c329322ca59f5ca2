"""A real client in front of a real server, and a store that already holds a task."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import anyio.from_thread
import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters
from mcp_types import CallToolResult

REFERENCE = """
import torch

def reference(x):
    return torch.relu(x)
"""
KERNEL = """#include "task.h"

extern "C" int cuteforge_launch(const float* x, float* out, int64_t rows, int64_t cols) {
  for (int64_t i = 0; i < rows * cols; ++i) {
    out[i] = x[i] > 0 ? x[i] : 0;
  }
  return 0;
}
"""
FOREVER = KERNEL.replace("  for (", "  for (volatile int spin = 1; spin;) {}\n  for (")
TASK = {
    "name": "relu",
    "source": REFERENCE,
    "inputs": [{"name": "x", "shape": ["rows", "cols"]}],
    "cases": [{"name": "small", "sizes": {"rows": 8, "cols": 33}}],
    "target": "cpu",
}

# Most servers here answer a few cheap calls: importing torch ahead for them would take most of the test time.
QUIET = {"CUTEFORGE_WARM_WORKERS": "0"}


class Session:
    """A synchronous view of a connected client."""

    def __init__(self, portal: Any, client: Client) -> None:
        self._portal = portal
        self.client = client
        self.progress: list[tuple[float, str | None]] = []

    def run(self, method: str, *args: Any, **kwargs: Any) -> Any:
        async def call() -> Any:
            return await getattr(self.client, method)(*args, **kwargs)

        return self._portal.call(call)

    def start(self, function: Any, *args: Any) -> Any:
        """Start a coroutine function in the client's loop; returns a future that can be cancelled."""
        return self._portal.start_task_soon(function, *args)

    def call(self, tool: str, **arguments: Any) -> CallToolResult:
        async def told(progress: float, total: float | None, message: str | None) -> None:
            self.progress.append((progress, message))

        return self.run("call_tool", tool, arguments, progress_callback=told)

    def ok(self, tool: str, **arguments: Any) -> dict[str, Any]:
        result = self.call(tool, **arguments)
        assert not result.is_error, text(result)
        return result.structured_content


def text(result: CallToolResult) -> str:
    return result.content[0].text


def serve_arguments(home: Path, *extra: str) -> list[str]:
    return ["-m", "cuteforge.server.cli", "serve", "--home", str(home), "--log-level", "WARNING", *extra]


Opened = Callable[..., Any]


@pytest.fixture(scope="session")
def connect() -> Opened:
    """`with connect(home) as session`: a server process over stdio, or a client of `url`."""

    @contextmanager
    def opened(
        home: Path | None = None,
        *extra: str,
        mode: str = "auto",
        env: dict[str, str] | None = None,
        cwd: Path | None = None,
        url: str | None = None,
        command: list[str] | None = None,
    ) -> Iterator[Session]:
        target: Any = url
        if target is None:
            argv = command or [sys.executable, *serve_arguments(home, *extra)]
            target = StdioServerParameters(
                command=argv[0], args=argv[1:], env={**QUIET, **(env or {})}, cwd=cwd
            )
        with ExitStack() as stack:
            portal = stack.enter_context(anyio.from_thread.start_blocking_portal())
            client = Client(target, mode=mode)
            stack.enter_context(portal.wrap_async_context_manager(client))
            yield Session(portal, client)

    return opened


@pytest.fixture(scope="session")
def serve_http() -> Opened:
    """`with serve_http(home) as url`: a server process over streamable HTTP."""

    @contextmanager
    def served(home: Path, *extra: str, env: dict[str, str] | None = None) -> Iterator[str]:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        argv = [sys.executable, *serve_arguments(home, "--http", f"127.0.0.1:{port}", *extra)]
        with subprocess.Popen(
            argv, stderr=subprocess.PIPE, text=True, env={**os.environ, **QUIET, **(env or {})}
        ) as process:
            try:
                line = process.stderr.readline()
                assert "serving" in line, line + process.stderr.read()
                yield f"http://127.0.0.1:{port}/mcp"
            finally:
                process.terminate()
                process.stderr.close()
                process.wait(timeout=20)

    return served


class Stocked(NamedTuple):
    """A home with one task, a candidate that was checked, and its check."""

    home: Path
    task_id: str
    candidate_id: str
    run_uri: str


@pytest.fixture(scope="session")
def stocked(connect: Opened, tmp_path_factory: pytest.TempPathFactory) -> Stocked:
    """Made once, through the real tools; tests that change it take `home`."""
    home = tmp_path_factory.mktemp("stocked")
    with connect(home) as session:
        task_id = session.ok("define_task", **TASK)["task_id"]
        files = {"src/relu.cpp": KERNEL}
        result = session.call("submit_candidate", task_id=task_id, files=files, then="check")
        assert result.structured_content["ok"], text(result)
        candidate_id = result.structured_content["candidate_id"]
        runs = [block.uri for block in result.content[1:] if block.uri.startswith("run://")]
    return Stocked(home, task_id, candidate_id, runs[-1])


@pytest.fixture
def home(stocked: Stocked, tmp_path: Path) -> Path:
    """A copy of the stocked home, for one test."""
    return shutil.copytree(stocked.home, tmp_path / "home")


def command_line(pid: int) -> str:
    """The command line of a process; empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def descendants(pid: int) -> set[int]:
    """All processes below `pid`, in whatever namespaces."""
    found: set[int] = set()
    todo = [pid]
    while todo:
        for task in Path(f"/proc/{todo.pop()}/task").glob("*/children"):
            try:
                children = [int(word) for word in task.read_text().split()]
            except (FileNotFoundError, ProcessLookupError):
                continue
            found.update(children)
            todo += children
    return found


def server_of(home: Path) -> int:
    """The server process that this test started on `home`; the first one of several."""
    below = sorted(descendants(os.getpid()))
    found = [
        pid for pid in below if "cuteforge.server.cli" in (line := command_line(pid)) and str(home) in line
    ]
    assert found, f"no server on {home}"
    return found[0]


def candidates_of(server: int) -> set[int]:
    """The processes below a server that hold candidate code. Other tests' and users' are not among them."""
    return {pid for pid in descendants(server) if "cuteforge.sandbox.harness_native" in command_line(pid)}


def eventually(condition: Callable[[], bool], seconds: float = 20) -> bool:
    """Whether the condition comes true in time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.1)
    return condition()


@pytest.fixture(scope="session")
def watch() -> Any:
    """Helpers to look at the processes of this test's own servers."""

    class Watch:
        server_of = staticmethod(server_of)
        candidates_of = staticmethod(candidates_of)
        command_line = staticmethod(command_line)
        eventually = staticmethod(eventually)

    return Watch


@pytest.fixture(scope="session")
def examples() -> Any:
    """Sources: a reference, a right kernel, one that never ends, and the arguments of the stocked task."""

    class Examples:
        reference = REFERENCE
        kernel = KERNEL
        forever = FOREVER
        task = TASK

    return Examples
