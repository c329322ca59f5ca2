"""`cuteforge demo`: a real MCP client starts the real server over stdio and runs the whole loop, narrated."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import anyio
import click

from cuteforge.kernels.patch import PatchRequest, apply_patch

# Large enough that a GPU is measured and not its launch overhead; the ragged case has the tail bug.
_CUDA_CASES = [
    {"name": "even", "sizes": {"rows": 16384, "cols": 4096}},
    {"name": "ragged", "sizes": {"rows": 16384, "cols": 4099}},
]
_FAST_CASES = [
    {"name": "even", "sizes": {"rows": 256, "cols": 1024}},
    {"name": "ragged", "sizes": {"rows": 128, "cols": 4099}},
]


class DemoFailed(Exception):
    """A step did not do what it shows."""


def example_folder() -> Path:
    """Where the softmax example lies, in a clone and in an installed package."""
    import cuteforge.guidelines

    return Path(cuteforge.guidelines.__path__[0]) / "examples" / "softmax"


class Narrator:
    """Calls tools and tells what it calls and what comes back."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._step = 0
        self._last = ""

    def say(self, text: str) -> None:
        """A line of narration."""
        click.echo(click.style(text, bold=True))

    async def call(self, why: str, tool: str, **arguments: Any) -> dict[str, Any]:
        """Call a tool, print its answer, and return its structured content.

        Raises:
            DemoFailed: the server answered with an error.
        """
        self._step += 1
        click.echo()
        self.say(f"{self._step}. {why}")
        shown = ", ".join(f"{name}={_short(value)}" for name, value in arguments.items())
        click.echo(click.style(f"   > {tool}({shown})", fg="cyan"))
        if "patch" in arguments:
            for line in arguments["patch"].splitlines()[:_PATCH_LINES]:
                click.echo(click.style(f"     {line}", fg=_colour(line)))
            left = len(arguments["patch"].splitlines()) - _PATCH_LINES
            if left > 0:
                click.echo(f"     … {left} more lines")
        started = time.monotonic()
        result = await self._client.call_tool(tool, arguments, progress_callback=self._progress)
        seconds = time.monotonic() - started
        if sys.stderr.isatty():
            click.echo("\r\033[K", err=True, nl=False)
        text = "\n".join(block.text for block in result.content if block.type == "text")
        for line in text.splitlines():
            click.echo(f"     {line}")
        click.echo(click.style(f"     ({seconds:.1f} s)", dim=True))
        if result.is_error:
            raise DemoFailed(f"{tool} answered with an error: {text}")
        content: dict[str, Any] = result.structured_content or {}
        return content

    async def _progress(self, progress: float, total: float | None, message: str | None) -> None:
        if sys.stderr.isatty():
            click.echo(f"\r\033[K     … {message or progress}", err=True, nl=False)


_PATCH_LINES = 16


def _colour(line: str) -> str | None:
    return {"+": "green", "-": "red"}.get(line[:1])


def _short(value: Any) -> str:
    if isinstance(value, dict) and value and all(isinstance(v, str) for v in value.values()):
        return "{" + ", ".join(f"{k}: {len(v.splitlines())} lines" for k, v in value.items()) + "}"
    text = json.dumps(value)
    return text if len(text) <= 70 else f"{text[:67]}…"


def _task(folder: Path) -> dict[str, Any]:
    """define_task's arguments; the contract is told from the source."""
    task: dict[str, Any] = json.loads((folder / "task.json").read_text())
    task.pop("contract")
    return task


def _expect(condition: bool, what: str) -> None:
    if not condition:
        raise DemoFailed(what)


def _stage(answer: dict[str, Any], name: str) -> dict[str, Any]:
    """One stage of an answer; DemoFailed if the chain ended before it."""
    found: dict[str, Any] | None = answer.get(name)
    if found is None:
        raise DemoFailed(f"there was no {name} stage")
    return found


