"""The catalogue as MCP tools: compact schemas, and answers and errors as MCP results."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.tools import Tool
from mcp.server.mcpserver.utilities.func_metadata import func_metadata
from mcp_types import CallToolResult, ContentBlock, ResourceLink, TextContent, ToolAnnotations
from pydantic import ValidationError

from cuteforge.kernels.errors import CuteforgeError
from cuteforge.server.faults import InternalFault, report_fault
from cuteforge.server.host import LISTENER, ServerHost
from cuteforge.tools.answers import Answer
from cuteforge.tools.catalogue import TOOLS, ToolEntry


def slim(schema: Any) -> Any:
    """A JSON schema without titles and without defaults that say nothing; a model reads every character.

    >>> slim({"type": "object", "title": "A", "properties": {"x": {"title": "X", "default": ""}}})
    {'type': 'object', 'properties': {'x': {}}}
    """
    if isinstance(schema, list):
        return [slim(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    slimmed: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "properties":
            slimmed[key] = {name: slim(part) for name, part in value.items()}
        elif (
            key == "title"
            or (key == "default" and value in ("", None, [], {}, False))
            or (key == "additionalProperties" and value is True)
        ):
            continue
        else:
            slimmed[key] = slim(value)
    return slimmed


def result(answer: Answer) -> CallToolResult:
    """An answer as the protocol's result: text, links, and structured content."""
    content: list[ContentBlock] = [TextContent(type="text", text=answer.full_text())]
    content += [
        ResourceLink(type="resource_link", uri=link.uri, name=link.name, mime_type=link.mime_type)
        for link in answer.links
    ]
    steps = [step.model_dump(mode="json", exclude_defaults=True) for step in answer.next[:3]]
    structured = {"ok": answer.ok, **answer.data, "next": steps}
    return CallToolResult(content=content, structured_content=structured)


class ForgeTool(Tool):
    """A tool whose function answers an Answer."""

    async def run(
        self, arguments: dict[str, Any], context: Context[Any, Any], convert_result: bool = False
    ) -> Any:
        """Call the tool.

        Raises:
            ToolError: wrong arguments, a CuteforgeError with its remedy, or a fault by its id.
        """
        known = self.parameters["properties"]
        unknown = sorted(set(arguments) - set(known))
        if unknown:
            names = ", ".join(known) or "none"
            raise ToolError(
                f"{self.name} has no parameter {', '.join(map(repr, unknown))}. It takes: {names}."
            )
        try:
            validated = self.fn_metadata.validate_arguments(arguments)
        except ValidationError as error:
            raise ToolError(_complaint(self.name, error)) from error
        token = LISTENER.set(_listener(context))
        try:
            return result(await self.fn(**validated))
        except CuteforgeError as error:
            raise ToolError(error.explain()) from error
        except InternalFault as fault:
            raise ToolError(str(fault)) from fault
        except Exception as error:
            raise ToolError(str(report_fault(error, self.name))) from error
        finally:
            LISTENER.reset(token)


def _listener(context: Context[Any, Any]) -> Any:
    async def tell(fraction: float, message: str) -> None:
        await context.report_progress(fraction, 1.0, message)

    return tell


def _complaint(tool: str, error: ValidationError) -> str:
    parts = []
    for item in error.errors(include_url=False, include_input=False)[:4]:
        place = ".".join(str(part) for part in item["loc"])
        parts.append(f"`{place}`: {item['msg']}")
    left = error.error_count() - len(parts)
    more = f" (and {left} more)" if left > 0 else ""
    return f"{tool} was called with wrong arguments: {'; '.join(parts)}{more}. Correct them and call again."


def tools(host: ServerHost) -> Iterator[ForgeTool]:
    """The catalogue, bound to a host."""
    for entry in TOOLS:
        yield _tool(entry, host)


def _tool(entry: ToolEntry, host: ServerHost) -> ForgeTool:
    metadata = func_metadata(entry.function, skip_names=("host",), structured_output=False)
    schema = slim(metadata.arg_model.model_json_schema(by_alias=True))
    schema["additionalProperties"] = False
    return ForgeTool(
        fn=functools.partial(entry.function, host),
        name=entry.name,
        title=entry.title,
        description=entry.description,
        parameters=schema,
        fn_metadata=metadata,
        is_async=True,
        context_kwarg=None,
        annotations=ToolAnnotations(read_only_hint=entry.read_only, open_world_hint=False),
    )
