"""`status`: what the operator reports. Nothing here is ever read back as a decision of the user."""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from rljob_api.v1alpha1.base import ApiModel, list_map

Phase = Literal[
    "Pending",
    "Queued",
    "Starting",
    "Running",
    "Recovering",
    "Suspending",
    "Suspended",
    "Succeeded",
    "Failed",
    "Deleting",
]


class Condition(ApiModel):
    """One aspect of the job's state, as Kubernetes' conventions define conditions."""

    type: Annotated[str, Field(max_length=316)] = Field(description="Name of the aspect.")
    status: Literal["True", "False", "Unknown"] = Field(description="Whether it holds.")
    reason: Annotated[str, Field(max_length=1024)] = Field(description="Cause of the last change, one CamelCase word.")
    message: Annotated[str, Field(max_length=32_768)] = Field("", description="The same for a person.")
    last_transition_time: datetime = Field(description="When status last changed.")
    observed_generation: int | None = Field(None, description="The generation of the spec that this speaks of.")


class Progress(ApiModel):
    """How far the training is; the driver writes it and the agent serves it."""

    step: int = Field(0, ge=0, description="Last finished step, supervised ones included.")
    total_steps: int = Field(0, ge=0, description="Steps of the whole run, supervised ones included.")
    percent: float = Field(0.0, ge=0, le=100, description="step / totalSteps x 100.")
    eta: datetime | None = Field(None, description="When the last step should be done.")
    phase: Annotated[str, Field(max_length=64)] = Field(
        "", description="What the trainer does now: rollout, update, sync ..."
    )
    stage: Annotated[str, Field(max_length=64)] = Field("", description="sft or rl.")
    reward: float | None = Field(None, description="Mean reward of the last RL step.")
    validation_reward: float | None = Field(None, description="Mean reward of the last validation.")
    response_tokens: float | None = Field(None, description="Mean length of the last step's responses, in tokens.")
    tokens_per_second: float | None = Field(
        None, description="Prompt and response tokens of the last step over its time."
    )
    policy_version: int = Field(0, ge=0, description="Optimizer updates' version that the engines hold.")


class CheckpointStatus(ApiModel):
    """The newest durable checkpoint."""

    step: int = Field(ge=0, description="Step it was taken after.")
    path: Annotated[str, Field(max_length=4096)] = Field(description="Its folder on the checkpoint volume.")
    time: datetime = Field(description="When it became durable.")


class RLJobStatus(ApiModel):
    """Observed state."""

    observed_generation: int | None = Field(None, description="Generation of the spec that this status speaks of.")
    phase: Phase = Field("Pending", description="Summary of the conditions, for people.")
    attempt: int = Field(0, ge=0, description="Number of the last driver start.")
    restarts: int = Field(0, ge=0, description="Failures charged to the restart budget.")
    start_time: datetime | None = Field(None, description="When the first driver started.")
    completion_time: datetime | None = Field(None, description="When the job succeeded or failed.")
    conditions: Annotated[list[Condition], Field(max_length=64)] = Field(
        default_factory=list, description="Aspects of the job's state.", json_schema_extra=list_map("type")
    )
    progress: Progress | None = Field(None, description="How far the training is.")
    checkpoint: CheckpointStatus | None = Field(None, description="The newest durable checkpoint.")
