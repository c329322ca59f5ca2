"""Compile, check and benchmark a stored candidate, keep the records, and move `best` by its rule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple, TypeVar

import anyio.to_thread

from cuteforge.kernels import policy
from cuteforge.kernels.artifacts import Artifacts
from cuteforge.kernels.candidate import Candidate
from cuteforge.kernels.errors import EnvironmentProblem, InvalidRequest
from cuteforge.kernels.history import Tree, next_best
from cuteforge.kernels.policy import NextCall
from cuteforge.kernels.records import (
    BenchmarkRecord,
    CompileRecord,
    CorrectnessRecord,
    Record,
)
from cuteforge.kernels.store import Store
from cuteforge.kernels.task import Task
from cuteforge.sandbox.executor import BenchmarkOptions, CheckOptions, Executor, Participant, Progress

T = TypeVar("T")
Then = Literal["none", "compile", "check", "evaluate"]


async def in_thread(function: Callable[..., T], *args: object) -> T:
    """Run a blocking call of the store without blocking the event loop."""
    return await anyio.to_thread.run_sync(lambda: function(*args))


class Stage(NamedTuple):
    """A record with the id of its run."""

    run_id: str
    record: CompileRecord | CorrectnessRecord | BenchmarkRecord


class Outcome(NamedTuple):
    """What a chain of stages came to; `best_note` says why `best` moved or not."""

    task: Task
    candidate: Candidate
    stages: tuple[Stage, ...]
    best_note: str
    next: tuple[NextCall, ...]

    @property
    def ok(self) -> bool:
        """Whether every stage is ok."""
        return all(stage.record.ok for stage in self.stages)


def slice_progress(progress: Progress, start: float, share: float, name: str) -> Progress:
    """A part of a longer progress, with the stage's name before each message."""

    async def told(fraction: float, message: str) -> None:
        await progress(start + share * min(max(fraction, 0.0), 1.0), f"{name}: {message}")

    return told


