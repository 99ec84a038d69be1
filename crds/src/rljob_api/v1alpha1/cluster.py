"""`spec.cluster` and what else goes into pods: image, sizes, variables, volumes."""

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
    "checkpoints, job and auth are the operator's own volumes: choose another name; spec.checkpoint.volume says where"
    " checkpoints go",
    "template.spec.volumes",
)


class HeadPod(ApiModel):
    """The head pod."""

    cpu: Quantity = Field("4", description="CPUs of the driver's container, as request.")
    memory: Quantity = Field("16Gi", description="Memory of the driver's container, as request and limit.")
    template: PodTemplate = Field(
        default_factory=PodTemplate,
        description=(
            "A pod template that is merged into the pod's, strategically: containers, volumes and variables by name."
            " Its containers are ray-head and agent."
        ),
    )

    rules = (sized("memory"), _JOB_VOLUMES)


class WorkerPod(ApiModel):
    """A worker pod."""

    cpu: Quantity = Field("8", description="CPUs, as request.")
    memory: Quantity = Field("64Gi", description="Memory, as request and limit; shared memory counts.")
    shared_memory: Quantity = Field(
        "16Gi", description="Size of /dev/shm, for Ray's object store and the exchange between processes."
    )
    template: PodTemplate = Field(
        default_factory=PodTemplate,
        description="A pod template that is merged into the pod's; its container is ray-worker.",
    )

    rules = (sized("memory"), sized("sharedMemory"), _JOB_VOLUMES)


class Cluster(ApiModel):
    """Shape of the cluster. `rljob run` trains on one machine and takes --ranks instead."""

    image: Text | None = Field(
        None, description="Image of head, workers and agent; the default is the operator's (its chart's trainerImage)."
    )
    nodes: Annotated[int, Field(ge=1, le=10_000)] = Field(
        1, description="Worker pods; the head is extra and has no GPU."
    )
    gpus_per_node: Annotated[int, Field(ge=0, le=16)] = Field(
        8, description="GPUs of each worker pod; 0 trains on CPUs."
    )
    ranks_per_node: Annotated[int, Field(ge=1, le=16)] | None = Field(
        None, description="Trainer processes of each worker pod; the default is gpusPerNode, or 1 without GPUs."
    )
    gpu_resource: ResourceName = Field("nvidia.com/gpu", description="Name of the resource that a GPU is.")
    head: HeadPod = Field(default_factory=HeadPod, description="The head pod: driver and agent; it has no GPU.")
    worker: WorkerPod = Field(default_factory=WorkerPod, description="Each worker pod.")
    priority_class_name: ObjectName | None = Field(None, description="Priority class of all pods.")

    rules = (
        Rule(
            "!has(self.ranksPerNode) || self.gpusPerNode == 0 || self.ranksPerNode == self.gpusPerNode",
            "each GPU has one rank: remove ranksPerNode, or set it to gpusPerNode",
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


class LocalObjectRef(ApiModel):
    """An object of the same namespace."""

    name: ObjectName = Field(description="Its name.")
