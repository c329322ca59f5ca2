"""Runs every bench beside this file and keeps what it measured: `make bench`, or `python bench/run.py NAME …`.

A bench is a module with `measure() -> dict`. `bench/results/NAME.json` holds its result with the machine, the
versions and the date. `gpu.py` records its own results, on a machine with a GPU.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
_NOT_BENCHES = {"run", "gpu"}
_VERSIONS = ("cuteforge", "mcp", "pydantic", "SQLAlchemy", "torch")


def benches() -> dict[str, Callable[[], dict[str, Any]]]:
    """The benches by name: every module here that defines `measure`."""
    found: dict[str, Callable[[], dict[str, Any]]] = {}
    for file in sorted(HERE.glob("*.py")):
        if file.stem not in _NOT_BENCHES:
            measure = runpy.run_path(str(file)).get("measure")
            if measure is not None:
                found[file.stem] = measure
    return found


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _gpus() -> list[str]:
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    query = [program, "--query-gpu=name,driver_version", "--format=csv,noheader"]
    done = subprocess.run(query, capture_output=True, text=True, timeout=30, check=False)
    return done.stdout.split("\n")[:-1] if done.returncode == 0 else []


def machine() -> dict[str, Any]:
    """What the numbers were measured on."""
    from cuteforge.sandbox.devices import cores, cpu_name

    return {
        "cpu": cpu_name(),
        "cores": cores(),
        "gpus": _gpus(),
        "os": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "load_before": round(os.getloadavg()[0], 2),
    }


def record(name: str, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Run one bench and write its result; returns what it measured."""
    before = machine()
    measured = measure()
    result = {
        "bench": name,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": before,
        "versions": {name: _version(name) for name in _VERSIONS},
        "measured": measured,
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
    return measured


def main(wanted: list[str]) -> int:
    """Run the named benches, or all. 2: there is no bench of a name."""
    found = benches()
    unknown = sorted(set(wanted) - set(found))
    if unknown:
        print(f"no bench {', '.join(unknown)}; there are: {', '.join(found)}", file=sys.stderr)
        return 2
    for name in wanted or found:
        print(f"== {name}", flush=True)
        print(json.dumps(record(name, found[name]), indent=1), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
