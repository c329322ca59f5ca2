"""Stored objects as the text of resources."""

from __future__ import annotations

import json

from cuteforge.kernels.errors import NotFound
from cuteforge.kernels.header import task_header
from cuteforge.tools.workbench import Workbench


def task_json(bench: Workbench, task_id: str) -> str:
    """A task's definition, card and header. Raises NotFound."""
    task = bench.store.task(task_id)
    body = {"id": task.id, "header": task_header(task.definition, task.card), **task.model_dump(mode="json")}
    return json.dumps(body, indent=1)


def export_json(bench: Workbench, task_id: str) -> str:
    """Everything stored of a task. Raises NotFound."""
    return json.dumps(bench.export(task_id), indent=1)


def candidate_file(bench: Workbench, candidate_id: str, path: str) -> str:
    """One file of a candidate, or its generated `task.h`. Raises NotFound."""
    candidate = bench.store.candidate(candidate_id)
    if path == "task.h":
        task = bench.store.task(candidate.task_id)
        return task_header(task.definition, task.card)
    for file in candidate.files:
        if file.path == path:
            return file.text
    names = ", ".join(file.path for file in candidate.files)
    raise NotFound(f"Candidate {candidate_id} has no file '{path}'.", f"Its files: {names}, task.h.")


def run_json(bench: Workbench, run_id: str) -> str:
    """A run's record. Raises NotFound."""
    return bench.store.run(run_id).model_dump_json(indent=1)
