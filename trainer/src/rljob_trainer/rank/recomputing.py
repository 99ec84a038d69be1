"""Where the backward pass gets a layer's activations from: kept, computed again, or computed again from host memory."""

from collections.abc import Callable
from typing import Any, Literal

import structlog
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from rljob_trainer.errors import JobError

log = structlog.get_logger()


def recompute(model: PreTrainedModel, kind: Literal["none", "layer", "offload"] | None) -> None:
    """Set the model's layers up. kind: actor.recompute; None is layer if transformers can recompute these, else none.

    Raises JobError for another kind than none if it cannot.
    """
    able = model.supports_gradient_checkpointing
    if kind is None:
        kind = "layer" if able else "none"
        log.info("recompute_chosen", recompute=kind)
    if kind == "none":
        return
    if not able:
        raise JobError(
            f"transformers cannot compute the activations of {model.config.model_type} again: set it to none",
            field="spec.actor.recompute",
        )
    model.gradient_checkpointing_enable({"use_reentrant": False})
    if kind == "offload":
        offloading = InputsOnHost()
        for module in model.modules():
            if hasattr(module, "_gradient_checkpointing_func"):
                module._gradient_checkpointing_func = offloading.checkpoint  # noqa: SLF001  transformers' own way


class InputsOnHost:
    """Checkpoints of layers whose inputs wait for the backward pass in pinned host memory.

    forward    the copy to the host runs on a stream of its own, beside the layer
    backward   while a layer is recomputed, the input of the layer before it is copied back

    The inputs of one forward pass are a stack; a pass without gradients saves none. On a CPU nothing moves.
    """

    def __init__(self) -> None:
        self._stack: list[_Saved] = []
        self._stream: torch.cuda.Stream | None = None

    def checkpoint(self, function: Callable[..., Any], *args: Any) -> Any:
        """torch's checkpoint, which saves the inputs through the hooks, and nothing else while they are set."""
        with torch.autograd.graph.saved_tensors_hooks(self._to_host, self._to_device):
            return checkpoint(function, *args, use_reentrant=False)

    def _to_host(self, tensor: Tensor) -> "Tensor | _Saved":
        if not tensor.is_cuda or not tensor.is_floating_point():
            return tensor
        if self._stream is None:
            self._stream = torch.cuda.Stream()
        saved = _Saved(tensor, self._stream)
        self._stack.append(saved)
        return saved

    def _to_device(self, saved: "Tensor | _Saved") -> Tensor:
        if isinstance(saved, Tensor):
            return saved
        while self._stack and self._stack.pop() is not saved:
            pass
        tensor = saved.on_device()
        if self._stack:
            self._stack[-1].fetch()
        return tensor


class _Saved:
    """A tensor's copy in host memory, on its way there and back."""

    def __init__(self, tensor: Tensor, stream: torch.cuda.Stream) -> None:
        self._stream, self._device = stream, tensor.device
        self._fetched: Tensor | None = None
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self._host = torch.empty_like(tensor, device="cpu", pin_memory=True).copy_(tensor, non_blocking=True)
        tensor.record_stream(stream)  # its memory is not used again before the copy is done

    def fetch(self) -> None:
        """Begin the copy to the device."""
        if self._fetched is None:
            with torch.cuda.stream(self._stream):
                self._fetched = self._host.to(self._device, non_blocking=True)

    def on_device(self) -> Tensor:
        """The tensor, for the present stream."""
        self.fetch()
        current, fetched = torch.cuda.current_stream(), self._fetched
        assert fetched is not None
        current.wait_stream(self._stream)
        fetched.record_stream(current)
        self._fetched = None
        return fetched
