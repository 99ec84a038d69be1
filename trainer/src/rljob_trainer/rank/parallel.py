"""How a model is spread over the ranks. Light: the driver imports it.

    replicate   copies of the shards below, each with samples of its own                      (HSDP)
    shard       ranks that share the parameters of one copy, each with samples of its own     (FSDP)
    context     ranks that share the tokens of a sample
    tensor      ranks that share each matrix product
    expert      ranks that share the experts of a layer; borrowed from the others

Ranks are numbered with `tensor` running fastest. Two products of dimensions matter:

    data = replicate x shard     ranks with different samples: a plan has a part for each
    loss = data x context        ranks with different tokens: FSDP averages a gradient over them, and a loss that was
                                 divided by counts of the whole minibatch is multiplied by it, so that gradients add up
"""

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from rljob_api import ResolvedSpec
from rljob_trainer.errors import JobError

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

FIELD = "spec.actor.parallel"


@dataclass(frozen=True, slots=True)
class ParallelDims:
    """Ranks along each dimension, 1 or more.

    Raises JobError naming the field for a dimension that this version does not execute.
    """

    replicate: int = 1
    shard: int = 1
    context: int = 1
    tensor: int = 1
    expert: int = 1

    def __post_init__(self) -> None:
        sizes = {each.name: getattr(self, each.name) for each in fields(self)}
        if wrong := [name for name, size in sizes.items() if size < 1]:
            raise JobError(f"{wrong[0]} is {sizes[wrong[0]]}: set it to 1 or more", field=f"{FIELD}.{wrong[0]}")
        if later := [name for name in ("context", "tensor", "expert") if sizes[name] > 1]:
            raise JobError(f"{later[0]} parallelism is not supported yet: set it to 1", field=f"{FIELD}.{later[0]}")

    @classmethod
    def over(cls, ranks: int, replicate: int = 1, context: int = 1, tensor: int = 1, expert: int = 1) -> "ParallelDims":
        """All ranks of a job: `shard` is what the other dimensions leave. Raises JobError if they do not divide."""
        others = replicate * context * tensor
        if others < 1 or ranks % others:
            raise JobError(
                f"replicate {replicate} x context {context} x tensor {tensor} does not divide the job's {ranks} ranks: "
                "choose numbers whose product does",
                field=FIELD,
            )
        return cls(replicate, ranks // others, context, tensor, expert)

    @property
    def world(self) -> int:
        """All ranks; expert parallelism adds none."""
        return self.replicate * self.shard * self.context * self.tensor

    @property
    def data(self) -> int:
        """Ranks with different samples."""
        return self.replicate * self.shard

    @property
    def loss(self) -> int:
        """Ranks with different tokens."""
        return self.data * self.context

    def mesh(self, device_type: str) -> "DeviceMesh":
        """Of the ranks that share parameters: (shard), or (replicate, shard) for HSDP. Collective."""
        from torch.distributed.device_mesh import init_device_mesh

        if self.replicate == 1:
            return init_device_mesh(device_type, (self.shard,), mesh_dim_names=("shard",))
        return init_device_mesh(device_type, (self.replicate, self.shard), mesh_dim_names=("replicate", "shard"))


def engine_count(spec: ResolvedSpec) -> int:
    """All engines of a job. Each has a place from 0 on: a number that outlives its process."""
    return spec.ranks // spec.rollout.tensor_parallel_size * spec.rollout.engines_per_gpu


def ranks_of_engine(spec: ResolvedSpec, place: int) -> range:
    """The ranks whose GPUs that engine uses. Engines of one GPU have places side by side.

    Two ranks, enginesPerGpu 2: engines 0 and 1 are on the GPU of rank 0, engines 2 and 3 on that of rank 1.
    """
    size = spec.rollout.tensor_parallel_size
    first = place // spec.rollout.engines_per_gpu * size
    return range(first, first + size)


def sync_groups(spec: ResolvedSpec, device_type: str) -> tuple[tuple[int, ...], ...]:
    """Ranks that send weights together: those of one engine on GPUs, all of one node if memory is shared."""
    size = spec.rollout.tensor_parallel_size if device_type == "cuda" else spec.cluster.ranks_per_node
    return tuple(tuple(range(first, first + size)) for first in range(0, spec.ranks, size))
