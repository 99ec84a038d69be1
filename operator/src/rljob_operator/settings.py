"""The operator's settings."""

from pydantic import Field

from rljob_api.v1alpha1.base import ApiModel


class Settings(ApiModel):
    """Times are seconds."""

    trainer_image: str | None = Field(None, description="Image of jobs without one.")
    ray_version: str = Field("2.60.0", description="Ray's version in the trainer image.")
    operator_namespace: str = Field("rljob-system", description="Where the operator runs; jobs' pods admit it.")
    monitoring_namespace: str | None = Field(
        None, description="Where Prometheus runs, which may then scrape jobs' agents; None admits none."
    )
    poll_seconds: float = Field(5.0, gt=0, description="Seconds between two polls of a head pod.")
    key: bytes = Field(b"", repr=False, description="Jobs' tokens are derived from it.")
    head_url: str = Field(
        "http://{service}.{namespace}.svc:{port}",
        description="Where a head pod's ports are reached; an operator outside the cluster goes through a proxy.",
    )
    deletion_seconds: float = Field(300.0, ge=0, description="How long a deleted job may wait for its pods to end.")
