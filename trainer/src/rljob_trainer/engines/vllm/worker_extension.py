"""What runs inside each vLLM worker process: weights come in here, one worker for each GPU of the engine."""

import re
from collections.abc import Mapping, Sequence, Set
from contextlib import nullcontext
from typing import Any

from torch import Tensor

from rljob_api.resolve import ResolvedLora
from rljob_trainer.engines.engine import not_taken
from rljob_trainer.engines.vllm.adapter import keep_asleep, put, sleep_beside_others, unwrapped
from rljob_trainer.engines.vllm.log_probs import find_no_ranks, report_before_truncation
from rljob_trainer.engines.vllm.quantization import QuantizedLayers, copied
from rljob_trainer.errors import quoted
from rljob_trainer.lora.files import is_adapter
from rljob_trainer.weights.bucket import BucketDescriptor
from rljob_trainer.weights.receiver import BucketReceiver
from rljob_trainer.workers.trace import traced

_PERMANENT = (KeyError, ValueError, AssertionError, AttributeError, IndexError, TypeError)
"""What vLLM's loaders raise for names and shapes that they do not know; also a RuntimeError about a size."""

_PROCESS = "process_weights_after_loading"

EXTENSION = "rljob_trainer.engines.vllm.worker_extension.WorkerExtension"


class WorkerExtension:
    """Methods that vLLM mixes into its worker class and `collective_rpc` calls by name."""

    model_runner: Any
    vllm_config: Any

    def rljob_prepare(self, adapter: ResolvedLora | None) -> None:
        """Once, after the model is built. adapter: EngineSettings.adapter."""
        self._rljob_receiver = BucketReceiver()
        self._rljob_known: Set[str] = frozenset()  # names that were found to be all
        self._rljob_lora, self._rljob_holds_model = adapter, False
        self._rljob_quantized = QuantizedLayers(self.model_runner.get_model(), self.vllm_config)
        sleep_beside_others(self)
        if adapter is not None and self.model_runner.device.type == "cuda":
            keep_asleep()
        report_before_truncation(self.model_runner.sampler)
        find_no_ranks(self.model_runner.sampler)

    def rljob_held(self) -> dict[str, int]:
        """Bytes of this worker's parts of the model and the KV cache, by vLLM's names of them."""
        weights = sum(each.nbytes for each in self.model_runner.get_model().parameters())
        return {"weights": weights, "kv_cache": sum(map(_nbytes, self.model_runner.kv_caches))}

    def rljob_begin_update(self, version: int) -> None:
        self._rljob_loaded: set[str] = set()
        self._rljob_matrices: dict[str, Tensor] = {}
        self._rljob_receiver.begin(version)

    def rljob_load_bucket(self, bucket: BucketDescriptor) -> None:
        with self._rljob_receiver.open(bucket) as tensors:
            named = list(tensors)
            self._rljob_matrices |= {name: tensor.clone() for name, tensor in named if is_adapter(name)}
            weights = [(name, tensor) for name, tensor in named if not is_adapter(name)]
            if weights:
                self._rljob_holds_model = False
                self._rljob_load(bucket, weights)

    def _rljob_load(self, bucket: BucketDescriptor, weights: list[tuple[str, Tensor]]) -> None:
        model, quantized = self.model_runner.get_model(), self._rljob_quantized
        for layer, _, plain in _packed_experts(model):
            for name, parameter in plain.items():
                setattr(layer, name, parameter)
        if quantized and not self._rljob_loaded:
            quantized.await_weights()
        with (
            traced("load_bucket/weights"),
            unwrapped(model) if self._rljob_lora is not None else nullcontext(),
            quantized.loading() if quantized else nullcontext(),
        ):
            try:
                self._rljob_loaded |= model.load_weights(copied(weights) if quantized else weights)
            except (*_PERMANENT, RuntimeError) as error:
                if isinstance(error, RuntimeError) and "size" not in str(error):
                    raise
                raise not_taken([slot.name for slot in bucket.slots], quoted(error)) from error

    def rljob_finish_update(self, version: int) -> None:
        model = self.model_runner.get_model()
        received = self._rljob_receiver.finish(version)
        if self._rljob_lora is None:
            self._rljob_complete(model, received)
            return
        if not self._rljob_matrices:
            raise not_taken(["of the adapter"], "they did not arrive")
        if not self._rljob_holds_model:
            with unwrapped(model):
                self._rljob_complete(model, {name for name in received if not is_adapter(name)})
            self._rljob_holds_model = True
        put(self.model_runner, self._rljob_lora, self._rljob_matrices)
        self._rljob_matrices = {}

    def _rljob_complete(self, model: Any, received: Set[str]) -> None:
        """Check that all weights have arrived, and renew what is computed from them."""
        quantized = self._rljob_quantized
        if quantized:
            quantized.quantize()
        if received != self._rljob_known:  # names and model stay the same, and to compare them takes milliseconds
            untouched = {name for name, _ in model.named_parameters()} - self._rljob_loaded
            untouched -= _derived(model) | quantized.added(model)
            if missing := untouched | missing_parts(model, received):
                raise not_taken(sorted(missing), "nothing that was sent belongs to them")
            self._rljob_known = received
        renew_packed_copies(model)
        for layer in _compressed(model).values():
            layer.process_weights_after_loading(self.model_runner.dtype)


