"""The operator's settings."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Namespace = Annotated[str, Field(pattern="^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")]


class Settings(BaseModel):
    """Times are seconds. Raises pydantic's ValidationError."""

    model_config = ConfigDict(frozen=True)

    namespaces: tuple[Namespace, ...] = Field((), description="Where RLJobs are managed; empty for everywhere.")
    operator_namespace: Namespace = Field("rljob-system", description="Where the operator runs; jobs' pods admit it.")
    protect_own_namespace: bool = Field(
        False, description="Refuse RLJobs in operator_namespace: pods read its Secrets."
    )
    monitoring_namespace: Namespace | None = Field(
        None, description="Where Prometheus runs, which may then scrape jobs' agents; None admits none."
    )
    trainer_image: str | None = Field(None, description="Image of jobs without one.")
    ray_version: str = Field("2.60.0", pattern=r"^[0-9]+\.[0-9]+\.[0-9]+$", description="Ray's, in the trainer image.")
    coscheduling_scheduler: str = Field(
        "scheduler-plugins-scheduler", min_length=1, description="Scheduler with the plugin Coscheduling."
    )
    head_url: str = Field(
        "http://{service}.{namespace}.svc:{port}",
        description="Where a head pod's ports are reached; an operator outside the cluster goes through a proxy.",
    )
    listen: str = Field("127.0.0.1:8080", pattern="^.*:[0-9]{1,5}$", description="Of /healthz, /readyz and /metrics.")
    poll_seconds: float = Field(5.0, gt=0, allow_inf_nan=False, description="Seconds between two polls of a head pod.")
    deletion_seconds: float = Field(300.0, ge=0, description="How long a deleted job may wait for its pods to end.")
    workers: int = Field(32, gt=0, description="Jobs that are looked at at a time.")
    key: bytes = Field(b"", repr=False, description="Jobs' tokens are derived from it.")
