"""The judge's side of its connection to one candidate process.

What the candidate says is never taken for a result: a reply only tells that a call returned. Outputs are
read by the judge in its own buffers, and elapsed times are held against the judge's clock.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from cuteforge.sandbox.channel import Channel, ChannelClosed, ChannelViolation, close_all

_LOAD_TIMEOUT_S = 120.0


class CandidateFailure(Exception):
    """The candidate crashed, hung, answered nonsense, or reported an error. `str()` is for its author."""


@dataclass(frozen=True)
class Elapsed:
    """One timed block: the candidate's own figure and the judge's wall clock around it, in nanoseconds."""

    claimed_ns: float
    wall_ns: float


class CandidateLink:
    """Drives one candidate process through its harness."""

    def __init__(self, channel: Channel, call_timeout_s: float) -> None:
        self._channel = channel
        self._timeout = call_timeout_s
        self._loaded = False
        self.alive = True

    def load(self) -> None:
        """Wait until the harness has loaded the candidate; the first request does it, if nobody did.

        The judge prepares its own side meanwhile.
        """
        if not self._loaded:
            self._loaded = True
            self._reply(_LOAD_TIMEOUT_S, "loading the candidate")

    def bind(self, key: int, tensors: list[dict[str, Any]], names: dict[str, Any], fds: list[int]) -> None:
        """Hand over a set of buffers; `names` are the values of sizes and scalars."""
        self._ask({"op": "bind", "set": key, "tensors": tensors, "names": names}, "binding buffers", fds)

    def release(self, key: int) -> None:
        """Unmap a set, so that its memory is free once the judge frees it too."""
        self._ask({"op": "release", "set": key}, "releasing buffers")

    def call(self, key: int) -> None:
        """Run the candidate once on a set and wait until its device is idle."""
        self._ask({"op": "call", "set": key}, "the call")

    def timed(self, keys: list[int], calls: int) -> Elapsed:
        """Run `calls` calls in a row, rotating over the sets."""
        started = time.perf_counter_ns()
        reply = self._ask({"op": "time", "sets": keys, "calls": calls}, "a timed block")
        wall = time.perf_counter_ns() - started
        claimed = reply.get("elapsed_ns")
        if isinstance(claimed, bool) or not isinstance(claimed, int | float) or not 0 < claimed < 1e15:
            self.alive = False
            raise CandidateFailure("the candidate process answered with an impossible time")
        return Elapsed(float(claimed), float(wall))

    def _ask(self, message: dict[str, Any], what: str, fds: list[int] | None = None) -> dict[str, Any]:
        if not self.alive:
            raise CandidateFailure("the candidate process had already ended")
        self.load()
        try:
            self._channel.send(message, fds or [])
        except ChannelClosed as error:
            self.alive = False
            raise CandidateFailure(f"the candidate process ended before {what}") from error
        return self._reply(self._timeout, what)

    def _reply(self, timeout_s: float, what: str) -> dict[str, Any]:
        try:
            reply, fds = self._channel.receive(timeout_s)
        except TimeoutError as error:
            self.alive = False
            raise CandidateFailure(f"{what} did not return within {timeout_s:g} s") from error
        except ChannelClosed as error:
            self.alive = False
            raise CandidateFailure(f"the candidate process ended during {what}") from error
        except ChannelViolation as error:
            self.alive = False
            raise CandidateFailure(f"the candidate process broke its protocol during {what}") from error
        close_all(fds)
        if reply.get("ok") is True:
            return reply
        # After a CUDA error the context is lost; after an exception in Python it is not.
        self.alive = reply.get("alive") is True
        raise CandidateFailure(f"{what} failed: {str(reply.get('error', 'no reason given'))[:1500]}")

    def close(self) -> None:
        """Drop the connection; the harness ends when it sees that."""
        self._channel.close()
