"""Streamable HTTP on a loopback address."""

from __future__ import annotations

import socket
from typing import Any

import anyio
import click
from mcp.server.mcpserver import MCPServer
from mcp.server.transport_security import TransportSecuritySettings

MAX_BODY_BYTES = 32 * 1024 * 1024
"""Above every limit of the tools, so that a source that is too large is answered by the tool, with its remedy."""


def security(port: int) -> TransportSecuritySettings:
    """Only this machine's names as Host and Origin: a web page must not reach the server by DNS rebinding."""
    names = ("127.0.0.1", "localhost", "[::1]")
    return TransportSecuritySettings(
        enable_dns_rebinding_protection=True,
        allowed_hosts=[f"{name}:{port}" for name in names],
        allowed_origins=[f"http://{name}:{port}" for name in names],
    )


def serve_http(server: MCPServer[Any], host: str, port: int) -> None:
    """Serve at `http://host:port/mcp` until interrupted; port 0 takes a free one.

    Says the address on stderr once it accepts connections. Raises ClickException when the port is taken.
    """
    import uvicorn

    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        # Before the address is announced: connections wait in the backlog until the server takes them.
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise click.ClickException(
            f"{host}:{port} cannot be used: {error.strerror}. Choose another port."
        ) from error
    bound = listener.getsockname()[1]
    app = server.streamable_http_app(
        host=host, transport_security=security(bound), max_request_body_size=MAX_BODY_BYTES
    )
    config = uvicorn.Config(app, log_config=None, access_log=False, timeout_graceful_shutdown=5)
    shown = f"[{host}]" if ":" in host else host
    click.echo(f"serving http://{shown}:{bound}/mcp", err=True)
    anyio.run(lambda: uvicorn.Server(config).serve(sockets=[listener]))
