"""How vLLM is imported and started: CUDA, or its CPU build."""

import math
import os
from dataclasses import replace
from typing import Any, get_args

from rljob_api.resolve import ResolvedLora
from rljob_trainer.engines.engine import EngineSettings
from rljob_trainer.engines.vllm.arguments import FIELD, parsed
from rljob_trainer.engines.vllm.log_probs import LOGPROBS_MODE, report_numbers
from rljob_trainer.engines.vllm.quantization import FP8, check_gpu
from rljob_trainer.engines.vllm.worker_extension import EXTENSION
from rljob_trainer.errors import InfrastructureError, JobError, quoted
from rljob_trainer.memory.engine_advice import REST, engine_error, start_error
from rljob_trainer.memory.held import Held
from rljob_trainer.memory.sequences import KvSize, cache_bytes, sequences_that_fit
from rljob_trainer.weights.bucket import torch_dtype

CPU_KV_CACHE_BYTES = 1 << 30
"""KV cache of a CPU engine, at most, unless one sequence needs more."""

CPU_BLOCK = 32
"""Tokens of one block of a CPU engine's KV cache, the unit of its prefix cache."""

ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # step() in this process: finished samples stream out of it
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_USE_DEEP_GEMM": "0",  # it compiles kernels while an engine runs, which needs a CUDA toolkit
}
CPU_ENVIRONMENT = {
    "TORCHDYNAMO_DISABLE": "1",  # vLLM's sampler is compiled even so, which needs a C++ compiler
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # binding gives every engine of a node the same cores
}


def import_vllm(device: str) -> None:
    """Import it with the environment that this engine needs. Raises ImportError if it is missing."""
    os.environ.update(ENVIRONMENT | (CPU_ENVIRONMENT if device == "cpu" else {}))
    import vllm

    if device == "cpu":  # on GPUs it might look at them before CUDA_VISIBLE_DEVICES says which are the engine's
        vllm.LLMEngine  # noqa: B018  vLLM imports most of itself when this name is asked for


def with_room_used(settings: EngineSettings) -> EngineSettings:
    """The settings with as many sequences as the GPU allows, if the job leaves that open."""
    if not settings.more_if_room or settings.device == "cpu":
        return settings
    kv = _kv(settings).on_gpu(settings.tensor_parallel_size)
    found = sequences_that_fit(kv, settings.max_model_len, _share(settings))
    return replace(settings, max_num_seqs=found, more_if_room=False)


def measures(settings: EngineSettings) -> bool:
    """Whether vLLM measures what its share of a GPU leaves for the KV cache. It fails if others free some meanwhile."""
    return settings.device == "cuda" and _kv_cache_bytes(with_room_used(settings)) is None


def _kv_cache_bytes(settings: EngineSettings) -> int | None:
    """Of a GPU; None: vLLM measures what its share leaves."""
    kept = max(settings.max_num_seqs, settings.contexts)
    return cache_bytes(_kv(settings), settings.tensor_parallel_size, settings.max_model_len, kept, _share(settings))


def _kv(settings: EngineSettings) -> KvSize:
    config = _text_config(settings)
    return KvSize.of(config, config.num_hidden_layers, torch_dtype(settings.dtype).itemsize)


def _share(settings: EngineSettings) -> float:
    """Bytes of a GPU that one engine may use."""
    import torch

    total: int = torch.cuda.get_device_properties(0).total_memory
    return settings.gpu_memory_utilization * total / settings.engines_per_gpu


