"""`rljob.dev/v1alpha1`."""

from rljob_api.v1alpha1.actor import Actor, Fsdp
from rljob_api.v1alpha1.algorithm import Algorithm, DynamicSampling, Kl
from rljob_api.v1alpha1.base import ApiModel, Rule
from rljob_api.v1alpha1.data import Data
from rljob_api.v1alpha1.model import FromScratch, Model, Tokenizer
from rljob_api.v1alpha1.recovery import Backoff, Recovery, RecoveryRule
from rljob_api.v1alpha1.rewards import RewardFunction, Rewards
from rljob_api.v1alpha1.rljob import ObjectMeta, RLJob, RLJobSpec
from rljob_api.v1alpha1.rollout import Rollout, ValidationSampling, WeightSync
from rljob_api.v1alpha1.sft import Sft
from rljob_api.v1alpha1.status import CheckpointStatus, Condition, Progress, RLJobStatus
from rljob_api.v1alpha1.training import Checkpoint, Cluster, EnvVar, Training

__all__ = [
    "Actor",
    "Algorithm",
    "ApiModel",
    "Backoff",
    "Checkpoint",
    "CheckpointStatus",
    "Cluster",
    "Condition",
    "Data",
    "DynamicSampling",
    "EnvVar",
    "FromScratch",
    "Fsdp",
    "Kl",
    "Model",
    "ObjectMeta",
    "Progress",
    "RLJob",
    "RLJobSpec",
    "RLJobStatus",
    "Recovery",
    "RecoveryRule",
    "RewardFunction",
    "Rewards",
    "Rollout",
    "Rule",
    "Sft",
    "Tokenizer",
    "Training",
    "ValidationSampling",
    "WeightSync",
]
