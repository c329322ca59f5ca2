"""A task's reference, made runnable: sources in both contracts, at any case, seed, dtype and device.

Imported only inside the sandbox: it executes the user's reference source.
"""

from __future__ import annotations

import ast
import copy
import inspect
import linecache
import re
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import torch

from cuteforge.kernels.dtypes import DTYPES
from cuteforge.kernels.errors import InvalidRequest
from cuteforge.kernels.launch import evaluate
from cuteforge.kernels.task import Case, InputSpec, TaskDefinition, check_identifier
from cuteforge.sandbox.tensors import TORCH_DTYPES, dtype_name

SOURCE_NAME = "reference.py"
Values = list[Any]


def _failure(step: str, error: BaseException) -> InvalidRequest:
    """The reference's own error, with the line of its source that raised it."""
    lines = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == SOURCE_NAME]
    where = f" at line {lines[-1].lineno} ('{(lines[-1].line or '').strip()[:120]}')" if lines else ""
    text = f"{type(error).__name__}: {str(error)[:600]}"
    return InvalidRequest(f"The reference failed in {step}{where}: {text}.", "Mend the reference source.")


def guarded(step: str, call: Callable[[], Any]) -> Any:
    """Call into the reference; whatever it raises becomes an InvalidRequest that names step and line.

    Running out of memory is reported as such, because the remedy differs.
    """
    try:
        return call()
    except torch.OutOfMemoryError as error:
        raise InvalidRequest(
            f"The reference ran out of device memory in {step}.", "Use smaller cases."
        ) from error
    except InvalidRequest:
        raise
    # The reference is foreign code: anything it raises is its user's to see.
    except BaseException as error:
        raise _failure(step, error) from error


class _Constants(ast.NodeTransformer):
    """Replaces module-level constants by the sizes of a case."""

    def __init__(self, values: dict[str, int | float | bool]) -> None:
        self.values = values
        self.replaced: set[str] = set()

    def visit_Module(self, node: ast.Module) -> ast.Module:
        for statement in node.body:
            targets: list[ast.expr] = []
            if isinstance(statement, ast.Assign):
                targets = statement.targets
            elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
                targets = [statement.target]
            if len(targets) == 1 and isinstance(targets[0], ast.Name) and targets[0].id in self.values:
                name = targets[0].id
                replacement = ast.copy_location(ast.Constant(self.values[name]), statement)
                assert isinstance(statement, ast.Assign | ast.AnnAssign)
                statement.value = replacement
                self.replaced.add(name)
        return ast.fix_missing_locations(node)


def load_module(source: str, constants: dict[str, int | float | bool]) -> dict[str, Any]:
    """Execute a reference source with module constants replaced; returns its namespace."""
    try:
        tree = ast.parse(source, SOURCE_NAME)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None)
        where = f" at line {line}" if line else ""
        raise InvalidRequest(
            f"The reference is not valid Python{where}: {error}.", "Mend the reference source."
        ) from error
    transformer = _Constants(constants)
    tree = transformer.visit(tree)
    missing = sorted(set(constants) - transformer.replaced)
    if missing:
        raise InvalidRequest(
            f"The case sets {', '.join(missing)}, which the reference does not define at module level.",
            "Name module-level constants of the reference in `cases[].sizes`.",
        )
    # Lets tracebacks and TorchScript-like tools show the source lines.
    linecache.cache[SOURCE_NAME] = (len(source), None, source.splitlines(True), SOURCE_NAME)
    namespace: dict[str, Any] = {"__name__": "reference", "__file__": SOURCE_NAME}
    code = compile(tree, SOURCE_NAME, "exec")
    guarded("its module body", lambda: exec(code, namespace))
    return namespace


def integer_constants(source: str) -> dict[str, int]:
    """Module-level `NAME = <int>` assignments of a source, in order."""
    found: dict[str, int] = {}
    for statement in ast.parse(source).body:
        if (
            isinstance(statement, ast.Assign)
            and len(statement.targets) == 1
            and isinstance(statement.targets[0], ast.Name)
            and isinstance(statement.value, ast.Constant)
            and type(statement.value.value) is int
        ):
            found[statement.targets[0].id] = statement.value.value
    return found


