"""What a kernel must compute: the task as its user gives it, and the spec card derived from it."""

from __future__ import annotations

import keyword
import re
from typing import Literal

from pydantic import Field, field_validator, model_validator

from cuteforge.kernels.dtypes import dtype
from cuteforge.kernels.model import Frozen, content_id

Contract = Literal["kernelbench", "function"]
Target = Literal["cuda", "cpu"]
Role = Literal["input", "parameter", "output"]
WorkloadClass = Literal[
    "matmul",
    "attention",
    "convolution",
    "reduction",
    "normalization",
    "loss",
    "elementwise",
    "sparse",
    "stencil",
    "scan_sort",
    "other",
]

MAX_SOURCE_BYTES = 1_000_000

# Names that would not compile as a parameter of the generated prototype.
_CPP_RESERVED = frozenset(
    "alignas auto bool break case catch char class const constexpr continue default delete do double else "
    "enum explicit export extern false float for friend goto if inline int long mutable namespace new "
    "operator private protected public register return short signed sizeof static struct switch template "
    "this throw true try typedef typename union unsigned using virtual void volatile while stream".split()
)


def check_identifier(name: str) -> str:
    """`name` if it can be a parameter in C++ and Python, else ValueError."""
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,63}", name):
        raise ValueError(f"'{name}' is not an identifier of at most 64 letters, digits and underscores")
    if name in _CPP_RESERVED or keyword.iskeyword(name):
        raise ValueError(f"'{name}' is reserved; choose another name")
    return name


class InputSpec(Frozen):
    """One argument of a `reference(*inputs)` function.

    A tensor has `shape`: integers, size names such as `"rows"`, or products such as `"rows*4"` are given
    as strings and resolved by each case's `sizes`. A scalar has `value` and no shape.
    """

    name: str
    shape: tuple[int | str, ...] | None = None
    dtype: str = "float32"
    value: float | int | bool | None = None
    low: float | None = Field(default=None, description="smallest value drawn (default: standard normal)")
    high: float | None = None

    @field_validator("name")
    @classmethod
    def _name(cls, value: str) -> str:
        return check_identifier(value)

    @field_validator("dtype")
    @classmethod
    def _dtype(cls, value: str) -> str:
        return dtype(value).name

    @model_validator(mode="after")
    def _tensor_or_scalar(self) -> InputSpec:
        if (self.shape is None) == (self.value is None):
            raise ValueError(f"input '{self.name}' needs either a shape (tensor) or a value (scalar)")
        if (self.low is None) != (self.high is None):
            raise ValueError(f"input '{self.name}' needs both low and high, or neither")
        return self


class Case(Frozen):
    """A named set of sizes.

    For a `reference` function they bind the size names of its specs; for a KernelBench source they replace
    module-level constants of the same name.
    """

    name: str = Field(default="default", pattern=r"^[A-Za-z0-9_.-]{1,64}$")
    sizes: dict[str, int | float | bool] = Field(default_factory=dict)


class Tolerance(Frozen):
    """Explicit bounds: an element passes when |out - ref| <= atol + rtol * |ref|."""

    rtol: float = Field(ge=0)
    atol: float = Field(ge=0)


class TaskDefinition(Frozen):
    """A task as its user gives it. `target` says where candidates run."""

    name: str = Field(min_length=1, max_length=120)
    contract: Contract
    source: str = Field(min_length=1, max_length=MAX_SOURCE_BYTES)
    inputs: tuple[InputSpec, ...] = ()
    cases: tuple[Case, ...] = (Case(),)
    target: Target = "cuda"
    dtype: str | None = Field(default=None, description="cast every floating tensor and parameter to this")
    tolerance: Tolerance | None = None
    workload: WorkloadClass | None = None
    description: str = ""

    @field_validator("dtype")
    @classmethod
    def _dtype(cls, value: str | None) -> str | None:
        return None if value is None else dtype(value).name

    @model_validator(mode="after")
    def _consistent(self) -> TaskDefinition:
        if self.contract == "function" and not self.inputs:
            raise ValueError("a `reference` function needs `inputs`: one spec for each argument")
        if not self.cases:
            raise ValueError("a task needs at least one case")
        names = [case.name for case in self.cases]
        if len(set(names)) != len(names):
            raise ValueError("case names must differ")
        return self

    @property
    def id(self) -> str:
        """`t_…`: the hash of the whole definition."""
        return content_id("t", self.model_dump(mode="json"))


class TensorCard(Frozen):
    """One tensor of one case, contiguous in row-major order. Strides are in elements."""

    name: str
    role: Role
    dtype: str
    shape: tuple[int, ...]
    size_names: tuple[str, ...] = Field(description="the prototype's name for each dimension")

    @property
    def elements(self) -> int:
        """Number of elements; 1 for a 0-d tensor."""
        count = 1
        for extent in self.shape:
            count *= extent
        return count

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.elements * dtype(self.dtype).itemsize

    @property
    def strides(self) -> tuple[int, ...]:
        """Row-major strides in elements."""
        strides: list[int] = []
        step = 1
        for extent in reversed(self.shape):
            strides.append(step)
            step *= max(extent, 1)
        return tuple(reversed(strides))


class ScalarCard(Frozen):
    """One scalar argument of one case."""

    name: str
    dtype: Literal["int64", "float64", "bool"]
    value: int | float | bool


class CaseCard(Frozen):
    """What one case moves and computes.

    `min_bytes` is every input and parameter read once and every output written once. `flops` comes from
    torch's flop counter for contractions and from one operation per output element otherwise
    (`flops_source` says which); None where neither could be had.
    """

    case: str
    tensors: tuple[TensorCard, ...]
    scalars: tuple[ScalarCard, ...] = ()
    arguments: tuple[str, ...] = Field(description="tensors and scalars in the reference's own order")
    sizes: dict[str, int]
    min_bytes: int
    flops: int | None
    flops_source: str
    note: str = ""

    @property
    def intensity(self) -> float | None:
        """Arithmetic intensity in FLOP per byte of `min_bytes`."""
        return None if self.flops is None or self.min_bytes == 0 else self.flops / self.min_bytes

    def role(self, role: Role) -> tuple[TensorCard, ...]:
        """The tensors of one role, in prototype order."""
        return tuple(t for t in self.tensors if t.role == role)


class SpecCard(Frozen):
    """Everything derived from a definition by running its reference in the judge."""

    workload: WorkloadClass
    workload_source: Literal["inferred", "given"]
    operators: tuple[str, ...] = ()
    cases: tuple[CaseCard, ...]
    warnings: tuple[str, ...] = ()

    def case(self, name: str) -> CaseCard:
        """The card of the case of that name; KeyError if there is none."""
        for card in self.cases:
            if card.case == name:
                return card
        raise KeyError(name)


class Task(Frozen):
    """A definition with its spec card."""

    definition: TaskDefinition
    card: SpecCard

    @property
    def id(self) -> str:
        """The definition's id."""
        return self.definition.id