def _nbytes(cache: Any) -> int:
    """cache: of one layer, a tensor or several."""
    return cache.nbytes if hasattr(cache, "nbytes") else sum(map(_nbytes, cache))


def renew_packed_copies(model: Any) -> None:
    """Renew the copies that a CPU multiplies with (start._keep_plain_weights)."""
    for layer, experts, _ in _packed_experts(model):
        experts.process_weights_after_loading(layer)
    layers = [layer for layer in model.modules() if hasattr(layer, "cpu_linear")]
    if layers:
        from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm

        for layer in layers:
            dispatch_cpu_unquantized_gemm(layer, remove_weight=False)


def _packed_experts(model: Any) -> list[tuple[Any, Any, Mapping[str, Any]]]:
    """Layer, what packs it, and its plain parameters (start._keep_plain_experts)."""
    return [(layer, *layer.rljob_experts) for layer in model.modules() if hasattr(layer, "rljob_experts")]


def _compressed(model: Any) -> dict[str, Any]:
    """Attention over compressed keys, which multiplies with other forms of its kv_b_proj."""
    layers = model.named_modules()
    return {name: each for name, each in layers if hasattr(each, "kv_b_proj") and hasattr(each, _PROCESS)}


def _derived(model: Any) -> set[str]:
    """Parameters that layers compute from others."""
    layers = _compressed(model).items()
    return {f"{name}.{each}" for name, layer in layers for each, _ in layer.named_parameters(recurse=False)}


def missing_parts(model: Any, received: Set[str]) -> set[str]:
    """What was not received of vLLM's fused parameters, which count as loaded as soon as one of their parts is there.

    "layers.0.self_attn.qkv_proj.weight" takes the same of q_proj, k_proj, v_proj. Of parts that vLLM calls otherwise
    than the checkpoint, none is known.
    """
    fused: Mapping[str, Sequence[str]] = getattr(model, "packed_modules_mapping", None) or {}
    known = {_in_layer(name) for name in received}
    missing = set()
    for name, _ in model.named_parameters():
        parts = name.split(".")
        place = next((i for i, part in enumerate(parts) if part in fused), None)
        if place is not None:
            sources = [".".join((*parts[:place], source, *parts[place + 1 :])) for source in fused[parts[place]]]
            lacking = {source for source in sources if _in_layer(source) not in known}
            missing |= lacking if len(lacking) < len(sources) else set()
    return missing


def _in_layer(name: str) -> str:
    """Without what is before the number of the layer, which vLLM may call otherwise."""
    return re.sub(r"^.*?\.(?=\d+\.)", "", name)
