"""`cuteforge doctor`: what this machine can do, for a person or a program."""

from __future__ import annotations

import anyio
import click

from cuteforge.kernels.artifacts import Artifacts
from cuteforge.kernels.errors import CuteforgeError
from cuteforge.sandbox.executor import DeviceReport
from cuteforge.sandbox.local import LocalExecutor, LocalOptions
from cuteforge.server.config import Settings


async def report(settings: Settings) -> DeviceReport:
    """Look at the machine; starts nothing that stays."""
    options = LocalOptions(
        folder=settings.home,
        cuda_home=settings.cuda_home,
        cutlass=settings.cutlass_path,
        bwrap=settings.bwrap,
    )
    executor = await LocalExecutor.open(options, Artifacts(settings.home / "artifacts"))
    try:
        return await executor.describe()
    finally:
        await executor.aclose()


def works(found: DeviceReport) -> bool:
    """Whether the main job works here on some target: PyTorch, and a compiler for the CPU or for a GPU."""
    ok = {item.name for item in found.findings if item.ok}
    return "torch" in ok and ("g++" in ok or (bool(found.gpus) and bool(ok & {"nvcc", "NVRTC"})))


def run_doctor(settings: Settings, as_json: bool) -> int:
    """Print the report; 0 if the main job works here, else 1. ClickException for a setting that is wrong."""
    try:
        found = anyio.run(report, settings)
    except CuteforgeError as error:
        raise click.ClickException(error.explain()) from error
    if as_json:
        click.echo(found.model_dump_json(indent=1))
        return 0 if works(found) else 1
    click.echo(f"CPU    {found.cpu}, {found.cores} cores")
    for gpu in found.gpus:
        memory = gpu.memory_bytes / 2**30
        click.echo(
            f"GPU {gpu.index}  {gpu.name}, {gpu.compute_capability}, {memory:.0f} GiB, driver {gpu.driver}"
        )
    for item in found.findings:
        click.echo(f"{'ok     ' if item.ok else 'MISSING'} {item.name}: {item.detail}")
        if item.remedy and not item.ok:
            click.echo(f"        -> {item.remedy}")
    click.echo("The main job works here." if works(found) else "The main job does not work here yet.")
    return 0 if works(found) else 1
