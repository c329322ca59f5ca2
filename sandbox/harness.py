"""The harness's protocol loop, shared by native and Python candidates. Runs inside the sandbox.

One request at a time: `bind`, `release`, `call`, `time`. Everything here shares its address space with the
candidate, so nothing here is trusted by the judge.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from cuteforge.sandbox.channel import Channel, ChannelClosed, close_all


class CandidateError(Exception):
    """The candidate failed; `alive` says whether it can be called again."""

    def __init__(self, text: str, alive: bool = False) -> None:
        super().__init__(text)
        self.alive = alive


class Program(Protocol):
    """A loaded candidate."""

    def bind(self, key: int, tensors: list[dict[str, Any]], names: dict[str, Any], fds: list[int]) -> None:
        """Map a set of buffers and prepare its arguments. Consumes the descriptors."""
        ...

    def release(self, key: int) -> None:
        """Unmap a set."""
        ...

    def call(self, key: int) -> None:
        """Run once and wait for the device."""
        ...

    def timed(self, keys: list[int], calls: int) -> float:
        """Run `calls` calls in a row over the sets; nanoseconds in all."""
        ...


def serve(link: Channel, load: Callable[[], Program]) -> None:
    """Load the candidate, say so, and answer requests until the judge hangs up."""
    program: Program | None = None

    def loaded() -> Program:
        assert program is not None
        return program

    def start(_: dict[str, Any], __: list[int]) -> dict[str, Any]:
        nonlocal program
        program = load()
        return {}

    def bind(message: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        loaded().bind(int(message["set"]), message["tensors"], message["names"], fds)
        return {}

    def release(message: dict[str, Any], _: list[int]) -> dict[str, Any]:
        loaded().release(int(message["set"]))
        return {}

    def call(message: dict[str, Any], _: list[int]) -> dict[str, Any]:
        loaded().call(int(message["set"]))
        return {}

    def timed(message: dict[str, Any], _: list[int]) -> dict[str, Any]:
        return {"elapsed_ns": loaded().timed(list(message["sets"]), int(message["calls"]))}

    handlers = {"bind": bind, "release": release, "call": call, "time": timed}
    if not _answer(link, start, {}, []):
        return
    while True:
        try:
            message, fds = link.receive()
        except ChannelClosed:
            return
        handler = handlers.get(str(message.get("op")))
        if handler is None:
            close_all(fds)
            link.send({"ok": False, "alive": True, "error": f"unknown request {message.get('op')!r}"})
            continue
        _answer(link, handler, message, fds)


def _answer(
    link: Channel,
    handler: Callable[[dict[str, Any], list[int]], dict[str, Any]],
    message: dict[str, Any],
    fds: list[int],
) -> bool:
    try:
        link.send({"ok": True, **handler(message, fds)})
    except CandidateError as error:
        link.send({"ok": False, "alive": error.alive, "error": str(error)})
        return False
    return True
