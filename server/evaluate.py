"""`cuteforge eval`: the tools' verdict from a shell or a CI job, by the same workbench."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import anyio
import click

from cuteforge.kernels.errors import CuteforgeError, InvalidRequest
from cuteforge.server.config import Settings
from cuteforge.tools.answers import Answer

CORRECT, WRONG, UNUSABLE = 0, 1, 2
_CPU, _CUDA = (".cpp", ".cc", ".cxx", ".c"), (".cu",)


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"'{file}' cannot be read: {error}.", "Give a readable UTF-8 file.") from error


def _object(file: Path, what: str) -> dict[str, Any]:
    try:
        found = json.loads(_text(file))
    except ValueError as error:
        raise InvalidRequest(f"'{file}' is not JSON: {error}.", f"Give {what} as a JSON object.") from error
    if not isinstance(found, dict):
        raise InvalidRequest(f"'{file}' holds no JSON object.", f"Give {what} as a JSON object.")
    return found


def task_request(task_file: Path, candidate: Path) -> dict[str, Any]:
    """The definition in a task file: JSON with define_task's arguments, or a PyTorch source.

    A `path` in the JSON is relative to the task file. Without a `target`, C++ is for the CPU and CUDA for a
    GPU; for Python the machine decides.

    Raises:
        InvalidRequest: the file cannot be read, or is JSON of another kind.
    """
    if task_file.suffix == ".json":
        request = _object(task_file, "define_task's arguments")
    else:
        request = {"source": _text(task_file), "name": task_file.stem}
    if isinstance(request.get("path"), str):
        request["source"] = _text(task_file.parent / request.pop("path"))
    if request.get("target") == "auto":
        del request["target"]
    tolerance = {key: request.pop(key) for key in ("rtol", "atol") if key in request}
    if tolerance:
        request.setdefault("tolerance", tolerance)
    suffix = candidate.suffix.lower()
    if suffix in _CPU + _CUDA:
        request.setdefault("target", "cpu" if suffix in _CPU else "cuda")
    return request


def candidate_request(file: Path) -> dict[str, Any]:
    """The candidate by its path. `NAME.entry.json` beside `NAME.cu` gives the launch of a `kernel` entry.

    Raises:
        InvalidRequest: that file is no JSON object.
    """
    beside = file.with_name(f"{file.stem}.entry.json")
    entry = _object(beside, "function, grid, block, args and defines") if beside.is_file() else {}
    return {**entry, "path": str(file.resolve())}


async def _evaluate(file: Path, task_file: Path, settings: Settings) -> tuple[Answer, list[dict[str, Any]]]:
    from cuteforge.server.host import ServerHost

    host = ServerHost(settings.model_copy(update={"roots": (file.resolve().parent,)}))

    async def progress(fraction: float, message: str) -> None:
        if sys.stderr.isatty():
            click.echo(f"\r\033[K{fraction:4.0%} {message}", err=True, nl=False)

    async with host.running():
        # A task group turns what leaves it into a group: keep the error as it is.
        try:
            bench = await host.workbench()
            task = await bench.define_task(task_request(task_file, file), progress)
            request = {**candidate_request(file), "task_id": task.data["task_id"]}
            answer = await bench.submit_candidate(request, "evaluate", progress)
            runs = [link.uri.removeprefix("run://") for link in answer.links if link.uri.startswith("run://")]
            return answer, [bench.store.run(run).model_dump(mode="json") for run in runs]
        except CuteforgeError as error:
            failure = error
        finally:
            if sys.stderr.isatty():
                click.echo("\r\033[K", err=True, nl=False)
    raise failure


def run_eval(file: Path, task_file: Path, as_json: bool, settings: Settings) -> int:
    """Evaluate FILE and print the verdict. 0: correct; 1: not; 2: the request or the machine is at fault."""
    try:
        answer, records = anyio.run(_evaluate, file, task_file, settings)
    except CuteforgeError as error:
        if as_json:
            click.echo(json.dumps({"ok": False, "error": error.cause, "remedy": error.remedy}))
        click.echo(f"error: {error.explain()}", err=True)
        return UNUSABLE
    correct = bool(answer.data.get("correctness", {}).get("ok"))
    if as_json:
        click.echo(json.dumps({"ok": answer.ok, "correct": correct, **answer.data, "records": records}))
    else:
        click.echo(answer.text)
    return CORRECT if correct else WRONG
