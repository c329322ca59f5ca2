"""The loop of a kernel engineer, through a real client: bug, diagnosis, patch, speedup, history."""

import pytest

SOFTMAX = """
import torch

def reference(x):
    return torch.softmax(x, dim=-1)
"""
# Exponentials in double, one element at a time, and the last column forgotten: wrong first, slow afterwards.
SLOW = """#include "task.h"
#include <cmath>

extern "C" int cuteforge_launch(const float* x, float* out, int64_t rows, int64_t cols) {
  for (int64_t r = 0; r < rows; ++r) {
    const float* in = x + r * cols;
    float* to = out + r * cols;
    double top = in[0];
    for (int64_t c = 1; c < cols; ++c) top = in[c] > top ? in[c] : top;
    volatile double sum = 0;
    for (int64_t c = 0; c < cols; ++c) sum = sum + std::exp((double)in[c] - top);
    for (int64_t c = 0; c < cols - 1; ++c) to[c] = std::exp((double)in[c] - top) / sum;
  }
  return 0;
}
"""
MEND = """<<<<<<< SEARCH
    for (int64_t c = 0; c < cols - 1; ++c) to[c] = std::exp((double)in[c] - top) / sum;
=======
    for (int64_t c = 0; c < cols; ++c) to[c] = std::exp((double)in[c] - top) / sum;
>>>>>>> REPLACE
"""
FASTER = """<<<<<<< SEARCH
    volatile double sum = 0;
    for (int64_t c = 0; c < cols; ++c) sum = sum + std::exp((double)in[c] - top);
    for (int64_t c = 0; c < cols; ++c) to[c] = std::exp((double)in[c] - top) / sum;
=======
    float sum = 0;
    for (int64_t c = 0; c < cols; ++c) sum += to[c] = std::exp(in[c] - (float)top);
    for (int64_t c = 0; c < cols; ++c) to[c] *= 1 / sum;
>>>>>>> REPLACE
"""


@pytest.fixture(scope="module")
def session(connect, tmp_path_factory):
    folder = tmp_path_factory.mktemp("user")
    with connect(folder / "home", cwd=folder, env={"CUTEFORGE_WARM_WORKERS": "2"}) as session:
        session.folder = folder
        yield session


@pytest.fixture(scope="module")
def task_id(session):
    (session.folder / "softmax.py").write_text(SOFTMAX)
    answer = session.ok(
        "define_task",
        path="softmax.py",
        inputs=[{"name": "x", "shape": ["rows", "cols"]}],
        cases=[{"name": "ragged", "sizes": {"rows": 64, "cols": 1001}}],
        target="cpu",
    )
    assert answer["workload"] == "normalization"
    return answer["task_id"]


def test_loop_from_a_bug_to_a_verified_speedup(session, task_id):
    source = session.folder / "softmax.cpp"
    source.write_text(SLOW)
    result = session.call("submit_candidate", task_id=task_id, path="softmax.cpp", then="evaluate")
    first = result.structured_content
    assert first["ok"] is False
    assert "only the last 1 of 1001 columns" in result.content[0].text
    assert "benchmark" not in first
    assert first["next"][0]["arguments"]["candidate_id"] == first["candidate_id"]

    dry = session.ok("patch_apply", candidate_id=first["candidate_id"], patch=MEND, dry_run=True)
    assert "softmax.cpp +1 -1" in dry["diffstat"]
    assert source.read_text() == SLOW

    second = session.ok(
        "patch_apply",
        candidate_id=first["candidate_id"],
        patch=MEND,
        write_back="softmax.cpp",
        then="evaluate",
    )
    assert second["ok"], second
    assert "the first correct candidate" in second["best"]
    assert "c < cols; ++c) to[c]" in source.read_text()

    third = session.ok("patch_apply", candidate_id=second["candidate_id"], patch=FASTER, then="evaluate")
    assert third["ok"], third
    assert third["benchmark"]["verdicts"]["best"] == "faster"
    assert f"best is now {third['candidate_id']}" in third["best"]

    history = session.call("history", task_id=task_id)
    assert history.structured_content["best"] == third["candidate_id"]
    assert history.structured_content["candidates"] == 3
    assert "wrong" in history.content[0].text

    back = session.ok("history", task_id=task_id, action="checkout", candidate_id=second["candidate_id"])
    assert back["checked_out"] == second["candidate_id"]
    assert back["next"][0]["arguments"]["candidate_id"] == second["candidate_id"]
    exported = session.ok("history", task_id=task_id, action="export")
    assert exported["artifact"]


def test_write_back_is_refused_when_the_file_changed_meanwhile(session, task_id):
    source = session.folder / "changed.cpp"
    source.write_text(SLOW)
    made = session.ok("submit_candidate", task_id=task_id, path="changed.cpp")
    source.write_text(SLOW + "// the user's own edit\n")
    result = session.call(
        "patch_apply", candidate_id=made["candidate_id"], patch=MEND, write_back="changed.cpp"
    )
    assert result.is_error
    assert "changed meanwhile" in result.content[0].text
    assert source.read_text() == SLOW + "// the user's own edit\n"
    assert not list(session.folder.glob(".changed.cpp*"))


def test_same_content_is_the_same_candidate(session, task_id):
    files = {"again.cpp": SLOW}
    first = session.ok("submit_candidate", task_id=task_id, files=files)
    result = session.call("submit_candidate", task_id=task_id, files=files)
    assert result.structured_content["candidate_id"] == first["candidate_id"]
    assert "submitted before" in result.content[0].text


def test_python_candidate_with_kernelbench_contract(session):
    reference = (
        "import torch\n"
        "ROWS = 16\n"
        "class Model(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        return torch.relu(x)\n"
        "def get_inputs():\n"
        "    return [torch.rand(ROWS, 8) - 0.5]\n"
        "def get_init_inputs():\n"
        "    return []\n"
    )
    task = session.ok(
        "define_task", source=reference, target="cpu", cases=[{"name": "r", "sizes": {"ROWS": 5}}]
    )
    assert task["cases"][0]["name"] == "r"
    candidate = (
        "import torch\n"
        "print('a candidate may print')\n"
        "class ModelNew(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        return torch.clamp(x, min=0)\n"
    )
    answer = session.ok(
        "submit_candidate", task_id=task["task_id"], files={"relu.py": candidate}, then="check"
    )
    assert answer["correctness"]["ok"], answer
