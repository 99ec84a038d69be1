"""The policy: float32 master weights, an optimizer for each stage."""

from dataclasses import replace
from pathlib import Path

import torch
from torch.distributed.device_mesh import DeviceMesh

from rljob_api import ResolvedSpec
from rljob_trainer.compute.dtypes import compute_dtype
from rljob_trainer.rank.forward import Policy
from rljob_trainer.rank.models.role import ModelRole, adamw
from rljob_trainer.rank.packable import choose_rows
from rljob_trainer.rank.sharding import COMPUTE_DTYPES, decoder_layers, load_initial_weights, sharded_policy


def load_policy(spec: ResolvedSpec, folder: Path, mesh: DeviceMesh) -> ModelRole[Policy]:
    """The policy with its first weights, not trained yet; collective.

    Raises DataError or JobError for a model that cannot be trained.
    """
    policy = sharded_policy(spec, folder, mesh, trainable=True)
    load_initial_weights(policy, spec, folder, mesh)
    dtype = COMPUTE_DTYPES[compute_dtype(spec, mesh.device_type)]
    longest = spec.longest_sample
    choose_rows(policy, longest, torch.device(mesh.device_type), dtype)
    return ModelRole("policy", policy, policy.model)


def with_fresh_optimizer(policy: ModelRole[Policy], spec: ResolvedSpec, device: torch.device) -> ModelRole[Policy]:
    layers = decoder_layers(policy.network) if spec.actor.optimizer == "muon" else []
    matrices = {id(each) for layer in layers for each in layer.parameters() if each.dim() == 2}
    return replace(policy, optimizer=adamw(policy.module, spec, device, matrices=matrices))
