"""The server process stays small."""

import runpy
from pathlib import Path

BENCH = Path(__file__).parents[2] / "bench" / "server_memory.py"


def test_resident_memory_stays_under_150_mb():
    measured = runpy.run_path(str(BENCH))["measure"](200)
    assert measured["after_calls_mb"] < 150
