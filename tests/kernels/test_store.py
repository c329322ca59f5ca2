"""What the store keeps, and that no other process, full disk or kill takes it away."""

import multiprocessing
import os
import signal
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest
from record_samples import (
    benchmark_record,
    compile_record,
    correctness_record,
    sample_candidate,
    sample_task,
)
from small_disk import run_on_disk_of

from cuteforge.kernels.candidate import Candidate
from cuteforge.kernels.errors import NotFound, StoreProblem
from cuteforge.kernels.model import utc_now
from cuteforge.kernels.records import BenchmarkRecord
from cuteforge.kernels.schema import MIGRATIONS, SCHEMA_VERSION
from cuteforge.kernels.store import Store

FORK = multiprocessing.get_context("fork")
# SQLite must not be carried over a fork: where this process has a store open, the other is started anew.
SPAWN = multiprocessing.get_context("spawn")
TASK = sample_task()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "home" / "store.db"


@pytest.fixture
def store(path: Path):
    opened = Store(path)
    yield opened
    opened.close()


def filled(store: Store, count: int) -> list[Candidate]:
    store.put_task(TASK)
    made = [sample_candidate(TASK, number) for number in range(count)]
    for candidate in made:
        store.put_candidate(candidate)
    return made


# Tasks and candidates


def test_task_is_kept_once(store):
    assert store.put_task(TASK)
    assert not store.put_task(TASK)
    assert store.task(TASK.id) == TASK
    assert [(row.id, row.name, row.candidates) for row in store.tasks()] == [(TASK.id, "relu", 0)]


def test_tasks_are_listed_newest_first_with_their_candidates_counted(store):
    filled(store, 3)
    newer = sample_task("newer")
    store.put_task(newer)
    assert [(row.id, row.candidates) for row in store.tasks()] == [(newer.id, 0), (TASK.id, 3)]
    assert [row.id for row in store.tasks(limit=1)] == [newer.id]


def test_times_are_aware_and_in_utc(store):
    [candidate] = filled(store, 1)
    store.put_run(compile_record(candidate))
    store.put_job("j_1", "compile", "s_1", {})
    row = store.job("j_1")
    moments = [store.tasks()[0].created_at, store.history_rows(TASK.id)[0].created_at]
    moments += [store.runs()[0].created_at, row.created_at, row.updated_at]
    assert all(moment.utcoffset() == timedelta(0) for moment in moments)
    assert all(abs((utc_now() - moment).total_seconds()) < 60 for moment in moments)


def test_unknown_task_names_three_recent_ones(store):
    tasks = [sample_task(f"task {number}") for number in range(4)]
    with pytest.raises(NotFound, match="t_nowhere") as caught:
        store.task("t_nowhere")
    assert "define_task" in caught.value.remedy
    for task in tasks:
        store.put_task(task)
    with pytest.raises(NotFound) as caught:
        store.task("t_nowhere")
    assert [task.id in caught.value.remedy for task in tasks] == [False, True, True, True]


@pytest.mark.parametrize(
    "wrong", ["", "x" * 10_000, "é", "a\0b", "\ud800", "'; drop table tasks", None, 7, 1 << 70, []]
)
def test_what_is_no_id_is_not_found(store, wrong):
    filled(store, 1)
    for read in (store.task, store.candidate, store.run, store.job):
        with pytest.raises(NotFound) as caught:
            read(wrong)
        assert len(caught.value.explain().encode()) < 500
    assert store.find_task(wrong) is None
    assert store.latest(wrong, "compile") is None
    assert store.history_rows(wrong) == ()
    assert store.head(wrong) == (None, None)
    with pytest.raises(NotFound):
        store.update_job(wrong, state="done")
    with pytest.raises(NotFound):
        store.set_head(TASK.id, best_id=wrong or "x")


def test_candidate_is_kept_once_and_numbered_within_its_task(store):
    first, second = filled(store, 2)
    other = sample_task("other")
    store.put_task(other)
    store.put_candidate(sample_candidate(other, 0))
    child = sample_candidate(TASK, 9, parent=second.id, note="tiled")
    assert store.put_candidate(child)
    assert not store.put_candidate(child.model_copy(update={"note": "again", "parent_id": first.id}))
    assert store.candidate(child.id) == child
    rows = store.history_rows(TASK.id)
    assert [(row.id, row.parent_id, row.seq, row.note) for row in rows] == [
        (first.id, None, 1, ""),
        (second.id, None, 2, ""),
        (child.id, second.id, 3, "tiled"),
    ]
    assert [row.seq for row in store.history_rows(other.id)] == [1]


