"""Settings: defaults, the environment (`CUTEFORGE_…`), and the command line over both."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

LogLevel = Literal["DEBUG", "INFO", "WARNING", "ERROR"]


def default_home() -> Path:
    """`$XDG_DATA_HOME/cuteforge`, else `~/.local/share/cuteforge` (XDG Base Directory Specification)."""
    base = os.environ.get("XDG_DATA_HOME", "")
    # The specification says that a relative value is to be ignored.
    return (Path(base) if os.path.isabs(base) else Path.home() / ".local" / "share") / "cuteforge"


class Settings(BaseSettings):
    """How this server is run. Durations are in seconds, sizes in bytes.

    `roots` in the environment is a list separated like PATH; empty means the working directory.
    `inline_seconds` is how long a call waits for its work before it answers with a job id.
    """

    model_config = SettingsConfigDict(env_prefix="CUTEFORGE_", frozen=True, extra="forbid")

    home: Path = Field(default_factory=default_home)
    store_url: str = Field(default="", description="any SQLAlchemy URL; empty means SQLite under `home`")
    roots: Annotated[tuple[Path, ...], NoDecode] = ()
    cuda_home: Path | None = None
    cutlass_path: Path | None = None
    bwrap: Path | None = None
    inline_seconds: float = Field(default=45.0, gt=0)
    derive_seconds: float = Field(default=180.0, gt=0)
    compile_seconds: float = Field(default=300.0, gt=0)
    check_seconds: float = Field(default=300.0, gt=0)
    benchmark_seconds: float = Field(default=600.0, gt=0)
    warm_workers: int | None = Field(default=None, ge=0, le=16)
    memory_bytes: int = Field(default=16 * 1024**3, ge=256 * 1024**2)
    sandbox: Literal["require", "allow-none"] = "allow-none"
    log_level: LogLevel = "INFO"

    @field_validator("roots", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        if isinstance(value, str):
            return tuple(part for part in value.split(os.pathsep) if part)
        return value

    @field_validator("log_level", mode="before")
    @classmethod
    def _upper(cls, value: object) -> object:
        return value.upper() if isinstance(value, str) else value

    def allowed_roots(self) -> tuple[Path, ...]:
        """The folders that input by path may come from, resolved."""
        return tuple(root.expanduser().resolve() for root in self.roots or (Path.cwd(),))

    def deadline(self, kind: str) -> float:
        """Seconds that a job of this kind may take, waiting for its turn included."""
        steps = {
            "derive": self.derive_seconds,
            "compile": self.compile_seconds,
            "check": self.compile_seconds + self.check_seconds,
            "benchmark": self.compile_seconds + self.check_seconds + self.benchmark_seconds,
        }
        return steps[kind]
