"""The guides: Markdown with front matter, found by id."""

from __future__ import annotations

import functools
import re
from importlib.resources import files

from cuteforge.kernels.errors import NotFound
from cuteforge.kernels.model import Frozen

_FRONT = re.compile(r"\A---\n(.*?)\n---\n(.*)\Z", re.DOTALL)


class Guide(Frozen):
    """One guide. `text` is Markdown without the front matter."""

    id: str
    title: str
    tags: tuple[str, ...]
    text: str


def parse(source: str, name: str) -> Guide:
    """A guide from its file's text. The front matter has `id`, `title` and comma-separated `tags`.

    Raises ValueError when it lacks one of them.

    >>> parse("---\\nid: a\\ntitle: A guide\\ntags: x, y\\n---\\nText.\\n", "a.md").tags
    ('x', 'y')
    """
    match = _FRONT.match(source)
    if match is None:
        raise ValueError(f"{name} has no front matter")
    fields: dict[str, str] = {}
    for line in match[1].splitlines():
        key, colon, value = line.partition(":")
        if not colon:
            raise ValueError(f"{name}: '{line}' in the front matter is no `key: value`")
        fields[key.strip()] = value.strip()
    missing = {"id", "title", "tags"} - fields.keys()
    if missing:
        raise ValueError(f"{name} lacks {', '.join(sorted(missing))}")
    tags = tuple(tag.strip() for tag in fields["tags"].split(",") if tag.strip())
    return Guide(id=fields["id"], title=fields["title"], tags=tags, text=match[2].strip() + "\n")


@functools.cache
def guides() -> dict[str, Guide]:
    """All guides by id, in alphabetical order."""
    found: dict[str, Guide] = {}
    for entry in sorted(files("cuteforge.guidelines").iterdir(), key=lambda e: e.name):
        if entry.name.endswith(".md"):
            guide = parse(entry.read_text(encoding="utf-8"), entry.name)
            if guide.id in found:
                raise ValueError(f"two guides have the id '{guide.id}'")
            found[guide.id] = guide
    return found


def guide(guide_id: str) -> Guide:
    """The guide of that id; raises NotFound with the ids that there are."""
    found = guides().get(guide_id)
    if found is None:
        raise NotFound(f"There is no guide '{guide_id}'.", f"Guides: {', '.join(guides())}.")
    return found
