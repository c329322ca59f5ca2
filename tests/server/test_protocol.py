"""The same tools, resources and prompts over both transports and in both protocol eras."""

import json
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from mcp.shared.exceptions import MCPError
from mcp_types import ResourceTemplateReference


@pytest.fixture(scope="module", params=[(t, m) for t in ("stdio", "http") for m in ("auto", "legacy")])
def session(request, connect, serve_http, stocked):
    transport, mode = request.param
    with ExitStack() as stack:
        if transport == "http":
            url = stack.enter_context(serve_http(stocked.home))
            yield stack.enter_context(connect(url=url, mode=mode))
        else:
            yield stack.enter_context(connect(stocked.home, mode=mode))


def test_lists_the_nine_tools_with_closed_schemas(session):
    tools = session.run("list_tools").tools
    assert [tool.name for tool in tools] == [
        "define_task", "submit_candidate", "patch_apply", "compile", "run_correctness", "benchmark", "history",
        "device_info", "job",
    ]  # fmt: skip
    for tool in tools:
        assert tool.description
        assert tool.input_schema["additionalProperties"] is False


def test_answers_have_text_structure_links_and_next(session, stocked):
    result = session.call("history", task_id=stocked.task_id)
    assert not result.is_error
    assert stocked.candidate_id in result.content[0].text
    assert len(result.content[0].text) <= 3200
    assert result.structured_content["best"] == stocked.candidate_id
    assert result.structured_content["next"][0]["tool"] == "patch_apply"
    assert [block.type for block in result.content[1:]] == ["resource_link"]


def test_compiles_with_progress(session, stocked):
    session.progress.clear()
    answer = session.ok("compile", candidate_id=stocked.candidate_id)
    assert answer["compile"]["ok"]
    fractions = [fraction for fraction, _ in session.progress]
    assert fractions == sorted(fractions)


def test_resources_hold_what_answers_link_to(session, stocked):
    def read(uri):
        return session.run("read_resource", uri).contents[0].text

    task = json.loads(read(f"task://{stocked.task_id}"))
    assert task["definition"]["name"] == "relu"
    assert "cuteforge_launch" in task["header"]
    assert "cuteforge_launch" in read(f"candidate://{stocked.candidate_id}/src/relu.cpp")
    assert read(f"candidate://{stocked.candidate_id}/task.h") == task["header"]
    assert json.loads(read(stocked.run_uri))["kind"] == "correctness"
    assert "findings" in json.loads(read("device://info"))
    exported = json.loads(read(f"task://{stocked.task_id}/export"))
    assert exported["candidates"][0]["id"] == stocked.candidate_id
    assert read("guideline://layouts-and-tails").startswith("# Layouts and ragged edges")


@pytest.mark.parametrize(
    "uri",
    [
        "task://t_0",
        "run://r_0",
        "guideline://none",
        "candidate://c_0/x.cu",
        "candidate://{id}/../x",
        "task://",
    ],
)
def test_missing_resources_are_refused(session, stocked, uri):
    with pytest.raises(MCPError) as caught:
        session.run("read_resource", uri.replace("{id}", stocked.candidate_id))
    assert "internal" not in str(caught.value).lower()


def test_completes_ids(session, stocked):
    def complete(uri, name, value):
        reference = ResourceTemplateReference(type="ref/resource", uri=uri)
        return session.run("complete", reference, {"name": name, "value": value}).completion.values

    assert complete("guideline://{guide_id}", "guide_id", "lay") == ["layouts-and-tails"]
    assert complete("task://{task_id}", "task_id", "t_") == [stocked.task_id]
    assert complete("run://{run_id}", "run_id", "r_") == []


def test_prompts_are_filled_from_the_store(session, stocked):
    names = {prompt.name for prompt in session.run("list_prompts").prompts}
    assert names == {"optimize_kernel", "debug_kernel"}

    def prompt(name, **arguments):
        return session.run("get_prompt", name, arguments).messages[0].content.text

    assert "cuteforge_launch" in prompt("optimize_kernel", task_id=stocked.task_id)
    assert "row softmax" in prompt("optimize_kernel", description="row softmax")
    debug = prompt("debug_kernel", candidate_id=stocked.candidate_id)
    assert "src/relu.cpp" in debug
    assert "checks passed" in debug


def test_prompt_for_an_unknown_task_is_an_error(session):
    with pytest.raises(MCPError):
        session.run("get_prompt", "optimize_kernel", {"task_id": "t_0"})


def test_second_server_on_the_same_store_sees_the_same_tasks(connect, home, stocked, examples):
    with connect(home) as first, connect(home) as second:
        assert second.ok("history")["tasks"] == [stocked.task_id]
        other = examples.kernel.replace("? x[i] : 0", "? x[i] : 0.0f")
        made = first.ok("submit_candidate", task_id=stocked.task_id, files={"other.cpp": other})
        tree = second.call("history", task_id=stocked.task_id).content[0].text
        assert made["candidate_id"] in tree


def test_stdout_carries_only_the_protocol_whatever_a_candidate_prints(home, stocked, examples):
    noisy = examples.kernel.replace('#include "task.h"', '#include "task.h"\n#include <cstdio>').replace(
        "  for (", '  std::printf("{\\"jsonrpc\\": \\"2.0\\"}\\n"); std::fflush(stdout);\n  for ('
    )
    arguments = {"task_id": stocked.task_id, "files": {"noisy.cpp": noisy}, "then": "check"}
    initialize = {
        "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "0"},
    }  # fmt: skip
    messages = [
        {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": initialize},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {
            "jsonrpc": "2.0",
            "id": 2,
            "method": "tools/call",
            "params": {"name": "submit_candidate", "arguments": arguments},
        },
    ]
    argv = [
        sys.executable,
        "-m",
        "cuteforge.server.cli",
        "serve",
        "--home",
        str(home),
        "--log-level",
        "DEBUG",
    ]
    with subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as server:
        server.stdin.write("".join(json.dumps(message) + "\n" for message in messages))
        server.stdin.flush()
        lines = []
        for line in server.stdout:
            lines.append(json.loads(line))
            if lines[-1].get("id") == 2:
                break
        server.stdin.close()
        rest = server.stdout.read()
    assert rest == ""
    assert all(message["jsonrpc"] == "2.0" for message in lines)
    answer = lines[-1]["result"]["structuredContent"]
    assert answer["correctness"]["ok"], lines[-1]


def test_python_path_of_the_package_is_not_needed(connect, home, tmp_path: Path):
    """The server may be started in any folder, also one with modules of tempting names."""
    for name in ("torch", "mcp", "sqlalchemy", "cuteforge"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('imported from the working directory')\n")
    script = Path(sys.executable).parent / "cuteforge"
    with connect(command=[str(script), "serve", "--home", str(home)], cwd=tmp_path) as session:
        assert session.ok("history")["tasks"]