def build_on(device: str, construct: Callable[[], Any]) -> Any:
    """Construct a module with its parameters made on the device from the start."""
    with torch.device(device):
        return construct()


def place(model: torch.nn.Module, device: str, dtype: str | None) -> torch.nn.Module:
    """The module on the device and in the task's dtype; untouched where it is so already."""
    kinds = [*model.parameters(), *model.buffers()]
    if any(t.device.type != device for t in kinds):
        model = model.to(device)
    wanted = TORCH_DTYPES[dtype] if dtype else None
    if wanted is not None and any(t.is_floating_point() and t.dtype != wanted for t in kinds):
        model = model.to(wanted)
    return model


def resolve_shape(spec: InputSpec, sizes: dict[str, int | float | bool]) -> tuple[int, ...]:
    """The shape of a tensor spec at one case. Raises InvalidRequest for an unbound or bad size."""
    assert spec.shape is not None
    shape: list[int] = []
    for extent in spec.shape:
        value = extent if isinstance(extent, int) else evaluate(extent, sizes)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise InvalidRequest(
                f"Dimension '{extent}' of input '{spec.name}' is {value}.",
                "Dimensions are integers of at least 0; bind size names in `cases[].sizes`.",
            )
        shape.append(value)
    return tuple(shape)


def flatten_outputs(result: Any) -> list[torch.Tensor]:
    """A reference's or module's result as a list of tensors. Raises InvalidRequest for anything else."""
    values = list(result) if isinstance(result, tuple | list) else [result]
    if not values or not all(isinstance(v, torch.Tensor) for v in values):
        kinds = ", ".join(type(v).__name__ for v in values) or "nothing"
        raise InvalidRequest(
            f"The result is {kinds}; it must be a tensor or a tuple of tensors.", "Return tensors only."
        )
    return values


