"""One attempt at a task: sources, entry and build options, immutable and known by their hash."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from cuteforge.kernels.model import Frozen, content_id
from cuteforge.kernels.task import MAX_SOURCE_BYTES, check_identifier

Language = Literal["cute", "cuda", "cpp", "python"]
MAX_FILES = 32


def check_relative_path(path: str) -> str:
    """`path` if it is a plain relative POSIX path that stays inside its folder, else ValueError."""
    pure = PurePosixPath(path)
    if not path or path != str(pure) or pure.is_absolute() or "\\" in path or "\0" in path or len(path) > 200:
        raise ValueError(f"'{path}' is not a plain relative path")
    if any(part in ("..", ".", ".git") for part in pure.parts):
        raise ValueError(f"'{path}' leaves the candidate's folder or enters .git")
    if not all(ch.isprintable() for ch in path) or path.startswith("-"):
        raise ValueError(f"'{path}' has characters that a file name here may not have")
    return path


class SourceFile(Frozen):
    """One UTF-8 source file; `path` is relative to the candidate's folder."""

    path: str
    text: str = Field(max_length=MAX_SOURCE_BYTES)

    @field_validator("path")
    @classmethod
    def _path(cls, value: str) -> str:
        return check_relative_path(value)


class LauncherEntry(Frozen):
    """A host function with the prototype of the task's `task.h`."""

    kind: Literal["launcher"] = "launcher"


class KernelEntry(Frozen):
    """A `__global__` function and its launch, as expressions over sizes, scalars and `defines`.

    `grid` and `block` are one to three expressions; `args` name tensors, sizes, scalars or expressions,
    in the order of the kernel's parameters. Example for `relu(const float* x, float* y, int64_t n)`:
    `grid=("ceil_div(rows*cols, BLOCK)",)`, `block=("BLOCK",)`, `args=("x", "y", "rows*cols")`.
    """

    kind: Literal["kernel"] = "kernel"
    function: str = Field(min_length=1, max_length=500)
    grid: tuple[str, ...] = Field(min_length=1, max_length=3)
    block: tuple[str, ...] = Field(min_length=1, max_length=3)
    shared_bytes: str = "0"
    args: tuple[str, ...]


class ModuleEntry(Frozen):
    """A Python class with KernelBench's contract: `ModelNew(*init_inputs)(*inputs)`."""

    kind: Literal["module"] = "module"
    class_name: str = "ModelNew"


Entry = Annotated[LauncherEntry | KernelEntry | ModuleEntry, Field(discriminator="kind")]


class BuildOptions(Frozen):
    """`defines` become `-D`; `flags` are checked against an allow-list by the compiler driver."""

    defines: dict[str, int | float | str] = Field(default_factory=dict)
    flags: tuple[str, ...] = ()
    arch: str | None = Field(default=None, pattern=r"^sm_[0-9]{2,3}[af]?$")

    @field_validator("defines")
    @classmethod
    def _names(cls, value: dict[str, int | float | str]) -> dict[str, int | float | str]:
        for name in value:
            check_identifier(name)
        return value


class Candidate(Frozen):
    """One attempt. The same content for the same task is the same candidate, whoever its parent is."""

    task_id: str
    language: Language
    files: tuple[SourceFile, ...] = Field(min_length=1, max_length=MAX_FILES)
    entry: Entry
    build: BuildOptions = BuildOptions()
    parent_id: str | None = None
    note: str = Field(default="", max_length=2000)

    @model_validator(mode="after")
    def _consistent(self) -> Candidate:
        paths = [f.path for f in self.files]
        if len(set(paths)) != len(paths):
            raise ValueError("two files have the same path")
        if not any(f.text.strip() for f in self.files):
            raise ValueError("the source is empty")
        if "task.h" in paths:
            raise ValueError("'task.h' is generated from the task; name your file otherwise")
        allowed = {"cpp": ("launcher",), "python": ("module",)}.get(self.language, ("launcher", "kernel"))
        if self.entry.kind not in allowed:
            raise ValueError(f"language '{self.language}' takes entry {' or '.join(allowed)}")
        return self

    @property
    def id(self) -> str:
        """`c_…`: the hash of task, language, files, entry and build options."""
        return content_id("c", self.model_dump(mode="json", exclude={"parent_id", "note"}))

    @property
    def main_file(self) -> SourceFile:
        """The file that is compiled or imported: the first one with a source suffix."""
        suffixes = {"python": (".py",), "cpp": (".cpp", ".cc", ".cxx", ".c")}.get(
            self.language, (".cu", ".cpp", ".cc")
        )
        for file in self.files:
            if file.path.endswith(suffixes):
                return file
        return self.files[0]
