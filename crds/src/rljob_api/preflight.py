"""What an attempt reports of its fabric preflight: `attempts/<n>.preflight.json`, which the agent serves."""

from typing import Annotated

from pydantic import AwareDatetime, Field

from rljob_api.conditions import Reason
from rljob_api.v1alpha1.base import ApiModel
from rljob_api.v1alpha1.status import Measured

LISTED = 64
"""Pairs and nodes that a record lists at most."""

_Host = Annotated[str, Field(max_length=253)]


class FabricPair(ApiModel):
    """Two ranks that exchanged data."""

    hosts: Annotated[list[_Host], Field(min_length=2, max_length=2)] = Field(
        description="Hosts of the ranks: in a cluster names of worker pods. Equal if the two share a node."
    )
    ranks: Annotated[list[int], Field(min_length=2, max_length=2)] = Field(
        description="Numbers of the ranks; equal if one of them received a wrong sum over all ranks."
    )
    bus_bandwidth: Measured | None = Field(
        None,
        alias="busBandwidthGBps",
        description="GB/s in each direction; 0 if the exchange did not end, None if it was not timed.",
    )
    wrong_elements: int = Field(0, ge=0, description="Elements that arrived wrong.")


class BadNode(ApiModel):
    """A node to avoid."""

    host: _Host = Field(description="Its host: in a cluster the name of its worker pod.")
    address: Annotated[str, Field(max_length=64)] = Field(description="IP address of the pod in Ray.")


class PreflightRecord(ApiModel):
    """passed and reason say whether the attempt may go on.

    bad_nodes explain all failed pairs, the most suspicious one first. If two nodes have one failed pair and nothing
    tells them apart, both are listed. None is listed for sums that are wrong on every node.
    """

    passed: bool = Field(description="Whether every pair and collective passed, so that the attempt continues.")
    reason: Reason | None = Field(None, description="FabricSlow or FabricWrong; None if it passed.")
    message: Annotated[str, Field(max_length=32_768)] = Field("", description="The failed pairs, for a person.")
    bad_nodes: Annotated[list[BadNode], Field(max_length=LISTED)] = Field(
        default_factory=list, description="Nodes that the next cluster should avoid."
    )
    pairs: Annotated[list[FabricPair], Field(max_length=LISTED)] = Field(
        default_factory=list, description="The failed pairs, worst first; the slowest ones if it passed."
    )
    time: AwareDatetime = Field(description="When the measurement ended.")
    seconds: Measured = Field(ge=0, description="How long it took.")
