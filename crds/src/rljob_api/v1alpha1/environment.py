"""`spec.environment`: what plays an episode of several turns."""

from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from rljob_api.v1alpha1.base import (
    MODULE_PATTERN,
    PARSER_PATTERN,
    TOOL_PATTERN,
    URL_PATTERN,
    VARIABLE_PATTERN,
    ApiModel,
    Duration,
    Path,
    Rule,
    list_map,
)

Name = Annotated[str, StringConstraints(pattern=VARIABLE_PATTERN, min_length=1, max_length=128)]

_SOURCES = "[has(self.path), has(self.module), has(self.source), self.command.size() > 0].filter(x, x).size()"
_NO_CODE = "self.builtinTools.size() + self.mcpServers.size()"


class BuiltinTool(ApiModel):
    """A tool of the trainer that the policy may call by its name.

    calculator computes an arithmetic expression. python runs a program without network and other files, in a process of
    its own. search returns the passages of a corpus that BM25 ranks highest; it needs the extra `search`.
    """

    name: Literal["calculator", "python", "search"] = Field(description="Which tool.")
    corpus: Path | None = Field(
        None,
        description=(
            "What search searches: JSON lines with the field text, or contents, and perhaps title; a relative path is"
            " relative to the RLJob's file."
        ),
    )
    results: Annotated[int, Field(ge=1, le=100)] | None = Field(
        None, description="Most passages that search returns; the default is 3."
    )
    timeout: Duration | None = Field(None, description="Time limit of a program of python; the default is 10s.")

    rules = (
        Rule(
            "(self.name == 'search') == has(self.corpus)",
            "search needs a corpus, and other tools have none: set or remove corpus",
            "corpus",
        ),
        Rule("self.name == 'search' || !has(self.results)", "results belongs to search: remove it", "results"),
        Rule(
            "!has(self.timeout) || self.name == 'python' && duration(self.timeout) > duration('0s')",
            "timeout limits the programs of python, and is above 0s: remove or correct it",
            "timeout",
        ),
    )


Argument = Annotated[str, StringConstraints(max_length=1024)]
ToolName = Annotated[str, StringConstraints(pattern=TOOL_PATTERN, min_length=1, max_length=128)]


class McpServer(ApiModel):
    """A server of the Model Context Protocol, whose tools the policy may call. It needs the extra `mcp`."""

    name: ToolName = Field(description="Its name in messages.")
    command: Annotated[list[Argument], Field(max_length=64)] = Field(
        default_factory=list,
        description=(
            "The program and its arguments. Each environment process starts one in the folder of the RLJob's file; it"
            " sees the same variables, and its standard input and output are the connection."
        ),
    )
    url: Annotated[str, StringConstraints(pattern=URL_PATTERN, max_length=1024)] | None = Field(
        None, description="The server's URL (streamable HTTP)."
    )
    tools: Annotated[list[ToolName], Field(max_length=64)] = Field(
        default_factory=list, description="The server's tools that the policy may call; the default is all."
    )

    rules = (
        Rule(
            "has(self.url) != (self.command.size() > 0)",
            "a server has one address: set command or url",
            "command",
        ),
    )


