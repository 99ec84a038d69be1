"""Weights from this rank to its engines: bucket after bucket, then the probe."""

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from rljob_api import ResolvedSpec
from rljob_trainer.engines.engine_host import EngineProcess
from rljob_trainer.engines.registry import ENGINES
from rljob_trainer.lora.files import PREFIX, is_adapter
from rljob_trainer.lora.layers import LoraLinear, adapted_layers, merged
from rljob_trainer.rank.gathering import whole_weights
from rljob_trainer.rank.results import Sent
from rljob_trainer.types import Ids
from rljob_trainer.weights.bucket import BucketDescriptor, aligned
from rljob_trainer.weights.saved_names import all_weights, as_saved
from rljob_trainer.weights.sender import WeightSender
from rljob_trainer.workers.trace import traced
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

    with traced("send_weights/buckets"):
        nbytes = sender.send(tensors, version, deliver)
    # Only now: an engine takes the memory of its KV cache, which may be what the buckets of all its ranks had.
    dist.barrier(group)
    completing = [engine.call(EngineProcess.complete_update, version, prompts, max_tokens) for engine in engines]
    return Sent(nbytes, wait_for_engines(completing, deadline, "complete its update"))


def sent_tensors(
    network: PreTrainedModel, spec: ResolvedSpec, whole: bool, device: torch.device, dtype: torch.dtype
) -> Iterator[tuple[str, Tensor]]:
    """What engines load, in their type and under their names; collective.

    whole: all weights, with the adapter in them (lora.merge) or behind them. Otherwise the adapter alone.
    """
    lora = spec.model.lora
    if whole or lora is None or lora.merge:
        adapted = adapted_layers(network) if lora is not None and lora.merge else {}
        tensors = _weights(network, adapted, device, dtype)
        yield from as_saved(network, tensors) if ENGINES[spec.rollout.engine].reads_saved_names else tensors
    if lora is not None and not lora.merge:
        adapter = (named for named in network.named_parameters() if is_adapter(named[0]))
        yield from ((f"{PREFIX}{name}", tensor) for name, tensor in whole_weights(adapter, device, dtype))


def _weights(
    network: nn.Module, adapted: Mapping[str, LoraLinear], device: torch.device, dtype: torch.dtype
) -> Iterator[tuple[str, Tensor]]:
    """All weights but those of the adapter. adapted: layers whose adapter is added to their weight."""
    own = (named for named in all_weights(network) if not is_adapter(named[0]))
    for name, tensor in whole_weights(own, device, dtype):
        layer = adapted.get(name.removesuffix(".weight"))
        if layer is None:
            yield name, tensor
            continue
        down, up = (_gathered(each.weight, device) for each in (layer.lora_A, layer.lora_B))
        yield name, merged(tensor, down, up, layer.scale)


def _gathered(weight: Tensor, device: torch.device) -> Tensor:
    """A matrix of an adapter in its own type. A rank alone has the whole tensor, which takes no collective."""
    tensor = weight.detach()
    if isinstance(tensor, DTensor) and tensor.device_mesh.size() == 1:
        return tensor.to_local().to(device)
    tensor = tensor.to(device)
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def bucket_bytes(network: nn.Module, spec: ResolvedSpec, whole: bool, dtype: torch.dtype) -> int:
    """Of the buckets of one sync: those of an adapter alone need no more memory than it."""
    most = spec.rollout.weight_sync.bucket_mib << 20
    lora = spec.model.lora
    if whole or lora is None or lora.merge:
        return most
    sizes = (aligned(each.numel() * dtype.itemsize) for name, each in network.named_parameters() if is_adapter(name))
    return min(most, sum(sizes))
