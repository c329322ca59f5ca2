"""Blobs are complete or absent, known by their hash, and never found outside their folder."""

import hashlib
import multiprocessing
import os
from pathlib import Path

import pytest
from small_disk import run_on_disk_of

from cuteforge.kernels.artifacts import Artifacts
from cuteforge.kernels.errors import InvalidRequest, NotFound, StoreProblem


@pytest.fixture
def artifacts(tmp_path: Path) -> Artifacts:
    return Artifacts(tmp_path / "artifacts")


def files_below(folder: Path) -> list[Path]:
    return [p for p in folder.rglob("*") if p.is_file()]


def test_blob_comes_back_by_the_hash_of_its_bytes(artifacts):
    sha = artifacts.put(b"cubin\0\xff")
    assert sha == hashlib.sha256(b"cubin\0\xff").hexdigest()
    assert artifacts.exists(sha)
    assert artifacts.get(sha) == b"cubin\0\xff"
    assert artifacts.path(sha).read_bytes() == b"cubin\0\xff"


def test_same_bytes_are_stored_once_and_leave_no_temporary_file(artifacts):
    first = artifacts.put(b"twice")
    inode = artifacts.path(first).stat().st_ino
    assert artifacts.put(b"twice") == first
    assert artifacts.path(first).stat().st_ino == inode
    assert files_below(artifacts.root) == [artifacts.path(first)]


def test_file_larger_than_a_read_is_stored_whole(artifacts, tmp_path):
    data = os.urandom(3_000_001)
    (tmp_path / "report").write_bytes(data)
    sha = artifacts.put_file(tmp_path / "report")
    assert sha == hashlib.sha256(data).hexdigest()
    assert artifacts.get(sha) == data
    assert artifacts.put(data) == sha
    assert len(files_below(artifacts.root)) == 1


def test_file_that_is_missing_is_a_problem_that_names_it(artifacts, tmp_path):
    with pytest.raises(StoreProblem, match="absent"):
        artifacts.put_file(tmp_path / "absent")


def test_damaged_blob_is_reported_removed_and_can_be_stored_again(artifacts):
    sha = artifacts.put(b"binary")
    artifacts.path(sha).write_bytes(b"binarY")
    with pytest.raises(StoreProblem, match="damaged") as caught:
        artifacts.get(sha)
    assert "Compile" in caught.value.remedy
    assert not artifacts.exists(sha)
    artifacts.put(b"binary")
    assert artifacts.get(sha) == b"binary"


def test_truncated_blob_is_replaced_by_storing_it_again(artifacts):
    sha = artifacts.put(b"binary")
    artifacts.path(sha).write_bytes(b"bin")
    artifacts.put(b"binary")
    assert artifacts.get(sha) == b"binary"


def test_damaged_blob_of_the_right_size_is_replaced_by_storing_it_again(artifacts):
    sha = artifacts.put(b"sound")
    artifacts.path(sha).write_bytes(b"wrong")

    artifacts.put(b"sound")

    assert artifacts.get(sha) == b"sound"


def test_unknown_hash_is_not_found(artifacts):
    with pytest.raises(NotFound):
        artifacts.get("0" * 64)
    assert not artifacts.exists("0" * 64)


@pytest.mark.parametrize(
    "sha", ["", "../../etc/passwd", "0" * 63, "0" * 65, "G" * 64, "0" * 64 + "\n", None, 7]
)
def test_what_is_no_hash_is_refused(artifacts, sha):
    for call in (artifacts.path, artifacts.get, artifacts.exists):
        with pytest.raises(InvalidRequest, match="hash"):
            call(sha)


def test_full_disk_is_reported_and_leaves_no_half_blob(tmp_path):
    said = run_on_disk_of(
        256 * 1024,
        tmp_path,
        """
        artifacts = Artifacts(place / "artifacts")
        kept = artifacts.put(b"kept")
        try:
            artifacts.put(b"x" * 1_000_000)
        except StoreProblem as problem:
            print(problem.explain())
        print(artifacts.get(kept), len([p for p in place.rglob("*") if p.is_file()]))
        print(len(artifacts.get(artifacts.put(b"y" * 100_000))))
        """,
    )
    assert "full; nothing stored before is lost" in said[0]
    assert "--home" in said[0]
    assert said[1:] == ["b'kept' 1", "100000"]


def test_read_only_disk_is_reported(tmp_path):
    said = run_on_disk_of(
        None,
        tmp_path,
        """
        try:
            Artifacts(place / "artifacts").put(b"x")
        except StoreProblem as problem:
            print(problem.explain())
        """,
    )
    assert "Read-only file system" in said[0]
    assert "permissions" in said[0]


def _put_many(root: Path, start: int) -> None:
    store = Artifacts(root)
    for number in range(start, start + 60):
        store.put(str(number % 40).encode() * 1000)


def test_processes_that_store_the_same_blobs_do_not_disturb_each_other(artifacts):
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_put_many, args=(artifacts.root, n * 7)) for n in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0] * 4
    stored = files_below(artifacts.root)
    assert len(stored) == 40
    assert all(artifacts.get(path.name) for path in stored)
