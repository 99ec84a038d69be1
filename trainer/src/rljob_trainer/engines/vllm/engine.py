"""Engine vllm: vLLM in this process, its workers in processes of their own where one engine spreads over GPUs."""

import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Event
from typing import Any

import numpy as np

from rljob_trainer.compute.out_of_memory import GENERATING_IN_VLLM, explained
from rljob_trainer.engines.engine import NO_WEIGHTS, EngineSettings, check_abandoned, check_lengths, vllm_missing
from rljob_trainer.engines.stop import end_token_ids
from rljob_trainer.engines.vllm.worker_extension import EXTENSION
from rljob_trainer.errors import InfrastructureError, JobError, RLJobError
from rljob_trainer.old_types import FinishReason, GenerationRequest, Sample, Sampling
from rljob_trainer.weights.bucket import BucketDescriptor, torch_dtype

CPU_KV_CACHE_BYTES = 1 << 30
"""KV cache of a CPU engine, at most, unless one sequence needs more."""

CPU_BLOCK = 32
"""Tokens of one block of a CPU engine's KV cache, the unit of its prefix cache."""

ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # step() in this process: finished samples stream out of it
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
}
CPU_ENVIRONMENT = {
    "TORCHDYNAMO_DISABLE": "1",  # vLLM's sampler is compiled even so, which needs a C++ compiler
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # binding gives every engine of a node the same cores
}


