"""From a definition to its spec card: shapes, sizes, bytes, FLOPs, operators, workload class, weaknesses.

Imported only inside the sandbox. Shapes are derived under PyTorch's FakeTensorMode, which allocates
nothing, and the reference is then really run where the case is small enough for this machine.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from cuteforge.kernels.errors import InvalidRequest
from cuteforge.kernels.task import (
    Case,
    CaseCard,
    Role,
    ScalarCard,
    SpecCard,
    TaskDefinition,
    TensorCard,
    check_identifier,
)
from cuteforge.kernels.workload import infer_workload
from cuteforge.sandbox import compare, families
from cuteforge.sandbox.oracle import Oracle
from cuteforge.sandbox.reference import Reference, Values, clone, integer_constants
from cuteforge.sandbox.tensors import dtype_name

# A reference of more than this many bytes of inputs, parameters and outputs is not run on a CPU here.
_CPU_RUN_BYTES = 256 * 1024 * 1024
_GPU_RUN_SHARE = 0.15
_VIEW = re.compile(
    r"^(view|_unsafe_view|reshape|transpose|t|permute|expand|slice|select|detach|alias|unsqueeze|squeeze|"
    r"as_strided|clone|copy_|empty|zeros|ones|full|rand|randn|_to_copy|contiguous|arange|split|unbind|"
    r"lift_fresh|randint|uniform_|normal_|fill_|empty_like|zeros_like|_reshape_alias|split_with_sizes)"
)


class _Operators(TorchDispatchMode):
    """Collects the ATen operators of a forward pass and one operation per element they touch."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.elementwise = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if func.namespace == "aten" and not _VIEW.match(name):
            self.names.append(name)
            sizes = [a.numel() for a in (*args, result) if isinstance(a, torch.Tensor)]
            self.elementwise += max(sizes, default=0)
        return result


class _Trace:
    """What one run of the reference at one case showed."""

    def __init__(self, reference: Reference, values: Values, outputs: list[torch.Tensor]) -> None:
        self.tensors: list[tuple[str, Role, str, tuple[int, ...]]] = []
        self.scalars: list[ScalarCard] = []
        self.arguments: list[str] = []
        taken: set[str] = set()

        def unique(name: str) -> str:
            candidate, serial = name, 2
            while candidate in taken:
                candidate, serial = f"{name}{serial}", serial + 1
            taken.add(candidate)
            return candidate

        for index, value in enumerate(values):
            name = unique(reference.argument_name(index))
            self.arguments.append(name)
            if isinstance(value, torch.Tensor):
                self.tensors.append((name, "input", dtype_name(value.dtype), tuple(value.shape)))
            else:
                self.scalars.append(_scalar(name, value))
        for raw, value in reference.parameters.items():
            self.tensors.append((unique(raw), "parameter", dtype_name(value.dtype), tuple(value.shape)))
        for index, value in enumerate(outputs):
            name = unique("out" if len(outputs) == 1 else f"out{index}")
            self.tensors.append((name, "output", dtype_name(value.dtype), tuple(value.shape)))
        self.flops = 0
        self.elementwise = 0
        self.operators: list[str] = []

    @property
    def nbytes(self) -> int:
        """Inputs, parameters and outputs together."""
        return sum(
            TensorCard(name=n, role=r, dtype=d, shape=s, size_names=()).nbytes for n, r, d, s in self.tensors
        )

    @property
    def elements(self) -> int:
        """Of inputs, parameters and outputs together."""
        return sum(math.prod(shape) for _, _, _, shape in self.tensors)


def _scalar(name: str, value: int | float | bool) -> ScalarCard:
    if isinstance(value, bool):
        return ScalarCard(name=name, dtype="bool", value=value)
    if isinstance(value, int):
        return ScalarCard(name=name, dtype="int64", value=value)
    return ScalarCard(name=name, dtype="float64", value=value)


