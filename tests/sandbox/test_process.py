"""A child is bounded in everything and ends as a whole tree, with isolation and without."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path

import anyio
import pytest

from cuteforge.kernels.errors import EnvironmentProblem
from cuteforge.sandbox import proctree
from cuteforge.sandbox.bubblewrap import SandboxSpec, SandboxStatus, probe
from cuteforge.sandbox.process import Child, Ended, Limits, run, spawn, start

PLAIN = SandboxStatus("none", "for the test")
BOTH = pytest.mark.parametrize("status", [probe(), PLAIN], ids=["isolated", "plain"])


def shell(script: str) -> SandboxSpec:
    return SandboxSpec(("sh", "-c", script))


def python(script: str) -> SandboxSpec:
    return SandboxSpec((sys.executable, "-I", "-c", script))


def go(spec: SandboxSpec, limits: Limits, status: SandboxStatus) -> Ended:
    return asyncio.run(run(spec, limits, status))


@BOTH
def test_exit_code_and_output_are_reported(status: SandboxStatus) -> None:
    ended = go(shell("echo out; echo err >&2; exit 3"), Limits(10), status)
    assert (ended.returncode, ended.signal, ended.reason) == (3, None, "exit")
    assert (ended.stdout_tail, ended.stderr_tail) == ("out\n", "err\n")
    assert not ended.ok


@BOTH
def test_the_end_by_a_signal_is_reported(status: SandboxStatus) -> None:
    assert go(shell("kill -SEGV $$"), Limits(10), status).signal == 11


@BOTH
def test_a_flood_is_counted_and_its_end_kept(status: SandboxStatus) -> None:
    ended = go(shell("head -c 1000000000 /dev/zero; echo the end"), Limits(60, output_bytes=1000), status)
    assert ended.stdout_total == 1_000_000_008
    assert len(ended.stdout_tail) == 1000
    assert ended.stdout_tail.endswith("the end\n")


@BOTH
def test_reading_stdin_gets_its_end_at_once(status: SandboxStatus) -> None:
    ended = go(shell("cat; echo done"), Limits(10), status)
    assert ended.stdout_tail == "done\n"


@BOTH
def test_a_grandchild_left_running_is_ended(status: SandboxStatus) -> None:
    marker = f"{61_000_000 + os.getpid()}"
    ended = go(shell(f"setsid sleep {marker} & exit 0"), Limits(10), status)
    assert ended.ok
    assert ended.seconds < 5
    assert not running(marker)


@BOTH
def test_the_wall_limit_ends_the_tree(status: SandboxStatus) -> None:
    marker = f"{62_000_000 + os.getpid()}"
    ended = go(shell(f"setsid sleep {marker} & trap '' TERM; sleep {marker}"), Limits(0.5), status)
    assert ended.reason == "timeout"
    assert ended.seconds < 3
    assert not running(marker)


@BOTH
def test_memory_of_the_whole_tree_is_bounded(status: SandboxStatus) -> None:
    script = "import os,time\nos.fork()\nx=bytearray(90<<20)\nfor i in range(0,len(x),4096): x[i]=1\ntime.sleep(30)"
    ended = go(python(script), Limits(30, memory_bytes=150 << 20), status)
    assert ended.reason == "memory"
    assert ended.seconds < 10


@BOTH
def test_a_tree_within_its_memory_is_left_alone(status: SandboxStatus) -> None:
    script = "import time\nx=bytearray(b'1')*(60<<20)\ntime.sleep(0.6)"
    assert go(python(script), Limits(30, memory_bytes=150 << 20), status).ok


def test_a_fork_bomb_is_ended_by_the_watchdog() -> None:
    script = "import os,time\nwhile True:\n try: os.fork()\n except OSError: time.sleep(0.01)"
    ended = go(python(script), Limits(20, processes=32), probe())
    assert ended.reason == "processes"
    assert ended.seconds < 15


@BOTH
def test_a_file_larger_than_allowed_cannot_be_written(status: SandboxStatus, tmp_path: Path) -> None:
    spec = SandboxSpec(
        ("sh", "-c", "head -c 5000000 /dev/zero > big"), writable=((tmp_path, "/out"),), cwd="/out"
    )
    ended = go(spec, Limits(10, file_bytes=1_000_000), status)
    assert not ended.ok
    assert (tmp_path / "big").stat().st_size <= 1_000_000


@BOTH
def test_processor_time_is_bounded(status: SandboxStatus) -> None:
    ended = go(shell("while :; do :; done"), Limits(20, cpu_s=1), status)
    assert ended.signal in (24, 9)
    assert ended.seconds < 10


@BOTH
def test_cancelling_ends_everything(status: SandboxStatus) -> None:
    marker = f"{63_000_000 + os.getpid()}"
    members: list[proctree.ProcessId] = []

    async def main() -> None:
        with anyio.move_on_after(1.0):
            async with start(
                shell(f"setsid sleep {marker} & sleep {marker}"), Limits(60), status=status
            ) as child:
                while len(members) < 3:
                    await anyio.sleep(0.05)
                    members[:] = proctree.tree(child.pid)
                await child.wait()

    began = time.monotonic()
    asyncio.run(main())
    assert time.monotonic() - began < 4
    assert len(members) >= 3
    assert not [p for p in members if proctree.alive(p)]
    assert not running(marker)


def test_a_spawned_child_outlives_its_caller_until_killed() -> None:
    async def main() -> tuple[Child, Ended]:
        child = await asyncio.create_task(spawn(shell("echo started; sleep 60"), Limits(60)))
        while "started" not in child.stdout_tail:
            await asyncio.sleep(0.01)
        assert child.running
        return child, await child.kill()

    child, ended = asyncio.run(main())
    assert ended.reason == "killed"
    assert not child.running


def test_a_descriptor_that_is_passed_is_open_inside() -> None:
    async def main() -> bytes:
        read, write = os.pipe()
        os.set_blocking(read, False)
        script = python(f"import os; os.write({write}, b'through')")
        try:
            async with start(script, Limits(10), pass_fds=(write,)) as child:
                assert (await child.wait()).ok
            return os.read(read, 100)
        finally:
            os.close(read)
            os.close(write)

    assert asyncio.run(main()) == b"through"


def test_a_missing_bubblewrap_is_an_environment_problem() -> None:
    gone = SandboxStatus("bubblewrap", "", bwrap=Path("/nowhere/bwrap"))
    with pytest.raises(EnvironmentProblem, match="/nowhere/bwrap"):
        go(shell("true"), Limits(10), gone)


def running(argument: str) -> bool:
    """Whether any process here has this argument; zombies have none."""
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                if argument.encode() in Path(f"/proc/{entry}/cmdline").read_bytes().split(b"\0"):
                    return True
            except (FileNotFoundError, ProcessLookupError):
                continue
    return False