def test_candidate_of_no_task_or_with_a_foreign_parent_is_refused(store):
    filled(store, 1)
    with pytest.raises(NotFound, match="no task"):
        store.put_candidate(sample_candidate(sample_task("unknown")))
    other = sample_task("other")
    store.put_task(other)
    foreign = sample_candidate(other)
    store.put_candidate(foreign)
    with pytest.raises(NotFound, match="parent"):
        store.put_candidate(sample_candidate(TASK, 5, parent=foreign.id))
    assert len(store.history_rows(TASK.id)) == 1


# Runs


def test_each_kind_of_record_comes_back_as_it_was(store):
    [candidate] = filled(store, 1)
    records = [compile_record(candidate), correctness_record(candidate), benchmark_record(candidate)]
    ids = [store.put_run(record) for record in records]
    assert [store.run(run_id) for run_id in ids] == records
    assert [row.id for row in store.runs(candidate_id=candidate.id)] == ids[::-1]
    assert [row.id for row in store.runs(task_id=TASK.id, kind="benchmark")] == ids[2:]
    assert [row.id for row in store.runs(limit=2)] == ids[:0:-1]
    assert all(run_id.startswith("r_") and len(run_id) == 14 for run_id in ids)


def test_latest_is_the_run_stored_last_even_within_one_clock_tick(store):
    [candidate] = filled(store, 1)
    moment = utc_now()
    for ok in (True, True, False):
        record = correctness_record(candidate, ok).model_copy(update={"created_at": moment})
        run_id = store.put_run(record)
    assert store.latest(candidate.id, "correctness") == (run_id, record)
    assert store.latest(candidate.id, "benchmark") is None


def test_run_of_a_candidate_that_its_task_does_not_have_is_refused(store):
    [candidate] = filled(store, 1)
    for wrong in ({"candidate_id": "c_none"}, {"task_id": "t_none"}):
        with pytest.raises(NotFound, match="has no candidate"):
            store.put_run(compile_record(candidate).model_copy(update=wrong))
    assert store.runs() == ()


def test_history_shows_the_newest_outcome_of_each_kind(store):
    bad, good, fresh = filled(store, 3)
    store.put_run(compile_record(bad, ok=False))
    for ok in (False, True):
        store.put_run(compile_record(good))
        store.put_run(correctness_record(good, ok))
    store.put_run(benchmark_record(good, 90.0, geomean_speedup={"eager": 2.0}))
    store.put_run(benchmark_record(good, 80.0, geomean_speedup={"eager": 2.5, "best": 1.1}))
    rows = {row.id: row for row in store.history_rows(TASK.id)}
    assert (rows[bad.id].compile_ok, rows[bad.id].correct) == (False, None)
    assert (rows[good.id].compile_ok, rows[good.id].correct) == (True, True)
    assert rows[good.id].speedups == {"eager": 2.5, "best": 1.1}
    assert rows[good.id].median_ns == 80.0
    assert (rows[fresh.id].compile_ok, rows[fresh.id].speedups, rows[fresh.id].median_ns) == (None, {}, None)


def test_failed_benchmark_gives_no_figures(store):
    [candidate] = filled(store, 1)
    store.put_run(benchmark_record(candidate))
    store.put_run(benchmark_record(candidate, ok=False, cases=(), geomean_speedup={}))
    [row] = store.history_rows(TASK.id)
    assert (row.speedups, row.median_ns) == ({}, None)
    found = store.latest(candidate.id, "benchmark")
    assert found is not None
    assert isinstance(found[1], BenchmarkRecord)
    assert not found[1].ok


# Head and jobs


def test_best_and_checked_out_move_independently(store):
    first, second = filled(store, 2)
    assert store.head(TASK.id) == (None, None)
    store.set_head(TASK.id, best_id=first.id)
    store.set_head(TASK.id, checked_out=second.id)
    assert store.head(TASK.id) == (first.id, second.id)


def test_head_of_a_foreign_candidate_is_refused(store):
    first, _ = filled(store, 2)
    store.set_head(TASK.id, best_id=first.id)
    with pytest.raises(NotFound, match="c_foreign"):
        store.set_head(TASK.id, best_id="c_foreign")
    with pytest.raises(NotFound):
        store.set_head("t_none", checked_out=first.id)
    assert store.head(TASK.id) == (first.id, None)


def test_best_moves_only_from_the_one_it_was_measured_against(store):
    first, second, third = filled(store, 3)
    assert store.move_best(TASK.id, None, first.id)
    assert store.move_best(TASK.id, first.id, second.id)
    assert not store.move_best(TASK.id, first.id, third.id)
    assert not store.move_best(TASK.id, None, third.id)
    assert store.head(TASK.id).best_id == second.id


