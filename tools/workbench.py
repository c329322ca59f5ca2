"""Everything the tools do, reachable without MCP: tasks, candidates, patches, runs, history."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio.to_thread
from pydantic import ValidationError

from cuteforge.kernels import policy
from cuteforge.kernels.artifacts import Artifacts
from cuteforge.kernels.candidate import BuildOptions, Candidate, SourceFile
from cuteforge.kernels.errors import InvalidRequest, PatchRefused
from cuteforge.kernels.header import task_header
from cuteforge.kernels.patch import LineEdit, PatchRequest, PatchResult, apply_patch
from cuteforge.kernels.policy import NextCall
from cuteforge.kernels.records import BenchmarkRecord, CompileRecord, CorrectnessRecord
from cuteforge.kernels.store import Store
from cuteforge.kernels.task import Task, TaskDefinition
from cuteforge.sandbox.executor import BenchmarkOptions, CheckOptions, Executor, Progress
from cuteforge.tools import intake, render
from cuteforge.tools.answers import Answer, Link, shorten
from cuteforge.tools.pipeline import Outcome, Pipeline, Then, in_thread

MAX_CANDIDATE_BYTES = 4_000_000
"""All files of a candidate together; one file may have MAX_SOURCE_BYTES."""


class Workbench:
    """One store, one executor, and the folders that input by path may come from."""

    def __init__(
        self,
        store: Store,
        artifacts: Artifacts,
        executor: Executor,
        roots: Sequence[Path],
        default_target: str,
    ) -> None:
        self.store = store
        self.artifacts = artifacts
        self.executor = executor
        self.roots = tuple(roots)
        self.default_target = default_target
        self.pipeline = Pipeline(store, artifacts, executor)

    async def define_task(self, request: dict[str, Any], progress: Progress) -> Answer:
        """Define a task; a task that is stored already is answered from the store.

        `request` has TaskDefinition's fields, `source` or `path`, and may leave out contract and target.
        Raises InvalidRequest for a definition or a reference that does not work.
        """
        fields = {key: value for key, value in request.items() if value is not None}
        path = fields.pop("path", None)
        if (path is None) == ("source" not in fields):
            raise InvalidRequest("A task needs either `source` or `path`.", "Give exactly one of them.")
        if path is not None:
            _, fields["source"] = await in_thread(intake.read_source, str(path), self.roots)
        source = fields["source"]
        intake.decode_source(source.encode("utf-8", "surrogatepass"), "source")
        if not source.strip():
            raise InvalidRequest("The reference source is empty.", "Send the PyTorch reference.")
        fields.setdefault("contract", intake.detect_contract(source))
        fields.setdefault("target", self.default_target)
        fields.setdefault("name", Path(path).stem if path else "task")
        try:
            definition = TaskDefinition.model_validate(fields)
        except ValidationError as error:
            raise InvalidRequest(
                f"The task definition is not valid: {intake.validation_text(error)}.", "Mend these fields."
            ) from error
        known = await in_thread(self.store.find_task, definition.id)
        if known is None:
            card = await self.executor.derive(definition, progress)
            known = Task(definition=definition, card=card)
            await in_thread(self.store.put_task, known)
        return self._task_answer(known)

    def _task_answer(self, task: Task) -> Answer:
        return Answer(
            ok=True,
            text=render.task_text(task),
            data={
                "task_id": task.id,
                "workload": task.card.workload,
                "target": task.definition.target,
                "header": task_header(task.definition, task.card),
                "cases": [
                    {
                        "name": c.case,
                        "min_bytes": c.min_bytes,
                        "flops": c.flops,
                        "intensity": c.intensity,
                        "sizes": c.sizes,
                    }
                    for c in task.card.cases
                ],
                "warnings": list(task.card.warnings),
            },
            links=(Link(uri=f"task://{task.id}", name="spec card and task.h", mime_type="application/json"),),
            next=policy.after_task(task.id, task.card.warnings),
        )

    async def submit_candidate(self, request: dict[str, Any], then: Then, progress: Progress) -> Answer:
        """Store a candidate from `files` or `path`, then carry out `then`."""
        candidate = await self._candidate(request)
        new = await in_thread(self.store.put_candidate, candidate)
        outcome = await self.pipeline.chain(candidate.id, then, progress)
        state = "" if new else " (this content was submitted before)"
        return self._outcome_answer(outcome, f"candidate {candidate.id} stored{state}")

    async def _candidate(self, request: dict[str, Any]) -> Candidate:
        fields = {key: value for key, value in request.items() if value is not None}
        task = await in_thread(self.store.task, str(fields.pop("task_id", "")))
        files: dict[str, str] = dict(fields.pop("files", {}))
        path = fields.pop("path", None)
        if (path is None) == (not files):
            raise InvalidRequest(
                "A candidate needs either `files` (name to text) or `path`.", "Give exactly one of them."
            )
        if path is not None:
            real, text = await in_thread(intake.read_source, str(path), self.roots)
            files = {real.name: text}
        for name, text in files.items():
            intake.decode_source(str(text).encode("utf-8", "surrogatepass"), name)
        if sum(len(text) for text in files.values()) > MAX_CANDIDATE_BYTES:
            raise InvalidRequest(
                f"The files have more than {MAX_CANDIDATE_BYTES // 1_000_000} MB together.",
                "Send only the kernel's own sources.",
            )
        language = fields.pop("language", None) or intake.guess_language(files, task.definition.target)
        entry = {key: fields.pop(key) for key in _ENTRY_FIELDS if key in fields}
        build = {key: fields.pop(key) for key in ("defines", "flags", "arch") if key in fields}
        try:
            candidate = Candidate(
                task_id=task.id,
                language=language,
                files=tuple(SourceFile(path=p, text=t) for p, t in files.items()),
                entry=_entry(language, entry),
                build=BuildOptions.model_validate(build),
                **fields,
            )
        except ValidationError as error:
            raise InvalidRequest(
                f"The candidate is not valid: {intake.validation_text(error)}.", "Mend these fields."
            ) from error
        if (language == "cpp") != (task.definition.target == "cpu") and language != "python":
            raise InvalidRequest(
                f"Language '{language}' does not fit the task's target '{task.definition.target}'.",
                "Target cuda takes cute, cuda and python; target cpu takes cpp and python.",
            )
        return candidate

    async def patch_apply(
        self,
        candidate_id: str,
        patch: str | None,
        edits: Sequence[dict[str, Any]] | None,
        then: Then,
        progress: Progress,
        note: str = "",
        dry_run: bool = False,
        write_back: str | None = None,
    ) -> Answer:
        """A new candidate from an old one and a patch, then `then`. A patch that does not fit is `ok=False`."""
        parent = await in_thread(self.store.candidate, candidate_id)
        before = {f.path: f.text for f in parent.files}
        try:
            request = PatchRequest(
                patch=patch or None, edits=tuple(LineEdit.model_validate(e) for e in edits or ())
            )
            result = await in_thread(apply_patch, before, request)
        except ValidationError as error:
            raise InvalidRequest(
                f"The patch is not valid: {intake.validation_text(error)}.",
                "Give `patch` (unified diff or SEARCH/REPLACE blocks) or `edits`.",
            ) from error
        except PatchRefused as refusal:
            return Answer(
                ok=False,
                text=f"patch refused: {refusal.cause}\n{refusal.remedy}".strip(),
                data={"refused": True},
                links=_file_links(parent),
                next=(
                    NextCall(
                        tool="patch_apply",
                        reason="send it again, made from the current text above",
                        arguments={"candidate_id": candidate_id},
                    ),
                ),
            )
        stat = _diffstat(result)
        if dry_run:
            return Answer(ok=True, text=f"dry run, nothing stored: {stat}", data={"diffstat": stat})
        child = self._patched(parent, result, note)
        if write_back is not None:
            await in_thread(self._write_back, write_back, parent, result)
        await in_thread(self.store.put_candidate, child)
        outcome = await self.pipeline.chain(child.id, then, progress)
        return self._outcome_answer(outcome, f"candidate {child.id} from {candidate_id}: {stat}")

    def _patched(self, parent: Candidate, result: PatchResult, note: str) -> Candidate:
        try:
            return Candidate(
                task_id=parent.task_id,
                language=parent.language,
                files=tuple(SourceFile(path=p, text=t) for p, t in result.files.items()),
                entry=parent.entry,
                build=parent.build,
                parent_id=parent.id,
                note=note,
            )
        except ValidationError as error:
            raise InvalidRequest(
                f"The patched candidate is not valid: {intake.validation_text(error)}.", "Change the patch."
            ) from error

    def _write_back(self, path: str, parent: Candidate, result: PatchResult) -> None:
        name = Path(path).name
        old = {Path(f.path).name: f for f in parent.files}
        if name not in old or old[name].path not in result.files:
            raise InvalidRequest(
                f"write_back names '{name}', which is no file of candidate {parent.id}.",
                f"Its files: {', '.join(f.path for f in parent.files)}.",
            )
        source = old[name]
        intake.write_back(path, self.roots, source.text, result.files[source.path])

    async def compile(self, candidate_id: str, progress: Progress) -> Answer:
        """Compile a candidate."""
        return self._outcome_answer(await self.pipeline.compile(candidate_id, progress))

    async def run_correctness(self, candidate_id: str, options: CheckOptions, progress: Progress) -> Answer:
        """Judge a candidate, compiling it first where that has not been done."""
        return self._outcome_answer(await self.pipeline.check(candidate_id, options, progress))

    async def benchmark(self, candidate_id: str, options: BenchmarkOptions, progress: Progress) -> Answer:
        """Measure a candidate that has passed."""
        return self._outcome_answer(await self.pipeline.benchmark(candidate_id, options, progress))

    def _outcome_answer(self, outcome: Outcome, head: str = "") -> Answer:
        texts = [head] if head else []
        data: dict[str, Any] = {"task_id": outcome.task.id, "candidate_id": outcome.candidate.id}
        links: list[Link] = []
        for stage in outcome.stages:
            match stage.record:
                case CompileRecord() as record:
                    texts.append(render.compile_text(record))
                    data["compile"] = _brief_compile(record)
                case CorrectnessRecord() as record:
                    texts.append(render.correctness_text(record))
                    data["correctness"] = _brief_correctness(record)
                case BenchmarkRecord() as record:
                    texts.append(render.benchmark_text(record))
                    data["benchmark"] = _brief_benchmark(record)
            kind = stage.record.kind
            links.append(
                Link(uri=f"run://{stage.run_id}", name=f"{kind} record", mime_type="application/json")
            )
        if outcome.best_note:
            texts.append(outcome.best_note)
            data["best"] = outcome.best_note
        return Answer(ok=outcome.ok, text="\n".join(texts), data=data, links=tuple(links), next=outcome.next)

    async def history(self, task_id: str | None, action: str, candidate_id: str | None = None) -> Answer:
        """Show, export, or check out. Without a task id the stored tasks are listed."""
        if task_id is None:
            tasks = await in_thread(self.store.tasks)
            lines = [f"{t.id} '{shorten(t.name, 60)}' ({t.candidates} candidates)" for t in tasks[:20]]
            return Answer(
                ok=True,
                text="\n".join(lines) or "no tasks yet",
                data={"tasks": [t.id for t in tasks]},
                next=() if tasks else (NextCall(tool="define_task", reason="there is no task yet"),),
            )
        task = await in_thread(self.store.task, task_id)
        if action == "checkout":
            found = await in_thread(self.store.candidate, candidate_id or "")
            if found.task_id != task.id:
                raise InvalidRequest(
                    f"Candidate {found.id} belongs to task {found.task_id}.", "Check out one of this task."
                )
            await anyio.to_thread.run_sync(lambda: self.store.set_head(task.id, checked_out=found.id))
        tree = await self.pipeline.tree(task.id)
        if action == "export":
            exported = await in_thread(self._export, task, tree.best_id)
            text = f"exported {len(tree.rows)} candidates with all their records"
            return Answer(
                ok=True,
                text=text,
                data={"artifact": exported},
                links=(Link(uri=f"task://{task.id}/export", name="export", mime_type="application/json"),),
            )
        stage = policy.phase(tree, task.card.workload)
        base = tree.checked_out or tree.best_id or (tree.rows[-1].id if tree.rows else None)
        steps = (
            policy.after_task(task.id, ())
            if base is None
            else (
                NextCall(
                    tool="patch_apply",
                    reason="continue from here with one change",
                    arguments={"candidate_id": base, "then": "evaluate"},
                ),
            )
        )
        return Answer(
            ok=True,
            text=f"task {task.id} '{task.definition.name}', phase {stage.name} ({stage.reason})\n{tree.render()}",
            data={
                "task_id": task.id,
                "best": tree.best_id,
                "checked_out": tree.checked_out,
                "phase": stage.name,
                "candidates": len(tree.rows),
            },
            links=_source_links(base, await in_thread(self.store.candidate, base)) if base else (),
            next=steps,
        )

    def export(self, task_id: str) -> dict[str, Any]:
        """Task, candidates and records of one task: all that is needed to repeat it."""
        task = self.store.task(task_id)
        candidates = []
        for row in self.store.history_rows(task_id):
            runs = self.store.runs(candidate_id=row.id, limit=1000)
            candidates.append(
                {
                    "id": row.id,
                    "candidate": self.store.candidate(row.id).model_dump(mode="json"),
                    "runs": [self.store.run(r.id).model_dump(mode="json") for r in runs],
                }
            )
        head = self.store.head(task_id)
        return {
            "task_id": task_id,
            "task": task.model_dump(mode="json"),
            "best": head.best_id,
            "candidates": candidates,
        }

    def _export(self, task: Task, best: str | None) -> str:
        return self.artifacts.put(json.dumps(self.export(task.id), indent=1).encode())

    async def device_info(self) -> Answer:
        """What this machine can do."""
        report = await self.executor.describe()
        lines = [
            f"default target: {self.default_target}; paths are read under {', '.join(map(str, self.roots))}",
            f"cpu: {report.cpu}, {report.cores} cores",
        ]
        lines += [
            f"gpu {g.index}: {g.name}, compute capability {g.compute_capability}, "
            f"{g.memory_bytes / 2**30:.0f} GiB, driver {g.driver}"
            for g in report.gpus
        ]
        for item in report.findings:
            remedy = f" -> {item.remedy}" if item.remedy and not item.ok else ""
            lines.append(
                f"{'ok     ' if item.ok else 'missing'} {item.name}: {shorten(item.detail, 160)}{remedy}"
            )
        return Answer(
            ok=True,
            text="\n".join(lines),
            data={"default_target": self.default_target, **report.model_dump(mode="json")},
            links=(Link(uri="device://info", name="device report", mime_type="application/json"),),
        )


_ENTRY_FIELDS = ("function", "grid", "block", "shared_bytes", "args", "class_name")


def _entry(language: str, fields: dict[str, Any]) -> dict[str, Any]:
    if language == "python":
        return {"kind": "module", **{k: v for k, v in fields.items() if k == "class_name"}}
    if "function" in fields:
        for key in ("grid", "block"):
            if isinstance(fields.get(key), str | int):
                fields[key] = [str(fields[key])]
            elif isinstance(fields.get(key), list):
                fields[key] = [str(item) for item in fields[key]]
        if "shared_bytes" in fields:
            fields["shared_bytes"] = str(fields["shared_bytes"])
        if isinstance(fields.get("args"), list):
            fields["args"] = [str(item) for item in fields["args"]]
        return {"kind": "kernel", **{k: v for k, v in fields.items() if k != "class_name"}}
    if any(key in fields for key in ("grid", "block", "args", "shared_bytes")):
        raise InvalidRequest(
            "A launch was given without `function`, the name of the `__global__` function.",
            "Give `function`, or leave out grid, block, args and shared_bytes for a launcher.",
        )
    return {"kind": "launcher"}


def _diffstat(result: PatchResult) -> str:
    parts = [f"{s.path} +{s.added} -{s.removed}" for s in result.stats]
    loose = [m for m in result.matches if m.how in ("whitespace", "fuzzy")]
    how = f" ({len(loose)} place(s) matched loosely)" if loose else ""
    return ", ".join(parts) + how


def _file_links(candidate: Candidate) -> tuple[Link, ...]:
    return _source_links(candidate.id, candidate)


def _source_links(candidate_id: str, candidate: Candidate) -> tuple[Link, ...]:
    return tuple(Link(uri=f"candidate://{candidate_id}/{f.path}", name=f.path) for f in candidate.files[:4])


def _brief_compile(record: CompileRecord) -> dict[str, Any]:
    return {
        "ok": record.ok,
        "seconds": round(record.seconds, 3),
        "cached": record.cached,
        "arch": record.arch,
        "diagnostics": [d.model_dump(mode="json", exclude_none=True) for d in record.diagnostics[:5]],
        "kernels": [k.model_dump(mode="json", exclude_none=True) for k in record.kernels[:4]],
        "sass_mix": record.sass_mix,
    }


def _brief_correctness(record: CorrectnessRecord) -> dict[str, Any]:
    failed = [r for r in record.results if not r.ok]
    return {
        "ok": record.ok,
        "summary": record.summary,
        "checks": len(record.results),
        "failures": [r.model_dump(mode="json", exclude_none=True, exclude={"seed"}) for r in failed[:3]],
        "integrity": {c.name: c.status for c in record.integrity},
        "seconds": round(record.seconds, 3),
    }


def _brief_benchmark(record: BenchmarkRecord) -> dict[str, Any]:
    return {
        "ok": record.ok,
        "summary": record.summary,
        "verdicts": record.verdicts,
        "geomean_speedup": {k: round(v, 4) for k, v in record.geomean_speedup.items()},
        "cases": [c.model_dump(mode="json", exclude_none=True) for c in record.cases[:8]],
        "noise": list(record.noise[:5]),
        "seconds": round(record.seconds, 3),
    }
