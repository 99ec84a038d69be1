"""`spec.rewards`: how responses are scored."""

from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from rljob_api.v1alpha1.base import (
    MODULE_PATTERN,
    REWARD_PATTERN,
    VARIABLE_PATTERN,
    ApiModel,
    Duration,
    Path,
    Rule,
    Text,
    list_map,
)
from rljob_api.v1alpha1.reward_models import RewardModel

Builtin = Literal[
    "exact_match", "boxed_math", "gsm8k", "regex", "length_penalty", "similarity", "countdown", "code_tests",
    "reasoning_gym",
]  # fmt: skip


def _named(function: str) -> str:
    """CEL: a function's name, or its default. `function` is a word of CEL, so Kubernetes escapes that field."""
    default = f"has({function}.builtin) ? {function}.builtin : {function}.__function__"
    return f"(has({function}.name) ? {function}.name : {default})"


RewardName = Annotated[str, StringConstraints(pattern=REWARD_PATTERN, min_length=1, max_length=128)]
VariableName = Annotated[str, StringConstraints(pattern=VARIABLE_PATTERN, min_length=1, max_length=128)]


class RewardFunction(ApiModel):
    """One reward with verl's signature: compute_score(data_source, solution_str, ground_truth, extra_info=None).

    It gets those of the four that its signature names; ground_truth is None if the row has none. It returns a number,
    or a mapping whose `score` is the reward; the other numbers of the mapping become metrics, and `spans`, a list of
    (end character, value), rewards of single tokens. It may be async. A function of lists, (responses, ground_truths),
    gets the responses of one group and returns a list.
    """

    builtin: Builtin | None = Field(None, description="A reward function of the trainer.")
    path: Path | None = Field(None, description="A Python file; a relative path is relative to the RLJob's file.")
    module: Annotated[str, StringConstraints(pattern=MODULE_PATTERN, min_length=1, max_length=256)] | None = Field(
        None, description="An importable Python module."
    )
    source: Annotated[str, StringConstraints(min_length=1, max_length=65_536)] | None = Field(
        None, description="Python source code."
    )
    function: Annotated[str, StringConstraints(pattern=VARIABLE_PATTERN, min_length=1, max_length=128)] = Field(
        "compute_score", description="Function to call in path, module or source."
    )
    name: RewardName = Field(
        default_factory=lambda given: given.get("builtin") or given.get("function", "compute_score"),
        description="Name in logs and metrics: reward/NAME. The default is the builtin's or the function's name.",
    )
    arguments: Annotated[dict[str, Any], Field(max_length=64)] = Field(
        default_factory=dict, description="Keyword arguments of every call, in addition to the four of the signature."
    )
    weight: Annotated[float, Field(ge=-1000, le=1000)] = Field(1.0, description="Factor of this reward in the sum.")
    data_sources: Annotated[list[Text], Field(max_length=64)] = Field(
        default_factory=list,
        description=(
            "Values of the column data_source whose rows this function scores; * stands for any text, as in aime*. The"
            " default is every row."
        ),
    )
    env: Annotated[list[VariableName], Field(max_length=64)] = Field(
        default_factory=list,
        description=(
            "Environment variables that the function may see, such as a judge's key from envFrom, besides PATH, HOME,"
            " and others that Python programs need. Functions with different lists run in different processes."
        ),
    )

    rules = (
        Rule(
            "[has(self.builtin), has(self.path), has(self.module), has(self.source)].filter(x, x).size() == 1",
            "a reward function has one source: set exactly one of builtin, path, module, source",
            "builtin",
        ),
        Rule(
            f"!({_named('self')} in ['mean', 'std', 'min', 'max'])",
            "mean, std, min and max are reserved for metrics of the sum: choose another name",
            "name",
        ),
        Rule(
            "!self.env.exists(v, v.startsWith('RAY_'))",
            "variables of Ray control the job's cluster, so reward code never sees them: remove RAY_ from env",
            "env",
        ),
    )


class Rewards(ApiModel):
    """The reward of a response is the weighted sum of its functions and models."""

    functions: Annotated[list[RewardFunction], Field(max_length=32)] = Field(
        default_factory=list,
        description="Python functions. The reward includes the weighted sum of their scores.",
    )
    models: Annotated[list[RewardModel], Field(max_length=8)] = Field(
        default_factory=list,
        description="Reward models. The reward includes the weighted sum of their scores.",
        json_schema_extra=list_map("name"),
    )
    timeout: Duration = Field("30s", description="Time limit of one call of a function; then its process is killed.")
    processes: Annotated[int, Field(ge=1, le=1024)] = Field(
        4, description="Processes that call the functions in parallel."
    )
    on_error: Literal["fail", "drop_group"] = Field(
        "fail",
        description=(
            "What follows if a call hangs, crashes or returns NaN or inf, or if a model's answer has no finite score:"
            " fail ends the job and names the sample, drop_group skips the sample's group."
        ),
    )

    rules = (
        Rule(
            "duration(self.timeout) > duration('0s')",
            "rewards.timeout must be above 0s: set it to 30s, for example",
            "timeout",
        ),
        Rule(
            f"self.functions.all(f, self.functions.exists_one(g, {_named('g')} == {_named('f')}))",
            "two reward functions have the same name, which names their metric: set name of one of them",
            "functions",
        ),
        Rule(
            f"!self.models.exists(m, self.functions.exists(f, {_named('f')} == m.name))",
            "a reward model and a reward function have the same name, which names their metric: rename one",
            "models",
        ),
    )

    @property
    def penalties(self) -> dict[str, float]:
        """Weights of the length penalties, by name: they are no part of a group's accuracy."""
        return {each.name: each.weight for each in self.functions if each.builtin == "length_penalty"}

    @property
    def served(self) -> list[RewardModel]:
        """The models whose servers the job starts."""
        return [model for model in self.models if model.url is None]
