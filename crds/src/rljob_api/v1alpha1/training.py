"""`spec.training` and `spec.checkpoint`: how long, and how safely."""

from typing import Annotated, Literal

from pydantic import Field

from rljob_api.v1alpha1.base import (
    ApiModel,
    Count,
    CountOrZero,
    ObjectName,
    Path,
    Quantity,
    Rule,
    Seed,
    Text,
    sized,
    within_volume,
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
        description=(
            "Where metrics go, besides the run's own metrics file. console is the driver's log. tensorboard writes into"
            " the run's directory, and so does mlflow without MLFLOW_TRACKING_URI; wandb and trackio follow their own"
            " variables too."
        ),
        json_schema_extra={"x-kubernetes-list-type": "set"},
    )
    project: Text = Field("rljob", description="Project name for wandb, mlflow and trackio.")


class CheckpointVolume(ApiModel):
    """The run's volume: checkpoints, journal, metrics, logs. A claim `NAME-checkpoints` of its own, or another."""

    size: Quantity | None = Field(None, description="Size of the claim that is made; the default is 100Gi.")
    storage_class_name: ObjectName | None = Field(
        None, description="Its storage class; the default is the cluster's default class."
    )
    access_mode: Literal["ReadWriteMany", "ReadWriteOnce"] | None = Field(
        None, description="How nodes mount it; the default is ReadWriteMany. ReadWriteOnce keeps all pods on one node."
    )
    retain: bool = Field(True, description="Keep the claim when the RLJob is deleted.")
    existing_claim: ObjectName | None = Field(None, description="A claim to use instead of one that is made.")
    sub_path: Annotated[str, Field(min_length=1, max_length=1024)] | None = Field(
        None, description="The folder of the volume to use."
    )

    rules = (
        sized("size"),
        Rule(
            "!has(self.existingClaim) || !(has(self.size) || has(self.storageClassName) || has(self.accessMode))",
            "a claim that exists has its size, class and mode already: remove size, storageClassName and accessMode, or"
            " existingClaim",
            "existingClaim",
        ),
        within_volume("subPath", "checkpoint.volume.subPath"),
    )


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
        description="auto: from the newest checkpoint, if any. never: from the start, once for each RLJob or "
        "`rljob run`; checkpoints of before are kept apart. Else the path of the checkpoint to begin from, of this "
        "run or another.",
    )
    volume: CheckpointVolume = Field(
        default_factory=CheckpointVolume, description="The run's volume in a cluster; `rljob run` uses a folder."
    )