async def _loop(tell: Narrator, target: str, fast: bool) -> str:
    """The loop on one target; returns a closing line."""
    folder = example_folder()
    task = _task(folder)
    if target == "cuda":
        task["cases"] = _CUDA_CASES
    elif fast:
        task["cases"] = _FAST_CASES
    source = "softmax.cu" if target == "cuda" else "softmax.cpp"
    stem = "softmax_cuda" if target == "cuda" else "softmax"
    fix = (folder / f"{stem}_fix.patch").read_text()
    faster = (folder / f"{stem}_faster.patch").read_text()

    defined = await tell.call("A task from a PyTorch reference", "define_task", **{**task, "target": target})
    task_id = defined["task_id"]
    first = await tell.call(
        "A first candidate, with a bug at the end of ragged rows",
        "submit_candidate",
        task_id=task_id,
        files={source: (folder / source).read_text()},
        note="first version",
        then="check",
    )
    _expect(not _stage(first, "correctness")["ok"], "the planted bug was not found")
    fixed = await tell.call(
        "The report says where: a local patch, checked in the same call",
        "patch_apply",
        candidate_id=first["candidate_id"],
        patch=fix,
        note="handle the tail",
        then="check",
    )
    _expect(_stage(fixed, "correctness")["ok"], "the repaired candidate did not pass")
    fewer = {"samples": 30} if fast else {}
    await tell.call(
        "Correct, so its speed means something", "benchmark", candidate_id=fixed["candidate_id"], **fewer
    )
    better = await tell.call(
        "One structural optimisation, compiled, checked and measured against the best so far",
        "patch_apply",
        candidate_id=fixed["candidate_id"],
        patch=faster,
        note="read each row once, vectorised" if target == "cuda" else "vectorised exponential",
        then="evaluate",
    )
    _expect(_stage(better, "correctness")["ok"], "the optimised candidate did not pass")
    measured = _stage(better, "benchmark")
    verdicts = measured["verdicts"]
    _expect(verdicts.get("best") == "faster", f"the optimised candidate is not faster: {verdicts}")
    shown = await tell.call("What the store remembers", "history", task_id=task_id)
    _expect(shown["best"] == better["candidate_id"], "best did not move to the faster candidate")
    against = ", ".join(f"{v:.2f}x against {label}" for label, v in measured["geomean_speedup"].items())
    return f"bug found, mended by a three-line patch, then made faster: {against}"


async def _compile_only(tell: Narrator) -> str:
    """What a machine without a GPU can still do for CUDA: compile, and say what came out."""
    folder = example_folder()
    task = _task(folder)
    files = {"softmax.cu": (folder / "softmax.cu").read_text()}
    for name in ("softmax_cuda_fix.patch", "softmax_cuda_faster.patch"):
        files = apply_patch(files, PatchRequest(patch=(folder / name).read_text())).files
    defined = await tell.call(
        "No GPU here, but CuTe compiles all the same: the task again, for CUDA",
        "define_task",
        **{**task, "cases": _CUDA_CASES, "target": "cuda"},
    )
    # The `kernel` entry needs the device code alone, and compiles much faster than a shared library.
    device_code = files["softmax.cu"].partition('extern "C"')[0]
    compiled = await tell.call(
        "A CuTe kernel for sm_90a: registers, shared memory, instruction mix",
        "submit_candidate",
        task_id=defined["task_id"],
        files={"softmax.cu": device_code},
        function="row_softmax::softmax_kernel<4, 4>",
        grid=["rows"],
        block=["256"],
        args=["x", "out", "rows", "cols"],
        arch="sm_90a",
        then="compile",
    )
    built = _stage(compiled, "compile")
    _expect(built["ok"], "the CuTe kernel did not compile")
    _expect(bool(built["kernels"]), "no kernel resources were reported")
    _expect(bool(built["sass_mix"]), "no instruction mix was reported")
    return "a CuTe kernel compiled for sm_90a"


def _environment() -> dict[str, str]:
    """This process's environment, without the user's own store; this client waits as long as it takes."""
    kept = {name: value for name, value in os.environ.items() if name != "CUTEFORGE_STORE_URL"}
    return {**kept, "CUTEFORGE_INLINE_SECONDS": "600"}


async def _demo(fast: bool) -> None:
    from mcp import Client
    from mcp.client.stdio import StdioServerParameters, stdio_client

    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="cuteforge-demo-") as home:
        log_path = Path(home) / "server.log"
        parameters = StdioServerParameters(
            command=sys.executable,
            args=["-m", "cuteforge.server.cli", "serve", "--home", str(Path(home) / "store")],
            env=_environment(),
        )
        with log_path.open("w") as log:
            try:
                async with Client(stdio_client(parameters, errlog=log), read_timeout_seconds=600) as client:
                    tell = Narrator(client)
                    tell.say("Cuteforge demo: an MCP client drives a real server over stdio.")
                    machine = await tell.call("What is this machine?", "device_info")
                    if machine.get("gpus"):
                        closing = await _loop(tell, "cuda", fast)
                    else:
                        closing = await _loop(tell, "cpu", fast)
                        closing += f"; {await _compile_only(tell)}"
            except BaseException:
                log.flush()
                tail = log_path.read_text()[-2000:]
                if tail.strip():
                    click.echo(f"\nThe server's log ends with:\n{tail}", err=True)
                raise
    click.echo()
    click.echo(click.style(f"Done in {time.monotonic() - started:.0f} s: {closing}.", fg="green", bold=True))


def _leaves(group: BaseExceptionGroup[DemoFailed]) -> list[DemoFailed]:
    found: list[DemoFailed] = []
    for error in group.exceptions:
        found += _leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return found


def run_demo(fast: bool) -> int:
    """Run the demo; 0 only if every step did what it shows."""
    failures: list[DemoFailed] = []
    try:
        anyio.run(_demo, fast)
    except* DemoFailed as group:
        failures += _leaves(group)
    for failure in failures:
        click.echo(click.style(f"\nThe demo failed: {failure}", fg="red"), err=True)
    return 1 if failures else 0
