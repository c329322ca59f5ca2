"""Records as short text for a model: what failed first, numbers with units, lists cut with counts."""

from __future__ import annotations

from cuteforge.kernels.header import prototype
from cuteforge.kernels.records import (
    BenchmarkRecord,
    CheckResult,
    CompileRecord,
    CorrectnessRecord,
    Diagnostic,
)
from cuteforge.kernels.task import CaseCard, Task
from cuteforge.tools.answers import shorten

_MAX_DIAGNOSTICS = 4
_MAX_FAILURES = 3


def duration(ns: float) -> str:
    """Nanoseconds in the unit that fits: 12.3 µs."""
    for limit, scale, unit in ((1e3, 1.0, "ns"), (1e6, 1e3, "µs"), (1e9, 1e6, "ms")):
        if ns < limit:
            return f"{ns / scale:.3g} {unit}"
    return f"{ns / 1e9:.3g} s"


def size(nbytes: float) -> str:
    """Bytes in the unit that fits, powers of 1000."""
    for limit, scale, unit in ((1e3, 1.0, "B"), (1e6, 1e3, "kB"), (1e9, 1e6, "MB")):
        if nbytes < limit:
            return f"{nbytes / scale:.3g} {unit}"
    return f"{nbytes / 1e9:.3g} GB"


def _case(card: CaseCard) -> str:
    tensors = ", ".join(f"{t.name}{list(t.shape)} {t.dtype}" for t in card.tensors)
    flops = "" if card.flops is None else f", {card.flops:.3g} FLOP"
    intensity = "" if card.intensity is None else f", {card.intensity:.3g} FLOP/B"
    note = f" ({card.note})" if card.note else ""
    return f"  {card.case}: {shorten(tensors, 300)}; moves {size(card.min_bytes)}{flops}{intensity}{note}"


def task_text(task: Task) -> str:
    """The spec card."""
    card, definition = task.card, task.definition
    lines = [
        f"task {task.id} '{definition.name}': {card.workload} ({card.workload_source}), target {definition.target}"
    ]
    lines += [_case(c) for c in card.cases[:4]]
    if len(card.cases) > 4:
        lines.append(f"  … and {len(card.cases) - 4} more cases")
    lines.append(f"prototype: {shorten(prototype(card, definition.target), 900)}")
    lines.append('Sources `#include "task.h"` (generated); return 0 for success.')
    lines += [f"warning: {shorten(w, 300)}" for w in card.warnings]
    return "\n".join(lines)


def diagnostic_text(item: Diagnostic) -> str:
    """One compiler message at its line."""
    where = "".join(f"{part}:" for part in (item.file, item.line, item.column) if part is not None)
    lines = [f"{where} {item.severity}: {shorten(item.message, 500)}".strip()]
    if item.source_line:
        lines.append(f"    {shorten(item.source_line.strip(), 160)}")
    lines += [f"    {shorten(note, 200)}" for note in item.notes[:3]]
    return "\n".join(lines)


def compile_text(record: CompileRecord) -> str:
    """Diagnostics, or the resources of each kernel."""
    how = "from cache" if record.cached else f"{record.seconds:.2f} s"
    target = f" for {record.arch}" if record.arch else ""
    state = "compiled" if record.ok else "does not compile"
    lines = [f"{state} with {record.compiler}{target} ({how})"]
    errors = [d for d in record.diagnostics if d.severity == "error"]
    others = [d for d in record.diagnostics if d.severity == "warning"]
    shown = errors[:_MAX_DIAGNOSTICS] + others[: max(0, _MAX_DIAGNOSTICS - len(errors))]
    lines += [diagnostic_text(d) for d in shown]
    left = len(errors) + len(others) - len(shown)
    if left > 0:
        lines.append(f"… and {left} more messages in the log")
    for kernel in record.kernels[:4]:
        parts = []
        for value, text in (
            (kernel.registers, "{} registers"),
            (kernel.static_shared_bytes, "{} B static shared"),
            (kernel.stack_bytes, "{} B stack"),
            (kernel.spill_store_bytes, "{} B spill stores"),
            (kernel.spill_load_bytes, "{} B spill loads"),
        ):
            if value is not None:
                parts.append(text.format(value))
        if kernel.occupancy_pct is not None:
            parts.append(f"occupancy {kernel.occupancy_pct:.0f} % ({kernel.occupancy_limiter})")
        lines.append(f"kernel {shorten(kernel.name, 100)}: {', '.join(parts) or 'no figures'}")
    if record.sass_mix:
        top = sorted(record.sass_mix.items(), key=lambda kv: -kv[1])[:8]
        lines.append("SASS: " + ", ".join(f"{name} {count}" for name, count in top))
    return "\n".join(lines)


