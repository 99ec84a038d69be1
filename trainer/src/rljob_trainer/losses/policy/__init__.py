"""Policy losses, one per file; an entry here registers it."""

from collections.abc import Mapping

from rljob_api.v1alpha1.algorithm import Loss
from rljob_trainer.losses.policy.cispo import cispo
from rljob_trainer.losses.policy.clip import clip
from rljob_trainer.losses.policy.decoupled_clip import decoupled_clip
from rljob_trainer.losses.policy.dpo import dpo
from rljob_trainer.losses.policy.dppo import dppo_kl, dppo_tv
from rljob_trainer.losses.policy.dual_clip import dual_clip
from rljob_trainer.losses.policy.entropy_mechanism import clip_cov, kl_cov
from rljob_trainer.losses.policy.geo_mean import geo_mean
from rljob_trainer.losses.policy.gpg import gpg
from rljob_trainer.losses.policy.gspo import gspo
from rljob_trainer.losses.policy.sapo import sapo
from rljob_trainer.losses.policy.sppo import sppo
from rljob_trainer.losses.policy.terms import LossTerms, PolicyBatch, PolicyLoss
from rljob_trainer.losses.policy.topr import topr

LOSSES: Mapping[Loss, PolicyLoss] = {
    "clip": clip,
    "dual_clip": dual_clip,
    "decoupled_clip": decoupled_clip,
    "gspo": gspo,
    "geo_mean": geo_mean,
    "cispo": cispo,
    "sapo": sapo,
    "clip_cov": clip_cov,
    "kl_cov": kl_cov,
    "gpg": gpg,
    "dppo_tv": dppo_tv,
    "dppo_kl": dppo_kl,
    "topr": topr,
    "dpo": dpo,
    "sppo": sppo,
}

__all__ = ["LOSSES", "LossTerms", "PolicyBatch", "PolicyLoss"]
