"""The reference: the policy as it was when RL began, or at the last refresh (kl.refreshEvery), frozen."""

from pathlib import Path

from torch.distributed.device_mesh import DeviceMesh

from rljob_api import ResolvedSpec
from rljob_trainer.rank.forward import Policy
from rljob_trainer.rank.models.role import ModelRole
from rljob_trainer.rank.packable import rows_as
from rljob_trainer.rank.sharding import copy_weights, sharded_policy


def reference_of(policy: ModelRole[Policy], spec: ResolvedSpec, folder: Path, mesh: DeviceMesh) -> ModelRole[Policy]:
    """A copy of the policy. folder: with its configuration."""
    reference = sharded_policy(spec, folder, mesh, trainable=False)
    copy_weights(policy.module, reference)
    rows_as(reference, policy.module)
    return ModelRole("reference", reference, reference.model)
