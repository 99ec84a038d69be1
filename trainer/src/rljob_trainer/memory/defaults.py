"""What a job leaves open and the memory of its GPUs decides. Pure."""

from rljob_api import ResolvedSpec
from rljob_api.resolve import ResolvedActor
from rljob_api.v1alpha1.rollout import Rollout
from rljob_trainer.memory.model import ModelSize
from rljob_trainer.memory.phases import phases
from rljob_trainer.memory.sequences import sequences_that_fit
from rljob_trainer.memory.work import work_of

_MOST = 0.9
"""Share of a GPU that an update without recomputation may take: plans are within a tenth of measured peaks."""


def with_defaults(
    spec: ResolvedSpec, size: ModelSize, gpu: int, critic: ModelSize | None = None, teacher: ModelSize | None = None
) -> ResolvedSpec:
    """The spec with rollout.maxNumSeqs, and with actor.recompute for a model that has the choice.

    gpu: bytes of one. critic, teacher: as of work_of.
    """
    filled = spec.model_copy(update={"rollout": _rollout(spec, size, gpu)})
    if spec.actor.recompute is not None or not size.recomputes:
        return filled
    kept = filled.model_copy(update={"actor": _actor(spec, "none")})
    needed = sum(phases(size, work_of(kept, critic, teacher), gpu)["update"].values())
    return kept if needed <= _MOST * gpu else filled.model_copy(update={"actor": _actor(spec, "layer")})


def _actor(spec: ResolvedSpec, recompute: str) -> ResolvedActor:
    return spec.actor.model_copy(update={"recompute": recompute})


def _rollout(spec: ResolvedSpec, size: ModelSize, gpu: int) -> Rollout:
    rollout = spec.rollout
    if rollout.max_num_seqs is not None or rollout.engine != "vllm":
        return rollout
    engine = rollout.gpu_memory_utilization * gpu / rollout.engines_per_gpu
    found = sequences_that_fit(size.kv.on_gpu(rollout.tensor_parallel_size), spec.longest_sample, engine)
    return rollout.model_copy(update={"max_num_seqs": found})