class Pipeline:
    """Runs stages on an executor and keeps their records in a store."""

    def __init__(self, store: Store, artifacts: Artifacts, executor: Executor) -> None:
        self._store = store
        self._artifacts = artifacts
        self._executor = executor

    async def _load(self, candidate_id: str) -> tuple[Task, Candidate]:
        candidate = await in_thread(self._store.candidate, candidate_id)
        return await in_thread(self._store.task, candidate.task_id), candidate

    async def tree(self, task_id: str) -> Tree:
        """The task's history as it is stored now."""
        rows = await in_thread(self._store.history_rows, task_id)
        head = await in_thread(self._store.head, task_id)
        return Tree(rows, head.best_id, head.checked_out)

    async def _keep(self, record: Record) -> Stage:
        return Stage(await in_thread(self._store.put_run, record), record)

    async def _latest_compile(self, candidate_id: str) -> CompileRecord | None:
        """A successful compilation whose artefact is still there."""
        found = await in_thread(self._store.latest, candidate_id, "compile")
        if found is None:
            return None
        record = found[1]
        if not isinstance(record, CompileRecord) or not record.ok or record.artifact is None:
            return None
        return record if self._artifacts.exists(record.artifact) else None

    async def _compile(
        self, task: Task, candidate: Candidate, progress: Progress, disassemble: bool = False
    ) -> Stage:
        """Compile and keep the record; the instruction mix takes time that only `compile` itself spends."""
        from cuteforge.profiles.sass import digest

        record = await self._executor.compile(task, candidate, progress)
        if disassemble and record.ok and candidate.language in ("cute", "cuda"):
            try:
                text = await self._executor.disassemble(record)
            except EnvironmentProblem:
                # No disassembler: `device_info` names it and its remedy; the compilation stands.
                text = ""
            mix: dict[str, int] = {}
            for counts in digest(text).values():
                for name, count in counts.items():
                    mix[name] = mix.get(name, 0) + count
            record = record.model_copy(update={"sass_mix": mix})
        return await self._keep(record)

    async def compile(self, candidate_id: str, progress: Progress) -> Outcome:
        """Compile a candidate."""
        task, candidate = await self._load(candidate_id)
        stage = await self._compile(task, candidate, progress, disassemble=True)
        assert isinstance(stage.record, CompileRecord)
        return Outcome(task, candidate, (stage,), "", policy.after_compile(stage.record))

    async def _compiled(
        self, task: Task, candidate: Candidate, progress: Progress
    ) -> tuple[CompileRecord, tuple[Stage, ...]]:
        known = await self._latest_compile(candidate.id)
        if known is not None:
            return known, ()
        stage = await self._compile(task, candidate, progress)
        assert isinstance(stage.record, CompileRecord)
        return stage.record, (stage,)

    async def check(self, candidate_id: str, options: CheckOptions, progress: Progress) -> Outcome:
        """Compile if needed, then judge."""
        task, candidate = await self._load(candidate_id)
        _known_case(task, options.case)
        compiled, stages = await self._compiled(task, candidate, slice_progress(progress, 0, 0.4, "compile"))
        if not compiled.ok:
            return Outcome(task, candidate, stages, "", policy.after_compile(compiled))
        record = await self._executor.check(
            task, candidate, compiled, options, slice_progress(progress, 0.4, 0.6, "check")
        )
        stages = (*stages, await self._keep(record))
        note = ""
        # A run of one case of several proves nothing about the others.
        if options.case is None or len(task.definition.cases) == 1:
            note = await self._consider_best(task, candidate.id, record, None)
        return Outcome(task, candidate, stages, note, policy.after_check(record, await self.tree(task.id)))

    async def _participant(self, label: str, candidate_id: str, task: Task) -> Participant | None:
        compiled = await self._latest_compile(candidate_id)
        checked = await in_thread(self._store.latest, candidate_id, "correctness")
        if compiled is None or checked is None or not checked[1].ok:
            return None
        candidate = await in_thread(self._store.candidate, candidate_id)
        return Participant(label=label, candidate=candidate, compiled=compiled)

    async def benchmark(self, candidate_id: str, options: BenchmarkOptions, progress: Progress) -> Outcome:
        """Measure a candidate that has passed, beside its parent, the best, and the built-in baselines.

        Raises:
            InvalidRequest: it has not passed a correctness run of all cases.
        """
        task, candidate = await self._load(candidate_id)
        _known_case(task, options.case)
        compiled = await self._latest_compile(candidate.id)
        checked = await in_thread(self._store.latest, candidate.id, "correctness")
        if compiled is None or checked is None or not checked[1].ok:
            raise InvalidRequest(
                f"Candidate {candidate.id} has not passed a correctness run: its speed means nothing.",
                "Call run_correctness first, or use then='evaluate'.",
            )
        correctness = checked[1]
        assert isinstance(correctness, CorrectnessRecord)
        participants = [Participant(label="candidate", candidate=candidate, compiled=compiled)]
        head = await in_thread(self._store.head, task.id)
        others = {"best": head.best_id, "parent": candidate.parent_id}
        taken = {candidate.id}
        for label, other in others.items():
            if other is not None and other not in taken:
                found = await self._participant(label, other, task)
                if found is not None:
                    taken.add(other)
                    participants.append(found)
        record = await self._executor.benchmark(task, participants, options, progress)
        record = _with_roofline(task, record)
        stage = await self._keep(record)
        note = ""
        if options.case is None or len(task.definition.cases) == 1:
            note = await self._consider_best(task, candidate.id, correctness, record)
        tree = await self.tree(task.id)
        return Outcome(
            task, candidate, (stage,), note, policy.after_benchmark(record, tree, task.card.workload)
        )

    async def _consider_best(
        self,
        task: Task,
        candidate_id: str,
        correctness: CorrectnessRecord,
        benchmark: BenchmarkRecord | None,
    ) -> str:
        head = await in_thread(self._store.head, task.id)
        decision = next_best(head.best_id, candidate_id, correctness, benchmark)
        if decision.moves:
            await anyio.to_thread.run_sync(lambda: self._store.set_head(task.id, best_id=candidate_id))
            return f"best is now {candidate_id}: {decision.reason}"
        return f"best stays {head.best_id or 'unset'}: {decision.reason}" if benchmark else ""

    async def chain(self, candidate_id: str, then: Then, progress: Progress) -> Outcome:
        """Carry out `then`, stopping at the first stage that is not ok."""
        if then == "none":
            task, candidate = await self._load(candidate_id)
            return Outcome(task, candidate, (), "", policy.after_submit(candidate_id))
        if then == "compile":
            return await self.compile(candidate_id, progress)
        share = 1.0 if then == "check" else 0.5
        outcome = await self.check(candidate_id, CheckOptions(), slice_progress(progress, 0, share, "1"))
        if then == "check" or not outcome.ok:
            return outcome
        measured = await self.benchmark(
            candidate_id, BenchmarkOptions(), slice_progress(progress, 0.5, 0.5, "2")
        )
        note = "; ".join(n for n in (outcome.best_note, measured.best_note) if n)
        return measured._replace(stages=outcome.stages + measured.stages, best_note=note)


def _known_case(task: Task, name: str | None) -> None:
    names = [c.name for c in task.definition.cases]
    if name is not None and name not in names:
        raise InvalidRequest(f"The task has no case '{name}'.", f"Its cases: {', '.join(names)}.")


def _with_roofline(task: Task, record: BenchmarkRecord) -> BenchmarkRecord:
    """The roofline floor of each case on the measured device, where its data sheet is known."""
    from cuteforge.profiles.datasheets import floor_ns

    cases = []
    for case in record.cases:
        floor = floor_ns(task.card.case(case.case), record.provenance.device or "")
        update: dict[str, float] = {}
        if floor is not None and case.timings:
            update = {"floor_ns": floor, "roofline_pct": 100 * floor / case.timings[0].median_ns}
        cases.append(case.model_copy(update=update))
    return record.model_copy(update={"cases": tuple(cases)})