def test_job_goes_from_queued_to_its_result(store):
    store.put_job("j_1", "benchmark", "s_1", {"subject": "c_1"})
    store.put_job("j_2", "compile", "s_1", {})
    assert [row.id for row in store.unfinished_jobs()] == ["j_1", "j_2"]
    store.update_job("j_1", state="running", progress=0.5, message="half \udcff way")
    row = store.job("j_1")
    assert (row.state, row.progress, row.message) == ("running", 0.5, "half \\udcff way")
    assert (row.kind, row.owner, row.request, row.result) == ("benchmark", "s_1", {"subject": "c_1"}, None)
    store.update_job("j_1", state="done", result={"answer": [1, None]})
    store.update_job("j_2", state="failed", error="no")
    assert store.job("j_1").result == {"answer": [1, None]}
    assert store.job("j_2").error == "no"
    assert store.unfinished_jobs() == ()


def test_job_that_has_ended_stays_as_it_is(store):
    store.put_job("j_1", "benchmark", "s_1", {})
    store.update_job("j_1", state="done", result={"answer": 1})
    store.update_job("j_1", state="lost", error="late")
    row = store.job("j_1")
    assert (row.state, row.result, row.error) == ("done", {"answer": 1}, None)


def test_infinite_figures_come_back_as_they_were(store):
    store.put_task(TASK)
    candidate = sample_candidate(TASK)
    store.put_candidate(candidate)
    record = benchmark_record(candidate, median_ns=float("inf"), geomean_speedup={"eager": float("inf")})
    assert store.run(store.put_run(record)) == record


# Opening and migration


def write_version_1(path: Path) -> None:
    """A store as version 1 wrote it, with a task, a candidate and a run."""
    path.parent.mkdir(parents=True)
    candidate = sample_candidate(TASK)
    failed, record = correctness_record(candidate, ok=False), correctness_record(candidate)
    measured = benchmark_record(candidate, 80.0)
    now = "2025-01-02 03:04:05.000000"
    with sqlite3.connect(path) as raw:
        raw.executescript(
            """
            CREATE TABLE schema_version (version INTEGER NOT NULL);
            INSERT INTO schema_version VALUES (1);
            CREATE TABLE tasks (id VARCHAR(64) NOT NULL PRIMARY KEY, name VARCHAR(200) NOT NULL,
              created_at DATETIME NOT NULL, json TEXT NOT NULL);
            CREATE TABLE candidates (id VARCHAR(64) NOT NULL PRIMARY KEY,
              task_id VARCHAR(64) NOT NULL REFERENCES tasks (id), parent_id VARCHAR(64), seq INTEGER NOT NULL,
              language VARCHAR(16) NOT NULL, note TEXT NOT NULL, created_at DATETIME NOT NULL,
              json TEXT NOT NULL);
            CREATE UNIQUE INDEX candidates_by_task ON candidates (task_id, seq);
            CREATE TABLE runs (id VARCHAR(64) NOT NULL PRIMARY KEY, number INTEGER NOT NULL UNIQUE,
              task_id VARCHAR(64) NOT NULL, candidate_id VARCHAR(64) NOT NULL REFERENCES candidates (id),
              kind VARCHAR(16) NOT NULL, ok BOOLEAN NOT NULL, median_ns FLOAT, speedups TEXT,
              created_at DATETIME NOT NULL, json TEXT NOT NULL);
            CREATE INDEX runs_by_candidate ON runs (candidate_id, kind, number);
            CREATE INDEX runs_by_task ON runs (task_id, candidate_id, kind, number);
            """
        )
        raw.execute("insert into tasks values (?, ?, ?, ?)", (TASK.id, "relu", now, TASK.model_dump_json()))
        raw.execute(
            "insert into candidates values (?, ?, null, 1, 'cpp', '', ?, ?)",
            (candidate.id, TASK.id, now, candidate.model_dump_json()),
        )
        rows = [
            ("r_older", 1, "correctness", 0, None, None, failed),
            ("r_old", 2, "correctness", 1, None, None, record),
            ("r_bench", 3, "benchmark", 1, 80.0, '{"eager": 1.5}', measured),
        ]
        for run_id, number, kind, ok, median, speedups, run in rows:
            values = (run_id, number, TASK.id, candidate.id, kind, ok, median, speedups, now)
            raw.execute(
                "insert into runs values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", (*values, run.model_dump_json())
            )
    raw.close()


