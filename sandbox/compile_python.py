"""Python candidates: parsed, never executed here; the artefact is their files as JSON."""

from __future__ import annotations

import ast
import json
import warnings

from cuteforge.kernels.candidate import Candidate, ModuleEntry
from cuteforge.kernels.records import Diagnostic
from cuteforge.sandbox.build import Built
from cuteforge.sandbox.diagnostics import from_syntax_error


def _parse(path: str, text: str) -> tuple[ast.Module | None, Diagnostic | None]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text, path)
            compile(tree, path, "exec", dont_inherit=True)
    except SyntaxError as error:
        return None, from_syntax_error(error, path, text)
    except (ValueError, RecursionError, MemoryError) as error:
        return None, Diagnostic(severity="error", message=f"{type(error).__name__}: {error}"[:300], file=path)
    return tree, None


def _defined(tree: ast.Module) -> set[str]:
    """Names that module-level code can bind: also inside `if`, `try` and `with`, and by import."""
    names: set[str] = set()
    pending: list[ast.stmt] = list(tree.body)
    while pending:
        node = pending.pop()
        match node:
            case ast.ClassDef() | ast.FunctionDef():
                names.add(node.name)
            case ast.Assign():
                names |= {t.id for t in node.targets if isinstance(t, ast.Name)}
            case ast.AnnAssign() if isinstance(node.target, ast.Name):
                names.add(node.target.id)
            case ast.Import() | ast.ImportFrom():
                names |= {(a.asname or a.name).split(".")[0] for a in node.names}
            case ast.If() | ast.Try() | ast.With():
                pending += [s for s in ast.iter_child_nodes(node) if isinstance(s, ast.stmt)]
                for handler in getattr(node, "handlers", []):
                    pending += handler.body
            case _:
                pass
    return names


def compile_module(candidate: Candidate) -> Built:
    """Check every `.py` file's syntax and that the entry's class is bound at module level."""
    assert isinstance(candidate.entry, ModuleEntry)
    found: list[Diagnostic] = []
    main = candidate.main_file
    for file in candidate.files:
        if not file.path.endswith(".py"):
            continue
        tree, problem = _parse(file.path, file.text)
        if problem is not None:
            found.append(problem)
        elif file is main and tree is not None:
            names = _defined(tree)
            if candidate.entry.class_name not in names and "*" not in names:
                message = f"{main.path} defines no `{candidate.entry.class_name}` at module level"
                note = "a class with KernelBench's contract: `ModelNew(*init_inputs)(*inputs)`"
                found.append(Diagnostic(severity="error", message=message, file=main.path, notes=(note,)))
    if not main.path.endswith(".py"):
        found.append(Diagnostic(severity="error", message=f"{main.path} is no .py file", file=main.path))
    if found:
        return Built("", tuple(found))
    files = {f.path: f.text for f in candidate.files}
    return Built("", (), json.dumps(files, sort_keys=True).encode())
