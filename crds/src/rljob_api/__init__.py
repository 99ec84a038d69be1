"""The RLJob API: its models are the source of truth for the CRD, the operator and the trainer."""

from rljob_api.durations import parse_duration
from rljob_api.resolve import ResolvedSpec, resolve
from rljob_api.v1alpha1 import RLJob, RLJobSpec

__all__ = ["RLJob", "RLJobSpec", "ResolvedSpec", "parse_duration", "resolve"]