class Reference:
    """One task's reference at one case.

    `argument_names`, `parameters` and `run` speak of the same things as the task's prototype. The module of
    a KernelBench source is built once, with the given seed, on `device`.
    """

    def __init__(self, definition: TaskDefinition, case: Case, device: str, seed: int = 0) -> None:
        self.definition = definition
        self.case = case
        self.device = device
        self.parameters: dict[str, torch.Tensor] = {}
        self._model: Any = None
        constants = case.sizes if definition.contract == "kernelbench" else {}
        self._namespace = load_module(definition.source, dict(constants))
        if definition.contract == "kernelbench":
            self._build_model(seed)
        else:
            self._function: Any = self._namespace.get("reference")
            if not callable(self._function):
                raise InvalidRequest(
                    "The reference source defines no function named `reference`.",
                    "Define `def reference(*inputs)`, or KernelBench's `Model` and `get_inputs`.",
                )
            self.argument_names = [spec.name for spec in definition.inputs]

    def _build_model(self, seed: int) -> None:
        namespace = self._namespace
        for name in ("Model", "get_inputs"):
            if not callable(namespace.get(name)):
                raise InvalidRequest(
                    f"The reference source defines no `{name}`.",
                    "A KernelBench source defines `Model`, `get_inputs` and, for arguments of `Model`, "
                    "`get_init_inputs`.",
                )
        torch.manual_seed(seed)
        arguments = guarded("get_init_inputs", namespace.get("get_init_inputs", list))
        self.init_inputs = list(arguments) if isinstance(arguments, list | tuple) else [arguments]
        torch.manual_seed(seed)
        model = guarded("Model(*get_init_inputs())", lambda: build_on(self.device, self._construct))
        if not isinstance(model, torch.nn.Module):
            raise InvalidRequest("`Model` is not a torch.nn.Module.", "Derive it from torch.nn.Module.")
        self._model = model = guarded("Model.to", lambda: place(model, self.device, self.definition.dtype))
        for name, value in model.state_dict().items():
            self.parameters[re.sub(r"\W", "_", name)] = value
        self.argument_names = self._forward_names(model)

    def _construct(self) -> Any:
        return self._namespace["Model"](*self.init_inputs)

    @staticmethod
    def _forward_names(model: torch.nn.Module) -> list[str]:
        names: list[str] = []
        for parameter in inspect.signature(model.forward).parameters.values():
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                break
            names.append(parameter.name)
        return names

    def argument_name(self, index: int) -> str:
        """The prototype's name of the `index`-th argument, made usable as an identifier."""
        name = self.argument_names[index] if index < len(self.argument_names) else f"in{index}"
        try:
            return check_identifier(name)
        except ValueError:
            return f"{name}_"

    def _cast(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        value = value.detach().to(self.device)
        if self.definition.dtype and value.is_floating_point():
            value = value.to(TORCH_DTYPES[self.definition.dtype])
        if dtype_name(value.dtype) not in DTYPES:
            raise InvalidRequest(
                f"An input has element type {value.dtype}, which is not supported.",
                f"Use one of {', '.join(DTYPES)}.",
            )
        return value.contiguous()

    def inputs(self, seed: int) -> Values:
        """The arguments as the task itself draws them, on the device, contiguous."""
        torch.manual_seed(seed)
        if self.definition.contract == "kernelbench":
            device = torch.device(self.device)

            def draw() -> Any:
                with device:
                    return self._namespace["get_inputs"]()

            values = guarded("get_inputs", draw)
            if not isinstance(values, list | tuple):
                raise InvalidRequest("`get_inputs` returns no list.", "Return a list of tensors and scalars.")
        else:
            values = [self._draw(spec) for spec in self.definition.inputs]
        for value in values:
            if not isinstance(value, torch.Tensor | int | float | bool):
                raise InvalidRequest(
                    f"An input is a {type(value).__name__}.", "Inputs are tensors, numbers and booleans."
                )
        return [self._cast(value) for value in values]

    def _draw(self, spec: InputSpec) -> Any:
        if spec.shape is None:
            return spec.value
        shape = resolve_shape(spec, self.case.sizes)
        kind = TORCH_DTYPES[spec.dtype]
        if spec.dtype == "bool":
            return torch.randint(0, 2, shape, device=self.device).bool()
        if not kind.is_floating_point:
            low = 0 if spec.low is None else int(spec.low)
            high = 100 if spec.high is None else int(spec.high)
            return torch.randint(low, max(high, low + 1), shape, device=self.device).to(kind)
        drawn = torch.float64 if spec.dtype == "float64" else torch.float32
        if spec.low is None or spec.high is None:
            return torch.randn(shape, device=self.device, dtype=drawn).to(kind)
        uniform = torch.rand(shape, device=self.device, dtype=drawn)
        return (uniform * (spec.high - spec.low) + spec.low).to(kind)

    def run(self, values: Sequence[Any]) -> list[torch.Tensor]:
        """The reference's outputs for these arguments, contiguous, on the device.

        The arguments are not protected from a reference that works in place: pass clones where it matters.
        """
        callee = self._model if self._model is not None else self._function

        def call() -> list[torch.Tensor]:
            with torch.no_grad():
                return flatten_outputs(callee(*values))

        outputs: list[torch.Tensor] = guarded("its forward pass", call)
        return [o.detach().contiguous() for o in outputs]

    def callable(self) -> Callable[..., Any]:
        """The module or function itself, for timing and compilation."""
        found: Callable[..., Any] = self._model if self._model is not None else self._function
        return found

    def in_double(self) -> Reference:
        """The same reference with its parameters in float64; share nothing that is written."""
        twin = copy.copy(self)
        if self._model is not None:
            twin._model = copy.deepcopy(self._model).double()
        return twin


def upcast(values: Sequence[Any]) -> Values:
    """Floating tensors as float64, everything else as it is."""
    return [v.double() if isinstance(v, torch.Tensor) and v.is_floating_point() else v for v in values]


def clone(values: Sequence[Any]) -> Values:
    """Tensors cloned, everything else as it is."""
    return [v.clone() if isinstance(v, torch.Tensor) else v for v in values]
