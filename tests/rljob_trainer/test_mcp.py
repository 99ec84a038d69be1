"""Tools of MCP servers: real ones, which the mcp library runs, by command and by URL."""

import os
import socket
import subprocess
import sys
import time
from contextlib import closing

import pytest

from rljob_trainer.errors import EnvironmentFailed
from tests.rljob_trainer.chat_templates import CHATML
from tests.rljob_trainer.environments_support import playing

pytest.importorskip("mcp")

SERVER = """
import os, sys
from mcp import MCPError
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

server = MCPServer("words", log_level="ERROR")

@server.tool()
def twice(text: str) -> str:
    '''Say it twice.'''
    return text * 2

@server.tool()
def refuse() -> str:
    '''Refuse.'''
    raise ToolError("no such thing")

@server.tool()
def busy() -> str:
    '''Be busy.'''
    raise MCPError(code=-32000, message="come back later")

@server.tool()
def leave() -> str:
    '''End the server, once.'''
    if not os.path.exists("left"):
        open("left", "w").close()
        os._exit(1)
    return "back again"

server.run(*sys.argv[1:2], **({"port": int(sys.argv[2])} if sys.argv[2:] else {}))
"""


def call(name: str, arguments: str = "{}") -> str:
    return f'<tool_call>{{"name": "{name}", "arguments": {arguments}}}</tool_call><|im_end|>'


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "server.py"
    path.write_text(SERVER)
    return str(path)


def test_a_server_s_tools_are_called_and_its_errors_are_observations(file, tmp_path):
    server = {"name": "words", "command": [sys.executable, file]}
    builtin = [{"name": "calculator"}]
    with playing(tmp_path, 2000, CHATML, mcpServers=[server], builtinTools=builtin) as play:
        compute = call("calculator", '{"expression": "1"}')
        episode = play(
            call("twice", '{"text": "ab"}'), call("refuse"), call("twice"), compute, call("busy"), "done<|im_end|>"
        )
        text = play.tokenized.text(episode.trajectories[0].token_ids.tolist())
    assert "<|im_start|>tool\nabab<|im_end|>" in text
    assert "no such thing" in text
    assert "Field required" in text
    assert "<|im_start|>tool\nError: come back later<|im_end|>" in text
    assert episode.counts == {"turns": 6, "splits": 0, "tool_calls": 5, "tool_errors": 3}


def test_an_episode_whose_server_is_lost_is_played_again(file, tmp_path):
    server = {"name": "words", "command": [sys.executable, file]}
    with playing(tmp_path, template=CHATML, mcpServers=[server]) as play:
        episode = play(call("leave"), "done<|im_end|>")
        text = play.tokenized.text(episode.trajectories[0].token_ids.tolist())
    assert "<|im_start|>tool\nback again<|im_end|>" in text
    assert episode.status == "finished"


@pytest.mark.slow
def test_a_server_is_reached_by_url(file, tmp_path):
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen([sys.executable, file, "streamable-http", str(port)], env=os.environ)
    try:
        end = time.monotonic() + 60
        while socket.socket().connect_ex(("127.0.0.1", port)) and time.monotonic() < end:
            time.sleep(0.1)
        server = {"name": "words", "url": f"http://127.0.0.1:{port}/mcp", "tools": ["twice"]}
        with playing(tmp_path, template=CHATML, mcpServers=[server]) as play:
            episode = play(call("twice", '{"text": "ab"}'), call("refuse"), "done<|im_end|>")
            text = play.tokenized.text(episode.trajectories[0].token_ids.tolist())
    finally:
        process.kill()
        process.wait()
    assert "<|im_start|>tool\nabab<|im_end|>" in text
    assert "there is no tool 'refuse'; there is twice" in text


@pytest.mark.parametrize(
    ("server", "message", "field"),
    [
        ({"command": ["/no/such/program"]}, "/no/such/program is no program here: install it", "command[0]"),
        ({"command": [sys.executable, "-c", "pass"]}, "server words cannot be used: MCPError", "command"),
        ({"url": "http://127.0.0.1:9/mcp"}, "server words cannot be used: ConnectError", "url"),
        ({"command": [sys.executable, "server.py"], "tools": ["thrice"]}, "no tool 'thrice'; it has twice", "tools"),
    ],
)
@pytest.mark.usefixtures("file")
def test_a_server_that_cannot_be_used_is_named(tmp_path, server, message, field):
    with (
        pytest.raises(EnvironmentFailed, match=message) as raised,
        playing(tmp_path, mcpServers=[{"name": "words", **server}]),
    ):
        pass
    assert raised.value.field == f"spec.environment.mcpServers[0].{field}"
