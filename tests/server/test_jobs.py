"""Long work: inline, handed out, cancelled, past its deadline, and after a crash."""

import os
import signal
import time

import anyio
import pytest

from cuteforge.kernels.errors import DeadlineExceeded, InvalidRequest
from cuteforge.server.faults import InternalFault
from cuteforge.server.jobs import Jobs
from cuteforge.tools.answers import Answer
from cuteforge.tools.work import Gate, silent

DONE = Answer(ok=True, text="done")


def run(scenario, *, deadline=30.0, slots=1):
    """Run `scenario(jobs, kept)` with a task group of its own."""
    kept = []

    async def keep(job):
        kept.append((job.id, job.state))

    async def main():
        async with anyio.create_task_group() as group:
            gates = {"compile": Gate("a compiler", slots)}
            await scenario(Jobs(group, gates, lambda kind: deadline, keep), kept)
            group.cancel_scope.cancel()

    anyio.run(main)
    return kept


async def nothing(job):
    pass


def sleeping(seconds, ended=None):
    async def work(progress):
        try:
            await progress(0.5, "asleep")
            await anyio.sleep(seconds)
        finally:
            if ended is not None:
                ended.append(True)
        return DONE

    return work


def test_short_work_is_answered_inline_and_not_kept():
    async def scenario(jobs, kept):
        job = jobs.start("compile", "c", sleeping(0))
        assert await jobs.inline(job, 5, silent, nothing)
        assert job.result() == DONE
        assert jobs.find(job.id) is None

    assert run(scenario) == []


def test_long_work_is_handed_out_and_its_end_is_kept():
    async def scenario(jobs, kept):
        job = jobs.start("compile", "c", sleeping(0.3))
        assert not await jobs.inline(job, 0.05, silent, nothing)
        assert jobs.find(job.id) is job
        await jobs.wait(job, 5, silent)
        assert job.result() == DONE
        await anyio.sleep(0)

    assert [state for _, state in run(scenario)] == ["done"]


def test_work_that_ends_while_its_id_is_handed_out_is_kept():
    async def slow_hand_out(job):
        await job.finished.wait()

    async def scenario(jobs, kept):
        job = jobs.start("compile", "c", sleeping(0.1))
        assert not await jobs.inline(job, 0.01, silent, slow_hand_out)

    assert [state for _, state in run(scenario)] == ["done"]


def test_cancelled_request_ends_work_that_was_not_handed_out():
    ended = []

    async def scenario(jobs, kept):
        job = jobs.start("compile", "c", sleeping(60, ended))
        with anyio.move_on_after(0.05):
            await jobs.inline(job, 30, silent, nothing)
        assert job.state == "cancelled"
        assert jobs.find(job.id) is None

    assert run(scenario) == []
    assert ended == [True]


def test_cancelled_wait_leaves_handed_out_work_running():
    async def scenario(jobs, kept):
        job = jobs.start("compile", "c", sleeping(0.3))
        await jobs.inline(job, 0.01, silent, nothing)
        with anyio.move_on_after(0.05):
            await jobs.wait(job, 30, silent)
        assert job.state == "running"
        await job.finished.wait()
        assert job.state == "done"

    run(scenario)


def test_progress_reaches_the_listener_in_order():
    heard = []

    async def listener(fraction, message):
        heard.append((fraction, message))

    async def work(progress):
        for step in range(4):
            await progress(step / 4, f"step {step}")
            await anyio.sleep(0.01)
        return DONE

    async def scenario(jobs, kept):
        await jobs.inline(jobs.start("compile", "c", work), 5, listener, nothing)

    run(scenario)
    assert heard[-1] == (0.75, "step 3")
    assert heard == sorted(heard)


def test_deadline_ends_the_work_with_its_remedy():
    ended = []

    async def scenario(jobs, kept):
        job = jobs.start("compile", "c", sleeping(60, ended))
        assert await jobs.inline(job, 5, silent, nothing)
        with pytest.raises(DeadlineExceeded, match="after 0 s") as caught:
            job.result()
        assert "CUTEFORGE_COMPILE_SECONDS" in caught.value.remedy

    run(scenario, deadline=0.05)
    assert ended == [True]


def test_errors_and_faults_stay_with_their_job():
    async def wrong(progress):
        raise InvalidRequest("No.", "Ask otherwise.")

    async def broken(progress):
        raise ZeroDivisionError("secret detail")

    async def scenario(jobs, kept):
        for work, kind in ((wrong, InvalidRequest), (broken, InternalFault)):
            job = jobs.start("compile", "c", work)
            await jobs.inline(job, 5, silent, nothing)
            with pytest.raises(kind) as caught:
                job.result()
            assert "secret" not in str(caught.value)
        job = jobs.start("compile", "c", sleeping(0))
        await jobs.inline(job, 5, silent, nothing)
        assert job.result() == DONE

    run(scenario)


