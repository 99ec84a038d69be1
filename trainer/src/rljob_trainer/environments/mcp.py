"""Tools of MCP servers, which are started by command or reached by URL (https://modelcontextprotocol.io).

Each environment process has one connection to each server, which all its episodes use. It lasts as long as the process.
A server that is lost ends the process: the pool plays its episodes again, in processes with connections of their own.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rljob_trainer.environments.tools import ConnectionLost, Tool, ToolRefused
from rljob_trainer.paths import locate, no_program


class McpUnusable(Exception):
    """A server cannot be used. field: of environment.mcpServers' entry."""

    def __init__(self, message: str, field: str) -> None:
        super().__init__(message)
        self.field = field


async def connect(server: Mapping[str, Any], base_dir: Path) -> list[Tool]:
    """The server's tools. server: name, command, url and tools of environment.mcpServers.

    A command runs in `base_dir` and has the variables that the environment sees. Raises McpUnusable.
    """
    if server["command"] and (message := no_program(server["command"], base_dir)) is not None:
        raise McpUnusable(message, "command[0]")
    field = "command" if server["command"] else "url"
    try:
        from mcp import Client, StdioServerParameters
    except ImportError as error:
        message = f"MCP servers need the library mcp ({error}): pip install 'rljob-trainer[mcp]'"
        raise McpUnusable(message, field) from error
    target: Any = server["url"]
    if server["command"]:
        program, *arguments = server["command"]
        program = str(locate(program, base_dir)) if "/" in program else program
        target = StdioServerParameters(command=program, args=arguments, env=dict(os.environ), cwd=base_dir)
    client = Client(target)
    try:
        await client.__aenter__()  # until the process ends
        found = [tool async for tool in _listed(client)]
    except Exception as error:
        reason = _first(error)
        message = f"server {server['name']} cannot be used: {type(reason).__name__}: {reason}; correct it"
        raise McpUnusable(message, field) from error
    return _chosen(server, [_tool(client, each) for each in found])


async def _listed(client: Any) -> Any:
    cursor = None
    while True:
        page = await client.list_tools(cursor=cursor)
        for tool in page.tools:
            yield tool
        cursor = page.next_cursor
        if cursor is None:
            return


def _chosen(server: Mapping[str, Any], tools: Sequence[Tool]) -> list[Tool]:
    by_name = {tool.name: tool for tool in tools}
    for name in server["tools"]:
        if name not in by_name:
            message = f"server {server['name']} has no tool {name!r}; it has {', '.join(by_name) or 'none'}"
            raise McpUnusable(message, "tools")
    return [by_name[name] for name in server["tools"]] or list(tools)


def _tool(client: Any, described: Any) -> Tool:
    from mcp import MCPError

    name = described.name

    async def call(**arguments: Any) -> str:
        try:
            result = await client.call_tool(name, arguments)
        except MCPError as error:
            if error.code == _CLOSED and not await _answers(client):
                raise ConnectionLost(f"the MCP server of tool {name} is lost") from error
            raise ToolRefused(error.message) from error
        text = "\n".join(part.text for part in result.content if part.type == "text")
        if result.is_error:
            raise ToolRefused(text)
        return text

    about = {"name": name, "description": described.description or "", "parameters": described.input_schema}
    return Tool(name, call, {"type": "function", "function": about})


_CLOSED = -32000
"""The library's code of a connection that closed. Servers have it for errors of their own, too."""


async def _answers(client: Any) -> bool:
    from mcp import MCPError

    try:
        await client.send_ping()
    except MCPError as error:
        return bool(error.code != _CLOSED)
    return True


def _first(error: BaseException) -> BaseException:
    """The first error of nested groups, which is why the others happened."""
    return _first(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error
