"""The base of every record: frozen, closed to unknown fields, and hashable by content."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime
from typing import Any

from pydantic import BaseModel, ConfigDict


class Frozen(BaseModel):
    """An immutable value; two with equal fields are equal."""

    # JSON has no infinity; as null it could not be read again as the number that it was.
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")


def content_id(prefix: str, content: Any) -> str:
    """`prefix_` and 12 hex digits of the SHA-256 of the canonical JSON of `content`.

    >>> content_id("t", {"b": 1, "a": 2}) == content_id("t", {"a": 2, "b": 1})
    True
    """
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return f"{prefix}_{hashlib.sha256(canonical.encode('utf-8', 'surrogatepass')).hexdigest()[:12]}"


def utc_now() -> datetime:
    """The current time, aware, in UTC."""
    return datetime.now(UTC)
