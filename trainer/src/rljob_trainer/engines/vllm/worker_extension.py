"""What runs inside each vLLM worker process: weights come in here, one worker for each GPU of the engine."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rljob_trainer.engines.vllm.log_probs import report_before_truncation
from rljob_trainer.errors import InfrastructureError
from rljob_trainer.weights.bucket import BucketDescriptor
from rljob_trainer.weights.receiver import BucketReceiver

EXTENSION = "rljob_trainer.engines.vllm.worker_extension.WorkerExtension"


class WorkerExtension:
    """Methods that vLLM mixes into its worker class and `collective_rpc` calls by name."""

    model_runner: Any

    def rljob_prepare(self) -> None:
        """Once, after the model is built."""
        self._rljob_receiver = BucketReceiver()
        report_before_truncation(self.model_runner.sampler)

    def rljob_begin_update(self, version: int) -> None:
        self._rljob_loaded: set[str] = set()
        self._rljob_receiver.begin(version)

    def rljob_load_bucket(self, bucket: BucketDescriptor) -> None:
        with self._rljob_receiver.open(bucket) as tensors:
            self._rljob_loaded |= self.model_runner.get_model().load_weights(tensors)

    def rljob_finish_update(self, version: int) -> None:
        model = self.model_runner.get_model()
        self._rljob_receiver.finish(version, set(checkpoint_names(model)))
        if untouched := {name for name, _ in model.named_parameters()} - self._rljob_loaded:
            raise InfrastructureError(
                f"vLLM left {', '.join(sorted(untouched)[:3])} without weights of version {version}"
            )
        renew_packed_copies(model)


def renew_packed_copies(model: Any) -> None:
    """Renew the copies that a CPU multiplies with (start._keep_plain_weights)."""
    layers = [layer for layer in model.modules() if hasattr(layer, "cpu_linear")]
    if layers:
        from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm

        for layer in layers:
            dispatch_cpu_unquantized_gemm(layer, remove_weight=False)


def checkpoint_names(model: Any) -> Iterator[str]:
    """Names in the Hugging Face checkpoint of everything in vLLM's parameters: fused ones are taken apart.

    "layers.0.self_attn.qkv_proj.weight" -> the same of q_proj, k_proj, v_proj.
    """
    fused: Mapping[str, Sequence[str]] = getattr(model, "packed_modules_mapping", None) or {}
    for name, _ in model.named_parameters():
        parts = name.split(".")
        place = next((i for i, part in enumerate(parts) if part in fused), None)
        if place is None:
            yield name
        else:
            yield from (".".join((*parts[:place], source, *parts[place + 1 :])) for source in fused[parts[place]])
