"""The reference: the policy as it was when RL began, or at the last refresh (kl.refreshEvery), frozen.

the policy                           the reference
all weights train                    a copy of all weights
an adapter trains                    a copy of the adapter, which takes the adapter's place for a pass
an adapter that RL itself began      the policy without its adapter: no copy
"""

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from rljob_api import ResolvedSpec
from rljob_trainer.lora.layers import without_adapter
from rljob_trainer.rank.forward import Policy
from rljob_trainer.rank.models.role import ModelRole
from rljob_trainer.rank.packable import rows_as
from rljob_trainer.rank.sharding import copy_weights, sharded_policy


class Reference(Protocol):
    """role: the weights that it keeps besides the policy's; None if it keeps none."""

    @property
    def role(self) -> ModelRole[nn.Module] | None: ...

    def scoring(self) -> AbstractContextManager[Policy]:
        """A policy that computes what the reference does, as long as the context is open; without gradient."""

    def refresh(self) -> None:
        """Become what the policy is now."""


def reference_of(policy: ModelRole[Policy], spec: ResolvedSpec, folder: Path, mesh: DeviceMesh) -> Reference:
    """The policy as it is now. folder: with its configuration."""
    lora = spec.model.lora
    if lora is None:
        return WholeReference(policy.module, spec, folder, mesh)
    if spec.sft is None and lora.path is None and spec.algorithm.kl.refresh_every is None:
        return BaseReference(policy.module)
    return AdapterReference(policy.module)


class WholeReference:
    """A second model, in the compute dtype."""

    def __init__(self, policy: Policy, spec: ResolvedSpec, folder: Path, mesh: DeviceMesh) -> None:
        self._policy = policy
        self._copy = sharded_policy(spec, folder, mesh, trainable=False)
        rows_as(self._copy, policy)
        self.role = ModelRole("reference", self._copy, self._copy.model)
        self.refresh()

    @contextmanager
    def scoring(self) -> Iterator[Policy]:
        yield self._copy

    def refresh(self) -> None:
        copy_weights(self._policy, self._copy)


class AdapterReference:
    """A copy of the adapter. Each rank copies its own shards."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        named = [(name, each) for name, each in policy.model.named_parameters() if each.requires_grad]
        self._trained = [each for _, each in named]
        self._copies = [nn.Parameter(each.detach().clone(), False) for each in self._trained]
        names = [name.replace(".", "/") for name, _ in named]
        copy = nn.ParameterDict(dict(zip(names, self._copies, strict=True)))
        self.role = ModelRole("reference", copy, copy)

    @contextmanager
    def scoring(self) -> Iterator[Policy]:
        present = [each.detach().clone() for each in self._trained]
        _copy(self._copies, self._trained)
        try:
            yield self._policy
        finally:
            _copy(present, self._trained)

    def refresh(self) -> None:
        _copy(self._trained, self._copies)


class BaseReference:
    """The policy without its adapter."""

    role: ModelRole[nn.Module] | None = None

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    @contextmanager
    def scoring(self) -> Iterator[Policy]:
        with without_adapter(self._policy.model):
            yield self._policy

    def refresh(self) -> None:
        raise NotImplementedError("the base does not change")


@torch.no_grad()
def _copy(sources: Iterable[Tensor], targets: Iterable[Tensor]) -> None:
    for source, target in zip(sources, targets, strict=True):
        target.copy_(source)
