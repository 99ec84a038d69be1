"""`status`: the state that the operator reports. The operator never reads it as a decision of the user."""

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
"""The largest integer that every JSON parser reads exactly (RFC 8259, 6). The API server accepts up to 2⁶³ - 1.

Users' code runs beside the processes that report progress and checkpoints, so a report may hold anything. If one value
of a status is invalid (a larger integer, a time without zone, NaN), the API server rejects the whole status, and the
job no longer advances. So these models reject such a report before it enters the status.
"""

Measured = Annotated[float, Field(allow_inf_nan=False)]


class Condition(ApiModel):
    """One aspect of the job's state, by Kubernetes' conventions for conditions."""

    type: Annotated[str, Field(max_length=316)] = Field(description="Name of the condition.")
    status: Literal["True", "False", "Unknown"] = Field(description="Whether the condition holds.")
    reason: Annotated[str, Field(max_length=1024)] = Field(
        description="Cause of the current status, one CamelCase word."
    )
    message: Annotated[str, Field(max_length=32_768)] = Field("", description="State, cause and remedy as text.")
    last_transition_time: datetime = Field(description="When status last changed.")
    observed_generation: int | None = Field(None, description="Generation of the spec that the condition refers to.")


class Progress(ApiModel):
    """Progress of the training; the driver writes it and the agent serves it."""

    step: int = Field(0, ge=0, le=EXACT, description="Last finished step, including supervised steps.")
    total_steps: int = Field(0, ge=0, le=EXACT, description="Steps of the whole run, including supervised steps.")
    percent: Measured = Field(0.0, ge=0, le=100, description="step / totalSteps x 100.")
    eta: AwareDatetime | None = Field(None, description="Estimated time of the end of the last step.")
    phase: Annotated[str, Field(max_length=64)] = Field(
        "", description="Current phase of the trainer: rollout, update, sync ..."
    )
    stage: Annotated[str, Field(max_length=64)] = Field("", description="Stage of the run: sft, dpo or rl.")
    reward: Measured | None = Field(None, description="Mean reward of the last RL step.")
    validation_reward: Measured | None = Field(None, description="Mean reward of the last validation.")
    response_tokens: Measured | None = Field(None, description="Mean length of the last step's responses, in tokens.")
    tokens_per_second: Measured | None = Field(
        None, description="Prompt and response tokens of the last step, divided by its duration."
    )
    engine_difference: Measured | None = Field(
        None,
        description="Mean absolute difference of the engine's and the trainer's log-probabilities in the last RL step,"
        " in nats.",
    )
    engine_tolerance: Measured | None = Field(
        None, description="Largest engineDifference at which engine and trainer count as equal, in nats."
    )
    policy_version: int = Field(0, ge=0, le=EXACT, description="Version of the weights that the engines hold.")


class CheckpointStatus(ApiModel):
    """The newest durable checkpoint."""

    step: int = Field(ge=0, le=EXACT, description="Step after which it was saved.")
    path: Annotated[str, Field(max_length=4096)] = Field(description="Folder on the checkpoint volume.")
    time: AwareDatetime = Field(description="Time at which it became durable.")


class ClusterStatus(ApiModel):
    """The RayCluster."""

    name: Annotated[str, Field(max_length=63)] = Field(description="Name of the RayCluster.")
    uid: Annotated[str, Field(max_length=128)] = Field(
        description="Its UID, which changes when the cluster is rebuilt."
    )
    ready_workers: int = Field(0, ge=0, description="Number of ready worker pods.")
    desired_workers: int = Field(0, ge=0, description="Number of worker pods that the job requests.")


class RewardModelStatus(ApiModel):
    """The servers of one of spec.rewards.models."""

    name: Annotated[str, Field(max_length=63)] = Field(description="The reward model's name.")
    ready_replicas: int = Field(0, ge=0, description="Number of ready servers.")
    desired_replicas: int = Field(0, ge=0, description="Number of servers that the job requests.")


class WorkloadStatus(ApiModel):
    """The job in Kueue. Only jobs with a queue have it."""

    name: Annotated[str, Field(max_length=253)] = Field(description="Name of the Workload.")
    queue: Annotated[str, Field(max_length=253)] | None = Field(
        None, description="LocalQueue that the job waits in, or was admitted from."
    )
    cluster_queue: Annotated[str, Field(max_length=253)] | None = Field(
        None, description="ClusterQueue whose quota the job has."
    )
    evictions: int = Field(0, ge=0, description="How many times the job lost its quota.")
    lost_steps: int | None = Field(
        None, ge=0, description="Steps that the last eviction lost; 0 if the driver saved a checkpoint in time."
    )


