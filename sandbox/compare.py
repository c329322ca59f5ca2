"""Is an output right? The oracle's tolerance, error statistics, and the pattern of what is wrong.

The oracle is the reference in float64 on the same inputs where memory and the reference allow, else the
reference as it is. An element o of the oracle allows an absolute error of

    rtol * |o|  +  rtol * scale  +  2 * e

with rtol by dtype (1e-4 for float32, 1e-2 for float16 and bfloat16: KernelBench's own tolerances),
scale = min(rms(oracle), 10 * median|oracle|), which keeps zeros from passing where all true values are
small and one huge value from excusing the rest, and e the reference's own largest error against the
oracle, capped at rtol * 10 * scale. Tolerances given by the task replace all of this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch

from cuteforge.kernels.records import ErrorStats, Mismatch
from cuteforge.kernels.task import Tolerance
from cuteforge.sandbox.tensors import dtype_name, scalar_text

RTOL = {"float64": 1e-7, "float32": 1e-4, "float16": 1e-2, "bfloat16": 1e-2}
_CHUNK = 1 << 26
_SAMPLE = 1 << 20


@dataclass(frozen=True)
class Bound:
    """rtol * |o| + atol for one output; both 0 for integers and booleans."""

    rtol: float
    atol: float
    reference_max_abs: float | None

    def describe(self) -> str:
        """The bound as one short text."""
        return f"|out-ref| <= {self.atol:.3g} + {self.rtol:.3g}*|ref|"


def _chunks(*tensors: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    flat = [t.reshape(-1) for t in tensors]
    for start in range(0, flat[0].numel(), _CHUNK):
        yield tuple(t[start : start + _CHUNK] for t in flat)


def _finite_or_zero(values: torch.Tensor) -> torch.Tensor:
    return torch.where(
        torch.isfinite(values), values, torch.zeros((), dtype=values.dtype, device=values.device)
    )


def _scale(oracle: torch.Tensor) -> float:
    square = torch.zeros((), dtype=torch.float64, device=oracle.device)
    count = torch.zeros((), dtype=torch.int64, device=oracle.device)
    for (part,) in _chunks(oracle):
        square += _finite_or_zero(part.double()).square().sum()
        count += torch.isfinite(part).sum()
    if int(count) == 0:
        return 0.0
    flat = oracle.reshape(-1)
    sample = flat[:: max(1, flat.numel() // _SAMPLE)].double().abs()
    sample = sample[torch.isfinite(sample)]
    rms: float = (float(square) / int(count)) ** 0.5
    return min(rms, 10 * float(sample.median())) if sample.numel() else rms


def _max_difference(a: torch.Tensor, b: torch.Tensor) -> float:
    worst = torch.zeros((), dtype=torch.float64, device=a.device)
    for x, y in _chunks(a, b):
        worst = torch.maximum(worst, _finite_or_zero((x.double() - y.double()).abs()).max())
    return float(worst)


def bound_for(oracle: torch.Tensor, reference: torch.Tensor, explicit: Tolerance | None) -> Bound:
    """The tolerance of one output; `reference` is the reference's output in the task's own dtype."""
    if not reference.is_floating_point():
        return Bound(0.0, 0.0, None)
    error = _max_difference(oracle, reference) if oracle is not reference else None
    if explicit is not None:
        return Bound(explicit.rtol, explicit.atol, error)
    rtol = RTOL[dtype_name(reference.dtype)]
    scale = _scale(oracle)
    slack = min(2 * (error or 0.0), rtol * 10 * scale)
    return Bound(rtol, rtol * scale + slack, error)


def _wrong(out: torch.Tensor, oracle: torch.Tensor, reference: torch.Tensor, bound: Bound) -> torch.Tensor:
    if not reference.is_floating_point():
        return out != reference
    o, r = out.double(), oracle.double()
    near = (o - r).abs() <= bound.atol + bound.rtol * r.abs()
    ref = reference.double()
    # NaN and infinities count where the reference itself has them, at the same place.
    same = (o == ref) | (torch.isnan(o) & torch.isnan(ref))
    return ~(near | (same & ~torch.isfinite(ref)))


def compare(
    name: str,
    out: torch.Tensor,
    oracle: torch.Tensor,
    reference: torch.Tensor,
    bound: Bound,
    unwritten: Callable[[], torch.Tensor] | None = None,
) -> tuple[ErrorStats, Mismatch | None]:
    """Error statistics of `out` and, where it is wrong, where and how.

    All tensors have one shape. `unwritten` gives a mask of elements that still hold the poison.
    """
    total = out.numel()
    # Sums stay on the device until the end: a transfer for each chunk would cost more than the arithmetic.
    device = out.device
    wrong_total = torch.zeros((), dtype=torch.int64, device=device)
    finite_total = torch.zeros((), dtype=torch.int64, device=device)
    max_abs, max_rel, sum_abs = (torch.zeros((), dtype=torch.float64, device=device) for _ in range(3))
    for o, r, ref in _chunks(out, oracle, reference):
        wrong_total += _wrong(o, r, ref, bound).sum()
        difference = (o.double() - r.double()).abs()
        finite_total += torch.isfinite(difference).sum()
        difference = _finite_or_zero(difference)
        sum_abs += difference.sum()
        max_abs = torch.maximum(max_abs, difference.max())
        relative = torch.where(r != 0, difference / r.double().abs(), torch.zeros_like(difference))
        max_rel = torch.maximum(max_rel, _finite_or_zero(relative).max())
    wrong_count, finite_count = int(wrong_total), int(finite_total)
    stats = ErrorStats(
        max_abs=float(max_abs) if finite_count else None,
        max_rel=float(max_rel) if finite_count else None,
        mean_abs=float(sum_abs) / finite_count if finite_count else None,
        mismatched=wrong_count,
        total=total,
        reference_max_abs=bound.reference_max_abs,
        allowed_abs=bound.atol,
    )
    if wrong_count == 0:
        return stats, None
    mask = torch.cat([_wrong(o, r, ref, bound) for o, r, ref in _chunks(out, oracle, reference)])
    mask = mask.view(out.shape if out.dim() else (1,))
    first = tuple(int(i) for i in mask.nonzero()[0]) if mask.numel() < _CHUNK else _first(mask)
    index = first if out.dim() else ()
    return stats, Mismatch(
        output=name,
        first_index=index,
        got=scalar_text(out[index]),
        expected=scalar_text(oracle[index]),
        pattern=tuple(patterns(mask, out, oracle, unwritten() if unwritten else None)),
    )


def _first(mask: torch.Tensor) -> tuple[int, ...]:
    position = int(mask.view(-1).to(torch.uint8).argmax())
    index: list[int] = []
    for extent in reversed(mask.shape):
        index.append(position % extent)
        position //= extent
    return tuple(reversed(index))


def _spans(positions: Sequence[int], extent: int, what: str) -> str | None:
    """Wrong positions along one axis in words, if they say anything."""
    count = len(positions)
    if count == 0 or count == extent:
        return None
    low, high = positions[0], positions[-1]
    if count == high - low + 1:
        if high == extent - 1:
            return f"only the last {count} of {extent} {what} (from {low})"
        if low == 0:
            return f"only the first {count} of {extent} {what}"
        return (
            f"only {what} {low}..{high} of {extent}" if count > 1 else f"only one of {extent} {what}: {low}"
        )
    steps = {b - a for a, b in pairwise(positions)}
    if len(steps) == 1 and count > 2:
        return f"every {steps.pop()}th of {extent} {what}, from {low}"
    return f"{count} of {extent} {what}, first {', '.join(map(str, positions[:6]))}"


def _axes(mask: torch.Tensor) -> list[str]:
    """What a mask says along its last two axes, for each axis that it does not fill."""
    found: list[str] = []
    for back, what in enumerate(["columns", "rows"] if mask.dim() >= 2 else ["elements"]):
        axis = mask.dim() - 1 - back
        others = [d for d in range(mask.dim()) if d != axis]
        along = mask.any(dim=others) if others else mask
        text = _spans(along.nonzero().view(-1).tolist(), along.numel(), what)
        if text:
            found.append(text)
    return found


def patterns(
    mask: torch.Tensor,
    out: torch.Tensor,
    oracle: torch.Tensor,
    unwritten: torch.Tensor | None = None,
) -> list[str]:
    """What a debugging engineer would look for in a mask of wrong elements, most telling first."""
    found: list[str] = []
    wrong = int(mask.sum())
    if unwritten is not None:
        count = int((unwritten.view(mask.shape) & mask).sum())
        if count:
            share = "all" if count == wrong else f"{count} of {wrong}"
            places = _axes(unwritten.view(mask.shape))
            where = f" ({'; '.join(places)})" if places else ""
            found.append(f"never written: {share} wrong elements still hold the poison{where}")
    if wrong == mask.numel():
        found.append("every element is wrong")
    found += _axes(mask)
    if not out.is_floating_point():
        return found
    bad_out, bad_true = out.reshape(-1)[mask.view(-1)].double(), oracle.reshape(-1)[mask.view(-1)].double()
    nans = int(torch.isnan(bad_out).sum())
    if nans and not (unwritten is not None and found and found[0].startswith("never written: all")):
        found.append(f"NaN in {nans} of {wrong} wrong elements")
    finite = torch.isfinite(bad_out) & (bad_true != 0)
    if int(finite.sum()) >= 8:
        ratio = bad_out[finite] / bad_true[finite]
        middle = float(ratio.median())
        if middle != 0 and float((ratio / middle - 1).abs().median()) < 1e-3 and abs(middle - 1) > 1e-3:
            found.append(f"wrong elements are the true value times {middle:.4g}")
        elif float((bad_out[finite] == 0).double().mean()) > 0.99:
            found.append("wrong elements are zero")
    if out.dim() == 2 and out.shape[0] == out.shape[1] and wrong > out.numel() // 4:
        close = (out.double() - oracle.double().T).abs() <= 1e-3 * (oracle.double().T.abs() + 1e-6)
        if bool(close.all()):
            found.append("the output equals the reference transposed")
    return found