class VllmEngine:
    """RolloutEngine on vLLM 0.26 or newer: CUDA, or its CPU build."""

    def __init__(self, settings: EngineSettings) -> None:
        self._settings = settings
        self._end_ids = end_token_ids(settings.model_dir, settings.trust_remote_code)
        self._engine = _start(settings)
        self._in_workers("rljob_prepare")
        # vLLM's first model runner draws each seeded row by itself, which takes a quarter of a GPU's step; there the
        # engine's seed decides. Its second one and the CPU's sampler have a stream for each seed.
        config = self._engine.vllm_config
        self._seeded = settings.device == "cpu" or getattr(config, "use_v2_model_runner", False)
        self._version = NO_WEIGHTS
        self._asleep: set[str] = set()
        self._calls = 0

    @property
    def policy_version(self) -> int:
        return self._version

    def generate(
        self, requests: Sequence[GenerationRequest], sampling: Sampling, abandoned: Event | None = None
    ) -> Iterator[Sequence[Sample]]:
        if self._version == NO_WEIGHTS or self._asleep:
            raise InfrastructureError("the rollout engine has no weights or sleeps: update it and wake it first")
        check_lengths(requests, self._settings)
        self._calls += 1
        waiting = {f"{self._calls}/{index}": request for index, request in enumerate(requests)}
        self._in_workers("rljob_set_temperature", sampling.temperature or 1.0)
        try:
            for key, request in waiting.items():
                self._add(key, request, sampling)
            while waiting:
                check_abandoned(abandoned)
                with _in_our_terms("while generating"):
                    outputs = self._engine.step()
                if outputs:
                    yield [_sample(waiting.pop(output.request_id), output.outputs[0]) for output in outputs]
        finally:
            self._engine.abort_request(list(waiting))

    def _add(self, key: str, request: GenerationRequest, sampling: Sampling) -> None:
        from vllm import SamplingParams, TokensPrompt
        from vllm.sampling_params import RequestOutputKind

        room = self._settings.max_model_len - len(request.prompt_token_ids)
        params = SamplingParams(
            temperature=1.0 if sampling.temperature else 0.0,  # the worker has scaled the logits
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            max_tokens=min(sampling.max_tokens, room),
            seed=request.seed if self._seeded else None,
            stop=list(sampling.stop),
            stop_token_ids=self._end_ids,
            include_stop_str_in_output=True,
            detokenize=bool(sampling.stop),
            skip_special_tokens=False,
            logprobs=0,
            flat_logprobs=True,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        self._engine.add_request(key, TokensPrompt(prompt_token_ids=request.prompt_token_ids.tolist()), params)

    def _in_workers(self, method: str, *arguments: Any) -> None:
        with _in_our_terms(f"in {method}"):
            self._engine.collective_rpc(method, args=arguments)

    def begin_update(self, version: int) -> None:
        self._version = NO_WEIGHTS
        self._wake("weights")
        self._in_workers("rljob_begin_update", version)

    def load_bucket(self, bucket: BucketDescriptor) -> None:
        self._in_workers("rljob_load_bucket", bucket)

    def finish_update(self, version: int) -> None:
        self._in_workers("rljob_finish_update", version)
        if not self._engine.reset_prefix_cache():
            raise InfrastructureError("vLLM did not reset its prefix cache: requests are still running")
        self._version = version

    def sleep(self) -> None:
        parts = {"weights", "kv_cache"}
        if self._settings.device == "cuda" and self._asleep != parts:
            for part in parts:  # vLLM lays down all or nothing; a driver may have died between the parts of an update
                self._wake(part)
            self._engine.sleep(level=2)
            self._version, self._asleep = NO_WEIGHTS, parts

    def wake(self) -> None:
        self._wake("kv_cache")

    def _wake(self, tag: str) -> None:
        """Once for each sleep: mapping memory that is mapped is an error."""
        if tag in self._asleep:
            with _in_our_terms(f"to wake its {tag}"):
                self._engine.wake_up(tags=[tag])
            self._asleep.remove(tag)

    def close(self) -> None:
        if self._engine is not None:
            from vllm.distributed import cleanup_dist_env_and_memory

            self._engine.engine_core.shutdown()
            self._engine = None
            cleanup_dist_env_and_memory()


@contextmanager
def _in_our_terms(where: str) -> Iterator[None]:
    """Raises JobError with the remedy where memory ran out, InfrastructureError for whatever else goes wrong."""
    try:
        with explained(GENERATING_IN_VLLM):
            yield
    except RLJobError:
        raise
    except Exception as error:
        raise InfrastructureError(f"vLLM failed {where}: {error}") from error


def import_vllm(device: str) -> None:
    """Import it with the environment that this engine needs. Raises JobError where it is missing."""
    os.environ.update(ENVIRONMENT | (CPU_ENVIRONMENT if device == "cpu" else {}))
    try:
        import vllm

        if device == "cpu":  # on GPUs it might look at them before CUDA_VISIBLE_DEVICES says which are the engine's
            vllm.LLMEngine  # noqa: B018  vLLM imports most of itself when this name is asked for
    except ImportError as error:
        raise vllm_missing(str(error)) from error


def _start(settings: EngineSettings) -> Any:
    """Build the LLMEngine, once in a process: vLLM leaves things behind where it fails.

    Raises JobError where vLLM is missing or memory does not suffice.
    """
    import_vllm(settings.device)
    from vllm import EngineArgs, LLMEngine

    cpu = settings.device == "cpu"
    arguments = EngineArgs(
        model=settings.model_dir,
        load_format="dummy",
        dtype=settings.dtype,
        seed=settings.seed,
        trust_remote_code=settings.trust_remote_code,
        generation_config="vllm",  # sampling is the job's, whatever the model's folder suggests
        max_model_len=settings.max_model_len,
        max_num_seqs=settings.max_num_seqs,
        tensor_parallel_size=settings.tensor_parallel_size,
        gpu_memory_utilization=settings.gpu_memory_utilization,
        block_size=CPU_BLOCK if cpu else None,
        kv_cache_memory_bytes=_cpu_kv_cache_bytes(settings) if cpu else None,
        enforce_eager=settings.enforce_eager or cpu,
        enable_sleep_mode=not cpu,
        enable_prefix_caching=True,
        # On a CPU, vLLM 0.32 fails on a prompt that is computed in parts and has a seed of its own.
        enable_chunked_prefill=False if cpu else None,
        logprobs_mode="raw_logprobs",
        worker_extension_cls=EXTENSION,
        disable_log_stats=True,
    )
    if cpu:
        _keep_plain_weights()
    try:
        return LLMEngine.from_engine_args(arguments)
    except AssertionError as error:
        if "memory" not in str(error):
            raise
        raise InfrastructureError(f"the GPU's memory changed while vLLM measured it: {error}") from error
    except (RuntimeError, ValueError) as error:
        if "memory" not in str(error):
            raise
        raise JobError(
            f"vLLM does not fit into {settings.gpu_memory_utilization:.0%} of the memory: raise it, or lower "
            f"spec.data.maxResponseTokens or spec.rollout.maxNumSeqs ({error})",
            field="spec.rollout.gpuMemoryUtilization",
        ) from error


def _keep_plain_weights() -> None:
    """Let linear layers keep their parameters beside the copies that oneDNN multiplies with.

    vLLM's CPU layers otherwise drop the parameters when those are packed, and load_weights has nothing to write into.
    The worker packs anew after each update, which takes less time than vLLM's reload in place (bench/weight_sync.py).
    """
    from vllm.model_executor.layers import utils

    pack = utils.dispatch_cpu_unquantized_gemm
    utils.check_cpu_sgl_kernel = lambda *_: False  # it changes the type of biases, for which there is no second copy
    utils.dispatch_cpu_unquantized_gemm = lambda layer, remove_weight: pack(layer, remove_weight=False)  # noqa: ARG005


def _cpu_kv_cache_bytes(settings: EngineSettings) -> int:
    """Room for max_num_seqs full sequences, within bounds; vLLM's own default is a share of the whole machine."""
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(settings.model_dir, trust_remote_code=settings.trust_remote_code)
    config = config.get_text_config()
    head_size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    layer_bytes = 2 * config.num_key_value_heads * head_size * torch_dtype(settings.dtype).itemsize
    blocks = math.ceil(settings.max_model_len / CPU_BLOCK) + 1
    sequence = blocks * CPU_BLOCK * config.num_hidden_layers * layer_bytes
    return max(sequence, min(settings.max_num_seqs * sequence, CPU_KV_CACHE_BYTES))


def _sample(request: GenerationRequest, output: Any) -> Sample:
    reasons: dict[str, FinishReason] = {"stop": "stop", "length": "length"}
    if output.finish_reason not in reasons:
        raise InfrastructureError(
            f"vLLM gave up on sample {request.sample_index} of prompt {request.prompt_id}: {output.finish_reason}"
        )
    log_probs = np.asarray(output.logprobs.logprobs, dtype=np.float32)[output.logprobs.start_indices]
    token_ids = np.asarray(output.token_ids, dtype=np.int32)
    return Sample(request.prompt_id, request.sample_index, token_ids, log_probs, reasons[output.finish_reason])
