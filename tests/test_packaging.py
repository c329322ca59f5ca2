"""The package as it is installed: rooms, data files, commands, versions that belong together."""

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("kernels", "profiles", "sandbox", "guidelines", "tools", "server")


@pytest.fixture(scope="module")
def project():
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


@pytest.fixture(scope="module")
def wheel_names(tmp_path_factory):
    """What a wheel of this checkout holds, built from a copy so that nothing is left in the tree."""
    import shutil
    import zipfile

    source = tmp_path_factory.mktemp("source") / "cuteforge"
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for room in ROOMS:
        shutil.copytree(ROOT / room, source / room, ignore=ignored)
    for file in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, source)
    out = tmp_path_factory.mktemp("wheel")
    # Without isolation: the build backend is installed here, and nothing has to be fetched.
    done = subprocess.run(
        [sys.executable, "-c", f"from setuptools import build_meta as b; b.build_wheel({str(out)!r})"],
        cwd=source, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    (wheel,) = out.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_wheel_holds_every_module_of_every_room(wheel_names):
    for room in ROOMS:
        for file in (ROOT / room).rglob("*.py"):
            if "__pycache__" not in file.parts:
                assert f"cuteforge/{file.relative_to(ROOT).as_posix()}" in wheel_names
        assert f"cuteforge/{room}/py.typed" in wheel_names


def test_wheel_holds_guides_and_examples(wheel_names):
    for file in (ROOT / "guidelines").rglob("*"):
        if file.is_file() and "__pycache__" not in file.parts:
            assert f"cuteforge/{file.relative_to(ROOT).as_posix()}" in wheel_names


def test_wheel_holds_nothing_of_tests_or_benches(wheel_names):
    tops = {name.split("/")[0] for name in wheel_names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"cuteforge"}
    assert {name.split("/")[1] for name in wheel_names if name.startswith("cuteforge/")} == set(ROOMS)


def test_command_answers_its_version(project):
    command = Path(sys.executable).with_name("cuteforge")
    done = subprocess.run([command, "--version"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert project["project"]["version"] in done.stdout


def test_changelog_has_the_present_version(project):
    assert f"## {project['project']['version']}" in (ROOT / "CHANGELOG.md").read_text()


def test_pinned_versions_satisfy_the_declared_ranges(project):
    from pip._vendor.packaging.requirements import Requirement

    declared = [*project["project"]["dependencies"]]
    for extra in project["project"]["optional-dependencies"].values():
        declared += extra
    ranges = {r.name.lower(): r.specifier for r in map(Requirement, declared)}
    lines = [line.partition("#")[0].strip() for line in (ROOT / "constraints.txt").read_text().splitlines()]
    pins = [Requirement(line) for line in lines if line]
    assert "torch" in {pin.name for pin in pins}
    for pin in pins:
        (exact,) = pin.specifier
        assert exact.operator == "=="
        assert exact.version in ranges[pin.name.lower()]


def test_base_install_needs_nothing_heavy(project):
    base = " ".join(project["project"]["dependencies"]).lower()
    assert not [name for name in ("torch", "cuda", "numpy", "nvidia") if name in base]


def test_importing_the_server_loads_neither_torch_nor_cuda():
    code = (
        "import sys, json, cuteforge.server, cuteforge.server.app;"
        "print(json.dumps(sorted({m.partition('.')[0] for m in sys.modules})))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert not {"torch", "cuda", "numpy"} & set(json.loads(done.stdout))


def test_environment_that_was_not_made_here_is_left_alone(tmp_path):
    """`make clean VENV=…` must not remove a folder that somebody named by mistake."""
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis.txt").write_text("years of work")
    for name in ("pyproject.toml", "constraints.txt"):
        (tmp_path / name).touch()
    for goal in (["clean"], ["--dry-run", "demo"]):
        done = subprocess.run(
            ["make", "-C", str(tmp_path), "-f", str(ROOT / "Makefile"), *goal, f"VENV={precious}"],
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert (precious / "thesis.txt").exists()


def test_environment_whose_python_is_gone_is_made_again(tmp_path):
    env = tmp_path / "env"
    (env / "bin").mkdir(parents=True)
    (env / "bin" / "python").symlink_to(tmp_path / "gone")
    for name in (".python", ".base"):
        (env / name).touch()
    done = subprocess.run(
        ["make", "-C", str(ROOT), "--dry-run", "demo", f"VENV={env}"],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert f"-m venv {env}" in done.stdout
    assert "install" in done.stdout


def test_python_that_is_too_old_is_refused_with_the_way_out(tmp_path):
    old = tmp_path / "python3"
    old.write_text('#!/bin/sh\n[ "$1" = --version ] && echo "Python 3.9.2"\nexit 1\n')
    old.chmod(0o755)
    done = subprocess.run(
        ["make", "-f", str(ROOT / "Makefile"), "demo", f"PYTHON={old}", f"VENV={tmp_path / 'env'}"],
        cwd=tmp_path, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode != 0
    assert "needs Python 3.11 to 3.13; Python 3.9.2 was found" in done.stdout
    assert not (tmp_path / "env").exists()
