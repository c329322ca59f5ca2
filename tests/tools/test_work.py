"""Progress only grows, and a gate lets in as many as it says."""

import anyio
import pytest

from cuteforge.tools.work import Gate, Reporter


def test_progress_never_goes_back():
    async def main():
        reporter = Reporter()
        await reporter(0.6, "far")
        await reporter(0.2, "a step that counts anew")
        return reporter.fraction, reporter.message

    assert anyio.run(main) == (0.6, "a step that counts anew")


def test_gate_admits_no_more_than_its_slots():
    inside = [0]
    most = [0]

    async def worker(gate):
        async with gate.slot(Reporter()):
            inside[0] += 1
            most[0] = max(most[0], inside[0])
            await anyio.sleep(0.01)
            inside[0] -= 1

    async def main():
        gate = Gate("a compiler", 2)
        async with anyio.create_task_group() as group:
            for _ in range(7):
                group.start_soon(worker, gate)

    anyio.run(main)
    assert most == [2]
    assert inside == [0]


def test_failed_and_cancelled_work_gives_its_slot_back():
    async def main():
        gate = Gate("the device", 1)
        with pytest.raises(ZeroDivisionError):
            async with gate.slot(Reporter()):
                raise ZeroDivisionError
        async with gate.slot(Reporter()):
            with anyio.move_on_after(0.01) as waiting:
                async with gate.slot(Reporter()):
                    pass
            assert waiting.cancelled_caught
        with anyio.fail_after(1):
            async with gate.slot(Reporter()):
                pass

    anyio.run(main)
