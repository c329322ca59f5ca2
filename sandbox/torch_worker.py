"""A process that has torch imported and waits, once, for what it shall be: judge or Python candidate.

`python -m cuteforge.sandbox.torch_worker FD`: FD is the control channel. It says `ready`, takes one order
and ends after it. CUDA is not touched before the order, so that waiting costs no GPU memory.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

from cuteforge.kernels.errors import CuteforgeError
from cuteforge.kernels.task import SpecCard, TaskDefinition
from cuteforge.sandbox.channel import Channel
from cuteforge.sandbox.link import CandidateLink


def _judge_check(order: dict[str, Any], fds: list[int], control: Channel) -> dict[str, Any]:
    from cuteforge.sandbox.judge_check import CorrectnessRun

    link = CandidateLink(Channel.from_fd(fds[0]), float(order["call_timeout_s"]))
    definition = TaskDefinition.model_validate(order["definition"])
    card = SpecCard.model_validate(order["card"])
    run = CorrectnessRun(definition, card, link, _teller(control))
    run.run(int(order["seeds"]), order.get("case"))
    link.close()
    return run.outcome()


def _judge_benchmark(order: dict[str, Any], fds: list[int], control: Channel) -> dict[str, Any]:
    from cuteforge.sandbox.judge_benchmark import BenchmarkRun, CandidateRunner

    timeout = float(order["call_timeout_s"])
    runners = [
        CandidateRunner(p["label"], p["candidate_id"], CandidateLink(Channel.from_fd(fd), timeout))
        for p, fd in zip(order["participants"], fds, strict=True)
    ]
    definition = TaskDefinition.model_validate(order["definition"])
    card = SpecCard.model_validate(order["card"])
    run = BenchmarkRun(definition, card, runners, list(order["baselines"]), _teller(control))
    run.run(int(order["samples"]), float(order["budget_s"]), order.get("case"))
    for runner in runners:
        runner.link.close()
    return run.outcome()


def _judge_derive(order: dict[str, Any], fds: list[int], control: Channel) -> dict[str, Any]:
    from cuteforge.sandbox.derive import derive

    definition = TaskDefinition.model_validate(order["definition"])
    return {"card": derive(definition, str(order["device"]), _teller(control)).model_dump(mode="json")}


def _teller(control: Channel) -> Any:
    def say(fraction: float, message: str) -> None:
        control.send({"progress": fraction, "message": message})

    return say


_JUDGEMENTS = {"derive": _judge_derive, "check": _judge_check, "benchmark": _judge_benchmark}


def _preload() -> None:
    """Import what every judge needs, so that waiting pays for it and not the request."""
    from cuteforge.sandbox import judge_benchmark, judge_check

    del judge_benchmark, judge_check


def _provenance(order: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {"torch": torch.__version__}
    if torch.cuda.is_initialized():
        found["device"] = torch.cuda.get_device_name(0)
    return found


def main(control_fd: int) -> None:
    """Wait for one order and carry it out."""
    control = Channel.from_fd(control_fd)
    _preload()
    control.send({"ready": True})
    order, fds = control.receive()
    role = str(order["role"])
    if role == "candidate":
        # From here on this process runs foreign code: it keeps no connection to the executor.
        control.close()
        from cuteforge.sandbox.harness_python import run

        run(order["config"], fds)
        return
    try:
        answer = _JUDGEMENTS[role](order, fds, control)
        control.send({"answer": answer, "provenance": _provenance(order)})
    except CuteforgeError as error:
        kind = type(error).__name__
        control.send({"refused": kind, "cause": error.cause, "remedy": error.remedy})


if __name__ == "__main__":
    main(int(sys.argv[1]))
