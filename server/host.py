"""The server's side of the tools: opens store, executor and workbench with the first call, and runs jobs."""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

from cuteforge.kernels.errors import CuteforgeError, EnvironmentProblem, InvalidRequest, StoreProblem
from cuteforge.kernels.policy import NextCall
from cuteforge.server.config import Settings
from cuteforge.server.jobs import Job, Jobs
from cuteforge.server.logging import logger
from cuteforge.tools.answers import Answer
from cuteforge.tools.host import JobAction, JobKind
from cuteforge.tools.work import Gate, Progress

if TYPE_CHECKING:
    from cuteforge.sandbox.local import LocalExecutor
    from cuteforge.tools.workbench import Workbench


async def _nobody(fraction: float, message: str) -> None:
    """A listener that is not there."""


LISTENER: ContextVar[Progress] = ContextVar("cuteforge_progress", default=_nobody)
"""Where the present call's progress goes."""


class ServerHost:
    """See tools.host.Host. `running` must be entered before the first call."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._opening = anyio.Lock()
        self._bench: Workbench | None = None
        self._executor: LocalExecutor | None = None
        self._jobs: Jobs | None = None
        self._owner = f"s_{secrets.token_hex(8)}"
        self._owner_fd: int | None = None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Hold the task group that jobs live in; ends them, and every process, when it is left."""
        cores = len(os.sched_getaffinity(0))
        compiling = Gate("a compiler", cores)
        measuring = Gate("the device", 1)
        gates = {
            "derive": Gate("a judge", max(1, cores // 2)),
            "compile": compiling,
            "check": measuring,
            "benchmark": measuring,
        }
        try:
            async with anyio.create_task_group() as group:
                self._jobs = Jobs(group, gates, self.settings.deadline, self._keep)
                try:
                    yield
                finally:
                    group.cancel_scope.cancel()
        finally:
            self._jobs = None
            with anyio.CancelScope(shield=True):
                await self._close()

    async def _close(self) -> None:
        if self._executor is not None:
            await self._executor.aclose()
            self._executor = None
        if self._bench is not None:
            await anyio.to_thread.run_sync(self._bench.store.close)
            self._bench = None
        if self._owner_fd is not None:
            os.close(self._owner_fd)
            self._owner_fd = None

    async def workbench(self) -> Workbench:
        """See Host.workbench."""
        if self._bench is None:
            async with self._opening:
                if self._bench is None:
                    self._bench = await self._open()
        return self._bench

    async def _open(self) -> Workbench:
        # In a thread: importing SQLAlchemy and the executor takes most of a second the first time.
        await anyio.to_thread.run_sync(_import_heavy)
        from cuteforge.kernels.artifacts import Artifacts
        from cuteforge.kernels.store import Store
        from cuteforge.sandbox.local import LocalExecutor, LocalOptions
        from cuteforge.tools.workbench import Workbench

        settings = self.settings
        home = settings.home
        await anyio.to_thread.run_sync(_make_home, home)
        artifacts = Artifacts(home / "artifacts")
        store = await anyio.to_thread.run_sync(Store, settings.store_url or home / "cuteforge.db")
        options = LocalOptions(
            folder=home,
            cuda_home=settings.cuda_home,
            cutlass=settings.cutlass_path,
            bwrap=settings.bwrap,
            warm_workers=settings.warm_workers,
            memory_bytes=settings.memory_bytes,
        )
        executor = await LocalExecutor.open(options, artifacts)
        if not executor.sandboxed:
            remedy = "Run `cuteforge doctor`: its line on the sandbox names the remedy."
            if settings.sandbox == "require":
                await executor.aclose()
                raise EnvironmentProblem("Candidates cannot be isolated on this machine.", remedy)
            logger().warning("candidates are not isolated on this machine", extra={"remedy": remedy})
        self._executor = executor
        executor.warm_up()
        target = "cuda" if executor.has_gpu else "cpu"
        return Workbench(store, artifacts, executor, settings.allowed_roots(), target)

    async def run(
        self, kind: JobKind, subject: str, work: Callable[[Workbench, Progress], Awaitable[Answer]]
    ) -> Answer:
        """See Host.run."""
        bench = await self.workbench()
        jobs = self._running_jobs()
        job = jobs.start(kind, subject, lambda progress: work(bench, progress))
        if await jobs.inline(job, self.settings.inline_seconds, LISTENER.get(), self._hand_out):
            return job.result()
        return live_answer(job)

    def _running_jobs(self) -> Jobs:
        if self._jobs is None:
            raise EnvironmentProblem("The server is stopping.", "Start it again.")
        return self._jobs

    async def job(self, action: JobAction, job_id: str, seconds: float) -> Answer:
        """See Host.job. Every action answers with the job's state afterwards."""
        bench = await self.workbench()
        jobs = self._running_jobs()
        live = jobs.find(job_id)
        if live is not None:
            if action == "wait":
                await jobs.wait(live, min(seconds, self.settings.inline_seconds), LISTENER.get())
            elif action == "cancel":
                await jobs.cancel(live)
            return live_answer(live)
        row = await anyio.to_thread.run_sync(bench.store.job, job_id)
        if row.state not in ("queued", "running"):
            return stored_answer(row.id, row.kind, row.state, row.result, row.error)
        if await anyio.to_thread.run_sync(self._owner_is_gone, row.owner):
            await anyio.to_thread.run_sync(lambda: bench.store.update_job(job_id, state="lost", error=_LOST))
            return stored_answer(row.id, row.kind, "lost", None, _LOST)
        if action == "cancel":
            raise InvalidRequest(
                f"Job {job_id} belongs to another server process.", "Cancel it through that server."
            )
        return stored_answer(row.id, row.kind, "running", None, None)

    async def _hand_out(self, job: Job) -> None:
        bench = await self.workbench()
        await anyio.to_thread.run_sync(self._claim_owner)
        request = {"subject": job.subject}
        await anyio.to_thread.run_sync(
            lambda: bench.store.put_job(job.id, kind=job.kind, owner=self._owner, request=request)
        )

    async def _keep(self, job: Job) -> None:
        bench = await self.workbench()
        state: str = job.state
        result = None if job.answer is None else {"answer": job.answer.model_dump(mode="json")}
        error: str | None = None
        if isinstance(job.error, CuteforgeError):
            error = job.error.explain()
        elif job.error is not None:
            error = str(job.error)
        elif job.state == "cancelled" and not job.scope.cancel_called:
            state, error = "lost", _LOST
        await anyio.to_thread.run_sync(
            lambda: bench.store.update_job(job.id, state=state, result=result, error=error)
        )

    def _claim_owner(self) -> None:
        """Lock a file that tells other servers, and a later one, that this one lives.

        The kernel drops the lock with the process, however that ends; a process id could be used again.
        """
        if self._owner_fd is not None:
            return
        folder = self.settings.home / "servers"
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            fd = os.open(folder / self._owner, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StoreProblem(
                f"'{folder}' cannot be written: {error.strerror}.", "Free space or use another `--home`."
            ) from error
        fcntl.flock(fd, fcntl.LOCK_EX)
        self._owner_fd = fd

    def _owner_is_gone(self, owner: str) -> bool:
        path = self.settings.home / "servers" / Path(owner).name
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return True
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        finally:
            os.close(fd)
        path.unlink(missing_ok=True)
        return True


_LOST = "The server that ran it stopped before it was done. Call the tool again; what was stored is kept."


def live_answer(job: Job) -> Answer:
    """The state of a job of this server; a finished one gives its own answer."""
    if job.state in ("done", "failed"):
        return job.result()
    reporter = job.reporter
    data: dict[str, object] = {"job_id": job.id, "kind": job.kind, "state": job.state}
    text = f"job {job.id} ({job.kind}) is {job.state}"
    if job.state == "running":
        data |= {"fraction": round(reporter.fraction, 3), "message": reporter.message}
        if reporter.ahead is not None:
            data["queue_ahead"] = reporter.ahead
        text += f", {reporter.fraction:.0%}: {reporter.message}" if reporter.message else ""
    return _job_answer(job.id, job.state, text, data)


def stored_answer(
    job_id: str, kind: str, state: str, result: Mapping[str, object] | None, error: str | None
) -> Answer:
    """The state of a job as the store has it; a finished one gives its own answer."""
    if result is not None and "answer" in result:
        return Answer.model_validate(result["answer"])
    data: dict[str, object] = {"job_id": job_id, "kind": kind, "state": state}
    text = f"job {job_id} ({kind}) is {state}"
    if error:
        data["error"] = error
        text += f": {error}"
    return _job_answer(job_id, state, text, data)


def _job_answer(job_id: str, state: str, text: str, data: dict[str, object]) -> Answer:
    steps: tuple[NextCall, ...] = ()
    if state == "running":
        wait = {"id": job_id, "action": "wait"}
        steps = (NextCall(tool="job", reason="wait for it", arguments=wait),)
    return Answer(ok=state in ("running", "cancelled"), text=text, data=data, next=steps)


def _make_home(home: Path) -> None:
    try:
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise StoreProblem(
            f"The data folder '{home}' cannot be made: {error.strerror}.",
            "Start the server with `--home FOLDER` on a writable disk.",
        ) from error


def _import_heavy() -> None:
    import cuteforge.kernels.store
    import cuteforge.sandbox.local
    import cuteforge.tools.workbench  # noqa: F401
