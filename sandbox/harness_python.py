"""Runs a Python candidate (KernelBench's `ModelNew`) inside the sandbox, over the judge's buffers.

Imported by the pre-warmed worker, where torch is loaded already.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

import torch

from cuteforge.kernels.task import Case, TaskDefinition
from cuteforge.sandbox.channel import Channel
from cuteforge.sandbox.harness import CandidateError, serve
from cuteforge.sandbox.memory import Buffer
from cuteforge.sandbox.reference import build_on, load_module, place
from cuteforge.sandbox.tensors import dtype_name, memory_for, typed


def _own_words(error: BaseException, folder: str) -> str:
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename.startswith(folder)]
    where = ""
    if frames:
        where = f" at {Path(frames[-1].filename).relative_to(folder)}:{frames[-1].lineno}"
    return f"{type(error).__name__}{where}: {str(error)[:1000]}"


class PythonProgram:
    """A loaded module with its arguments in mapped buffers."""

    def __init__(self, config: dict[str, Any], artefact_fd: int) -> None:
        self._config = config
        self._target = config["target"]
        self._memory = memory_for(self._target)
        self._buffers: dict[int, dict[str, Buffer]] = {}
        self._arguments: dict[int, list[Any]] = {}
        self._outputs: dict[int, list[tuple[str, torch.Tensor]]] = {}
        self._folder = tempfile.mkdtemp(prefix="candidate-")
        with open(artefact_fd, "rb") as stream:
            files = json.loads(stream.read())
        for path, text in files.items():
            place = Path(self._folder, path)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text)
        os.chdir(self._folder)
        sys.path.insert(0, self._folder)
        self._model: Any = None

    def _build(self, parameters: dict[str, torch.Tensor]) -> Any:
        definition = TaskDefinition.model_validate(self._config["definition"])
        case = Case.model_validate(self._config["cases"][self._case_name])
        device = "cuda" if self._target == "cuda" else "cpu"
        init_inputs: list[Any] = []
        if definition.contract == "kernelbench":
            # The same constructor arguments and seed as the reference: KernelBench's own rule.
            namespace = load_module(definition.source, dict(case.sizes))
            torch.manual_seed(0)
            made = namespace.get("get_init_inputs", list)()
            init_inputs = list(made) if isinstance(made, list | tuple) else [made]
        module_name = Path(self._config["main_file"]).with_suffix("").as_posix().replace("/", ".")
        module = importlib.import_module(module_name)
        found = getattr(module, self._config["entry"]["class_name"], None)
        if found is None:
            raise CandidateError(
                f"{self._config['main_file']} defines no {self._config['entry']['class_name']}"
            )
        torch.manual_seed(0)
        model = build_on(device, lambda: found(*init_inputs))
        if isinstance(model, torch.nn.Module):
            model = place(model, device, definition.dtype)
            self._share_parameters(model, parameters)
        return model

    @staticmethod
    def _share_parameters(model: torch.nn.Module, parameters: dict[str, torch.Tensor]) -> None:
        """Where a name and shape of the reference's parameters recur, the values do too."""
        with torch.no_grad():
            for name, value in model.state_dict().items():
                given = parameters.get(re.sub(r"\W", "_", name))
                if given is not None and given.shape == value.shape:
                    value.copy_(given)

    def bind(self, key: int, tensors: list[dict[str, Any]], names: dict[str, Any], fds: list[int]) -> None:
        """See harness.Program.bind."""
        buffers: dict[str, Buffer] = {}
        views: dict[str, torch.Tensor] = {}
        for tensor, fd in zip(tensors, fds, strict=True):
            buffer = self._memory.attach(fd, int(tensor["nbytes"]), tensor["role"] != "output")
            buffers[tensor["name"]] = buffer
            views[tensor["name"]] = typed(buffer, self._target, tensor["dtype"], tensor["shape"])
        self._buffers[key] = buffers
        self._arguments[key] = [views[n] if n in views else names[n] for n in self._config["inputs"]]
        self._outputs[key] = [(t["name"], views[t["name"]]) for t in tensors if t["role"] == "output"]
        self._case_name = self._matching_case(names, tensors)
        parameters = {t["name"]: views[t["name"]] for t in tensors if t["role"] == "parameter"}
        try:
            if key == 0 or self._model is None:
                self._model = self._build(parameters)
        except CandidateError:
            raise
        # A candidate may raise anything, SystemExit too; it is its author's to see.
        except BaseException as error:
            raise CandidateError(f"building the module: {_own_words(error, self._folder)}") from error

    def _matching_case(self, names: dict[str, Any], tensors: list[dict[str, Any]]) -> str:
        shapes = [list(t["shape"]) for t in tensors]
        for name, expected in self._config["case_shapes"].items():
            if expected == shapes:
                return str(name)
        raise CandidateError("no case has these shapes")

    def release(self, key: int) -> None:
        """See harness.Program.release."""
        self._arguments.pop(key)
        self._outputs.pop(key)
        for buffer in self._buffers.pop(key).values():
            self._memory.free(buffer)

    def _synchronize(self) -> None:
        if self._target == "cuda":
            torch.cuda.synchronize()

    @torch.no_grad()
    def call(self, key: int) -> None:
        """See harness.Program.call."""
        try:
            result = self._model(*self._arguments[key])
            self._deliver(key, result)
            self._synchronize()
        except CandidateError:
            raise
        except BaseException as error:
            text = _own_words(error, self._folder)
            raise CandidateError(text, alive="CUDA error" not in text) from error

    def _deliver(self, key: int, result: Any) -> None:
        values = list(result) if isinstance(result, tuple | list) else [result]
        wanted = self._outputs[key]
        if len(values) != len(wanted):
            raise CandidateError(f"returned {len(values)} outputs instead of {len(wanted)}", alive=True)
        for value, (name, output) in zip(values, wanted, strict=True):
            # A subclass could compute lazily or lie about itself.
            if type(value) is not torch.Tensor and type(value) is not torch.nn.Parameter:
                raise CandidateError(f"{name} is a {type(value).__name__}, not a torch.Tensor", alive=True)
            if value.shape != output.shape:
                raise CandidateError(
                    f"{name} has shape {tuple(value.shape)} instead of {tuple(output.shape)}", alive=True
                )
            if value.dtype != output.dtype:
                raise CandidateError(
                    f"{name} has dtype {dtype_name(value.dtype)} instead of {dtype_name(output.dtype)}",
                    alive=True,
                )
            if value.device.type != output.device.type:
                raise CandidateError(f"{name} is on {value.device}, not on {output.device.type}", alive=True)
            output.copy_(value)

    @torch.no_grad()
    def timed(self, keys: list[int], calls: int) -> float:
        """See harness.Program.timed. The last call's result is delivered after the clock stopped."""
        plan = [self._arguments[keys[i % len(keys)]] for i in range(calls)]
        model = self._model
        result: Any = None
        try:
            if self._target == "cuda":
                start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                torch.cuda.synchronize()
                start.record()
                for arguments in plan:
                    result = model(*arguments)
                end.record()
                torch.cuda.synchronize()
                elapsed = start.elapsed_time(end) * 1e6
            else:
                begin = time.perf_counter_ns()
                for arguments in plan:
                    result = model(*arguments)
                elapsed = float(time.perf_counter_ns() - begin)
            self._deliver(keys[(calls - 1) % len(keys)], result)
            self._synchronize()
        except CandidateError:
            raise
        except BaseException as error:
            text = _own_words(error, self._folder)
            raise CandidateError(text, alive="CUDA error" not in text) from error
        return float(max(elapsed, 1.0))


def run(config: dict[str, Any], fds: list[int]) -> None:
    """Serve the judge: `fds` are the link and the artefact."""
    link_fd, artefact_fd = fds
    serve(Channel.from_fd(link_fd), lambda: PythonProgram(config, artefact_fd))
