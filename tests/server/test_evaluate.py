"""`cuteforge eval` gives the tools' verdict as an exit code, and as JSON."""

import json
import subprocess
import sys

import pytest

from cuteforge.kernels.errors import InvalidRequest
from cuteforge.server.demo import example_folder
from cuteforge.server.evaluate import candidate_request, task_request

REFERENCE = "import torch\n\n\ndef reference(x):\n    return torch.relu(x)\n"
TASK = {
    "name": "relu",
    "path": "reference.py",
    "inputs": [{"name": "x", "shape": ["n"]}],
    "cases": [{"name": "small", "sizes": {"n": 1001}}],
}
KERNEL = """#include "task.h"

extern "C" int cuteforge_launch(const float* x, float* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = x[i] > 0 ? x[i] : 0;
  return 0;
}
"""


@pytest.fixture
def evaluate(tmp_path):
    """Runs the command on a kernel's text; returns the finished process."""
    (tmp_path / "reference.py").write_text(REFERENCE)
    (tmp_path / "task.json").write_text(json.dumps(TASK))

    def run(kernel, *options, name="relu.cpp"):
        (tmp_path / name).write_text(kernel)
        return subprocess.run(
            [sys.executable, "-m", "cuteforge.server.cli", "eval", str(tmp_path / name),
             "--task", str(tmp_path / "task.json"), "--home", str(tmp_path / "home"), *options],
            capture_output=True, text=True, timeout=200, stdin=subprocess.DEVNULL,
        )  # fmt: skip

    return run


def test_correct_kernel_ends_with_0_and_its_records(evaluate):
    done = evaluate(KERNEL, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    verdict = json.loads(done.stdout)
    assert verdict["correct"]
    assert [r["kind"] for r in verdict["records"]] == ["compile", "correctness", "benchmark"]
    assert verdict["records"][2]["cases"][0]["timings"][0]["median_ns"] > 0


def test_wrong_kernel_ends_with_1_and_says_where(evaluate):
    done = evaluate(KERNEL.replace("i < n", "i < n - n % 8"))
    assert done.returncode == 1
    assert "NOT correct" in done.stdout
    assert "benchmark" not in done.stdout


def test_kernel_that_does_not_compile_ends_with_1(evaluate):
    done = evaluate(KERNEL.replace("return 0;", "return 0"), "--json")
    assert done.returncode == 1
    verdict = json.loads(done.stdout)
    assert not verdict["correct"]
    assert verdict["compile"]["diagnostics"][0]["line"] in (5, 6)


def test_reference_that_does_not_run_ends_with_2(evaluate, tmp_path):
    (tmp_path / "reference.py").write_text(REFERENCE.replace("torch.relu(x)", "torch.relu(y)"))
    done = evaluate(KERNEL, "--json")
    assert done.returncode == 2
    assert "'y' is not defined" in json.loads(done.stdout)["error"]
    assert "Traceback" not in done.stderr


def test_launch_beside_a_kernel_is_taken(tmp_path):
    relu = example_folder().with_name("relu") / "relu_kernel.cu"
    request = candidate_request(relu)
    assert request["function"] == "relu"
    assert request["path"] == str(relu.resolve())
    assert "function" not in candidate_request(relu.with_name("relu_launcher.cu"))


def test_target_follows_the_candidate(tmp_path):
    task = tmp_path / "task.json"
    task.write_text(json.dumps({"source": REFERENCE, "rtol": 1e-3, "atol": 0.0, "target": "auto"}))
    assert task_request(task, tmp_path / "a.cpp")["target"] == "cpu"
    assert task_request(task, tmp_path / "a.cu")["target"] == "cuda"
    request = task_request(task, tmp_path / "a.py")
    assert "target" not in request
    assert request["tolerance"] == {"rtol": 1e-3, "atol": 0.0}


@pytest.mark.parametrize("text", ["[]", "{", "nothing"])
def test_task_file_of_another_kind_is_refused(tmp_path, text):
    task = tmp_path / "task.json"
    task.write_text(text)
    with pytest.raises(InvalidRequest, match="JSON"):
        task_request(task, tmp_path / "a.cpp")
