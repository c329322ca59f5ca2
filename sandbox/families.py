"""Input families: what a candidate is shown, so that the trivial answers are wrong.

KernelBench draws inputs from `torch.rand` in [0, 1): there identity passes ReLU. Each floating input is
therefore also drawn from other distributions, unless its spec states bounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from cuteforge.sandbox.reference import Reference, Values

TASK, NORMAL, WIDE = "task", "normal", "wide"
FAMILIES = (TASK, NORMAL, WIDE)
_SCALE = {NORMAL: 1.0, WIDE: 10.0}


def draw(reference: Reference, family: str, seed: int) -> Values:
    """Arguments of one family. Shapes, dtypes, integers, booleans and scalars are the task's own.

    `normal` has standard deviation 1, `wide` 10; both have mean 0.
    """
    values = reference.inputs(seed)
    if family == TASK:
        return values
    generator = torch.Generator(device=reference.device)
    generator.manual_seed(seed)
    bounded = {s.name for s in reference.definition.inputs if s.low is not None}
    drawn: Values = []
    for index, value in enumerate(values):
        free = isinstance(value, torch.Tensor) and value.is_floating_point()
        if not free or reference.argument_name(index) in bounded:
            drawn.append(value)
            continue
        kind = value.dtype if value.dtype is torch.float64 else torch.float32
        noise = torch.randn(value.shape, generator=generator, device=value.device, dtype=kind)
        drawn.append((noise * _SCALE[family]).to(value.dtype))
    return drawn


def finite_fraction(tensors: Sequence[torch.Tensor]) -> float:
    """Share of finite elements over all floating tensors; 1.0 when there are none."""
    finite, total = 0, 0
    for tensor in tensors:
        if tensor.is_floating_point() and tensor.numel():
            finite += int(torch.isfinite(tensor).sum())
            total += tensor.numel()
    return finite / total if total else 1.0


def unusable(family: str, expected: Sequence[torch.Tensor]) -> str | None:
    """Why a family does not fit this reference, or None. The task's own family always fits."""
    if family == TASK:
        return None
    fraction = finite_fraction(expected)
    if fraction < 1.0:
        return f"the reference is not finite there ({(1 - fraction):.2%} of its outputs)"
    return None


def trivial_answers(values: Sequence[Any], like: torch.Tensor) -> dict[str, torch.Tensor]:
    """Answers that need no kernel: zeros, ones, an input passed through, the mean of an input."""
    answers = {"zeros": torch.zeros_like(like), "ones": torch.ones_like(like)}
    for index, value in enumerate(values):
        if isinstance(value, torch.Tensor) and value.shape == like.shape and value.dtype == like.dtype:
            answers[f"input {index} unchanged"] = value
            if value.is_floating_point() and value.numel():
                answers[f"the mean of input {index}"] = value.mean().expand_as(like).contiguous()
            break
    return answers
