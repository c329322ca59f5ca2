"""Tools are found in order, per tool, and what is wrong is reported with its remedy."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from cuteforge.sandbox import devices
from cuteforge.sandbox.executor import Gpu
from cuteforge.sandbox.toolchain import Toolchain, discover, findings


@pytest.fixture
def fresh() -> object:
    discover.cache_clear()
    yield None
    discover.cache_clear()


def test_everything_needed_to_compile_is_found_here() -> None:
    chain = discover()
    assert chain.nvcc is not None
    assert chain.nvrtc_library is not None
    assert re.fullmatch(r"1\d\.\d+\.\d+", chain.nvcc_version or "")
    assert (chain.cuda_includes[0] / "cuda_runtime.h").is_file()
    assert chain.cccl_include is not None
    assert (chain.cccl_include / "cuda" / "std" / "cstdint").is_file()
    assert chain.cutlass_include is not None
    assert (chain.cutlass_include / "cute" / "tensor.hpp").is_file()
    assert (chain.link_dirs[0] / "libcudart_static.a").is_file()
    assert all(path.exists() for path in chain.readonly)


def test_a_wrapper_script_on_path_leads_to_its_toolkit(
    fresh: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = discover().nvcc
    wrapper = tmp_path / "nvcc"
    wrapper.write_text(f'#!/bin/sh\nexec {real} "$@"\n')
    wrapper.chmod(0o755)
    discover.cache_clear()
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    for name in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    chain = discover()
    assert chain.nvcc_source == "PATH"
    assert chain.nvcc is not None
    assert real is not None
    assert chain.nvcc.resolve() == real.resolve()


def fake_toolkit(root: Path, version: str) -> Path:
    (root / "bin").mkdir(parents=True)
    nvcc = root / "bin" / "nvcc"
    nvcc.write_text(f"#!/bin/sh\necho 'Cuda compilation tools, release {version}, V{version}.1'\n")
    nvcc.chmod(0o755)
    return root


def test_the_setting_wins_over_cuda_home_and_path(
    fresh: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_HOME", str(fake_toolkit(tmp_path / "home", "12.7")))
    chain = discover(fake_toolkit(tmp_path / "setting", "12.8"))
    assert (chain.nvcc_source, chain.nvcc_version) == ("setting", "12.8.1")
    discover.cache_clear()
    assert discover().nvcc_source == "CUDA_HOME"


def test_parts_that_a_toolkit_lacks_come_from_elsewhere(fresh: object, tmp_path: Path) -> None:
    chain = discover(fake_toolkit(tmp_path, "12.8"))
    assert chain.cuda_includes != ()
    assert chain.nvrtc_library is not None
    told = [p for p in chain.problems if p.name == "nvrtc"]
    assert told
    assert "12.8" in told[0].remedy


def test_a_setting_that_names_nothing_is_reported(fresh: object, tmp_path: Path) -> None:
    chain = discover(tmp_path, tmp_path)
    assert {p.name for p in chain.problems} >= {"cuda_home", "cutlass"}


def test_wheels_are_found_on_any_import_path(
    fresh: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_toolkit(tmp_path / "nvidia" / "cu13", "13.0")
    include = tmp_path / "cutlass_library" / "source" / "include" / "cute"
    include.mkdir(parents=True)
    (include / "tensor.hpp").write_text("")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.setenv("PATH", "/nowhere")
    for name in ("CUDA_HOME", "CUDA_PATH", "CUTLASS_PATH"):
        monkeypatch.delenv(name, raising=False)
    chain = discover()
    assert chain.cutlass_source == "wheel"
    assert chain.cutlass_include == include.parent
    assert chain.gxx is None
    if not Path("/usr/local/cuda/bin/nvcc").exists():
        assert chain.nvcc_source == "wheel"


def test_the_doctor_names_a_remedy_for_all_that_is_missing() -> None:
    told = findings(Toolchain())
    assert len(told) == 8
    assert all(not f.ok and f.remedy for f in told)
    assert all(f.ok and f.detail for f in findings(discover()) if f.name == "nvcc")


@pytest.mark.parametrize(
    ("capability", "arch"),
    [("9.0", "sm_90a"), ("10.0", "sm_100a"), ("12.0", "sm_120a"), ("8.0", "sm_80"), ("8.9", "sm_89")],
)
def test_a_device_gets_the_variant_that_nvcc_knows(capability: str, arch: str) -> None:
    gpu = Gpu(index=0, name="x", uuid="x", compute_capability=capability, memory_bytes=1, driver="x")
    assert devices.arch_for(gpu) == arch
    command = [str(discover().nvcc), "-dryrun", "-cubin", f"-arch={arch}", "-x", "cu", "/dev/null"]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0


def test_gpus_are_read_from_the_drivers_own_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(
        "#!/bin/sh\necho '0, NVIDIA H200, GPU-abc, 9.0, 143771, 580.95.05'\necho '1, [N/A], x'\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    devices.gpus.cache_clear()
    try:
        (gpu,) = devices.gpus()
    finally:
        devices.gpus.cache_clear()
    assert (gpu.name, gpu.memory_bytes, gpu.driver) == ("NVIDIA H200", 143771 << 20, "580.95.05")
    assert devices.device_nodes(gpu) == ("/dev/nvidia0",)


def test_a_driver_tool_that_fails_means_no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'NVIDIA-SMI has failed'\nexit 9\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    devices.gpus.cache_clear()
    try:
        assert devices.gpus() == ()
    finally:
        devices.gpus.cache_clear()
