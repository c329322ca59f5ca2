"""The true values a candidate is held to: the reference in float64 where that can be had."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from cuteforge.kernels.errors import InvalidRequest
from cuteforge.sandbox.reference import Reference, Values, clone, upcast

# float64 copies of inputs and outputs, temporaries of the reference among them.
_COPIES = 4
_FREE_SHARE = 0.7


def _free_bytes(device: str) -> int:
    if device == "cuda":
        free, _ = torch.cuda.mem_get_info()
        return int(free)
    with open("/proc/meminfo") as lines:
        for line in lines:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return 0


class Oracle:
    """Runs the reference in float64 on given inputs, or answers with the reference's own outputs.

    `description` says which of the two the answers are, and why.
    """

    def __init__(self, reference: Reference, elements: int) -> None:
        """`elements`: of all inputs, parameters and outputs of the case."""
        self._double: Reference | None = None
        needed = elements * 8 * _COPIES
        if needed > _free_bytes(reference.device) * _FREE_SHARE:
            self.description = f"reference in its own precision (float64 would need {needed / 1e9:.0f} GB)"
            return
        self.description = "reference in float64"
        self._double = reference.in_double()

    def __call__(self, values: Values, expected: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """True values for `values`; `expected` are the reference's own outputs for them."""
        own = list(expected)
        if self._double is None or not any(e.is_floating_point() for e in own):
            return own
        try:
            outputs = self._double.run(upcast(clone(values)))
        except InvalidRequest as error:
            self._give_up(f"it fails in float64: {error.cause[:200]}")
            return own
        if [o.shape for o in outputs] != [e.shape for e in own]:
            self._give_up("it has other shapes in float64")
            return own
        return outputs

    def _give_up(self, reason: str) -> None:
        self._double = None
        self.description = f"reference in its own precision ({reason})"
