"""Compiles with NVRTC for as long as the server lives, inside the sandbox: `python -m … FD [LIBRARY]`.

One process, because a precompiled header lives with the process that made it. Requests and answers are
messages of `channel`; each request's files replace those of the one before.
"""

from __future__ import annotations

import base64
import ctypes
import hashlib
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from cuteforge.sandbox.channel import Channel, ChannelClosed
from cuteforge.sandbox.nvrtc_headers import HEADERS

# `cute/tensor.hpp` takes 295 MB; the default heap is too small for any of CuTe.
_PCH_HEAP_BYTES = 1 << 30
_MAX_PCH = 3


class NvrtcFailure(RuntimeError):
    """NVRTC refused a call that has nothing to do with the source."""


class Nvrtc:
    """The library, its source folder, and the precompiled headers it has made."""

    def __init__(self, library: str | None) -> None:
        if library:
            # Loaded first, so that the bindings take this one and look for no other.
            ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
        from cuda.bindings import nvrtc

        self._api = nvrtc
        self._root = Path(tempfile.mkdtemp(prefix="nvrtc-"))
        self._headers = self._root / "std"
        self._headers.mkdir()
        for name, text in HEADERS.items():
            (self._headers / name).write_text(text)
        self._pch: list[str] = []
        self._call("nvrtcSetPCHHeapSize", _PCH_HEAP_BYTES)

    @property
    def version(self) -> str:
        major, minor = self._call("nvrtcVersion")
        return f"{major}.{minor}"

    def _call(self, name: str, *arguments: Any) -> Any:
        result, *values = getattr(self._api, name)(*arguments)
        if result != self._api.nvrtcResult.NVRTC_SUCCESS:
            raise NvrtcFailure(f"{name}: {result.name}")
        return values[0] if len(values) == 1 else tuple(values)

    def _sources(self, files: dict[str, str]) -> Path:
        folder = self._root / "src"
        shutil.rmtree(folder, ignore_errors=True)
        for path, text in files.items():
            place = folder / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text, encoding="utf-8", errors="surrogatepass", newline="")
        return folder

    def _pch_options(self, prelude: str, options: list[str]) -> list[str]:
        key = hashlib.sha256("\0".join([prelude, *options]).encode()).hexdigest()[:16]
        if key in self._pch:
            self._pch.remove(key)
        self._pch.append(key)
        while len(self._pch) > _MAX_PCH:
            shutil.rmtree(self._root / "pch" / self._pch.pop(0), ignore_errors=True)
        folder = self._root / "pch" / key
        folder.mkdir(parents=True, exist_ok=True)
        return ["--pch", f"--pch-dir={folder}"]

    def compile(self, request: dict[str, Any]) -> dict[str, Any]:
        """`files`, `main` (a generated text), `prelude`, `options`, `name` → `log`, `cubin`, `lowered`."""
        folder = self._sources(request["files"])
        options = [*request["options"], f"-I{folder}", f"-I{self._headers}"]
        text = str(request["main"])
        if request["prelude"]:
            options += self._pch_options(request["prelude"], options)
            text = f"{request['prelude']}\n#pragma nv_hdrstop\n{text}"
        api = self._api
        program = self._call("nvrtcCreateProgram", text.encode(), request["main_name"].encode(), 0, [], [])
        try:
            self._call("nvrtcAddNameExpression", program, request["name"].encode())
            (result,) = api.nvrtcCompileProgram(program, len(options), [o.encode() for o in options])
            size = self._call("nvrtcGetProgramLogSize", program)
            buffer = b" " * size
            self._call("nvrtcGetProgramLog", program, buffer)
            log = buffer.rstrip(b"\0 ").decode("utf-8", "replace")
            answer: dict[str, Any] = {"log": log, "result": result.name, "folder": str(folder)}
            if result == api.nvrtcResult.NVRTC_SUCCESS:
                answer["lowered"] = self._call(
                    "nvrtcGetLoweredName", program, request["name"].encode()
                ).decode()
                cubin = b" " * self._call("nvrtcGetCUBINSize", program)
                self._call("nvrtcGetCUBIN", program, cubin)
                answer["cubin"] = base64.b64encode(cubin).decode()
            return answer
        finally:
            api.nvrtcDestroyProgram(program)


def main() -> None:
    """Serve requests from the inherited descriptor until its other end is closed."""
    channel = Channel.from_fd(int(sys.argv[1]))
    nvrtc = Nvrtc(sys.argv[2] if len(sys.argv) > 2 else None)
    channel.send({"ready": nvrtc.version})
    while True:
        try:
            request, _ = channel.receive()
        except ChannelClosed:
            return
        try:
            answer = nvrtc.compile(request)
        except NvrtcFailure as error:
            answer = {"failure": str(error)}
        channel.send(answer)


if __name__ == "__main__":
    main()
