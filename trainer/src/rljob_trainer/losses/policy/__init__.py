"""Policy losses, one per file; an entry here registers it."""

from collections.abc import Mapping

from rljob_api.v1alpha1.algorithm import Loss
from rljob_trainer.losses.policy.clip import clip
from rljob_trainer.losses.policy.decoupled_clip import decoupled_clip
from rljob_trainer.losses.policy.dual_clip import dual_clip
from rljob_trainer.losses.policy.terms import LossTerms, PolicyBatch, PolicyLoss

LOSSES: Mapping[Loss, PolicyLoss] = {"clip": clip, "dual_clip": dual_clip, "decoupled_clip": decoupled_clip}

__all__ = ["LOSSES", "LossTerms", "PolicyBatch", "PolicyLoss"]
