"""`spec.preflight`: what is measured before a model is loaded."""

from typing import Annotated

from pydantic import Field

from rljob_api.v1alpha1.base import ApiModel, Duration, Rule


class FabricPreflight(ApiModel):
    """Measures the links between the ranks as nccl-tests does, over NCCL on GPUs and gloo on CPUs.

    It compares every element that arrives, and names the pair of nodes between which data is wrong or slow. It runs if
    no engine or rank of an earlier attempt is alive.
    """

    min_bus_bandwidth: Annotated[float, Field(gt=0, le=1_000_000, allow_inf_nan=False)] | None = Field(
        None,
        alias="minBusBandwidthGBps",
        description="Lowest bus bandwidth of a pair of ranks that send to each other, in GB/s; the attempt fails below"
        " it. Without it, only wrong data fails the attempt.",
    )
    time_limit: Duration = Field(
        "60s", description="Time for the measurement; the largest sizes are left out if it does not suffice."
    )

    rules = (
        Rule(
            "duration(self.timeLimit) >= duration('1s')",
            "preflight.fabric.timeLimit must be at least 1s: set it to 60s, for example",
            "timeLimit",
        ),
    )


class Preflight(ApiModel):
    """What is measured before a model is loaded."""

    fabric: FabricPreflight | None = Field(
        None, description="Measurement of the links between the ranks; without it, nothing is measured."
    )