def test_store_of_version_1_is_migrated_with_its_rows(path):
    write_version_1(path)
    store = Store(path)
    candidate = sample_candidate(TASK)
    assert store.task(TASK.id) == TASK
    assert store.tasks()[0].created_at.isoformat() == "2025-01-02T03:04:05+00:00"
    assert store.candidate(candidate.id) == candidate
    assert store.run("r_old").ok
    child = sample_candidate(TASK, 1, parent=candidate.id)
    store.put_candidate(child)
    first, second = store.history_rows(TASK.id)
    assert first[:5] == (candidate.id, None, 1, "cpp", "")
    assert first[6:] == (None, True, {"eager": 1.5}, 80.0)
    assert (second.id, second.parent_id, second.seq) == (child.id, candidate.id, 2)
    assert second[6:] == (None, None, {}, None)
    store.put_run(compile_record(candidate))
    store.set_head(TASK.id, best_id=candidate.id)
    store.put_job("j_1", "compile", "s_1", {})
    store.close()
    again = Store(path)
    assert again.head(TASK.id).best_id == candidate.id
    assert again.job("j_1").state == "queued"
    with sqlite3.connect(path) as raw:
        assert raw.execute("select version from schema_version").fetchall() == [(SCHEMA_VERSION,)]


def columns(path: Path) -> dict[str, list[tuple[str, str, int]]]:
    with sqlite3.connect(path) as raw:
        names = [row[0] for row in raw.execute("select name from sqlite_master where type = 'table'")]
        return {n: [tuple(c[1:4]) for c in raw.execute(f"pragma table_info({n})")] for n in names}


def test_migrated_store_has_the_columns_of_a_new_one(tmp_path):
    write_version_1(tmp_path / "old" / "a.db")
    for folder in ("old", "new"):
        Store(tmp_path / folder / "a.db").close()
    assert columns(tmp_path / "old" / "a.db") == columns(tmp_path / "new" / "a.db")
    assert len(MIGRATIONS) == SCHEMA_VERSION >= 2


def test_store_of_a_newer_version_is_refused_and_left_alone(path):
    Store(path).close()
    with sqlite3.connect(path) as raw:
        raw.execute("update schema_version set version = 99")
    with pytest.raises(StoreProblem) as caught:
        Store(path)
    assert "99" in caught.value.cause
    assert str(SCHEMA_VERSION) in caught.value.cause
    assert "Upgrade" in caught.value.remedy
    with sqlite3.connect(path) as raw:
        assert raw.execute("select version from schema_version").fetchone() == (99,)


def test_url_and_path_open_the_same_store(path, store):
    store.put_task(TASK)
    other = Store(f"sqlite:///{path}")
    assert other.task(TASK.id) == TASK
    other.close()


@pytest.mark.parametrize(
    "url", ["nonsense", "sqlite://", "sqlite:///:memory:", "nodialect://u:secret@h/x", ""]
)
def test_url_that_cannot_be_used_is_a_problem_without_its_password(url):
    with pytest.raises(StoreProblem) as caught:
        Store(url)
    assert caught.value.remedy
    assert "secret" not in caught.value.explain()


# Damage, full and read-only disks


def test_file_that_is_no_database_is_reported_and_left_alone(path):
    path.parent.mkdir()
    path.write_bytes(b"my thesis\n" * 1000)
    with pytest.raises(StoreProblem, match="no SQLite file") as caught:
        Store(path)
    assert "--home" in caught.value.remedy
    assert path.read_bytes() == b"my thesis\n" * 1000


def test_damaged_database_is_reported(path):
    store = Store(path)
    filled(store, 50)
    store.close()
    data = bytearray(path.read_bytes())
    data[4096:] = os.urandom(len(data) - 4096)
    path.write_bytes(data)
    with pytest.raises(StoreProblem, match="damaged") as caught:
        Store(path).tasks()
    assert "backup" in caught.value.remedy


def test_record_that_this_version_cannot_read_is_reported(path, store):
    [candidate] = filled(store, 1)
    run_id = store.put_run(compile_record(candidate))
    with sqlite3.connect(path) as raw:
        raw.execute("update runs set json = replace(json, 'g++', 'hal9000')")
        raw.execute("update candidates set json = '{'")
    with pytest.raises(StoreProblem, match=run_id):
        store.run(run_id)
    with pytest.raises(StoreProblem, match=candidate.id):
        store.candidate(candidate.id)
    assert len(store.history_rows(TASK.id)) == 1


def test_folder_that_cannot_be_made_is_reported(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreProblem, match="file") as caught:
        Store(tmp_path / "file" / "store.db")
    assert "--home" in caught.value.remedy