def _trace(definition: TaskDefinition, case: Case, device: str) -> _Trace:
    reference = Reference(definition, case, device)
    values = reference.inputs(0)
    counter = FlopCounterMode(display=False)
    operators = _Operators()
    with counter, operators:
        outputs = reference.run(values)
    trace = _Trace(reference, values, outputs)
    trace.flops = counter.get_total_flops()
    trace.elementwise = operators.elementwise
    trace.operators = operators.names
    return trace


def _fake_trace(definition: TaskDefinition, case: Case) -> _Trace | None:
    """Shapes without memory, or None for a reference that looks at values (`.item()`, masks)."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    try:
        with FakeTensorMode(allow_non_fake_inputs=True):
            return _trace(definition, case, "cpu")
    except InvalidRequest:
        # Whether the reference is wrong or only cannot be faked shows when it is really run.
        return None


def derive(definition: TaskDefinition, device: str, progress: Callable[[float, str], None]) -> SpecCard:
    """The spec card of a definition.

    Raises:
        InvalidRequest: the reference cannot be run, or its cases do not agree in rank, dtype or number of
            tensors; the text names the line of the reference.
    """
    traces: list[_Trace] = []
    warnings: list[str] = []
    budget = _CPU_RUN_BYTES
    if device == "cuda":
        budget = int(torch.cuda.get_device_properties(0).total_memory * _GPU_RUN_SHARE)
    for number, case in enumerate(definition.cases):
        progress(number / len(definition.cases), f"reference at case '{case.name}'")
        trace = _fake_trace(definition, case)
        if trace is None or trace.nbytes <= budget:
            # The real run has the last word: fakes accept some references that fail.
            trace = _trace(definition, case, device)
            if number == 0:
                warnings += _weaknesses(definition, case, device, trace)
        else:
            gigabytes = trace.nbytes / 1e9
            warnings.append(
                f"case '{case.name}' moves {gigabytes:.1f} GB: its shapes are derived symbolically, the "
                "reference was not run here"
            )
        traces.append(trace)
    _agree(definition, traces)
    cards = _cards(definition, traces)
    operators = tuple(dict.fromkeys(name for trace in traces for name in trace.operators))
    inferred = infer_workload(traces[0].operators, cards[0])
    return SpecCard(
        workload=definition.workload or inferred,
        workload_source="given" if definition.workload else "inferred",
        operators=operators[:40],
        cases=tuple(cards),
        warnings=tuple(warnings),
    )


def _agree(definition: TaskDefinition, traces: list[_Trace]) -> None:
    first = traces[0]
    for case, trace in zip(definition.cases, traces, strict=True):
        same = [(n, r, d, len(s)) for n, r, d, s in trace.tensors] == [
            (n, r, d, len(s)) for n, r, d, s in first.tensors
        ]
        if not same or [s.name for s in trace.scalars] != [s.name for s in first.scalars]:
            raise InvalidRequest(
                f"Case '{case.name}' has other tensors, ranks or dtypes than '{definition.cases[0].name}'.",
                "All cases share one prototype; define a second task for the other shape.",
            )


def _named_sizes(definition: TaskDefinition) -> list[dict[str, int]]:
    """For each case the sizes that have names: the specs' own, or the reference's integer constants."""
    named: list[dict[str, int]] = []
    for case in definition.cases:
        values: dict[str, Any] = dict(case.sizes)
        if definition.contract == "kernelbench":
            values = {**integer_constants(definition.source), **values}
        named.append({k: v for k, v in values.items() if type(v) is int})
    return named


def _usable(name: str, taken: set[str]) -> str | None:
    lowered = name.lower()
    try:
        check_identifier(lowered)
    except ValueError:
        return None
    return None if lowered in taken else lowered


def _dimension_names(definition: TaskDefinition, traces: list[_Trace]) -> list[list[str]]:
    """A name for each dimension of each tensor, right in every case.

    A dimension takes the one named size that equals it in all cases (the name its spec states comes
    first), else `<tensor>_d<axis>`.
    """
    named = _named_sizes(definition)
    taken = {n for n, _, _, _ in traces[0].tensors} | {s.name for s in traces[0].scalars}
    stated = {
        (spec.name, axis): extent
        for spec in definition.inputs
        for axis, extent in enumerate(spec.shape or ())
        if isinstance(extent, str)
    }
    result: list[list[str]] = []
    for position, (tensor, role, _, shape) in enumerate(traces[0].tensors):
        names: list[str] = []
        for axis in range(len(shape)):
            values = [trace.tensors[position][3][axis] for trace in traces]
            matches = [k for k in named[0] if [sizes.get(k) for sizes in named] == values]
            wanted = stated.get((tensor, axis)) if role == "input" else None
            if wanted in matches:
                matches = [str(wanted)]
            elif len(matches) > 1 and role != "input":
                used = [n for known in result for n in known]
                matches = [m for m in matches if m.lower() in used][:1]
            chosen = _usable(matches[0], taken) if len(matches) == 1 else None
            names.append(chosen or f"{tensor}_d{axis}")
        result.append(names)
    return result


def _cards(definition: TaskDefinition, traces: list[_Trace]) -> list[CaseCard]:
    names = _dimension_names(definition, traces)
    cards: list[CaseCard] = []
    for case, trace in zip(definition.cases, traces, strict=True):
        tensors: list[TensorCard] = []
        sizes: dict[str, int] = {}
        for (name, role, kind, shape), dims in zip(trace.tensors, names, strict=True):
            tensors.append(TensorCard(name=name, role=role, dtype=kind, shape=shape, size_names=tuple(dims)))
            if role != "parameter" or definition.contract == "kernelbench":
                sizes.update(zip(dims, shape, strict=True))
        # Size names a spec states but no dimension has alone ("rows*cols") are still useful arguments.
        for extra, value in case.sizes.items():
            if definition.contract != "function" or type(value) is not int or extra in sizes:
                continue
            if _usable(extra, {t.name for t in tensors}):
                sizes[extra.lower()] = value
        contraction = trace.flops > 0
        flops = trace.flops if contraction else trace.elementwise
        source = "torch flop counter" if contraction else "one per element of each ATen operator"
        moved = sum(t.nbytes for t in tensors)
        empty = [t.name for t in tensors if math.prod(t.shape) == 0]
        cards.append(
            CaseCard(
                case=case.name,
                tensors=tuple(tensors),
                scalars=tuple(trace.scalars),
                arguments=tuple(trace.arguments),
                sizes=sizes,
                min_bytes=moved,
                flops=flops or None,
                flops_source=source if flops else "not counted",
                note=f"empty: {', '.join(empty)}" if empty else "",
            )
        )
    return cards


def _weaknesses(definition: TaskDefinition, case: Case, device: str, trace: _Trace) -> list[str]:
    """Trivial answers that would pass at every usable input family, and other doubts about the task."""
    reference = Reference(definition, case, device)
    oracle = Oracle(reference, trace.elements)
    found: list[str] = []
    passing: set[str] | None = None
    deterministic = True
    for family in families.FAMILIES:
        values = families.draw(reference, family, seed=1)
        expected = reference.run(clone(values))
        if families.unusable(family, expected):
            continue
        if family == families.TASK:
            torch.manual_seed(12345)
            again = reference.run(clone(values))
            deterministic = all(
                torch.equal(torch.nan_to_num(a), torch.nan_to_num(b))
                for a, b in zip(expected, again, strict=True)
            )
        target, truth = expected[0], oracle(values, expected)[0]
        if target.numel() == 0:
            return ["the first output is empty: nothing can be checked"]
        bound = compare.bound_for(truth, target, definition.tolerance)
        names = {
            name
            for name, answer in families.trivial_answers(values, target).items()
            if compare.compare("", answer, truth, target, bound)[1] is None
        }
        passing = names if passing is None else passing & names
    if passing:
        found.append(f"weak task: {', '.join(sorted(passing))} would pass at the tolerance of this task")
    if not deterministic:
        found.append("the reference gave two different answers for the same input: it draws random numbers")
    if not any(role == "input" for _, role, _, _ in trace.tensors):
        found.append("the reference takes no tensor")
    return found
