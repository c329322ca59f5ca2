"""Everything that needs a GPU, in one run: the gpu tests, evaluation times, and the demo.

`make gpu`, or `python bench/gpu.py [PART[=SECONDS] …]` with the parts tests, evaluate and demo. Writes JSON
and logs to $OUT, or to bench/results, and prints a short table last. Ends within nine minutes.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import anyio

ROOT = Path(__file__).resolve().parent.parent
OUT = Path(os.environ.get("OUT") or ROOT / "bench" / "results")
EXAMPLE = ROOT / "guidelines" / "examples" / "relu"
LIMITS_S = {"tests": 200, "evaluate": 180, "demo": 150}


def versions() -> dict[str, str]:
    """Device, driver, and the packages that matter."""
    query = "name,driver_version,clocks.sm,clocks.mem,temperature.gpu"
    smi = subprocess.run(
        ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    found = {"gpu": smi, "python": platform.python_version(), "date": datetime.now(UTC).isoformat()}
    for name in ("cuteforge", "torch", "triton", "cuda-bindings", "mcp", "nvidia-cutlass", "pydantic"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "absent"
    nvcc = subprocess.run(["nvcc", "--version"], capture_output=True, text=True, check=False).stdout
    found["nvcc"] = nvcc.strip().splitlines()[-1] if nvcc.strip() else "absent"
    return found


def logged(name: str, command: list[str], limit_s: float) -> dict[str, Any]:
    """Run a command, keep its output in OUT, and return code and seconds."""
    started = time.monotonic()
    path = OUT / f"{name}.log"
    with path.open("wb") as log:
        process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT)
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            code = -1
    text = path.read_text(errors="replace")
    # The last lines of a log say how it went.
    print(f"--- {name} (exit {code}, {time.monotonic() - started:.0f} s)\n{text[-3500:]}", flush=True)
    return {"exit": code, "seconds": round(time.monotonic() - started, 1)}


def run_tests() -> dict[str, Any]:
    """The gpu tests."""
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-q", "-p", "no:cacheprovider", "--durations=12"]
    return logged("gpu_tests", [*command, "--tb=short", "tests/sandbox/test_gpu.py"], LIMITS_S["tests"])


def run_demo() -> dict[str, Any]:
    """The demo on the CUDA path."""
    return logged("gpu_demo", [sys.executable, "-m", "cuteforge.server.cli", "demo"], LIMITS_S["demo"])


async def _evaluations() -> dict[str, Any]:
    from mcp import Client
    from mcp.client.stdio import StdioServerParameters, stdio_client

    kernel = (EXAMPLE / "relu_kernel.cu").read_text()
    launcher = (EXAMPLE / "relu_launcher.cu").read_text()
    entry = json.loads((EXAMPLE / "relu_kernel.entry.json").read_text())
    task = json.loads((EXAMPLE / "task.json").read_text())
    task.pop("contract")
    task["cases"] = [c for c in task["cases"] if c["name"] == "full"]
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as home, (OUT / "gpu_server.log").open("w") as log:
        server = StdioServerParameters(
            command=sys.executable,
            args=["-m", "cuteforge.server.cli", "serve", "--home", home],
            env=dict(os.environ),
        )
        async with Client(stdio_client(server, errlog=log), read_timeout_seconds=170) as client:

            async def call(tool: str, **arguments: Any) -> tuple[dict[str, Any], float]:
                started = time.monotonic()
                answer = await client.call_tool(tool, arguments)
                seconds = time.monotonic() - started
                if answer.is_error:
                    raise RuntimeError(f"{tool}: {answer.content[0].text}")
                return answer.structured_content or {}, seconds

            defined, seconds = await call("define_task", **task, target="cuda")
            results["define_task_s"] = seconds
            for name, files, more in (
                ("kernel", {"relu.cu": kernel}, entry),
                ("launcher", {"relu.cu": launcher}, {}),
            ):
                times: list[float] = []
                for edit in range(3 if name == "kernel" else 2):
                    # A new edit each time: nothing comes from the compile cache. The pause is a client's
                    # thinking time, in which the server replaces its used workers.
                    await anyio.sleep(0 if edit == 0 else 6)
                    edited = {n: f"{text}// edit {edit}\n" for n, text in files.items()}
                    answer, seconds = await call(
                        "submit_candidate",
                        task_id=defined["task_id"],
                        files=edited,
                        then="evaluate",
                        **more,
                    )
                    times.append(round(seconds, 2))
                    results[f"{name}_answer"] = {
                        key: answer.get(key) for key in ("compile", "correctness", "benchmark", "best")
                    }
                    print(f"{name} edit {edit}: {seconds:.2f} s", flush=True)
                results[f"{name}_evaluate_s"] = {"first": times[0], "warm": times[1:]}
    return results


def run_evaluate() -> dict[str, Any]:
    """then='evaluate' of a CuTe elementwise kernel on 4096x131072 fp32, through a real client."""

    async def bounded() -> dict[str, Any]:
        with anyio.fail_after(LIMITS_S["evaluate"]):
            return await _evaluations()

    started = time.monotonic()
    try:
        found = anyio.run(bounded)
    # One failed part must not lose the others' results.
    except Exception as error:  # noqa: BLE001
        found = {"error": f"{type(error).__name__}: {error}"}
        if isinstance(error, BaseExceptionGroup):
            found["error"] += f" {[repr(e) for e in error.exceptions]}"
        log = OUT / "gpu_server.log"
        print(f"evaluate failed: {found}\n{log.read_text()[-3000:] if log.exists() else ''}", flush=True)
    found["seconds"] = round(time.monotonic() - started, 1)
    return found


PARTS = {"tests": run_tests, "evaluate": run_evaluate, "demo": run_demo}


def main() -> int:
    """Run the named parts, all by default."""
    OUT.mkdir(parents=True, exist_ok=True)
    wanted: list[str] = []
    for argument in sys.argv[1:] or PARTS:
        name, _, limit = argument.partition("=")
        wanted.append(name)
        LIMITS_S[name] = int(limit or LIMITS_S[name])
    report: dict[str, Any] = {"versions": versions()}
    print(json.dumps(report["versions"]), flush=True)
    for name in wanted:
        report[name] = PARTS[name]()
        (OUT / "gpu.json").write_text(json.dumps(report, indent=1) + "\n")
    print("\npart      result")
    for name in wanted:
        part = report[name]
        shown = {k: v for k, v in part.items() if not k.endswith("_answer")}
        print(f"{name:9} {json.dumps(shown)}")
    failed = any(report[n].get("exit", 0) != 0 or "error" in report[n] for n in wanted)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
