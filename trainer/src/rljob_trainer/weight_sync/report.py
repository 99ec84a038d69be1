"""What a weight sync reports. Light: the driver imports it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SyncReport:
    """tensors and bytes that were sent; seconds from the first tensor to the last acknowledgement."""

    tensors: int
    bytes: int
    seconds: float
