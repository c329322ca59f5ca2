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


def _definition(task_file: Path) -> dict[str, Any]:
    """A task file: JSON with the arguments of define_task, or a PyTorch source."""
    try:
        text = task_file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"'{task_file}' cannot be read: {error}.", "Give a UTF-8 file.") from error
    if task_file.suffix != ".json":
        return {"source": text, "name": task_file.stem}
    try:
        definition = json.loads(text)
    except ValueError as error:
        raise InvalidRequest(f"'{task_file}' is not JSON: {error}.", "Mend the task file.") from error
    if not isinstance(definition, dict):
        raise InvalidRequest(f"'{task_file}' holds no object.", "Give define_task's arguments as an object.")
    return definition


def _candidate(file: Path) -> dict[str, Any]:
    """The candidate's source, and the launch of a kernel entry from `entry.json` beside it where that fits."""
    request: dict[str, Any] = {"path": str(file.resolve())}
    beside = file.with_name(f"{file.stem}.entry.json")
    if beside.is_file():
        request.update(json.loads(beside.read_text()))
    return request


async def _evaluate(file: Path, task_file: Path, settings: Settings) -> tuple[Answer, list[dict[str, Any]]]:
    from cuteforge.server.host import ServerHost

    settings = settings.model_copy(update={"roots": (file.resolve().parent,)})
    host = ServerHost(settings)

    async def progress(fraction: float, message: str) -> None:
        if sys.stderr.isatty():
            click.echo(f"\r\033[K{fraction:4.0%} {message}", err=True, nl=False)

    async with host.running():
        bench = await host.workbench()
        definition = _definition(task_file)
        if file.suffix in (".cpp", ".cc", ".cxx"):
            definition.setdefault("target", "cpu")
        task = await bench.define_task(definition, progress)
        request = {**_candidate(file), "task_id": task.data["task_id"]}
        answer = await bench.submit_candidate(request, "evaluate", progress)
        runs = [link.uri.removeprefix("run://") for link in answer.links if link.uri.startswith("run://")]
        records = [bench.store.run(run).model_dump(mode="json") for run in runs]
    if sys.stderr.isatty():
        click.echo("\r\033[K", err=True, nl=False)
    return answer, records


def run_eval(file: Path, task_file: Path, as_json: bool, settings: Settings) -> int:
    """Evaluate FILE and print the verdict. 0: correct; 1: not; 2: the request or the machine is at fault."""
    try:
        answer, records = anyio.run(_evaluate, file, task_file, settings)
    except CuteforgeError as error:
        if as_json:
            click.echo(json.dumps({"ok": False, "error": error.cause, "remedy": error.remedy}))
        else:
            click.echo(f"error: {error.explain()}", err=True)
        return UNUSABLE
    correct = bool(answer.data.get("correctness", {}).get("ok"))
    if as_json:
        click.echo(json.dumps({"ok": answer.ok, "correct": correct, **answer.data, "records": records}))
    else:
        click.echo(answer.text)
    return CORRECT if correct else WRONG
