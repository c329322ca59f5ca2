"""The MCP tools: thin modules that declare them, and the workbench that does their work."""
