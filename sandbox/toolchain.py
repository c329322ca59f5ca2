"""Which compilers and headers there are: the user's own first, PyPI's wheels where those lack something."""

from __future__ import annotations

import functools
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from cuteforge.kernels.model import Frozen
from cuteforge.sandbox.executor import Found

Source = Literal["setting", "CUDA_HOME", "PATH", "default", "wheel"]
CutlassSource = Literal["setting", "CUTLASS_PATH", "wheel"]

_INSTALL = "pip install 'cuteforge[toolchain]'"
_TIMEOUT_S = 5
# The wheels of one CUDA release that nvcc calls; a resolver may pair them with another release.
_NVCC_PARTS = ("nvidia-nvvm", "nvidia-cuda-crt")


class Toolchain(Frozen):
    """Every tool that was found, with versions; None for what was not."""

    nvcc: Path | None = None
    nvcc_version: str | None = None
    nvcc_source: Source | None = None
    nvrtc_library: Path | None = None
    nvrtc_version: str | None = None
    cuda_includes: tuple[Path, ...] = ()
    cccl_include: Path | None = None
    cutlass_include: Path | None = None
    cutlass_version: str | None = None
    cutlass_source: CutlassSource | None = None
    gxx: Path | None = None
    gxx_version: str | None = None
    cuobjdump: Path | None = None
    nvdisasm: Path | None = None
    link_dirs: tuple[Path, ...] = ()
    problems: tuple[Found, ...] = ()

    @property
    def includes(self) -> tuple[Path, ...]:
        """All include folders for CUDA sources, in search order."""
        given = (self.cutlass_include, *self.cuda_includes, self.cccl_include)
        return tuple(path for path in given if path is not None)

    @property
    def readonly(self) -> tuple[Path, ...]:
        """What a sandbox must show read-only for these tools to work in it."""
        roots = [tool.parent.parent for tool in (self.nvcc, self.cuobjdump, self.nvdisasm) if tool]
        roots += [self.nvrtc_library.parent] if self.nvrtc_library else []
        roots += [*self.includes, *self.link_dirs]
        return tuple(dict.fromkeys(p for root in roots for p in (root, root.resolve())))

    @property
    def identity(self) -> str:
        """What decides the outcome of a compilation besides its input."""
        return "|".join(
            str(part)
            for part in (self.nvcc, self.nvcc_version, self.nvrtc_version, self.cutlass_include,
                         self.cutlass_version, self.gxx, self.gxx_version)
        )  # fmt: skip


class _Root(NamedTuple):
    source: Source
    path: Path


