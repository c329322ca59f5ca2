"""What was measured, with enough beside it to measure it again."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from cuteforge.kernels.model import Frozen, utc_now

RunKind = Literal["compile", "correctness", "benchmark"]
Severity = Literal["error", "warning", "note"]
SpeedVerdict = Literal["faster", "slower", "indistinguishable"]
CheckStatus = Literal["passed", "failed", "not_possible"]


class Provenance(Frozen):
    """Where and with what a record was made; None means it was not there, never that it was zero."""

    cuteforge: str
    host_os: str
    python: str
    device: str | None = None
    driver: str | None = None
    compiler: str | None = None
    cutlass: str | None = None
    torch: str | None = None
    sandbox: str | None = None
    arch: str | None = None
    sm_clock_mhz: int | None = None


class Diagnostic(Frozen):
    """One message of a compiler, at the line of the user's file that caused it."""

    severity: Severity
    message: str
    file: str | None = None
    line: int | None = None
    column: int | None = None
    source_line: str | None = None
    notes: tuple[str, ...] = ()


class KernelResources(Frozen):
    """What the compiler allotted to one kernel, per thread or per block; absent figures are None."""

    name: str
    registers: int | None = None
    static_shared_bytes: int | None = None
    stack_bytes: int | None = None
    spill_store_bytes: int | None = None
    spill_load_bytes: int | None = None
    constant_bytes: int | None = None
    barriers: int | None = None
    occupancy_pct: float | None = Field(default=None, description="theoretical, where the launch is known")
    occupancy_limiter: str | None = None


class CompileRecord(Frozen):
    """The outcome of one compilation. `artifact` and `log` are content hashes in the artefact store."""

    kind: Literal["compile"] = "compile"
    task_id: str
    candidate_id: str
    ok: bool
    compiler: Literal["nvcc", "nvrtc", "g++", "python"]
    arch: str | None = None
    diagnostics: tuple[Diagnostic, ...] = ()
    kernels: tuple[KernelResources, ...] = ()
    sass_mix: dict[str, int] = Field(default_factory=dict, description="instructions by class")
    lowered_name: str | None = Field(default=None, description="mangled name of a `kernel` entry")
    artifact: str | None = None
    log: str | None = None
    cached: bool = False
    seconds: float
    provenance: Provenance
    created_at: datetime = Field(default_factory=utc_now)


class ErrorStats(Frozen):
    """Difference from the oracle over one output; `reference_max_abs` is the reference's own error there."""

    max_abs: float | None
    max_rel: float | None
    mean_abs: float | None
    mismatched: int
    total: int
    reference_max_abs: float | None = None
    allowed_abs: float | None = Field(default=None, description="smallest tolerance any element had")


class Mismatch(Frozen):
    """Where an output is wrong, as a debugging engineer would say it."""

    output: str
    first_index: tuple[int, ...]
    got: str
    expected: str
    pattern: tuple[str, ...]


class CheckResult(Frozen):
    """One case, one input family, one seed. Seed is None where it is withheld from the candidate's author."""

    case: str
    family: str
    seed: int | None
    ok: bool
    stats: dict[str, ErrorStats] = Field(default_factory=dict)
    mismatch: Mismatch | None = None
    failure: str | None = Field(default=None, description="what ended the call, if it did not return")


class IntegrityCheck(Frozen):
    """One defence against a verdict that is not earned."""

    name: str
    status: CheckStatus
    evidence: str


class CorrectnessRecord(Frozen):
    """The verdict over all cases, families and seeds."""

    kind: Literal["correctness"] = "correctness"
    task_id: str
    candidate_id: str
    ok: bool
    summary: str
    results: tuple[CheckResult, ...] = ()
    integrity: tuple[IntegrityCheck, ...] = ()
    oracle: str = ""
    tolerance: str = ""
    skipped_families: dict[str, str] = Field(default_factory=dict)
    output_tail: str = Field(default="", description="last of what the candidate printed, bounded")
    compiled: str | None = Field(default=None, description="hash of the artefact that was run")
    seconds: float
    provenance: Provenance
    created_at: datetime = Field(default_factory=utc_now)


class Timing(Frozen):
    """Time per call of one participant: median and 95 % bootstrap interval, in nanoseconds."""

    label: str
    candidate_id: str | None = None
    median_ns: float
    ci_low_ns: float
    ci_high_ns: float
    samples: int
    calls_per_sample: int


class Comparison(Frozen):
    """The candidate against one baseline: speedup > 1 means the candidate is faster."""

    baseline: str
    speedup: float
    ci_low: float
    ci_high: float
    verdict: SpeedVerdict


class BenchmarkCase(Frozen):
    """One case's timings; `floor_ns` is the roofline bound of the spec card on this device."""

    case: str
    timings: tuple[Timing, ...]
    comparisons: tuple[Comparison, ...]
    floor_ns: float | None = None
    roofline_pct: float | None = None


class BenchmarkRecord(Frozen):
    """Interleaved timings of a candidate and its baselines."""

    kind: Literal["benchmark"] = "benchmark"
    task_id: str
    candidate_id: str
    ok: bool
    summary: str
    method: str = ""
    cases: tuple[BenchmarkCase, ...] = ()
    geomean_speedup: dict[str, float] = Field(default_factory=dict, description="by baseline, over cases")
    verdicts: dict[str, SpeedVerdict] = Field(default_factory=dict, description="by baseline, over cases")
    noise: tuple[str, ...] = ()
    integrity: tuple[IntegrityCheck, ...] = ()
    compiled: str | None = None
    seconds: float
    provenance: Provenance
    created_at: datetime = Field(default_factory=utc_now)


Record = Annotated[
    CompileRecord | CorrectnessRecord | BenchmarkRecord,
    Field(discriminator="kind"),
]
