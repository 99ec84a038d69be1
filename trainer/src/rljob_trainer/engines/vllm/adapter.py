"""The policy's adapter in a vLLM worker: vLLM's own LoRA layers, whose one slot gets the matrices of each version.

vLLM wraps each layer that may have an adapter. Weights are loaded into the model as it is without these wrappers,
because vLLM's loaders know the names of its own layers only.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from rljob_api.resolve import ResolvedLora
from rljob_trainer.engines.engine import not_taken

ADAPTER_ID = 1
"""The same for every version, so that samples that an update interrupts go on with the new one."""

_KEPT = "weights"
"""vLLM's tag of memory that holds the model, and the slots of its adapters."""


@contextmanager
def unwrapped(model: Any) -> Iterator[None]:
    """The model without the wrappers of its layers."""
    from vllm.lora.layers import BaseLayerWithLoRA

    wrappers = [(name, each) for name, each in model.named_modules() if isinstance(each, BaseLayerWithLoRA)]
    places = [(model.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2], each) for name, each in wrappers]
    for parent, attribute, wrapper in places:
        setattr(parent, attribute, wrapper.base_layer)
    try:
        yield
    finally:
        for parent, attribute, wrapper in places:
            setattr(parent, attribute, wrapper)


def put(runner: Any, lora: ResolvedLora, tensors: Mapping[str, Tensor]) -> None:
    """Let the worker compute with these matrices, named as in peft's files. Raises JobError for those it cannot take.

    runner: vLLM's model runner.
    """
    from vllm.lora.lora_model import LoRAModel
    from vllm.lora.peft_helper import PEFTHelper

    manager, model = runner.lora_manager._adapter_manager, runner.get_model()  # noqa: SLF001  vLLM has no public way
    helper = PEFTHelper(r=lora.rank, lora_alpha=lora.alpha, target_modules=list(lora.target_modules or ()))
    adapter = LoRAModel.from_lora_tensors(
        ADAPTER_ID, dict(tensors), helper, device=str(manager.device), dtype=manager.lora_config.lora_dtype,
        weights_mapper=renames(getattr(model, "hf_to_vllm_mapper", None)),
    )  # fmt: skip
    if lacking := sorted(name for name, each in adapter.loras.items() if each.lora_a is None or each.lora_b is None):
        raise not_taken(lacking, "one of their matrices did not arrive")
    known = {*manager.modules, *(part for parts in manager.packed_modules.values() for part in parts)}
    if unknown := sorted(set(adapter.loras) - known):
        raise not_taken(unknown, "vLLM gives these layers no adapter; set model.lora.merge to true")
    manager.remove_adapter(ADAPTER_ID)
    manager.add_adapter(adapter)
    manager.activate_adapter(ADAPTER_ID)


def renames(mapper: Any) -> Any:
    """Of vLLM's mapper of weights what renames layers, without what fuses them; vLLM 0.26 has another name for it."""
    if mapper is None:
        return None
    return mapper.get_rename_mapper() if hasattr(mapper, "get_rename_mapper") else mapper.get_unstacked_mapper()


def sleep_beside_others(worker: Any) -> None:
    """Let the worker sleep where other processes take memory of its GPU meanwhile.

    vLLM's sleep fails at its end, when all is laid down, unless the GPU has more free memory than before.
    """
    sleep = worker.sleep

    def tolerant(*args: Any, **kwargs: Any) -> None:
        try:
            sleep(*args, **kwargs)
        except AssertionError as error:
            if "Memory usage increased" not in str(error):
                raise

    worker.sleep = tolerant


def keep_asleep() -> None:
    """Leave the model and its adapter where they are when vLLM sleeps: an update then brings the adapter alone."""
    from vllm.device_allocator.cumem import CuMemAllocator

    allocator = CuMemAllocator.get_instance()
    allocator.sleep = but_for_weights(allocator, allocator.sleep)
    allocator.wake_up = but_for_weights(allocator, allocator.wake_up)  # vLLM 0.26 also maps what did not sleep


def but_for_weights(allocator: Any, method: Callable[..., None]) -> Callable[..., None]:
    """The allocator's method, to which memory of the model is unknown while it runs."""

    def limited(*args: Any, **kwargs: Any) -> None:
        kept = {place: data for place, data in allocator.pointer_to_data.items() if data.tag == _KEPT}
        for place in kept:
            del allocator.pointer_to_data[place]
        try:
            method(*args, **kwargs)
        finally:
            allocator.pointer_to_data.update(kept)

    return limited
