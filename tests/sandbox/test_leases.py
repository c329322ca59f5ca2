"""Leases between real processes: shared and exclusive, cancellable, and freed when a holder dies."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import pytest

from cuteforge.kernels.errors import EnvironmentProblem
from cuteforge.sandbox.leases import lease, lease_path

HOLD = """
import sys
import anyio
import anyio.to_thread
from pathlib import Path
from cuteforge.sandbox.leases import lease

async def main():
    async with lease(Path(sys.argv[1]), sys.argv[2] == "exclusive"):
        print("held", flush=True)
        await anyio.to_thread.run_sync(sys.stdin.read)

anyio.run(main)
"""

COUNT = """
import anyio, sys, time
from pathlib import Path
from cuteforge.sandbox.leases import lease

async def main():
    counter = Path(sys.argv[2])
    for _ in range(int(sys.argv[3])):
        async with lease(Path(sys.argv[1]), True):
            value = int(counter.read_text())
            time.sleep(0.001)
            counter.write_text(str(value + 1))

anyio.run(main)
"""


@pytest.fixture(autouse=True)
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    return folder


@contextmanager
def holder(path: Path, kind: str) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lease until the end of the block, or until it is killed."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path), kind],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "held\n"
            yield process
        finally:
            process.kill()


def within(path: Path, exclusive: bool, seconds: float) -> bool:
    """Whether this process gets the lease in time."""

    async def main() -> bool:
        with anyio.move_on_after(seconds):
            async with lease(path, exclusive):
                return True
        return False

    return anyio.run(main)


@pytest.mark.parametrize(
    ("theirs", "exclusive", "granted"),
    [
        ("shared", False, True),
        ("shared", True, False),
        ("exclusive", False, False),
        ("exclusive", True, False),
    ],
)
def test_only_shared_leases_go_together(theirs, exclusive, granted):
    path = lease_path("GPU-1")
    with holder(path, theirs):
        assert within(path, exclusive, 0.3) == granted
    assert within(path, exclusive, 5)


def test_devices_do_not_wait_for_each_other():
    with holder(lease_path("GPU-1"), "exclusive"):
        assert within(lease_path("GPU-2"), True, 1)
        assert within(lease_path("cpu"), True, 1)


def test_killed_holder_frees_its_lease():
    path = lease_path("GPU-1")
    with holder(path, "exclusive") as process:
        assert not within(path, False, 0.2)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        assert within(path, True, 1)


def test_children_of_a_holder_do_not_keep_its_lease():
    path = lease_path("GPU-1")

    async def main() -> subprocess.Popen[bytes]:
        async with lease(path, True):
            return subprocess.Popen(["sleep", "60"], close_fds=False)

    child = anyio.run(main)
    try:
        assert within(path, True, 1)
    finally:
        child.kill()
        child.wait()


def test_waiting_is_announced_once_and_ends_when_the_holder_does():
    path = lease_path("GPU-1")
    told: list[float] = []

    async def main(process: subprocess.Popen[str]) -> float:
        async def waiting() -> None:
            told.append(time.monotonic())
            process.kill()

        async with lease(path, True, waiting):
            return time.monotonic()

    with holder(path, "exclusive") as process:
        got = anyio.run(main, process)
    assert len(told) == 1
    assert 0 < got - told[0] < 2


def test_free_lease_is_not_announced():
    told: list[int] = []

    async def waiting() -> None:
        told.append(1)

    async def main() -> None:
        async with lease(lease_path("GPU-1"), True, waiting):
            pass

    anyio.run(main)
    assert told == []


def test_cancelled_and_failed_waits_leave_nothing_locked():
    path = lease_path("GPU-1")

    async def broken() -> None:
        raise ZeroDivisionError

    async def main() -> None:
        before = len(os.listdir("/proc/self/fd"))
        with anyio.move_on_after(0.1) as scope:
            async with lease(path, False):
                pass
        assert scope.cancelled_caught
        with pytest.raises(ZeroDivisionError):
            async with lease(path, True, broken):
                pass
        assert len(os.listdir("/proc/self/fd")) == before

    with holder(path, "exclusive"):
        anyio.run(main)
    assert within(path, True, 1)


def test_failure_inside_gives_the_lease_back():
    path = lease_path("GPU-1")

    async def main() -> None:
        async with lease(path, True):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        anyio.run(main)
    assert within(path, True, 1)


def test_waiting_measurement_is_not_passed_by_later_correctness_runs():
    path = lease_path("GPU-1")
    order: list[str] = []

    async def measure(waiting: anyio.Event) -> None:
        async def told() -> None:
            waiting.set()

        async with lease(path, True, told):
            order.append("measurement")

    async def check() -> None:
        async with lease(path, False):
            order.append("check")

    async def main() -> None:
        waiting = anyio.Event()
        async with anyio.create_task_group() as group, lease(path, False):
            group.start_soon(measure, waiting)
            await waiting.wait()
            group.start_soon(check)
            await anyio.sleep(0.3)
            assert order == []

    anyio.run(main)
    assert order == ["measurement", "check"]


def test_processes_that_count_under_an_exclusive_lease_lose_no_step(tmp_path):
    path, counter = lease_path("GPU-1"), tmp_path / "counter"
    counter.write_text("0")
    command = [sys.executable, "-c", COUNT, str(path), str(counter), "25"]
    workers = [subprocess.Popen(command) for _ in range(3)]
    assert [worker.wait(timeout=120) for worker in workers] == [0, 0, 0]
    assert counter.read_text() == "75"


def test_lock_file_that_a_cleaner_removed_does_not_let_two_in():
    path = lease_path("GPU-1")
    waited: list[bool] = []

    async def main() -> None:
        async with anyio.create_task_group() as group:
            release, waiting = anyio.Event(), anyio.Event()

            async def first() -> None:
                async with lease(path, True):
                    await release.wait()

            async def second() -> None:
                async def told() -> None:
                    waiting.set()

                async with lease(path, True, told):
                    waited.append(within_now(path))

            group.start_soon(first)
            await anyio.sleep(0.05)
            group.start_soon(second)
            await waiting.wait()
            path.unlink()
            release.set()

    def within_now(path: Path) -> bool:
        code = (
            "import fcntl,os,sys; fcntl.flock(os.open(sys.argv[1], os.O_RDWR), fcntl.LOCK_EX|fcntl.LOCK_NB)"
        )
        return (
            subprocess.run(
                [sys.executable, "-c", code, str(path)], capture_output=True, check=False
            ).returncode
            == 0
        )

    anyio.run(main)
    assert waited == [False]


def test_lease_that_is_used_does_not_look_old_to_a_cleaner():
    path = lease_path("GPU-1")
    assert within(path, False, 1)
    os.utime(path, (1, 1))
    assert within(path, False, 1)
    assert time.time() - path.stat().st_mtime < 60


# Where the locks lie


def test_folder_and_lock_are_private_and_the_name_cannot_leave_it(runtime):
    (runtime / "cuteforge").mkdir(mode=0o777)
    path = lease_path("../../etc/GPU 1\n")
    assert path.parent == runtime / "cuteforge"
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert within(path, True, 1)
    assert path.stat().st_mode & 0o777 == 0o600
    assert len(lease_path("x" * 1000).name) < 255


def test_symbolic_link_in_place_of_folder_or_lock_is_not_followed(runtime, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (runtime / "cuteforge").symlink_to(elsewhere)
    with pytest.raises(EnvironmentProblem, match="not a folder of this user") as caught:
        lease_path("cpu")
    assert "XDG_RUNTIME_DIR" in caught.value.remedy
    (runtime / "cuteforge").unlink()
    path = lease_path("cpu")
    path.symlink_to(elsewhere / "victim")
    with pytest.raises(EnvironmentProblem, match="cannot be opened"):
        within(path, True, 1)
    assert not (elsewhere / "victim").exists()


def test_file_in_place_of_the_folder_is_reported(runtime):
    (runtime / "cuteforge").write_text("")
    with pytest.raises(EnvironmentProblem, match="cannot be made"):
        lease_path("cpu")


@pytest.mark.parametrize("value", ["", "relative", "/nowhere/at/all"])
def test_unusable_runtime_folder_falls_back_to_one_of_this_user(monkeypatch, value):
    monkeypatch.setenv("XDG_RUNTIME_DIR", value)
    path = lease_path("cpu")
    assert str(os.getuid()) in str(path.parent)
    assert path.parent.stat().st_uid == os.getuid()
