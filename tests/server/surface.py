"""The public surface as JSON: `python tests/server/surface.py --write` renews `tool_surface.json`."""

import json
import sys
import tempfile
from pathlib import Path

import anyio

from cuteforge.server.app import build_server
from cuteforge.server.config import Settings

SNAPSHOT = Path(__file__).with_name("tool_surface.json")


async def _surface(home: Path) -> dict:
    server = build_server(Settings(home=home))

    def plain(items: list) -> list:
        return [item.model_dump(mode="json", by_alias=True, exclude_none=True) for item in items]

    return {
        "instructions": server.instructions,
        "tools": plain(await server.list_tools()),
        "resources": plain(await server.list_resources()),
        "resource_templates": plain(await server.list_resource_templates()),
        "prompts": plain(await server.list_prompts()),
    }


def surface() -> dict:
    """Tools, resources and prompts as a client is told of them."""
    with tempfile.TemporaryDirectory() as folder:
        return anyio.run(_surface, Path(folder))


if __name__ == "__main__":
    text = json.dumps(surface(), indent=1) + "\n"
    if "--write" in sys.argv:
        SNAPSHOT.write_text(text)
    else:
        print(text, end="")
