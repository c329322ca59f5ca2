"""Types, import direction and start-up imports: the parts of `make check` that need a package tree.

The rooms lie at the repository's root and are installed under `cuteforge`; type checker and import linter
want a real tree, which is made of links under build/typecheck.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TREE = ROOT / "build" / "typecheck"
ROOMS = ("kernels", "profiles", "sandbox", "guidelines", "tools", "server")
_HEAVY = ("torch", "cuda", "sqlalchemy", "numpy")


def make_tree() -> None:
    """build/typecheck/cuteforge with one link for each room."""
    package = TREE / "cuteforge"
    package.mkdir(parents=True, exist_ok=True)
    # The installed `cuteforge` is a namespace package; the linter's graph needs a regular one.
    (package / "__init__.py").touch()
    for room in ROOMS:
        link = package / room
        if not link.is_symlink():
            link.symlink_to(ROOT / room)


def run(what: str, *command: str) -> bool:
    """Run a check with the tree in front of the import path."""
    print(f"== {what}", flush=True)
    env = {**os.environ, "PYTHONPATH": str(TREE), "MYPYPATH": str(TREE)}
    return subprocess.run(command, cwd=ROOT, env=env, check=False).returncode == 0


def start_up_is_light() -> bool:
    """The server's modules load neither torch nor CUDA, nor what only the first call needs."""
    print("== imports of the server", flush=True)
    code = (
        "import sys, cuteforge.server.app, cuteforge.server.cli; "
        f"found = [m for m in {_HEAVY!r} if m in sys.modules]; "
        "print('heavy imports:', found or 'none'); sys.exit(bool(found))"
    )
    return subprocess.run([sys.executable, "-c", code], cwd="/", check=False).returncode == 0


def main() -> int:
    """Run all checks and say which failed."""
    make_tree()
    python = sys.executable
    results = {
        "types": run("types (mypy --strict)", python, "-m", "mypy", "-p", "cuteforge"),
        "imports": run("import direction", str(Path(python).with_name("lint-imports")), "--no-cache"),
        "start-up": start_up_is_light(),
    }
    failed = [name for name, ok in results.items() if not ok]
    print(f"check: {'failed: ' + ', '.join(failed) if failed else 'all passed'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
