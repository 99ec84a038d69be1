"""Weights from this rank to its engines: bucket after bucket, then the probe."""

from collections.abc import Callable, Iterator, Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from transformers import PreTrainedModel

from rljob_api.v1alpha1.rollout import Engine
from rljob_trainer.engines.engine_host import EngineProcess
from rljob_trainer.engines.registry import ENGINES
from rljob_trainer.rank.gathering import whole_weights
from rljob_trainer.rank.results import Sent
from rljob_trainer.types import Ids
from rljob_trainer.weights.bucket import BucketDescriptor
from rljob_trainer.weights.saved_names import all_weights, as_saved
from rljob_trainer.weights.sender import WeightSender
from rljob_trainer.workers.waiting import wait_for_engines
from rljob_trainer.workers.worker import Worker


def send(
    sender: WeightSender, tensors: Iterator[tuple[str, Tensor]], group: dist.ProcessGroup,
    engines: Sequence[Worker[EngineProcess]], version: int, prompts: Sequence[Ids], max_tokens: int, deadline: float,
) -> Sent:  # fmt: skip
    """RankCalls.send_weights. group: the ranks that feed these engines together."""
    begun = [engine.call(EngineProcess.begin_update, version) for engine in engines]  # while the first is packed

    def deliver(bucket: BucketDescriptor) -> Callable[[], None]:
        asked = [*begun, *(engine.call(EngineProcess.load_bucket, bucket) for engine in engines)]
        begun.clear()

        def acknowledged() -> None:
            wait_for_engines(asked, deadline, f"copy weight bucket {bucket.index}")

        return acknowledged

    nbytes = sender.send(tensors, version, deliver)
    # Only now: an engine takes the memory of its KV cache, which may be what the buckets of all its ranks had.
    dist.barrier(group)
    completing = [engine.call(EngineProcess.complete_update, version, prompts, max_tokens) for engine in engines]
    return Sent(nbytes, wait_for_engines(completing, deadline, "complete its update"))


def full_tensors(
    network: PreTrainedModel, device: torch.device, dtype: torch.dtype, engine: Engine
) -> Iterator[tuple[str, Tensor]]:
    """All weights, whole, in the engines' type and under their names; collective."""
    tensors = whole_weights(all_weights(network), device, dtype)
    return as_saved(network, tensors) if ENGINES[engine].reads_saved_names else tensors
