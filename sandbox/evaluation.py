"""One evaluation from the executor's side: a judge, its candidate processes, and the wiring between them."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from cuteforge.kernels import errors
from cuteforge.kernels.candidate import Candidate
from cuteforge.kernels.errors import CuteforgeError, DeadlineExceeded, WorkerDied
from cuteforge.kernels.header import arguments
from cuteforge.kernels.records import CompileRecord
from cuteforge.kernels.task import Task
from cuteforge.sandbox.executor import Progress
from cuteforge.sandbox.pool import Worker


@dataclass
class Verdict:
    """What a judge answered, with where it ran."""

    answer: dict[str, Any]
    provenance: dict[str, Any]


def native_config(task: Task, candidate: Candidate, compiled: CompileRecord) -> dict[str, Any]:
    """What `harness_native` needs to know."""
    target = task.definition.target
    return {
        "target": target,
        "entry": candidate.entry.model_dump(mode="json"),
        "lowered_name": compiled.lowered_name,
        "arguments": [[a.kind, a.name] for a in arguments(task.card.cases[0], target)],
        "defines": candidate.build.defines,
    }


def python_config(task: Task, candidate: Candidate) -> dict[str, Any]:
    """What `harness_python` needs to know. It holds nothing of the expected outputs."""
    return {
        "target": task.definition.target,
        "definition": task.definition.model_dump(mode="json"),
        "cases": {c.name: c.model_dump(mode="json") for c in task.definition.cases},
        "case_shapes": {c.case: [list(t.shape) for t in c.tensors] for c in task.card.cases},
        "inputs": list(task.card.cases[0].arguments),
        "entry": candidate.entry.model_dump(mode="json"),
        "main_file": candidate.main_file.path,
    }


async def order(worker: Worker, message: dict[str, Any], fds: list[int]) -> None:
    """Send a worker its order and close our copies of the descriptors."""
    try:
        await anyio.to_thread.run_sync(worker.channel.send, message, fds)
    except ConnectionError as error:
        raise WorkerDied("A worker process ended before it took its order.", "Repeat the call.") from error
    finally:
        for fd in fds:
            os.close(fd)


async def judgement(judge: Worker, timeout_s: float, progress: Progress, what: str) -> Verdict:
    """Wait for a judge's answer, passing its progress on.

    Raises:
        InvalidRequest, EnvironmentProblem: as the judge raised them.
        WorkerDied: the judge ended.
        DeadlineExceeded: no answer within `timeout_s`.
    """
    try:
        with anyio.fail_after(timeout_s):
            while True:
                message = await judge.receive()
                if "progress" in message:
                    await progress(float(message["progress"]), str(message["message"]))
                elif "refused" in message:
                    raise _refusal(message)
                else:
                    return Verdict(message["answer"], message["provenance"])
    except TimeoutError as error:
        raise DeadlineExceeded(
            f"{what} was not finished after {timeout_s:g} s and was ended.",
            "Use smaller cases or a longer deadline.",
        ) from error


def _refusal(message: dict[str, Any]) -> CuteforgeError:
    kind = getattr(errors, str(message["refused"]), errors.InvalidRequest)
    if not (isinstance(kind, type) and issubclass(kind, CuteforgeError)):
        kind = errors.InvalidRequest
    found: CuteforgeError = kind(str(message["cause"]), str(message["remedy"]))
    return found


def link_pair() -> tuple[int, int]:
    """Two ends of a connection between judge and candidate, as bare descriptors."""
    a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    return a.detach(), b.detach()


def open_artefact(path: Path) -> int:
    """The artefact, read-only."""
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


@contextlib.asynccontextmanager
async def ending(workers: list[Worker]) -> AsyncIterator[None]:
    """End all workers that were put into the list, however the block is left."""
    try:
        yield
    finally:
        with anyio.CancelScope(shield=True):
            async with anyio.create_task_group() as group:
                for worker in workers:
                    group.start_soon(worker.end)


async def how_it_ended(worker: Worker, well: bool) -> tuple[str, str]:
    """How a candidate's process ended, in words ("" if it was still well), and the last it printed.

    `well` says that the judge saw nothing wrong: then nobody waits for the process to end by itself.
    """
    if not well:
        # A crash closes the link before the kernel has reaped the process.
        with anyio.move_on_after(1.0):
            await worker.child.wait()
    crashed = not well and not worker.child.running
    ended = await worker.child.kill()
    tail = "\n".join(t for t in (ended.stdout_tail.strip(), ended.stderr_tail.strip()) if t)
    if not crashed or (ended.reason == "exit" and ended.returncode == 0):
        return "", tail
    if ended.reason in ("memory", "processes", "timeout"):
        return f"ended by the sandbox's {ended.reason} limit", tail
    if ended.signal is not None:
        return f"died of {signal.Signals(ended.signal).name}", tail
    return f"exited with code {ended.returncode}", tail
