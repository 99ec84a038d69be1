"""`spec.gang`: which scheduler starts the pods of a job together."""

from typing import Literal

from pydantic import Field

from rljob_api.v1alpha1.base import ApiModel

GangScheduler = Literal["none", "volcano", "coscheduling", "native"]


class Gang(ApiModel):
    """All pods of the job, as one PodGroup: a gang scheduler gives nodes to all of them or to none."""

    scheduler: GangScheduler = Field(
        "none",
        description="Scheduler of the gang: volcano, coscheduling (of scheduler-plugins) or native (of Kubernetes"
        " 1.36); none places each pod by itself. `rljob run` ignores it.",
    )
