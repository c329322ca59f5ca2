"""Clients of the SDK's first generation list and call the tools, from an environment of their own."""

import json
import subprocess
import sys
import venv
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "build" / "v1-client"
SCRIPT = """
import asyncio, json, sys
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamablehttp_client

async def talk(streams):
    async with ClientSession(streams[0], streams[1]) as session:
        await session.initialize()
        tools = (await session.list_tools()).tools
        history = await session.call_tool("history", {})
        wrong = await session.call_tool("compile", {"candidate_id": "c_0"})
        device = await session.read_resource("device://info")
        return {
            "tools": [tool.name for tool in tools],
            "history": history.structuredContent,
            "wrong": [wrong.isError, wrong.content[0].text],
            "device": device.contents[0].mimeType,
        }

async def main(kind, *rest):
    if kind == "http":
        async with streamablehttp_client(rest[0]) as streams:
            return await talk(streams)
    async with stdio_client(StdioServerParameters(command=rest[0], args=list(rest[1:]))) as streams:
        return await talk(streams)

print(json.dumps(asyncio.run(main(*sys.argv[1:]))))
"""


@pytest.fixture(scope="module")
def python():
    """The interpreter of an environment with `mcp` 1.x, made once and kept under `build/`."""
    found = FOLDER / "bin" / "python"
    probe = [str(found), "-c", "import importlib.metadata as m; print(m.version('mcp'))"]
    if not found.exists() or subprocess.run(probe, capture_output=True, check=False).returncode != 0:
        venv.create(FOLDER, with_pip=True, clear=True)
        pip = [str(found), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "mcp>=1.20,<2"]
        done = subprocess.run(pip, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            pytest.skip(f"mcp 1.x cannot be installed: {done.stderr.strip().splitlines()[-1]}")
    version = subprocess.run(probe, capture_output=True, text=True, check=True).stdout
    assert version.startswith("1."), version
    return found


def check(done, stocked):
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert len(answer["tools"]) == 9
    assert answer["history"]["tasks"] == [stocked.task_id]
    assert answer["wrong"][0] is True
    assert "no candidate" in answer["wrong"][1]
    assert answer["device"] == "application/json"


@pytest.mark.slow
def test_v1_client_over_stdio(python, stocked):
    serve = [sys.executable, "-m", "cuteforge.server.cli", "serve", "--home", str(stocked.home)]
    argv = [str(python), "-c", SCRIPT, "stdio", *serve]
    check(subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False), stocked)


@pytest.mark.slow
def test_v1_client_over_http(python, stocked, serve_http):
    with serve_http(stocked.home) as url:
        argv = [str(python), "-c", SCRIPT, "http", url]
        check(subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False), stocked)
