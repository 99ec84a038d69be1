"""`rljob.dev/v1alpha1`."""

from rljob_api.v1alpha1.actor import Actor, Fsdp
from rljob_api.v1alpha1.algorithm import Algorithm, DynamicSampling, Kl
from rljob_api.v1alpha1.base import ApiModel, Rule
from rljob_api.v1alpha1.cluster import Cluster, EnvVar, HeadPod, LocalObjectRef, WorkerPod
from rljob_api.v1alpha1.data import Data
from rljob_api.v1alpha1.environment import BuiltinTool, Environment, McpServer
from rljob_api.v1alpha1.gang import Gang, GangScheduler
from rljob_api.v1alpha1.model import FromScratch, Model, Tokenizer
from rljob_api.v1alpha1.preflight import FabricPreflight, Preflight
from rljob_api.v1alpha1.recovery import Backoff, Recovery, RecoveryRule
from rljob_api.v1alpha1.reward_models import RewardModel
from rljob_api.v1alpha1.rewards import RewardFunction, Rewards
from rljob_api.v1alpha1.rljob import ObjectMeta, RLJob, RLJobSpec
from rljob_api.v1alpha1.rollout import Rollout, ValidationSampling, WeightSync
from rljob_api.v1alpha1.sft import Sft
from rljob_api.v1alpha1.status import (
    CheckpointStatus,
    ClusterStatus,
    Condition,
    DriverStatus,
    ExcludedNode,
    Progress,
    RecoveryStatus,
    RewardModelStatus,
    RLJobStatus,
    WorkloadStatus,
)
from rljob_api.v1alpha1.training import Checkpoint, CheckpointVolume, Training

__all__ = [
    "Actor",
    "Algorithm",
    "ApiModel",
    "Backoff",
    "BuiltinTool",
    "Checkpoint",
    "CheckpointStatus",
    "CheckpointVolume",
    "Cluster",
    "ClusterStatus",
    "Condition",
    "Data",
    "DriverStatus",
    "DynamicSampling",
    "EnvVar",
    "Environment",
    "ExcludedNode",
    "FabricPreflight",
    "FromScratch",
    "Fsdp",
    "Gang",
    "GangScheduler",
    "HeadPod",
    "Kl",
    "LocalObjectRef",
    "McpServer",
    "Model",
    "ObjectMeta",
    "Preflight",
    "Progress",
    "RLJob",
    "RLJobSpec",
    "RLJobStatus",
    "Recovery",
    "RecoveryRule",
    "RecoveryStatus",
    "RewardFunction",
    "RewardModel",
    "RewardModelStatus",
    "Rewards",
    "Rollout",
    "Rule",
    "Sft",
    "Tokenizer",
    "Training",
    "ValidationSampling",
    "WeightSync",
    "WorkerPod",
    "WorkloadStatus",
]
