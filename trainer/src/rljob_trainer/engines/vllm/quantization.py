"""FP8 in a vLLM engine: what it needs, and how a worker quantises its layers again at each update.

vLLM quantises a layer as soon as it has all its weights, and drops them. Before others can be loaded, the layer goes
back to its plain form, without memory; it keeps the tensors that it is handed until it has all of them, and copies the
result to where CUDA graphs read it. A plain load_weights would write into the quantised weights instead.

Weights have one scale for each output channel, so it does not matter which layers vLLM fuses; inputs one for each
token. Embeddings, norms, biases and the output head stay as they are.
"""

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any

from torch import Tensor, nn

from rljob_trainer.errors import JobError

FIELD = "spec.rollout.quantization"

FP8 = "fp8_per_channel"
"""vLLM's name of it, in 0.26 as in 0.32, which refuses the name fp8."""

LEAST_CAPABILITY = (8, 9)
"""Of a GPU that multiplies FP8: Ada, Hopper and later. On others vLLM would multiply in 16 bits, or fail late."""


def check_gpu(name: str, capability: tuple[int, int]) -> None:
    """Raises JobError for a GPU of CUDA that has no products in FP8."""
    if capability < LEAST_CAPABILITY:
        has, needed = (".".join(map(str, each)) for each in (capability, LEAST_CAPABILITY))
        raise JobError(f"{name} does not multiply FP8 (compute capability {has}, not {needed}): remove it", field=FIELD)


class QuantizedLayers:
    """The layers of one worker's model that vLLM quantises; none if the engine does not."""

    def __init__(self, model: nn.Module, config: Any) -> None:
        """config: vLLM's VllmConfig."""
        self._config = config
        self._layers = [each for each in model.modules() if _is_quantized(each)]

    def __bool__(self) -> bool:
        return bool(self._layers)

    def added(self, model: nn.Module) -> set[str]:
        """Names of the parameters that quantisation adds. model: the same, as it calls its layers now."""
        return {
            f"{name}.{each}"
            for name, layer in model.named_modules()
            if _is_quantized(layer)
            for each, _ in layer.named_parameters(recurse=False)
            if each.endswith("_scale")
        }

    def await_weights(self) -> None:
        """Take the layers back to their plain form, also if an update was cut off while they waited for weights."""
        from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

        self.quantize()
        for layer in self._layers:
            initialize_layerwise_reload(layer)

    def quantize(self) -> None:
        """Quantise the layers that still wait, with what they have got."""
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

        with self.loading():
            for layer in self._layers:
                finalize_layerwise_reload(layer, self._config.model_config)

    def loading(self) -> AbstractContextManager[None]:
        """Where weights are loaded: layers that have all of theirs read the configuration."""
        from vllm.config import set_current_vllm_config

        context: AbstractContextManager[None] = set_current_vllm_config(self._config)
        return context


def copied(weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """The same, each in memory of its own: layers keep them longer than a bucket lasts."""
    return ((name, tensor.clone()) for name, tensor in weights)


def _is_quantized(layer: nn.Module) -> bool:
    """vLLM's own sign of a layer that it quantises while it loads."""
    return bool(getattr(getattr(layer, "quant_method", None), "uses_meta_device", False))