def _output(*command: str) -> str:
    """stdout and stderr of a short command; empty when it fails to run."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode(errors="replace")


def _toolkit_of(nvcc: str) -> Path | None:
    """The toolkit folder of an nvcc that may be a link or a wrapper script."""
    text = _output(nvcc, "-dryrun", "-E", "-x", "cu", "/dev/null")
    found = re.search(r"^#\$ _HERE_=(.+)$", text, re.MULTILINE)
    return Path(found[1].strip()).parent if found else None


def _wheel_folders() -> Iterator[Path]:
    """`nvidia/cu13` under every import path; nothing is imported."""
    for entry in dict.fromkeys(sys.path):
        folder = Path(entry or ".").absolute() / "nvidia" / "cu13"
        # An empty entry is the working directory, which is not where packages are installed.
        if entry and folder.is_dir():
            yield folder


def _roots(cuda_home: Path | None) -> Iterator[_Root]:
    if cuda_home is not None:
        yield _Root("setting", cuda_home)
    for name in ("CUDA_HOME", "CUDA_PATH"):
        if os.environ.get(name):
            yield _Root("CUDA_HOME", Path(os.environ[name]))
    on_path = shutil.which("nvcc")
    toolkit = _toolkit_of(on_path) if on_path else None
    if toolkit is not None:
        yield _Root("PATH", toolkit)
    if Path("/usr/local/cuda/bin/nvcc").is_file():
        yield _Root("default", Path("/usr/local/cuda"))
    for folder in _wheel_folders():
        yield _Root("wheel", folder)


def _first(roots: Iterable[_Root], *patterns: str) -> tuple[_Root, Path] | None:
    for root in roots:
        for pattern in patterns:
            for path in sorted(root.path.glob(pattern)):
                if path.exists():
                    return root, path
    return None


def _release(text: str) -> str | None:
    found = re.search(r"\bV(\d+\.\d+\.\d+)", text) or re.search(r"release (\d+\.\d+)", text)
    return found[1] if found else None


def _distribution(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _nvrtc_version(library: Path, source: Source) -> str | None:
    found = re.search(r"\.so\.(\d+\.\d+(?:\.\d+)?)$", str(library.resolve()))
    if found:
        return found[1]
    # The wheel's library is named by the major version alone; its companion has both numbers.
    for builtins in sorted(library.parent.glob("libnvrtc-builtins.so.*")):
        found = re.search(r"\.so\.(\d+\.\d+)", builtins.name)
        if found:
            return (_distribution("nvidia-cuda-nvrtc") if source == "wheel" else None) or found[1]
    return None


def _cutlass(setting: Path | None) -> tuple[CutlassSource, Path] | None:
    named: list[tuple[CutlassSource, Path]] = []
    if setting is not None:
        named.append(("setting", setting))
    if os.environ.get("CUTLASS_PATH"):
        named.append(("CUTLASS_PATH", Path(os.environ["CUTLASS_PATH"])))
    named += [("wheel", Path(entry) / "cutlass_library" / "source") for entry in sys.path if entry]
    for source, folder in named:
        for include in (folder / "include", folder):
            if (include / "cute" / "tensor.hpp").is_file():
                return source, include.absolute()
    return None


def _cutlass_version(include: Path) -> str | None:
    try:
        text = (include / "cutlass" / "version.h").read_text(errors="replace")
    except OSError:
        return None
    parts = [re.search(rf"#define CUTLASS_{part} (\d+)", text) for part in ("MAJOR", "MINOR", "PATCH")]
    return ".".join(part[1] for part in parts if part) or None


def _problems(found: Toolchain, cuda_home: Path | None, cutlass: Path | None) -> Iterator[Found]:
    if cuda_home is not None and found.nvcc_source != "setting":
        yield Found(name="cuda_home", ok=False, detail=f"no bin/nvcc under '{cuda_home}'",
                    remedy="Point the setting at a CUDA toolkit, or remove it.")  # fmt: skip
    if cutlass is not None and found.cutlass_source != "setting":
        yield Found(name="cutlass", ok=False, detail=f"no cute/tensor.hpp under '{cutlass}'",
                    remedy="Point the setting at a CUTLASS checkout, or remove it.")  # fmt: skip
    release = ".".join((found.nvcc_version or "").split(".")[:2])
    if found.nvcc_source == "wheel" and release:
        for part in _NVCC_PARTS:
            version = _distribution(part)
            if version is not None and not version.startswith(f"{release}."):
                yield Found(name="nvcc", ok=False, detail=f"nvcc {release} is paired with {part} {version}",
                            remedy=f"pip install '{part}=={release}.*'")  # fmt: skip
    nvrtc = ".".join((found.nvrtc_version or "").split(".")[:2])
    if nvrtc and release and nvrtc != release:
        yield Found(name="nvrtc", ok=False, detail=f"NVRTC {nvrtc} is used with the headers of CUDA {release}",
                    remedy=f"Install NVRTC {release}: pip install 'nvidia-cuda-nvrtc=={release}.*'")  # fmt: skip


@functools.cache
def discover(cuda_home: Path | None = None, cutlass: Path | None = None) -> Toolchain:
    """Find the tools: the setting, CUDA_HOME, PATH, then PyPI's wheels; each tool from the first that has it.

    Headers and libraries come from nvcc's own toolkit where it has them. A setting that names nothing usable
    is reported in `problems`. Cached: the server is restarted to see an installation.
    """
    roots = list(_roots(cuda_home))
    values: dict[str, object] = {}
    nvcc = _first(roots, "bin/nvcc")
    if nvcc is not None:
        root, path = nvcc
        # The other parts come from the same toolkit when it has them.
        roots = [root, *(other for other in roots if other != root)]
        values |= {"nvcc": path, "nvcc_source": root.source}
        values["nvcc_version"] = _release(_output(str(path), "--version"))
        libraries = [
            d for d in (root.path / "lib64", root.path / "lib") if (d / "libcudart_static.a").is_file()
        ]
        values["link_dirs"] = tuple(libraries[:1])
    library = _first(
        roots, *(f"{d}/libnvrtc.so.1[0-9]" for d in ("lib64", "lib", "targets/x86_64-linux/lib"))
    )
    if library is not None:
        values |= {
            "nvrtc_library": library[1],
            "nvrtc_version": _nvrtc_version(library[1], library[0].source),
        }
    headers = _first(roots, "include/cuda_runtime.h", "targets/x86_64-linux/include/cuda_runtime.h")
    if headers is not None:
        values["cuda_includes"] = (headers[1].parent,)
    cccl = _first(
        roots, "include/cccl/cuda/std/cstdint", "targets/x86_64-linux/include/cccl/cuda/std/cstdint"
    )
    if cccl is not None:
        values["cccl_include"] = cccl[1].parents[2]
    for name in ("cuobjdump", "nvdisasm"):
        tool = _first(roots, f"bin/{name}")
        values[name] = tool[1] if tool else None
    headers_of_cutlass = _cutlass(cutlass)
    if headers_of_cutlass is not None:
        source, include = headers_of_cutlass
        values |= {"cutlass_source": source, "cutlass_include": include}
        values["cutlass_version"] = _cutlass_version(include)
    gxx = shutil.which("g++")
    if gxx is not None:
        values |= {"gxx": Path(gxx), "gxx_version": _output(gxx, "-dumpfullversion").strip() or None}
    found = Toolchain.model_validate(values)
    return found.model_copy(update={"problems": tuple(_problems(found, cuda_home, cutlass))})


def _finding(name: str, path: Path | None, detail: str, remedy: str) -> Found:
    if path is None:
        return Found(name=name, ok=False, detail="not found", remedy=remedy)
    return Found(name=name, ok=True, detail=f"{detail} ({path})".strip())


def findings(chain: Toolchain) -> tuple[Found, ...]:
    """What the doctor says of a toolchain, with the remedy for what is missing, and its problems last."""
    nvcc = f"{chain.nvcc_version or ''} from {chain.nvcc_source}"
    cutlass = f"{chain.cutlass_version or ''} from {chain.cutlass_source}"
    compiler = "Install a C++ compiler: `apt-get install g++`, `dnf install gcc-c++`."
    return (
        _finding("nvcc", chain.nvcc, nvcc, _INSTALL),
        _finding("NVRTC", chain.nvrtc_library, chain.nvrtc_version or "", _INSTALL),
        _finding("CUDA headers", chain.cuda_includes[0] if chain.cuda_includes else None, "", _INSTALL),
        _finding("CCCL headers", chain.cccl_include, "", _INSTALL),
        _finding("CUTLASS", chain.cutlass_include, cutlass, _INSTALL),
        _finding("cuobjdump", chain.cuobjdump, "", _INSTALL),
        _finding("nvdisasm", chain.nvdisasm, "", _INSTALL),
        _finding("g++", chain.gxx, chain.gxx_version or "", compiler),
        *chain.problems,
    )