def test_queue_is_first_come_first_served_and_tells_its_length():
    order = []

    def named(name):
        async def work(progress):
            order.append(name)
            await anyio.sleep(0.05)
            return DONE

        return work

    async def scenario(jobs, kept):
        started = [jobs.start("compile", name, named(name)) for name in "abc"]
        await anyio.sleep(0.02)
        assert [job.reporter.ahead for job in started] == [None, 1, 2]
        assert started[2].reporter.message == "waiting for a compiler, 2 ahead"
        await jobs.cancel(started[1])
        assert started[2].reporter.ahead == 1
        await started[2].finished.wait()

    run(scenario)
    assert order == ["a", "c"]


FAST = {"CUTEFORGE_INLINE_SECONDS": "0.3"}


def start_forever(session, stocked, examples):
    """A running job: a candidate that never returns, seen in its sandbox."""
    result = session.call(
        "submit_candidate", task_id=stocked.task_id, files={"forever.cpp": examples.forever}, then="check"
    )
    answer = result.structured_content
    assert answer["state"] == "running", answer
    assert answer["next"][0] == {
        "tool": "job", "reason": "wait for it", "arguments": {"id": answer["job_id"], "action": "wait"},
    }  # fmt: skip
    return answer["job_id"]


def test_job_is_handed_out_cancelled_and_its_process_tree_is_gone(connect, home, stocked, examples, watch):
    with connect(home, env=FAST) as session:
        job_id = start_forever(session, stocked, examples)
        server = watch.server_of(home)
        assert watch.eventually(lambda: bool(watch.candidates_of(server)), 60)
        running = watch.candidates_of(server)
        assert session.ok("job", id=job_id, action="read")["state"] == "running"
        started = time.monotonic()
        answer = session.ok("job", id=job_id, action="cancel")
        assert answer["state"] == "cancelled"
        assert time.monotonic() - started < 20
        assert not any(map(watch.command_line, running))
        assert session.ok("job", id=job_id, action="read")["state"] == "cancelled"
        assert session.ok("history")["tasks"]


def test_cancelled_call_ends_its_processes(connect, home, stocked, examples, watch):
    with connect(home) as session:
        files = {"forever.cpp": examples.forever}
        arguments = {"task_id": stocked.task_id, "files": files, "then": "check"}
        server = watch.server_of(home)
        future = session.start(session.client.call_tool, "submit_candidate", arguments)
        assert watch.eventually(lambda: bool(watch.candidates_of(server)), 60)
        future.cancel()
        assert watch.eventually(lambda: not watch.candidates_of(server))
        assert session.ok("history")["tasks"]


def test_finished_result_survives_a_restart(connect, home, stocked, examples):
    env = {"CUTEFORGE_INLINE_SECONDS": "0.01"}
    with connect(home, env=env) as session:
        answer = session.ok("run_correctness", candidate_id=stocked.candidate_id)
        job_id = answer["job_id"]
        for _ in range(600):
            answer = session.ok("job", id=job_id)
            if "correctness" in answer:
                break
            time.sleep(0.1)
        assert answer["correctness"]["ok"]
    with connect(home) as session:
        assert session.ok("job", id=job_id, action="read") == answer


def test_job_of_a_killed_server_is_lost_with_the_remedy(connect, home, stocked, examples, watch):
    with connect(home, env=FAST) as session:
        job_id = start_forever(session, stocked, examples)
        server = watch.server_of(home)
        assert watch.eventually(lambda: bool(watch.candidates_of(server)), 60)
        running = watch.candidates_of(server)
        with connect(home) as other:
            assert other.ok("job", id=job_id, action="read")["state"] == "running"
            refused = other.call("job", id=job_id, action="cancel")
            assert refused.is_error
            assert "another server" in refused.content[0].text
        os.kill(server, signal.SIGKILL)
        assert watch.eventually(lambda: not any(map(watch.command_line, {server, *running})))
    with connect(home) as session:
        answer = session.call("job", id=job_id, action="wait").structured_content
        assert answer["ok"] is False
        assert answer["state"] == "lost"
        assert "Call the tool again" in answer["error"]


def test_job_is_ended_when_the_client_leaves(connect, home, stocked, examples, watch):
    with connect(home, env=FAST) as session:
        job_id = start_forever(session, stocked, examples)
        server = watch.server_of(home)
        assert watch.eventually(lambda: bool(watch.candidates_of(server)), 60)
        running = watch.candidates_of(server)
    assert watch.eventually(lambda: not any(map(watch.command_line, running)))
    with connect(home) as session:
        assert session.call("job", id=job_id).structured_content["state"] == "lost"


def test_job_survives_a_dropped_http_connection(connect, serve_http, home, stocked):
    with serve_http(home, env={"CUTEFORGE_INLINE_SECONDS": "0.01"}) as url:
        with connect(url=url) as session:
            job_id = session.ok("run_correctness", candidate_id=stocked.candidate_id)["job_id"]
        with connect(url=url, mode="legacy") as session:
            for _ in range(600):
                answer = session.ok("job", id=job_id)
                if "correctness" in answer:
                    break
                time.sleep(0.1)
            assert answer["correctness"]["ok"]
