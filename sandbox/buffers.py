"""The buffers of one case: the judge's tensors over memory that candidates map."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from cuteforge.kernels.task import CaseCard, TensorCard
from cuteforge.sandbox.link import CandidateLink
from cuteforge.sandbox.memory import POISON, Buffer, Memory
from cuteforge.sandbox.reference import Values
from cuteforge.sandbox.tensors import guard_damage, poison, raw_bytes, typed


class BufferSet:
    """Inputs, parameters and outputs of one case, filled by the judge and bound to candidates by a key."""

    def __init__(self, key: int, card: CaseCard, memory: Memory, target: str) -> None:
        self.key = key
        self.card = card
        self._memory = memory
        self._target = target
        self._buffers: dict[str, Buffer] = {}
        self._tensors: dict[str, torch.Tensor] = {}
        try:
            for tensor in card.tensors:
                buffer = memory.create(tensor.nbytes, read_only=tensor.role != "output")
                self._buffers[tensor.name] = buffer
                poison(buffer, target)
                self._tensors[tensor.name] = typed(buffer, target, tensor.dtype, tensor.shape)
        except BaseException:
            self.free()
            raise

    def tensor(self, name: str) -> torch.Tensor:
        """The judge's view of one tensor."""
        return self._tensors[name]

    def outputs(self) -> list[tuple[TensorCard, torch.Tensor]]:
        """Outputs in prototype order."""
        return [(card, self._tensors[card.name]) for card in self.card.role("output")]

    def fill(self, values: Values, parameters: Sequence[torch.Tensor]) -> Values:
        """Copy arguments in; returns the same arguments with the tensors replaced by the buffers' own.

        A reference run on what is returned reads the very bytes that the candidate reads.
        """
        cards = iter(self.card.role("input"))
        placed: Values = []
        for value in values:
            if isinstance(value, torch.Tensor):
                view = self._tensors[next(cards).name]
                view.copy_(value)
                placed.append(view)
            else:
                placed.append(value)
        for card, value in zip(self.card.role("parameter"), parameters, strict=True):
            self._tensors[card.name].copy_(value)
        return placed

    def poison_outputs(self) -> None:
        """Fill every output, guards included, with the poison."""
        for card in self.card.role("output"):
            poison(self._buffers[card.name], self._target)
        self._settle()

    def unwritten(self, card: TensorCard) -> torch.Tensor:
        """Mask of elements that still hold the poison in all their bytes."""
        raw = raw_bytes(self._buffers[card.name], self._target)
        itemsize = max(1, card.nbytes // max(1, card.elements))
        return (raw.view(-1, itemsize) == POISON).all(dim=1).view(card.shape or (1,))

    def damage(self) -> dict[str, str]:
        """Outputs whose guards were overwritten, and where."""
        found = {c.name: guard_damage(self._buffers[c.name], self._target) for c in self.card.role("output")}
        return {name: where for name, where in found.items() if where}

    def bind(self, link: CandidateLink) -> None:
        """Hand this set to a candidate: inputs read-only, outputs read-write."""
        self._settle()
        tensors: list[dict[str, Any]] = []
        fds: list[int] = []
        for card in self.card.tensors:
            buffer = self._buffers[card.name]
            tensors.append(
                {
                    "name": card.name,
                    "role": card.role,
                    "dtype": card.dtype,
                    "shape": list(card.shape),
                    "nbytes": card.nbytes,
                }
            )
            fds.append(buffer.fd)
        names: dict[str, Any] = dict(self.card.sizes)
        names.update({s.name: s.value for s in self.card.scalars})
        link.bind(self.key, tensors, names, fds)

    def _settle(self) -> None:
        # The candidate's context does not order itself after ours.
        if self._target == "cuda":
            torch.cuda.synchronize()

    def free(self) -> None:
        """Unmap everything. Views handed out before are invalid afterwards."""
        self._settle()
        self._tensors.clear()
        for buffer in self._buffers.values():
            self._memory.free(buffer)
        self._buffers.clear()