def start(settings: EngineSettings) -> Any:
    """Build the LLMEngine, once in a process: vLLM leaves things behind if it fails.

    Raises JobError if memory does not suffice, or if vLLM does not know the model or an argument.
    """
    cpu = settings.device == "cpu"
    if cpu and settings.tensor_parallel_size > 1:  # its workers are other processes, without _keep_plain_weights
        raise JobError("an engine on CPUs is one process: set it to 1", field="spec.rollout.tensorParallelSize")
    from vllm import EngineArgs, LLMEngine

    _own_cache(settings.place)
    arguments: dict[str, Any] = {
        "model": settings.model_dir,
        "load_format": "dummy",
        "dtype": settings.dtype,
        "seed": settings.seed,
        "trust_remote_code": settings.trust_remote_code,
        "generation_config": "vllm",  # sampling is the job's, whatever the model's folder suggests
        "max_model_len": settings.max_model_len,
        "max_num_seqs": settings.max_num_seqs,
        "tensor_parallel_size": settings.tensor_parallel_size,
        "gpu_memory_utilization": settings.gpu_memory_utilization / settings.engines_per_gpu,
        "block_size": CPU_BLOCK if cpu else None,
        "kv_cache_memory_bytes": _cpu_kv_cache_bytes(settings) if cpu else _kv_cache_bytes(settings),
        "attention_backend": _cpu_attention(settings) if cpu else None,
        "enforce_eager": settings.enforce_eager or cpu,
        "enable_sleep_mode": not cpu,
        "enable_prefix_caching": True,
        # On a CPU, vLLM 0.32 fails on a prompt that is computed in parts and has a seed of its own.
        "enable_chunked_prefill": False if cpu else None,
        "logprobs_mode": LOGPROBS_MODE,
        "worker_extension_cls": EXTENSION,
        "disable_log_stats": True,
    }
    arguments |= _of_layers(settings) | parsed(settings.arguments)
    report_numbers()
    if cpu:
        _keep_plain_weights()
        _rotate_slices()
    try:
        return LLMEngine.from_engine_args(EngineArgs(**arguments))
    except AssertionError as error:
        if "memory" not in str(error):
            raise _rejected(error, settings) from error
        raise InfrastructureError(f"the GPU's memory changed while vLLM measured it: {error}") from error
    except (KeyError, TypeError, AttributeError, NotImplementedError, IndexError) as error:
        raise _rejected(error, settings) from error
    except (RuntimeError, ValueError) as error:
        if "memory" not in str(error) and isinstance(error, ValueError):
            raise _rejected(error, settings) from error
        if "memory" not in str(error):
            raise
        raise _too_little(error, settings) from error


def _own_cache(place: int) -> None:
    """Let each engine but the first compile into a folder of its own: vLLM reads the files of a cache while another
    process may be writing them.
    """
    if place:
        from vllm import envs

        root = os.environ.setdefault("VLLM_CACHE_ROOT", envs.VLLM_CACHE_ROOT)
        os.environ["VLLM_CACHE_ROOT"] = os.path.join(root, f"engine-{place}")  # noqa: PTH118  as vLLM writes it


def _of_layers(settings: EngineSettings) -> dict[str, Any]:
    """Arguments of an adapter and of quantisation. Raises JobError for a GPU that does not multiply FP8."""
    arguments: dict[str, Any] = {}
    if settings.adapter is not None:
        arguments |= {"enable_lora": True, "max_loras": 1, "max_lora_rank": _lora_rank(settings.adapter)}
    if settings.quantization == "fp8":
        if settings.device == "cuda":  # a CPU computes the same values, slowly: no job asks it to
            import torch

            check_gpu(torch.cuda.get_device_name(), torch.cuda.get_device_capability())
        arguments["quantization"] = FP8
    return arguments


def _lora_rank(adapter: ResolvedLora) -> int:
    """The smallest that vLLM has kernels for: it pads the matrices."""
    from vllm.config.lora import MaxLoRARanks

    assert adapter.rank is not None
    wanted = adapter.rank
    return min(rank for rank in get_args(MaxLoRARanks) if rank >= wanted)


def _too_little(error: Exception, settings: EngineSettings) -> JobError:
    """For memory that did not suffice: vLLM measured too little, or an allocation failed."""
    import torch

    if isinstance(error, torch.OutOfMemoryError) or "out of memory" in str(error):
        return engine_error("start", Held.of(str(error), {}, REST), settings)
    total = torch.cuda.get_device_properties(0).total_memory if settings.device == "cuda" else 0
    return start_error(str(error), total, settings)


