"""`spec.algorithm.advantageFrom` and `lossFrom`: an advantage and a loss of the user's own."""

from typing import Annotated, Any

from pydantic import Field, StringConstraints

from rljob_api.v1alpha1.base import MODULE_PATTERN, VARIABLE_PATTERN, ApiModel, Path, Rule

_Name = Annotated[str, StringConstraints(pattern=VARIABLE_PATTERN, min_length=1, max_length=128)]


class OwnFunction(ApiModel):
    """A Python function that runs in the trainer's own processes, on every node of the job."""

    path: Path | None = Field(None, description="A Python file; a relative path is relative to the RLJob's file.")
    module: Annotated[str, StringConstraints(pattern=MODULE_PATTERN, min_length=1, max_length=256)] | None = Field(
        None, description="An importable Python module."
    )
    arguments: Annotated[dict[str, Any], Field(max_length=64)] = Field(
        default_factory=dict, description="Keyword arguments of every call, besides the batch."
    )

    rules = (
        Rule(
            "has(self.path) != has(self.module)",
            "a function has one source: set exactly one of path and module",
            "path",
        ),
    )


class OwnAdvantage(OwnFunction):
    """compute_advantage(batch, **arguments): an array with one number for each token in the loss.

    The batch has rewards [N] and groups [N] of the step's episodes, lengths [N], the tokens of each, and more: see
    docs/algorithms.md.
    """

    entry: _Name = Field("compute_advantage", description="The function in path or module.")


class OwnLoss(OwnFunction):
    """compute_loss(batch, **arguments): a tensor with the loss of each token, or a pair of it and of what is clipped.

    The batch has log_probs [T] with their gradient, advantages [T], ratio() to the policy at the start of the step, and
    more: see docs/algorithms.md.
    """

    entry: _Name = Field("compute_loss", description="The function in path or module.")