class Environment(ApiModel):
    """What the policy plays in: a function, a class, tools or an agent, in Python code that runs in processes.

    async def rollout(task, policy) plays an episode with policy.chat(messages, tools) or policy.generate(token_ids). A
    class has reset(task), which returns the first observation or None, and step(answer), which returns (observation,
    reward, done). Tools are functions with type hints and docstrings. An agent, def run(task, base_url, api_key) or a
    command, talks to an OpenAI-compatible endpoint.
    """

    path: Path | None = Field(None, description="A Python file; a relative path is relative to the RLJob's file.")
    module: Annotated[str, StringConstraints(pattern=MODULE_PATTERN, min_length=1, max_length=256)] | None = Field(
        None, description="An importable Python module."
    )
    source: Annotated[str, StringConstraints(min_length=1, max_length=65_536)] | None = Field(
        None, description="Python source code."
    )
    command: Annotated[
        list[Annotated[str, StringConstraints(min_length=1, max_length=4096)]], Field(max_length=256)
    ] = Field(
        default_factory=list,
        description=(
            "A program and its arguments, in place of Python code: one process an episode, in the folder of the"
            " RLJob's file. It finds an OpenAI-compatible endpoint in OPENAI_BASE_URL and OPENAI_API_KEY, and the"
            " task as JSON on its standard input."
        ),
    )
    entry: Name | None = Field(
        None,
        description=(
            "The function or class in path, module or source. The default is rollout, or else Environment, or else"
            " run. A function with the parameters base_url and api_key gets an OpenAI-compatible endpoint."
        ),
    )
    tools: Annotated[list[Name], Field(max_length=64)] = Field(
        default_factory=list,
        description=(
            "Functions in path, module or source that the policy may call. With tools, an episode ends with the first"
            " answer that calls none."
        ),
    )
    builtin_tools: Annotated[list[BuiltinTool], Field(max_length=8)] = Field(
        default_factory=list,
        description="Tools of the trainer, beside those of `tools`. They need no code.",
        json_schema_extra=list_map("name"),
    )
    mcp_servers: Annotated[list[McpServer], Field(max_length=8)] = Field(
        default_factory=list,
        description="Servers of the Model Context Protocol whose tools the policy may call, beside the others.",
        json_schema_extra=list_map("name"),
    )
    tool_parser: Annotated[str, StringConstraints(pattern=PARSER_PATTERN, min_length=1, max_length=64)] | None = Field(
        None,
        description=(
            "How the policy writes calls of tools: the name of a parser of vLLM, such as hermes, llama3_json, mistral"
            " or qwen3_coder. The default reads <tool_call>{...}</tool_call> with engine hf, too."
        ),
    )
    arguments: Annotated[dict[str, Any], Field(max_length=64)] = Field(
        default_factory=dict, description="Keyword arguments of the function, or of the class."
    )
    python: Path | None = Field(
        None,
        description=(
            "The Python interpreter of the environment's processes, 3.11 or later; it needs none of the trainer's"
            " packages. A relative path is relative to the RLJob's file. The default is the trainer's own."
        ),
    )
    env: Annotated[list[Name], Field(max_length=64)] = Field(
        default_factory=list,
        description="Environment variables that the code may see, as env of a reward function.",
    )
    processes: Annotated[int, Field(ge=1, le=1024)] = Field(
        2, description="Processes that play episodes; each plays many at a time."
    )
    max_turns: Annotated[int, Field(ge=1, le=10_000)] = Field(
        8, description="Most turns of an episode; data.maxResponseTokens limits each of them."
    )
    max_episode_tokens: Annotated[int, Field(ge=2, le=1_000_000_000)] | None = Field(
        None,
        description=(
            "Most tokens of an episode's context: prompt, answers and observations. The default is"
            " data.maxPromptTokens + data.maxResponseTokens."
        ),
    )
    on_overflow: Literal["train", "mask", "drop"] = Field(
        "train",
        description=(
            "What follows if an episode does not fit maxEpisodeTokens: train uses its tokens and its reward, mask its"
            " reward alone, for the advantages of its group (opo's baseline has no weight for it), and drop leaves the"
            " episode out."
        ),
    )
    on_truncated: Literal["train", "mask", "drop"] = Field(
        "train",
        description=(
            "As onOverflow, for an episode that ends at maxTurns, or whose last answer ends at data.maxResponseTokens"
            " (rLLM's compact filtering)."
        ),
    )
    on_error: Literal["drop_episode", "drop_group", "fail"] = Field(
        "drop_episode",
        description=(
            "What follows if an episode fails twice, because the code raised, hung or crashed its process:"
            " drop_episode leaves the episode out, drop_group its group, fail ends the job and names the episode."
        ),
    )
    timeout: Duration = Field("60s", description="Time limit of the code between two answers of the policy.")
    deadline: Duration = Field(
        "10m", description="Time limit of the code in one episode, without the time in which the policy answers."
    )

    rules = (
        Rule(
            f"{_SOURCES} == 1 || {_SOURCES} == 0 && {_NO_CODE} > 0",
            "an environment has one source: set exactly one of path, module, source, command, or builtinTools or"
            " mcpServers",
            "path",
        ),
        Rule(
            f"self.tools.size() + {_NO_CODE} == 0 || !has(self.entry)",
            "an environment is a function, a class, or tools: set entry or tools",
            "entry",
        ),
        Rule(
            f"self.command.size() == 0 || !has(self.entry) && self.tools.size() + {_NO_CODE} == 0",
            "a command has no Python code and no tools of ours: remove them, or set path",
            "command",
        ),
        Rule(
            f"{_NO_CODE} == 0 || ({_SOURCES} == 1) == (self.tools.size() > 0)",
            "beside builtinTools and mcpServers, tools names functions of path, module or source: set both, or neither",
            "tools",
        ),
        Rule(
            "!has(self.python) || self.mcpServers.size() == 0 && self.builtinTools.all(t, t.name == 'calculator')",
            "another interpreter lacks what python, search and mcpServers need: remove environment.python, or them",
            "python",
        ),
        Rule(
            "!self.env.exists(v, v.startsWith('RAY_'))",
            "variables of Ray control the job's cluster, so environments never see them: remove RAY_ from env",
            "env",
        ),
        Rule(
            "duration(self.timeout) > duration('0s') && duration(self.deadline) > duration('0s')",
            "environment.timeout and environment.deadline must be above 0s: set them to 60s and 10m, for example",
            "timeout",
        ),
    )
