"""The parts of a job that have Kubernetes' own form: templates, volumes and variables of its pods.

This schema accepts any value for fields that RLJob does not read; the API server validates them when it creates a pod.
"""

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

from pydantic import Field

from rljob_api.v1alpha1 import pod_keys
from rljob_api.v1alpha1.base import ApiModel, Name, ObjectName, Path, Rule, list_map, straight, within_volume

FreeForm = Annotated[dict[str, Any], Field(max_length=64)]
"""Part of a Kubernetes object, which the API server validates when the object is created."""

_FreeForms = Annotated[list[FreeForm], Field(max_length=64)]

_Labels = Annotated[dict[str, Annotated[str, Field(max_length=63)]], Field(max_length=64)]

KUBERAY_LABELS = ("app.kubernetes.io/name", "app.kubernetes.io/created-by")
"""With those of ray.io, the labels by which the Service of a RayCluster's head selects its pod."""


JOB_VOLUMES = ("checkpoints", "job", "auth")
"""Volumes of head and workers that the operator adds. It adds shared-memory too, which a template may replace."""

SHARED_MEMORY = "shared-memory"
KUBERAY_VOLUME = "shared-mem"
"""KubeRay's operator mounts a volume of this name at the head's /dev/shm and reuses an existing one."""

FOLDERS = ("/checkpoints", "/etc/rljob/job", "/dev/shm")
"""Where the operator mounts its volumes in the containers that spec.volumeMounts applies to."""

FOLDERS_PATTERN = r"^/*(\./+)*(" + "|".join(each[1:].replace("/", r"/+(\./+)*") for each in FOLDERS) + r")(/+\.?)*$"
"""Matches FOLDERS, also as `//checkpoints/.`: two mounts of one folder would hide each other."""


def cel_list(words: Sequence[str]) -> str:
    return f"[{', '.join(map(repr, words))}]"


class PodPart(ApiModel):
    """Part of a pod, in Kubernetes' own form."""

    def written(self) -> dict[str, Any]:
        """The part as its author wrote it, including nulls."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)


class OpenPart(PodPart):
    """A part that may have fields besides the declared ones.

    others: keys that the schema declares without validating them, so that the API server detects their changes.
    """

    model_config = ApiModel.model_config | {"extra": "allow"}
    others: ClassVar[tuple[str, ...]] = ()


class PodMetadata(OpenPart):
    """Labels and annotations of a pod."""

    labels: _Labels | None = Field(None, description="Labels of the pod.")
    annotations: FreeForm | None = Field(None, description="Annotations of the pod.")

    others = pod_keys.TEMPLATE_METADATA
    rules = (
        Rule(
            f"!has(self.labels) || !self.labels.exists(k, k.startsWith('ray.io/') || k in {cel_list(KUBERAY_LABELS)})",
            "the labels ray.io/*, app.kubernetes.io/name and app.kubernetes.io/created-by are reserved for KubeRay,"
            " which finds the head of a job by them: choose another key",
            "labels",
        ),
    )


class Volume(OpenPart):
    """One volume, with its source."""

    name: Name = Field(description="Name of the volume.")

    others = pod_keys.VOLUME


class Container(OpenPart):
    """Part of one container."""

    name: Name = Field(description="Name of the container.")

    others = pod_keys.CONTAINER


_Containers = Annotated[list[Container], Field(max_length=64)]
_Volumes = Annotated[list[Volume], Field(max_length=64)]


class PodSpec(OpenPart):
    """A pod's spec. Lists must be lists of objects; the API server validates the objects when it creates a pod."""

    containers: _Containers | None = Field(
        None, description="Containers, merged by name.", json_schema_extra=list_map("name")
    )
    init_containers: _Containers | None = Field(
        None, description="Init containers.", json_schema_extra=list_map("name")
    )
    volumes: _Volumes | None = Field(None, description="Volumes, merged by name.", json_schema_extra=list_map("name"))
    tolerations: _FreeForms | None = Field(None, description="Tolerations.")
    topology_spread_constraints: _FreeForms | None = Field(None, description="How pods are spread.")
    host_aliases: _FreeForms | None = Field(None, description="Lines of /etc/hosts.")

    others = pod_keys.POD_SPEC


class PodTemplate(OpenPart):
    """Part of a pod template."""

    metadata: PodMetadata | None = Field(None, description="Labels and annotations of the pod.")
    spec: PodSpec | None = Field(None, description="Part of the pod's spec.")


class VolumeMount(OpenPart):
    """Where one volume is mounted."""

    name: Name = Field(description="The volume's name.")
    mount_path: Path = Field(description="The path in the container.")
    sub_path: Annotated[str, Field(max_length=1024)] | None = Field(
        None, description="The folder of the volume to mount; the default is all of it."
    )

    others = pod_keys.VOLUME_MOUNT
    rules = (straight("mountPath", "a volume mount's mountPath"), within_volume("subPath", "a volume mount's subPath"))


class EnvSource(OpenPart):
    """An object whose keys become variables."""

    name: ObjectName = Field(description="The object's name.")

    others = pod_keys.ENV_SOURCE


class EnvFrom(PodPart):
    """A ConfigMap or a Secret whose keys become variables."""

    prefix: Annotated[str, Field(max_length=256)] | None = Field(None, description="Prefix of each variable's name.")
    config_map_ref: EnvSource | None = Field(None, description="The ConfigMap.")
    secret_ref: EnvSource | None = Field(None, description="The Secret.")

    rules = (
        Rule(
            "has(self.configMapRef) != has(self.secretRef)",
            "an entry of envFrom has one source: set either configMapRef or secretRef",
            "secretRef",
        ),
    )
