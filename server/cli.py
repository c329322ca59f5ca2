"""The command line: serve, doctor, demo, eval."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from cuteforge.server.config import Settings

_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


def _settings(home: Path | None = None, roots: tuple[Path, ...] = (), **changes: Any) -> Settings:
    from pydantic import ValidationError

    from cuteforge.server.config import Settings

    given: dict[str, Any] = {key: value for key, value in changes.items() if value is not None}
    if home is not None:
        given["home"] = home
    try:
        settings = Settings(**given)
    except ValidationError as error:
        lines = [f"{item['loc'][0] if item['loc'] else ''}: {item['msg']}" for item in error.errors()]
        raise click.ClickException(f"A setting (CUTEFORGE_…) is wrong. {'; '.join(lines)}") from error
    if roots:
        # `--root` adds to the working directory (or what the environment names); it does not replace it.
        settings = settings.model_copy(update={"roots": (*(settings.roots or (Path.cwd(),)), *roots)})
    return settings


def _address(_: click.Context, __: click.Parameter, value: str | None) -> tuple[str, int] | None:
    if value is None:
        return None
    host, colon, port = value.rpartition(":")
    host = host.strip("[]")
    if not colon or not port.isdigit() or int(port) > 65535:
        raise click.BadParameter("give HOST:PORT, for example 127.0.0.1:8765")
    if host not in _LOOPBACK:
        raise click.BadParameter(
            f"'{host}' is not a loopback address. This version has no authentication, so it serves "
            "127.0.0.1, localhost and [::1] only; use an SSH tunnel to reach it from elsewhere."
        )
    return host, int(port)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="cuteforge")
def main() -> None:
    """Cuteforge: GPU kernels written by language models, compiled, checked and measured here."""


@main.command()
@click.option("--stdio", is_flag=True, help="Serve over stdin and stdout (the default).")
@click.option("--http", metavar="HOST:PORT", callback=_address, help="Serve streamable HTTP at /mcp.")
@click.option("--root", "roots", multiple=True, type=_FOLDER, help="A folder that paths may come from.")
@click.option("--home", type=click.Path(path_type=Path), help="Where tasks and results are kept.")
@click.option("--log-level", type=click.Choice(["DEBUG", "INFO", "WARNING", "ERROR"], case_sensitive=False))
@click.option("--allow-weaker-sandbox", is_flag=True, help="Serve HTTP although candidates are not isolated.")
def serve(
    stdio: bool,
    http: tuple[str, int] | None,
    roots: tuple[Path, ...],
    home: Path | None,
    log_level: str | None,
    allow_weaker_sandbox: bool,
) -> None:
    """Run the MCP server."""
    if stdio and http is not None:
        raise click.UsageError("Choose one of --stdio and --http.")
    settings = _settings(home, roots, log_level=log_level)
    from cuteforge.server.app import build_server

    if http is None:
        build_server(settings).run()
        return
    from cuteforge.server.http import serve_http

    _require_sandbox(settings, allow_weaker_sandbox)
    serve_http(build_server(settings), *http)


def _require_sandbox(settings: Settings, allow_weaker: bool) -> None:
    from cuteforge.kernels.errors import EnvironmentProblem
    from cuteforge.sandbox.bubblewrap import probe

    try:
        status = probe(settings.bwrap)
    except EnvironmentProblem as error:
        raise click.ClickException(error.explain()) from error
    if status.kind == "none" and not allow_weaker:
        raise click.ClickException(
            f"HTTP service is refused: candidates cannot be isolated here ({status.detail}). {status.remedy} "
            "To serve without isolation all the same, pass --allow-weaker-sandbox."
        )


@main.command()
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.option("--home", type=click.Path(path_type=Path), help="Where tasks and results are kept.")
def doctor(as_json: bool, home: Path | None) -> None:
    """Say what this machine can do, what is missing, and how to get it. Exit code 1: no target works."""
    from cuteforge.server.doctor import run_doctor

    sys.exit(run_doctor(_settings(home), as_json))


@main.command()
@click.option("--fast", is_flag=True, help="Smaller sizes and fewer samples.")
def demo(fast: bool) -> None:
    """Run the whole loop once, narrated: a task, a bug, a patch, a verdict, a speedup."""
    from cuteforge.server.demo import run_demo

    sys.exit(run_demo(fast))


@main.command("eval")
@click.argument("file", type=_FILE)
@click.option("--task", "task_file", type=_FILE, required=True, help="The reference, a Python file.")
@click.option("--json", "as_json", is_flag=True, help="Print the records as JSON.")
@click.option("--home", type=click.Path(path_type=Path), help="Where tasks and results are kept.")
def evaluate(file: Path, task_file: Path, as_json: bool, home: Path | None) -> None:
    """Compile, check and benchmark FILE against a reference. Exit code 0: correct; 1: not."""
    from cuteforge.server.evaluate import run_eval

    sys.exit(run_eval(file, task_file, as_json, _settings(home)))


if __name__ == "__main__":
    main()
