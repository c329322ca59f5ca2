"""What a sandboxed command can see and reach. Every test runs the real bubblewrap."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cuteforge.kernels.errors import EnvironmentProblem
from cuteforge.sandbox import bubblewrap
from cuteforge.sandbox.bubblewrap import SandboxSpec, SandboxStatus, find_bwrap, probe, wrap

needs_isolation = pytest.mark.skipif(probe().kind == "none", reason=probe().detail)


def inside(spec: SandboxSpec, status: SandboxStatus | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        wrap(spec, status or probe()), capture_output=True, text=True, timeout=30, check=False
    )


def shell(script: str) -> subprocess.CompletedProcess[str]:
    return inside(SandboxSpec(("sh", "-c", script)))


@needs_isolation
def test_identity_is_nobody_without_capabilities() -> None:
    out = shell("id -u; id -g; grep CapEff /proc/self/status; hostname").stdout.split()
    assert out == ["65534", "65534", "CapEff:", "0000000000000000", "sandbox"]


@needs_isolation
def test_host_files_are_not_there() -> None:
    for path in ("/etc/shadow", "/etc/passwd", "/etc/hostname", "/var", "/home", "/proc/1/root/etc/shadow"):
        assert inside(SandboxSpec(("cat", path))).returncode != 0
        assert inside(SandboxSpec(("ls", path))).returncode != 0


@needs_isolation
def test_home_shows_only_the_folders_that_lead_to_the_interpreter() -> None:
    script = "import os,sys; h=sys.argv[1]; print(*(os.path.join(d,f) for d,_,fs in os.walk(h) for f in fs), sep='\\n')"
    listed = inside(SandboxSpec((sys.executable, "-I", "-c", script, str(Path.home())))).stdout.split("\n")
    prefixes = tuple(str(Path(p).resolve()) for p in (sys.prefix, sys.base_prefix))
    assert [f for f in listed if f and not f.startswith(prefixes)] == []


@needs_isolation
def test_there_is_no_network() -> None:
    script = "import socket; print(socket.if_nameindex()); socket.create_connection(('192.0.2.1', 80), 2)"
    done = inside(SandboxSpec((sys.executable, "-I", "-c", script)))
    assert done.returncode != 0
    assert "unreachable" in done.stderr
    assert "eth" not in done.stdout


@needs_isolation
def test_other_processes_are_not_visible() -> None:
    pids = [int(p) for p in shell("ls /proc").stdout.split() if p.isdigit()]
    assert max(pids) < 10


@needs_isolation
def test_only_tmp_and_named_folders_are_writable(tmp_path: Path) -> None:
    for folder in ("/", "/usr", "/dev", "/etc", "/proc", sys.prefix, str(Path(bubblewrap.__file__).parent)):
        assert inside(SandboxSpec(("touch", f"{folder}/planted"))).returncode != 0
    assert shell("touch /tmp/a /dev/shm/b && echo > /dev/null").returncode == 0
    spec = SandboxSpec(("sh", "-c", "echo new > file; pwd"), writable=((tmp_path, "/build"),), cwd="/build")
    assert inside(spec).stdout == "/build\n"
    assert (tmp_path / "file").read_text() == "new\n"
    assert not Path("/tmp/a").exists()


@needs_isolation
def test_tmp_is_bounded() -> None:
    spec = SandboxSpec(("sh", "-c", "head -c 3000000 /dev/zero > /tmp/big"), tmp_bytes=1 << 20)
    done = inside(spec)
    assert "No space left" in done.stderr


@needs_isolation
def test_readonly_paths_appear_in_place(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("x")
    spec = SandboxSpec(("sh", "-c", f"cat {tmp_path}/data; touch {tmp_path}/more"), readonly=(tmp_path,))
    done = inside(spec)
    assert done.stdout == "x"
    assert done.returncode != 0


@pytest.mark.parametrize(
    "status", [probe(), SandboxStatus("none", "for the test")], ids=["isolated", "plain"]
)
def test_environment_holds_only_what_is_named(status: SandboxStatus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "leaked")
    done = inside(SandboxSpec(("env",), env={"WANTED": "1"}), status)
    names = {line.partition("=")[0] for line in done.stdout.splitlines()}
    assert {"WANTED", "PATH", "HOME", "LANG", "TMPDIR"} <= names
    assert names <= {"WANTED", "PATH", "HOME", "LANG", "TMPDIR", "USER", "LOGNAME", "PYTHONPATH", "PWD"}
    assert "HOME=/tmp\n" in done.stdout


@pytest.mark.parametrize(
    "status", [probe(), SandboxStatus("none", "for the test")], ids=["isolated", "plain"]
)
def test_this_package_is_importable(status: SandboxStatus) -> None:
    code = "import cuteforge.sandbox.bubblewrap, cuteforge.kernels.task; print('imported')"
    assert inside(SandboxSpec((sys.executable, "-P", "-c", code)), status).stdout == "imported\n"


@needs_isolation
def test_further_user_namespaces_are_refused_where_the_kernel_can() -> None:
    done = shell("unshare -U true")
    assert (done.returncode != 0) == ("--disable-userns" in probe().options)


def test_without_isolation_the_folder_takes_the_place_of_the_mount(tmp_path: Path) -> None:
    spec = SandboxSpec(("sh", "-c", "echo new > file"), writable=((tmp_path, "/build"),), cwd="/build")
    assert inside(spec, SandboxStatus("none", "for the test")).returncode == 0
    assert (tmp_path / "file").exists()


@needs_isolation
def test_starting_takes_about_ten_milliseconds() -> None:
    command = wrap(SandboxSpec(("true",)), probe())
    times = []
    for _ in range(7):
        began = time.perf_counter()
        subprocess.run(command, check=True)
        times.append(time.perf_counter() - began)
    # Three times what it takes on a slow core: other work may run beside the test.
    assert min(times) < 0.04


def test_a_setting_that_names_no_program_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentProblem):
        find_bwrap(tmp_path / "bwrap")


def test_a_bubblewrap_that_fails_is_reported_with_the_remedy(tmp_path: Path) -> None:
    program = tmp_path / "bwrap"
    program.write_text("#!/bin/sh\necho 'bwrap: setting up uid map: Permission denied' >&2\nexit 1\n")
    program.chmod(0o755)
    status = probe(program)
    assert status.kind == "none"
    assert "Permission denied" in status.detail
    assert "user namespaces" in status.remedy
    assert os.access(program, os.X_OK)
