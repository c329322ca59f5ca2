"""Compilations that need not be repeated, by the hash of everything that decides their outcome."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Protocol

from pydantic import ValidationError

from cuteforge.kernels.records import CompileRecord


class CompileCache(Protocol):
    """Where finished compilations are kept. Called in threads."""

    def get(self, key: str) -> CompileRecord | None:
        """The record stored under a key, or None."""
        ...

    def put(self, key: str, record: CompileRecord) -> None:
        """Keep a record; a cache that cannot write keeps nothing and does not fail."""
        ...


def cache_key(*parts: object) -> str:
    """The SHA-256 of the canonical JSON of the parts."""
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"), ensure_ascii=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


class FolderCache:
    """Records as JSON files, written atomically; several processes may share the folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def _place(self, key: str) -> Path:
        return self._folder / key[:2] / f"{key}.json"

    def get(self, key: str) -> CompileRecord | None:
        """See CompileCache.get. A damaged entry, or one of another version, is no entry."""
        try:
            return CompileRecord.model_validate_json(self._place(key).read_bytes())
        except (OSError, ValidationError):
            return None

    def put(self, key: str, record: CompileRecord) -> None:
        """See CompileCache.put."""
        place = self._place(key)
        with contextlib.suppress(OSError):
            place.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=place.parent, prefix=".new-")
            try:
                with os.fdopen(handle, "w") as stream:
                    stream.write(record.model_dump_json())
                os.replace(name, place)
            except OSError:
                os.unlink(name)
                raise
