"""The CUDA path on a real GPU: both entries, Python candidates, and the faults that must stay contained."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from executor_support import RELU, SOFTMAX, Machine, kernel, launcher, machine, matrix_task, module

from cuteforge.kernels.candidate import KernelEntry

pytestmark = pytest.mark.gpu

EXAMPLES = Path(__file__).resolve().parents[2] / "guidelines" / "examples"
GOOD = """
__global__ void k(const float* x, float* out, long long n) {
  long long i = blockIdx.x * 256ll + threadIdx.x;
  if (i < n) out[i] = x[i] > 0 ? x[i] : 0;
}
"""


@pytest.fixture(scope="module")
def gpu(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    with machine(tmp_path_factory.mktemp("gpu")) as found:
        yield found


def test_kernel_entry_passes_and_is_measured_against_eager(gpu: Machine) -> None:
    task = gpu.derive(matrix_task(RELU, "cuda", (4096, 8192), (33, 1001)))
    candidate = kernel(task, GOOD)
    record = gpu.check(task, candidate)
    assert record.ok, record.model_dump_json(indent=1)
    assert record.oracle == "reference in float64"
    assert {c.status for c in record.integrity} == {"passed"}
    # The small case is bound by launches, which differ between two processes.
    timed = gpu.benchmark(task, candidate, candidate, budget_s=4, case="4096x8192")
    assert timed.ok, timed.model_dump_json(indent=1)
    assert timed.verdicts["best"] == "indistinguishable"
    assert {"eager", "best"} == set(timed.verdicts)
    # 256 MiB at no more than twice the H200's datasheet bandwidth.
    assert timed.cases[0].timings[0].median_ns > 2 * 4096 * 8192 * 4 / 9.6e12 * 1e9


def test_cute_kernel_example_passes(gpu: Machine) -> None:
    task = gpu.derive(matrix_task(RELU, "cuda", (4096, 8192), (33, 1001)))
    folder = EXAMPLES / "relu"
    entry = json.loads((folder / "relu_kernel.entry.json").read_text())
    defines = entry.pop("defines")
    candidate = kernel(task, (folder / "relu_kernel.cu").read_text(), "relu")
    candidate = candidate.model_copy(
        update={
            "entry": KernelEntry.model_validate({"kind": "kernel", **entry}),
            "build": candidate.build.model_copy(update={"defines": defines}),
        }
    )
    record = gpu.check(task, candidate)
    assert record.ok, record.model_dump_json(indent=1)


def test_second_kernel_passes_after_first_makes_an_illegal_access(gpu: Machine) -> None:
    task = gpu.derive(matrix_task(RELU, "cuda", (256, 1000)))
    bad = kernel(task, GOOD.replace("if (i < n)", "*(float*)0x10 = 1; if (i < n)"))
    record = gpu.check(task, bad)
    assert not record.ok
    assert "illegal" in (record.results[0].failure or "")
    assert gpu.check(task, kernel(task, GOOD)).ok


def test_write_one_element_past_the_end_is_found(gpu: Machine) -> None:
    task = gpu.derive(matrix_task(RELU, "cuda", (32, 32)))
    record = gpu.check(task, kernel(task, GOOD.replace("if (i < n)", "if (i == 0) out[n] = 1; if (i < n)")))
    assert not record.ok
    assert "past the end" in (record.results[0].failure or "")


def test_write_to_an_input_fails_in_the_candidate_alone(gpu: Machine) -> None:
    task = gpu.derive(matrix_task(RELU, "cuda", (32, 32)))
    record = gpu.check(task, kernel(task, GOOD.replace("if (i < n)", "((float*)x)[0] = 1; if (i < n)")))
    assert not record.ok
    assert "illegal" in (record.results[0].failure or "")
    assert gpu.check(task, kernel(task, GOOD)).ok


def test_softmax_example_bug_is_located_and_its_launcher_runs(gpu: Machine) -> None:
    task = gpu.derive(matrix_task(SOFTMAX, "cuda", (512, 1024), (256, 4099)))
    text = (EXAMPLES / "softmax" / "softmax.cu").read_text()
    record = gpu.check(task, launcher(task, text, "cute", "softmax.cu"))
    assert not record.ok
    failed = [r for r in record.results if not r.ok]
    assert {r.case for r in failed} == {"256x4099"}
    assert failed[0].mismatch is not None
    assert any("last 3 of 4099 columns" in p for p in failed[0].mismatch.pattern)


def test_bfloat16_task_is_held_to_a_float64_oracle(gpu: Machine) -> None:
    task = gpu.derive(matrix_task(RELU, "cuda", (64, 1000), input_dtype="bfloat16"))
    text = GOOD.replace("float", "__nv_bfloat16").replace(
        "x[i] > 0 ? x[i] : 0", "__hmax(x[i], __nv_bfloat16(0.0f))"
    )
    record = gpu.check(task, kernel(task, "#include <cuda_bf16.h>\n" + text))
    assert record.ok, record.model_dump_json(indent=1)


def test_python_candidate_passes_and_a_wrong_shape_is_named(gpu: Machine) -> None:
    task = gpu.derive(matrix_task(RELU, "cuda", (64, 1000)))
    head = "import torch\n\n\nclass ModelNew(torch.nn.Module):\n    def forward(self, x):\n        return "
    good = module(task, head + "torch.clamp(x, min=0)\n")
    record = gpu.check(task, good)
    assert record.ok, record.model_dump_json(indent=1)
    timed = gpu.benchmark(task, good, budget_s=3, samples=30)
    assert timed.ok, timed.model_dump_json(indent=1)
    wrong = gpu.check(task, module(task, head + "torch.clamp(x, min=0)[:1]\n"))
    assert "shape (1, 1000) instead of (64, 1000)" in (wrong.results[0].failure or "")


def test_triton_candidate_passes(gpu: Machine) -> None:
    pytest.importorskip("triton")
    task = gpu.derive(matrix_task(RELU, "cuda", (64, 1000)))
    text = """
import torch
import triton
import triton.language as tl


@triton.jit
def relu(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < n)
    tl.store(out + at, tl.maximum(value, 0.0), mask=at < n)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        out = torch.empty_like(x)
        relu[(triton.cdiv(x.numel(), 1024),)](x, out, x.numel(), BLOCK=1024)
        return out
"""
    record = gpu.check(task, module(task, text))
    assert record.ok, record.model_dump_json(indent=1)


def test_kernel_that_hangs_is_ended_and_the_gpu_stays_usable(gpu: Machine) -> None:
    task = gpu.derive(matrix_task(RELU, "cuda", (32, 32)))
    text = GOOD.replace("if (i < n)", "volatile int* p = (int*)out; while (p[0] != 7) {} if (i < n)")
    record = gpu.check(task, kernel(task, text), timeout_s=8)
    assert not record.ok
    assert "did not return" in (record.results[0].failure or "")
    assert gpu.check(task, kernel(task, GOOD)).ok


def test_zeros_fail_softmax_of_long_rows(gpu: Machine) -> None:
    task = gpu.derive(matrix_task(SOFTMAX, "cuda", (256, 393216)))
    zeros = "__global__ void k(const float* x, float* out, long long n) { long long i = blockIdx.x * 256ll + threadIdx.x; if (i < n) out[i] = 0; }"
    record = gpu.check(task, kernel(task, zeros))
    assert not record.ok
    assert record.results[0].mismatch is not None
    assert "wrong elements are zero" in record.results[0].mismatch.pattern
