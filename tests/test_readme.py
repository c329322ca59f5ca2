"""What the README tells a user to type works as it stands."""

import json
import re
import runpy
import sys
from pathlib import Path

import anyio
import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()
COMMAND = "/path/to/cuteforge/.venv/bin/cuteforge"
HERE = str(Path(sys.executable).with_name("cuteforge"))


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("text", blocks("json"))
def test_client_configuration_starts_the_server(text, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    servers = next(iter(json.loads(text).values()))
    entry = servers["cuteforge"]
    assert entry["command"] == COMMAND

    async def names():
        async with Client(StdioServerParameters(command=HERE, args=entry["args"])) as client:
            return [tool.name for tool in (await client.list_tools()).tools]

    assert "define_task" in anyio.run(names)


def test_client_in_python_defines_a_task(tmp_path, monkeypatch, capsys):
    (text,) = blocks("python")
    # The SDK hands a server only part of the environment: the store must be named on the command line.
    text = text.replace(COMMAND, HERE).replace(
        '["serve"]', json.dumps(["serve", "--home", str(tmp_path / "home")])
    )
    (tmp_path / "client.py").write_text(text)
    runpy.run_path(str(tmp_path / "client.py"))
    assert "ragged: x[64, 1001] float32" in capsys.readouterr().out


def test_links_lead_to_files():
    for target in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / target).exists(), target


def test_goals_named_are_goals_of_make():
    rules = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"\bmake ([a-z]+)\b(?=`|    | \\|\n|$)", README))
    assert {"demo", "test"} <= named <= rules
