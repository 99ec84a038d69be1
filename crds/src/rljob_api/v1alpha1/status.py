"""`status`: what the operator reports. Nothing here is ever read back as a decision of the user."""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import AwareDatetime, Field

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


EXACT = 2**53 - 1
"""The largest integer that every reader of JSON understands alike (RFC 8259, 6). The API server takes up to 2⁶³ - 1.

Users' code runs beside who tells of progress and checkpoints. What the API server refuses in them, as a larger integer,
a time without its zone or a number that is none, it refuses with the whole status, and the job gets no further: so it
must not be read in the first place.
"""

Measured = Annotated[float, Field(allow_inf_nan=False)]


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

    step: int = Field(0, ge=0, le=EXACT, description="Last finished step, supervised ones included.")
    total_steps: int = Field(0, ge=0, le=EXACT, description="Steps of the whole run, supervised ones included.")
    percent: Measured = Field(0.0, ge=0, le=100, description="step / totalSteps x 100.")
    eta: AwareDatetime | None = Field(None, description="When the last step should be done.")
    phase: Annotated[str, Field(max_length=64)] = Field(
        "", description="What the trainer does now: rollout, update, sync ..."
    )
    stage: Annotated[str, Field(max_length=64)] = Field("", description="sft or rl.")
    reward: Measured | None = Field(None, description="Mean reward of the last RL step.")
    validation_reward: Measured | None = Field(None, description="Mean reward of the last validation.")
    response_tokens: Measured | None = Field(None, description="Mean length of the last step's responses, in tokens.")
    tokens_per_second: Measured | None = Field(
        None, description="Prompt and response tokens of the last step over its time."
    )
    policy_version: int = Field(0, ge=0, le=EXACT, description="Optimizer updates' version that the engines hold.")


class CheckpointStatus(ApiModel):
    """The newest durable checkpoint."""

    step: int = Field(ge=0, le=EXACT, description="Step it was taken after.")
    path: Annotated[str, Field(max_length=4096)] = Field(description="Its folder on the checkpoint volume.")
    time: AwareDatetime = Field(description="When it became durable.")


class ClusterStatus(ApiModel):
    """The RayCluster."""

    name: Annotated[str, Field(max_length=63)] = Field(description="Its name.")
    uid: Annotated[str, Field(max_length=128)] = Field(description="Its uid: another one after it was rebuilt.")
    ready_workers: int = Field(0, ge=0, description="Worker pods that are ready.")
    desired_workers: int = Field(0, ge=0, description="Worker pods that the job asks for.")


class RewardModelStatus(ApiModel):
    """The servers of one of spec.rewards.models."""

    name: Annotated[str, Field(max_length=63)] = Field(description="The reward model's name.")
    ready_replicas: int = Field(0, ge=0, description="Servers that are ready.")
    desired_replicas: int = Field(0, ge=0, description="Servers that the job asks for.")


class DriverStatus(ApiModel):
    """The driver of the last attempt."""

    submission_id: Annotated[str, Field(max_length=128)] = Field(
        description="Its submission to Ray: the job's uid and the attempt."
    )
    cluster_uid: Annotated[str, Field(max_length=128)] = Field(description="The RayCluster that it was meant for.")
    state: Literal["Reserved", "Submitted", "Ended"] = Field(
        description="Reserved: the attempt has its number, and may have been submitted. Submitted: Ray has it, or had "
        "it when last heard of."
    )
    reserved: datetime | None = Field(None, description="When the attempt got its number.")
    stop_requested: datetime | None = Field(None, description="When it was asked to save a checkpoint and stop.")
    generation: int | None = Field(None, description="Generation of the spec that it begins with.")
    steps: int | None = Field(None, ge=0, description="training.steps of that generation.")


class RecoveryStatus(ApiModel):
    """What the operator remembers of failures, and what it does about the last one."""

    durable_step: int = Field(0, ge=0, description="Step of the checkpoint since which restarts are counted.")
    charged: int = Field(0, ge=0, description="Restarts since then that count against recovery.maxRestarts.")
    bugs: int = Field(0, ge=0, description="Those of them after bugs.")
    cures: Annotated[dict[str, int], Field(max_length=8)] = Field(
        default_factory=dict, description="Restarts since then by level: driver, pods, cluster."
    )
    action: Literal["restart_driver", "replace_pods", "rebuild_cluster"] | None = Field(
        None, description="What is under way; the next attempt ends it."
    )
    reason: Annotated[str, Field(max_length=1024)] | None = Field(
        None, description="What that is done about: the failure, one CamelCase word."
    )
    message: Annotated[str, Field(max_length=32_768)] | None = Field(None, description="The same for a person.")
    decided: datetime | None = Field(None, description="When that was decided.")
    not_before: datetime | None = Field(None, description="When the next attempt may start.")
    newest_pod: datetime | None = Field(
        None, description="When the newest of the pods that action replaces was made, by the API server's clock."
    )
    cluster_uid: Annotated[str, Field(max_length=128)] | None = Field(
        None, description="The RayCluster, or the one whose pods, that action replaces."
    )


class RLJobStatus(ApiModel):
    """Observed state."""

    observed_generation: int | None = Field(None, description="Generation of the spec that this status speaks of.")
    phase: Phase = Field("Pending", description="Summary of the conditions, for people.")
    attempt: int = Field(0, ge=0, description="Number of the last driver start.")
    restarts: int = Field(0, ge=0, description="Failures charged to the restart budget.")
    start_time: datetime | None = Field(
        None, description="When the first driver started, after the last suspension if there was one."
    )
    completion_time: datetime | None = Field(None, description="When the job succeeded or failed.")
    conditions: Annotated[list[Condition], Field(max_length=64)] = Field(
        default_factory=list, description="Aspects of the job's state.", json_schema_extra=list_map("type")
    )
    progress: Progress | None = Field(None, description="How far the training is.")
    checkpoint: CheckpointStatus | None = Field(None, description="The newest durable checkpoint.")
    gpus: int | None = Field(None, ge=0, description="GPUs that the job asks for: its workers' and reward models'.")
    cluster: ClusterStatus | None = Field(None, description="The RayCluster.")
    reward_models: Annotated[list[RewardModelStatus], Field(max_length=8)] = Field(
        default_factory=list, description="The reward models.", json_schema_extra=list_map("name")
    )
    driver: DriverStatus | None = Field(None, description="The driver of the last attempt.")
    operator: Annotated[str, Field(max_length=63)] | None = Field(
        None, description="Namespace of the operator that looks after this job; any other leaves it alone."
    )
    recovery: RecoveryStatus = Field(
        default_factory=RecoveryStatus, description="Failures and what is done about them."
    )
