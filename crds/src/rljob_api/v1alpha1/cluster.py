"""`spec.cluster` and other settings of pods: image, sizes, variables, volumes."""

from typing import Annotated

from pydantic import Field, StringConstraints

from rljob_api.v1alpha1.base import (
    KEY_PATTERN,
    VARIABLE_PATTERN,
    ApiModel,
    ObjectName,
    Quantity,
    ResourceName,
    Rule,
    Text,
    sized,
)
from rljob_api.v1alpha1.pods import JOB_VOLUMES, PodTemplate, cel_list

_VOLUMES = "self.template.spec.volumes"
_JOB_VOLUMES = Rule(
    f"!has(self.template.spec) || !has({_VOLUMES}) || {_VOLUMES}.all(v, !(v.name in {cel_list(JOB_VOLUMES)}))",
    "the volume names checkpoints, job and auth are reserved for the operator: choose another name;"
    " spec.checkpoint.volume configures the checkpoint volume",
    "template.spec.volumes",
)


class HeadPod(ApiModel):
    """The head pod."""

    cpu: Quantity = Field("4", description="CPU request of the driver's container.")
    memory: Quantity = Field("16Gi", description="Memory request and limit of the driver's container.")
    template: PodTemplate = Field(
        default_factory=PodTemplate,
        description=(
            "Pod template that the operator merges into its own by strategic merge: containers, volumes and variables"
            " by name. The containers are ray-head and agent."
        ),
    )

    rules = (sized("memory"), _JOB_VOLUMES)


class WorkerPod(ApiModel):
    """A worker pod."""

    cpu: Quantity = Field("8", description="CPU request.")
    memory: Quantity = Field("64Gi", description="Memory request and limit, including shared memory.")
    shared_memory: Quantity = Field(
        "16Gi", description="Size of /dev/shm, which holds Ray's object store and data that processes exchange."
    )
    template: PodTemplate = Field(
        default_factory=PodTemplate,
        description="Pod template that the operator merges into its own; the container is ray-worker.",
    )

    rules = (sized("memory"), sized("sharedMemory"), _JOB_VOLUMES)


class Cluster(ApiModel):
    """Shape of the cluster. `rljob run` trains on one machine and uses --ranks instead."""

    image: Text | None = Field(
        None,
        description="Image of head, workers and agent; the default is operator.trainerImage of the operator's chart.",
    )
    nodes: Annotated[int, Field(ge=1, le=10_000)] = Field(1, description="Number of worker pods, without the head pod.")
    min_nodes: Annotated[int, Field(ge=1, le=10_000)] | None = Field(
        None,
        description="Worker pods that a queue may start the job with, if it has no quota for all; the default is nodes."
        " Only Kueue's partial admission reads it.",
    )
    gpus_per_node: Annotated[int, Field(ge=0, le=16)] = Field(8, description="GPUs per worker pod; 0 trains on CPUs.")
    ranks_per_node: Annotated[int, Field(ge=1, le=16)] | None = Field(
        None, description="Trainer processes per worker pod; the default is gpusPerNode, or 1 without GPUs."
    )
    gpu_resource: ResourceName = Field("nvidia.com/gpu", description="Resource name of a GPU.")
    head: HeadPod = Field(default_factory=HeadPod, description="The head pod. It runs driver and agent and has no GPU.")
    worker: WorkerPod = Field(default_factory=WorkerPod, description="The worker pods.")
    priority_class_name: ObjectName | None = Field(None, description="Priority class of all pods.")

    rules = (
        Rule(
            "!has(self.minNodes) || self.minNodes <= self.nodes",
            "minNodes cannot be above nodes: lower it, or remove it",
            "minNodes",
        ),
        Rule(
            "!has(self.ranksPerNode) || self.gpusPerNode == 0 || self.ranksPerNode == self.gpusPerNode",
            "each GPU has exactly one rank: remove ranksPerNode, or set it to gpusPerNode",
            "ranksPerNode",
        ),
    )


class SecretKeyRef(ApiModel):
    """One key of a Secret."""

    name: ObjectName = Field(description="The Secret's name.")
    key: Annotated[str, StringConstraints(pattern=KEY_PATTERN, min_length=1, max_length=253)] = Field(
        description="The key in the Secret."
    )


class EnvValueFrom(ApiModel):
    """Where a variable's value comes from."""

    secret_key_ref: SecretKeyRef = Field(
        description="A key of a Secret. `rljob run` uses the variable of the same name in its own environment instead."
    )


class EnvVar(ApiModel):
    """One environment variable of the trainer's processes."""

    name: Annotated[str, StringConstraints(pattern=VARIABLE_PATTERN, min_length=1, max_length=256)] = Field(
        description="The variable's name."
    )
    value: Annotated[str, StringConstraints(max_length=4096)] | None = Field(None, description="The value.")
    value_from: EnvValueFrom | None = Field(None, description="The source of the value.")

    rules = (
        Rule(
            "has(self.value) != has(self.valueFrom)",
            "a variable has one source: set either value or valueFrom",
            "value",
        ),
    )


class LocalObjectRef(ApiModel):
    """An object in the namespace of the job."""

    name: ObjectName = Field(description="The object's name.")