def _failure(result: CheckResult) -> str:
    lines = [f"FAIL case {result.case}, inputs '{result.family}'"]
    if result.failure:
        lines.append(f"  {shorten(result.failure, 700)}")
    if result.mismatch:
        m = result.mismatch
        lines.append(f"  first wrong: {m.output}{list(m.first_index)} is {m.got}, should be {m.expected}")
        lines += [f"  pattern: {shorten(p, 200)}" for p in m.pattern[:4]]
    for name, stats in list(result.stats.items())[:2]:
        if stats.mismatched:
            worst = "" if stats.max_abs is None else f", max abs error {stats.max_abs:.3g}"
            lines.append(f"  {name}: {stats.mismatched} of {stats.total} elements wrong{worst}")
    return "\n".join(lines)


def correctness_text(record: CorrectnessRecord) -> str:
    """Verdict, the first failures with their pattern, and failed integrity checks."""
    lines = [f"{'correct' if record.ok else 'NOT correct'}: {record.summary} ({record.seconds:.1f} s)"]
    failed = [r for r in record.results if not r.ok]
    # Seeds repeat each other: the first failure of each case and family says more than three of one.
    distinct = list({(r.case, r.family): r for r in reversed(failed)}.values())[::-1]
    lines += [_failure(r) for r in distinct[:_MAX_FAILURES]]
    if len(failed) > len(distinct[:_MAX_FAILURES]):
        lines.append(f"… and {len(failed) - len(distinct[:_MAX_FAILURES])} more failures")
    for check in record.integrity:
        if check.status == "failed":
            lines.append(f"integrity, {check.name}: {shorten(check.evidence, 300)}")
    if record.ok:
        stats = [s for r in record.results for s in r.stats.values() if s.max_abs is not None]
        worst = max((s.max_abs or 0.0 for s in stats), default=0.0)
        own = max((s.reference_max_abs or 0.0 for s in stats), default=0.0)
        lines.append(f"largest error {worst:.3g}, the reference's own {own:.3g}; oracle: {record.oracle}")
        lines.append("integrity: " + ", ".join(f"{c.name} {c.status}" for c in record.integrity))
    elif record.tolerance:
        lines.append(f"tolerance: {record.tolerance}; oracle: {record.oracle}")
    for where, reason in list(record.skipped_families.items())[:3]:
        lines.append(f"not tested, {where}: {reason}")
    if record.output_tail and not record.ok:
        lines.append(f"it printed: {shorten(record.output_tail.strip(), 400)}")
    return "\n".join(lines)


def benchmark_text(record: BenchmarkRecord) -> str:
    """Times per case, verdicts against each baseline, and what makes them doubtful."""
    lines = [f"{'benchmark' if record.ok else 'NO VALID benchmark'}: {record.summary}"]
    for case in record.cases[:4]:
        times = ", ".join(f"{t.label} {duration(t.median_ns)}" for t in case.timings)
        roof = f"; {case.roofline_pct:.0f} % of the roofline" if case.roofline_pct is not None else ""
        lines.append(f"  {case.case}: {times}{roof}")
        for c in case.comparisons:
            lines.append(
                f"    {c.verdict} than {c.baseline}: {c.speedup:.3f}x [{c.ci_low:.3f}, {c.ci_high:.3f}]"
                if c.verdict != "indistinguishable"
                else f"    indistinguishable from {c.baseline}: {c.speedup:.3f}x [{c.ci_low:.3f}, {c.ci_high:.3f}]"
            )
    if len(record.cases) > 4:
        lines.append(f"  … and {len(record.cases) - 4} more cases")
    lines += [f"noise: {shorten(n, 200)}" for n in record.noise[:3]]
    for check in record.integrity:
        if check.status == "failed":
            lines.append(f"integrity, {check.name}: {shorten(check.evidence, 300)}")
    return "\n".join(lines)