def test_full_disk_loses_nothing_and_the_store_goes_on_once_there_is_room(tmp_path):
    said = run_on_disk_of(
        2_000_000,
        tmp_path,
        """
        from cuteforge.kernels.store import Store
        from record_samples import *
        task = sample_task()
        store = Store(place / "store.db")
        store.put_task(task)
        ballast = place / "ballast"
        ballast.write_bytes(b"x" * 1_000_000)
        kept = []
        try:
            for number in range(1000):
                made = sample_candidate(task, number, size=30_000)
                store.put_candidate(made)
                kept.append(made.id)
        except StoreProblem as problem:
            print(problem.explain())
        print(0 < len(kept) < 1000)
        print([row.id for row in store.history_rows(task.id)] == kept)
        second = Store(place / "store.db")
        print(second.candidate(kept[-1]).id == kept[-1])
        second.close()
        ballast.unlink()
        store.put_candidate(made)
        print(store.candidate(made.id) == made, len(store.history_rows(task.id)) == len(kept) + 1)
        store.close()
        print(len(Store(place / "store.db").history_rows(task.id)) == len(kept) + 1)
        """,
    )
    assert "full" in said[0]
    assert "--home" in said[0]
    assert said[1:] == ["True", "True", "True", "True True", "True"]


def test_read_only_disk_is_reported(tmp_path):
    said = run_on_disk_of(
        None,
        tmp_path,
        """
        from cuteforge.kernels.store import Store
        try:
            Store(place / "store.db")
        except StoreProblem as problem:
            print(problem.explain())
        """,
    )
    assert "cannot be" in said[0]
    assert "--home" in said[0]


# Threads and processes


def test_threads_share_one_store(store):
    store.put_task(TASK)

    def work(start: int) -> None:
        for number in range(start, start + 10):
            made = sample_candidate(TASK, number)
            store.put_candidate(made)
            store.put_run(compile_record(made))
            store.history_rows(TASK.id)

    with ThreadPoolExecutor(20) as pool:
        list(pool.map(work, range(0, 200, 10)))
    assert [row.seq for row in store.history_rows(TASK.id)] == list(range(1, 201))
    assert len(store.runs(limit=1000)) == 200


def _write(path: Path, start: int, count: int) -> None:
    store = Store(path)
    store.put_task(TASK)
    for number in range(start, start + count):
        made = sample_candidate(TASK, number)
        store.put_candidate(made)
        store.put_run(correctness_record(made))
        store.set_head(TASK.id, checked_out=made.id)
    store.close()


def test_processes_that_open_a_new_store_at_once_lose_nothing(path):
    workers = [FORK.Process(target=_write, args=(path, n * 40, 40)) for n in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0] * 4
    store = Store(path)
    rows = store.history_rows(TASK.id)
    assert {row.id for row in rows} == {sample_candidate(TASK, number).id for number in range(160)}
    assert [row.seq for row in rows] == list(range(1, 161))
    assert all(row.correct for row in rows)
    assert len(store.runs(limit=1000)) == 160


OTHER = sample_task("of the second process")


def _look_and_add(path: Path, seen) -> None:
    opened = Store(path)
    seen.put(([row.id for row in opened.tasks()], len(opened.history_rows(TASK.id))))
    opened.put_task(OTHER)
    opened.close()


def test_process_that_opens_the_store_in_the_middle_sees_the_same_tasks(path, store):
    filled(store, 3)
    seen = SPAWN.Queue()
    worker = SPAWN.Process(target=_look_and_add, args=(path, seen))
    worker.start()
    assert seen.get(timeout=60) == ([TASK.id], 3)
    worker.join()
    assert store.task(OTHER.id) == OTHER


def _write_for_ever(path: Path, say) -> None:
    store = Store(path)
    for number in range(1_000_000):
        made = sample_candidate(TASK, number, size=20_000)
        store.put_candidate(made)
        store.put_run(compile_record(made))
        say.send(number)


def test_killed_writer_leaves_all_that_it_had_stored(path, store):
    store.put_task(TASK)
    hear, say = SPAWN.Pipe(duplex=False)
    worker = SPAWN.Process(target=_write_for_ever, args=(path, say))
    worker.start()
    say.close()
    while hear.recv() < 20:
        pass
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGKILL)
    worker.join()
    last = 20
    try:
        while True:
            last = hear.recv()
    except EOFError:
        pass
    rows = store.history_rows(TASK.id)
    assert last + 1 <= len(rows) <= last + 2
    assert all(row.compile_ok for row in rows[: last + 1])
    with sqlite3.connect(path) as raw:
        assert raw.execute("pragma integrity_check").fetchone() == ("ok",)
    assert store.put_candidate(sample_candidate(TASK, 10**7))
