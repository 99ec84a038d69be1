"""The teacher: a frozen model of its own, whose log-probabilities on-policy distillation compares with the policy's."""

from pathlib import Path

import torch
from torch.distributed.device_mesh import DeviceMesh

from rljob_api import ResolvedSpec
from rljob_trainer.compute.dtypes import compute_dtype
from rljob_trainer.errors import blamed
from rljob_trainer.rank.forward import Policy
from rljob_trainer.rank.model_source import TEACHER_FIELD, teacher_model
from rljob_trainer.rank.models.role import ModelRole
from rljob_trainer.rank.packable import choose_rows
from rljob_trainer.rank.sharding import COMPUTE_DTYPES, load_initial_weights, sharded_policy


def teacher_of(spec: ResolvedSpec, folder: Path, mesh: DeviceMesh) -> ModelRole[Policy]:
    """The teacher in the compute dtype, sharded as the reference; collective. folder: with its weights.

    Raises DataError or JobError for a model whose log-probabilities cannot be computed.
    """
    own = spec.model_copy(update={"model": teacher_model(spec, folder)})
    with blamed(TEACHER_FIELD):
        teacher = sharded_policy(own, folder, mesh, trainable=False)
        load_initial_weights(teacher, own, folder, mesh)
        dtype = COMPUTE_DTYPES[compute_dtype(spec, mesh.device_type)]
        choose_rows(teacher, spec.longest_sample, torch.device(mesh.device_type), dtype)
    return ModelRole("teacher", teacher, teacher.model, saved=False)