class DriverStatus(ApiModel):
    """The driver of the last attempt."""

    submission_id: Annotated[str, Field(max_length=128)] = Field(
        description="Submission ID in Ray: UID of the job and number of the attempt."
    )
    cluster_uid: Annotated[str, Field(max_length=128)] = Field(description="UID of the RayCluster of the attempt.")
    state: Literal["Reserved", "Submitted", "Ended"] = Field(
        description="Reserved: the attempt has a number and may have been submitted. Submitted: Ray has accepted it. "
        "Ended: the driver has ended."
    )
    reserved: datetime | None = Field(None, description="Time at which the attempt got its number.")
    stop_requested: datetime | None = Field(None, description="Time of the request to save a checkpoint and stop.")
    generation: int | None = Field(None, description="Generation of the spec that the driver started with.")
    steps: int | None = Field(None, ge=0, description="training.steps of that generation.")


class RecoveryStatus(ApiModel):
    """Failures since the last durable checkpoint, and the reaction to the last one."""

    durable_step: int = Field(0, ge=0, description="Step of the checkpoint from which restarts are counted.")
    charged: int = Field(0, ge=0, description="Restarts since that checkpoint that count against recovery.maxRestarts.")
    bugs: int = Field(0, ge=0, description="Number of these restarts that followed a bug.")
    cures: Annotated[dict[str, int], Field(max_length=8)] = Field(
        default_factory=dict, description="Restarts since that checkpoint by level: driver, pods, cluster."
    )
    action: Literal["restart_driver", "replace_pods", "rebuild_cluster"] | None = Field(
        None, description="Action in progress; it ends when the next attempt starts."
    )
    reason: Annotated[str, Field(max_length=1024)] | None = Field(
        None, description="Failure that caused the action, one CamelCase word."
    )
    message: Annotated[str, Field(max_length=32_768)] | None = Field(None, description="The failure as text.")
    decided: datetime | None = Field(None, description="Time of the decision.")
    not_before: datetime | None = Field(None, description="Earliest start of the next attempt.")
    newest_pod: datetime | None = Field(
        None, description="Creation time of the newest pod that the action replaces, by the API server's clock."
    )
    cluster_uid: Annotated[str, Field(max_length=128)] | None = Field(
        None, description="UID of the RayCluster that the action replaces, or whose pods it replaces."
    )


EXCLUDED = 32
"""Nodes that a status remembers at most."""


class ExcludedNode(ApiModel):
    """A node that worker pods of the job avoid."""

    name: Annotated[str, Field(max_length=253)] = Field(description="Its name, and its label kubernetes.io/hostname.")
    reason: Annotated[str, Field(max_length=1024)] = Field(
        description="Failure that it was excluded for, one CamelCase word."
    )
    since: datetime = Field(description="Time of the exclusion.")


class RLJobStatus(ApiModel):
    """Observed state."""

    observed_generation: int | None = Field(None, description="Generation of the spec that this status refers to.")
    phase: Phase = Field("Pending", description="Summary of the conditions.")
    attempt: int = Field(0, ge=0, description="Number of the last attempt; each start of a driver is one attempt.")
    restarts: int = Field(0, ge=0, description="Number of failures that counted against recovery.maxRestarts.")
    start_time: datetime | None = Field(
        None, description="Start of the first driver; of the first one since the last suspension, if there was one."
    )
    completion_time: datetime | None = Field(None, description="Time at which the job succeeded or failed.")
    conditions: Annotated[list[Condition], Field(max_length=64)] = Field(
        default_factory=list, description="Aspects of the job's state.", json_schema_extra=list_map("type")
    )
    progress: Progress | None = Field(None, description="Progress of the training.")
    checkpoint: CheckpointStatus | None = Field(None, description="The newest durable checkpoint.")
    gpus: int | None = Field(None, ge=0, description="GPUs that the job requests, for its workers and reward models.")
    cluster: ClusterStatus | None = Field(None, description="The RayCluster.")
    reward_models: Annotated[list[RewardModelStatus], Field(max_length=8)] = Field(
        default_factory=list, description="The reward models.", json_schema_extra=list_map("name")
    )
    workload: WorkloadStatus | None = Field(None, description="The job in Kueue, if it has a queue.")
    excluded_nodes: Annotated[list[ExcludedNode], Field(max_length=EXCLUDED)] = Field(
        default_factory=list,
        description="Nodes that worker pods of the next RayClusters avoid; empty again after a suspension.",
        json_schema_extra=list_map("name"),
    )
    driver: DriverStatus | None = Field(None, description="The driver of the last attempt.")
    operator: Annotated[str, Field(max_length=63)] | None = Field(
        None, description="Namespace of the operator that manages this job; other operators ignore the job."
    )
    recovery: RecoveryStatus = Field(
        default_factory=RecoveryStatus, description="Failures, and the reaction to the last one."
    )