def _rejected(error: Exception, settings: EngineSettings) -> JobError:
    """For what vLLM rejects as it starts: the model, or arguments that each may be right by itself."""
    if settings.adapter is not None and "lora" in str(error).lower():
        return JobError(
            f"vLLM cannot run this model with an adapter ({quoted(error)}): set it to true, or the engine to hf",
            field="spec.model.lora.merge",
        )
    if not settings.arguments:
        return not_known(error)
    names = ", ".join(settings.arguments)
    return JobError(f"vLLM cannot run this model with {names} ({quoted(error)}): correct or remove them", field=FIELD)


def not_known(error: Exception) -> JobError:
    """For what vLLM rejects of a model, in its own words."""
    return JobError(f"vLLM cannot run this model ({quoted(error)}): set the engine to hf", field="spec.rollout.engine")


def _keep_plain_weights() -> None:
    """Let linear layers keep their parameters beside the copies that oneDNN multiplies with.

    vLLM's CPU layers otherwise drop the parameters when those are packed, and load_weights has nothing to write into.
    The worker packs again after each update, which takes less time than vLLM's reload in place (bench/weight_sync.py).
    """
    from vllm.model_executor.layers import utils

    pack = utils.dispatch_cpu_unquantized_gemm
    utils.check_cpu_sgl_kernel = lambda *_: False  # it changes the type of biases, for which there is no second copy
    utils.dispatch_cpu_unquantized_gemm = lambda layer, remove_weight: pack(layer, remove_weight=False)  # noqa: ARG005
    _keep_plain_experts()


def _keep_plain_experts() -> None:
    """The same for experts: packing puts other parameters in the place of those that load_weights writes into."""
    from vllm.model_executor.layers.fused_moe.experts.cpu_moe import CPUUnquantizedExperts

    pack = CPUUnquantizedExperts.process_weights_after_loading

    def pack_and_keep(experts: Any, layer: Any) -> None:
        plain = {name: getattr(layer, name) for name in ("w13_weight", "w2_weight")}
        pack(experts, layer)
        layer.rljob_experts = experts, plain

    CPUUnquantizedExperts.process_weights_after_loading = pack_and_keep


def _rotate_slices() -> None:
    """Rotate slices of wider tensors, such as DeepSeek's, without vLLM 0.32's CPU kernel, which misreads them."""
    from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbedding

    kernel = RotaryEmbedding.forward_cpu

    def rotated(layer: Any, positions: Any, query: Any, key: Any = None) -> Any:
        whole = query.is_contiguous() and (key is None or key.is_contiguous())
        return kernel(layer, positions, query, key) if whole else layer.forward_native(positions, query, key)

    RotaryEmbedding.forward_cpu = rotated


def _cpu_attention(settings: EngineSettings) -> str | None:
    """For latent attention, such as DeepSeek's: with AMX vLLM otherwise takes a backend that knows bfloat16 alone, and
    that packs its weights once.
    """
    return "CPU_MLA" if getattr(_text_config(settings), "kv_lora_rank", None) else None


def _text_config(settings: EngineSettings) -> Any:
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(settings.model_dir, trust_remote_code=settings.trust_remote_code)
    return config.get_text_config()


def _cpu_kv_cache_bytes(settings: EngineSettings) -> int:
    """Room for max_num_seqs full sequences, within bounds; vLLM's own default is a share of the whole machine."""
    config = _text_config(settings)
    # Of a layer without grouped or compressed keys: as much as any needs.
    widths = [
        getattr(config, "head_dim", None) or 0,
        config.hidden_size // config.num_attention_heads,
        (getattr(config, "qk_nope_head_dim", None) or 0) + (getattr(config, "qk_rope_head_dim", None) or 0),
    ]
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    layer_bytes = 2 * heads * max(widths) * torch_dtype(settings.dtype).itemsize
    blocks = math.ceil(settings.max_model_len / CPU_BLOCK) + 1
    sequence = blocks * CPU_BLOCK * config.num_hidden_layers * layer_bytes
    return max(sequence, min(settings.max_num_seqs * sequence, CPU_KV_CACHE_BYTES))
