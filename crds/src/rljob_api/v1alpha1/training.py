"""`spec.training`, `spec.checkpoint`, `spec.cluster` and `spec.env`: how long, how safely, how large."""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from rljob_api.v1alpha1.base import (
    KEY_PATTERN,
    OBJECT_NAME_PATTERN,
    VARIABLE_PATTERN,
    ApiModel,
    Count,
    CountOrZero,
    Path,
    Rule,
    Seed,
    Text,
)

Logger = Literal["console", "tensorboard", "wandb", "mlflow", "trackio"]


def _console() -> list[Logger]:
    return ["console"]


class Training(ApiModel):
    """Length and reporting of the run."""

    steps: Count = Field(description="Training steps (after the supervised ones of spec.sft).")
    epochs: Count | None = Field(
        None, description="Passes over the training data after which the run ends even before its last step."
    )
    validate_every: CountOrZero = Field(0, description="Steps between validations; 0 is never.")
    validate_before_training: bool = Field(
        True, description="Validate before the first RL step too, where there is validation data."
    )
    seed: Seed = Field(0, description="Seed of random weights.")
    loggers: Annotated[list[Logger], Field(max_length=8)] = Field(
        default_factory=_console,
        description="Where metrics go, besides the run's own metrics file.",
        json_schema_extra={"x-kubernetes-list-type": "set"},
    )
    project: Text = Field("rljob", description="Project name for wandb, mlflow and trackio.")


class Checkpoint(ApiModel):
    """Checkpoints on the run's volume."""

    every_steps: CountOrZero = Field(10, description="Steps between checkpoints; 0 keeps only the last step's.")
    keep_last: Count = Field(3, description="As many of the newest checkpoints are kept.")
    keep_every: Count | None = Field(None, description="Checkpoints whose step is a multiple of this are kept too.")
    keep_best: CountOrZero = Field(
        0,
        description="As many checkpoints of the best reward are kept too (the validation reward, where there is one).",
    )
    resume: Path = Field(
        "auto",
        description="auto: from the newest checkpoint, if any. never: from the start; checkpoints of before are kept "
        "apart. Else the path of the checkpoint to begin from, of this run or another.",
    )


class Cluster(ApiModel):
    """Shape of the cluster. `rljob run` trains on one machine and takes --ranks instead."""

    nodes: Annotated[int, Field(ge=1, le=10_000)] = Field(
        1, description="Worker pods; the head is extra and has no GPU."
    )
    gpus_per_node: Annotated[int, Field(ge=0, le=16)] = Field(
        8, description="GPUs of each worker pod; 0 trains on CPUs."
    )
    ranks_per_node: Annotated[int, Field(ge=1, le=16)] | None = Field(
        None, description="Trainer processes of each worker pod; the default is gpusPerNode, or 1 without GPUs."
    )

    rules = (
        Rule(
            "!has(self.ranksPerNode) || self.gpusPerNode == 0 || self.ranksPerNode == self.gpusPerNode",
            "each GPU has one rank: remove ranksPerNode, or set it to gpusPerNode",
            "ranksPerNode",
        ),
    )


class SecretKeyRef(ApiModel):
    """One key of a Secret."""

    name: Annotated[str, StringConstraints(pattern=OBJECT_NAME_PATTERN, min_length=1, max_length=253)] = Field(
        description="The Secret's name."
    )
    key: Annotated[str, StringConstraints(pattern=KEY_PATTERN, min_length=1, max_length=253)] = Field(
        description="The key in the Secret."
    )


class EnvValueFrom(ApiModel):
    """Where a variable's value comes from."""

    secret_key_ref: SecretKeyRef = Field(
        description="A Secret's key. `rljob run` reads the caller's variable of the same name instead."
    )


class EnvVar(ApiModel):
    """One environment variable of the trainer's processes."""

    name: Annotated[str, StringConstraints(pattern=VARIABLE_PATTERN, min_length=1, max_length=256)] = Field(
        description="The variable's name."
    )
    value: Annotated[str, StringConstraints(max_length=4096)] | None = Field(None, description="Its value.")
    value_from: EnvValueFrom | None = Field(None, description="The source of its value.")

    rules = (Rule("has(self.value) != has(self.valueFrom)", "set either value or valueFrom", "value"),)
