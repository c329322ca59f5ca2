"""The public surface is pinned, small, documented, and cheap to load."""

import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from cuteforge.server.tooltable import between_markers, table

HERE = Path(__file__).parent
MAX_TOOL_CHARACTERS = 16_000
MAX_START_RATIO = 1.25


@pytest.fixture(scope="module")
def surface():
    return runpy.run_path(str(HERE / "surface.py"))["surface"]()


def test_surface_is_the_pinned_one(surface):
    pinned = json.loads((HERE / "tool_surface.json").read_text())
    assert surface == pinned, "renew it with `python tests/server/surface.py --write` if this is meant"


def test_tool_definitions_stay_within_their_budget(surface):
    assert len(json.dumps(surface["tools"])) < MAX_TOOL_CHARACTERS


def test_schemas_are_flat(surface):
    text = json.dumps(surface["tools"])
    assert "$ref" not in text
    assert '"title"' not in json.dumps([tool["inputSchema"] for tool in surface["tools"]])


def test_every_suggested_call_fits_its_tool(surface):
    """`next` must not send a model to a parameter that does not exist."""
    from cuteforge.kernels import policy

    parameters = {tool["name"]: set(tool["inputSchema"]["properties"]) for tool in surface["tools"]}
    steps = [*policy.after_task("t_1", ()), *policy.after_submit("c_1")]
    for step in steps:
        assert set(step.arguments) <= parameters[step.tool]


def test_readme_has_the_present_tool_table():
    assert between_markers((HERE.parents[1] / "README.md").read_text()) == table(), (
        "renew it with `python -m cuteforge.server.tooltable`"
    )


def test_assembly_loads_nothing_heavy():
    code = (
        "import sys, cuteforge.server.app, cuteforge.server.cli\n"
        "from cuteforge.server.config import Settings\n"
        "cuteforge.server.app.build_server(Settings())\n"
        "heavy = {'torch', 'numpy', 'cuda', 'sqlalchemy', 'structlog', 'cuteforge.sandbox.local'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_working_server_loads_neither_torch_nor_cuda(connect, home, stocked, watch):
    with connect(home) as session:
        assert session.ok("compile", candidate_id=stocked.candidate_id)
        server = watch.server_of(home)
        maps = Path(f"/proc/{server}/maps").read_text()
    assert "sqlalchemy" in maps
    assert "libtorch" not in maps
    assert "libcuda" not in maps


def test_start_is_nearly_as_fast_as_an_empty_server():
    measure = runpy.run_path(str(HERE.parents[1] / "bench" / "startup.py"))["measure"]
    # The bench takes eleven runs; three say whether something heavy came in, with room for a busy machine.
    assert measure(3)["ratio"] < MAX_START_RATIO * 1.2
