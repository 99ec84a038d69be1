"""`spec.training` and `spec.checkpoint`: length, reporting and checkpoints of a run."""

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


class OnBadGradient(ApiModel):
    """What happens to an update whose gradient is not finite, or much larger than usual: it is skipped."""

    max_skips: CountOrZero = Field(
        2,
        description=(
            "Steps in a row with a skipped update that the run bears; one more ends it. The samples of the last such"
            " step are in the run's folder bad_batches, for inspection."
        ),
    )
    spike_factor: Annotated[float, Field(gt=1, le=1_000_000)] | None = Field(
        None,
        description=(
            "A gradient is too large if its norm exceeds this multiple of the mean norm of about the last 100 updates."
            " Without it, only gradients that are not finite are bad."
        ),
    )


class Training(ApiModel):
    """Length and reporting of the run."""

    steps: Count | None = Field(
        None,
        description="Training steps, in addition to the supervised steps of spec.sft. Without it, training.epochs"
        " determines the length.",
    )
    epochs: Count | None = Field(
        None,
        description="Passes over the training data after which the run ends, even before training.steps. The learning"
        " rate's schedule then ends there too: after rows x epochs / data.promptsPerStep steps, rounded up.",
    )
    validate_every: CountOrZero = Field(0, description="Steps between validations; 0 disables them.")
    validate_before_training: bool = Field(
        True, description="Validate before the first RL step too, if data.validation is set."
    )
    seed: Seed = Field(0, description="Seed of randomly initialised weights.")
    on_bad_gradient: OnBadGradient = Field(
        default_factory=OnBadGradient, description="What happens to an update with a bad gradient."
    )
    loggers: Annotated[list[Logger], Field(max_length=8)] = Field(
        default_factory=_console,
        description=(
            "Destinations of metrics, in addition to the metrics file of the run. console is the driver's log."
            " tensorboard writes into the run's directory, and so does mlflow without MLFLOW_TRACKING_URI. wandb and"
            " trackio read their own environment variables."
        ),
        json_schema_extra={"x-kubernetes-list-type": "set"},
    )
    project: Text = Field("rljob", description="Project name for wandb, mlflow and trackio.")

    rules = (
        Rule(
            "has(self.steps) || has(self.epochs)",
            "a run needs a length: set training.steps, training.epochs, or both",
            "steps",
        ),
    )


class CheckpointVolume(ApiModel):
    """The run's volume: checkpoints, journal, metrics, logs. The operator creates the claim NAME-checkpoints unless
    existingClaim is set.
    """

    size: Quantity | None = Field(
        None, description="Size of the claim that the operator creates; the default is 100Gi."
    )
    storage_class_name: ObjectName | None = Field(
        None, description="Storage class of that claim; the default is the cluster's default class."
    )
    access_mode: Literal["ReadWriteMany", "ReadWriteOnce"] | None = Field(
        None,
        description="Access mode of that claim; the default is ReadWriteMany. ReadWriteOnce needs all pods on one"
        " node.",
    )
    retain: bool = Field(True, description="Keep the claim when the RLJob is deleted.")
    existing_claim: ObjectName | None = Field(None, description="An existing claim to use instead.")
    sub_path: Annotated[str, Field(min_length=1, max_length=1024)] | None = Field(
        None, description="Folder of the volume to use; the default is its root."
    )

    rules = (
        sized("size"),
        Rule(
            "!has(self.existingClaim) || !(has(self.size) || has(self.storageClassName) || has(self.accessMode))",
            "an existing claim has its own size, class and mode: remove size, storageClassName and accessMode, or"
            " remove existingClaim",
            "existingClaim",
        ),
        within_volume("subPath", "checkpoint.volume.subPath"),
    )


class Checkpoint(ApiModel):
    """Checkpoints on the run's volume."""

    every_steps: CountOrZero = Field(10, description="Steps between checkpoints; 0 saves one only after the last step.")
    keep_last: Count = Field(3, description="Number of newest checkpoints to keep.")
    keep_every: Count | None = Field(None, description="Keep every checkpoint whose step is a multiple of this, too.")
    keep_best: CountOrZero = Field(
        0,
        description="Number of checkpoints with the best reward to keep, too: the validation reward if the job"
        " validates.",
    )
    resume: Path = Field(
        "auto",
        description="Where to start. auto: at the newest checkpoint, if there is one. never: at step 0, once per RLJob "
        "or per `rljob run`; older checkpoints stay. Otherwise: the path of a checkpoint of this run or another.",
    )
    volume: CheckpointVolume = Field(
        default_factory=CheckpointVolume, description="The run's volume in a cluster; `rljob run` uses a folder."
    )
