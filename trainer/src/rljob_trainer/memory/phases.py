"""Bytes of one GPU in each phase of a step. Pure.

    rollout   ranks: weights, optimizer      engines: weights, KV cache of each, at most their share
    update    ranks: the largest of five moments below      engines: asleep
    sync      ranks: weights, optimizer, buckets, the tensor on its way     engines: weights, then KV cache

Moments of the update: the output head's backward pass (activations of all blocks); that of the last block (the same,
or its own computed again); that of the first block (one block's activations, gradients of all others); the end, where
FSDP reduces what is outside of the blocks in float32; the optimizer's step. While a pass runs, gradients exist if it is
not the minibatch's first. Masters, gradients and optimizer are in float32: 4 + 4 + 8 bytes a parameter. One rank alone
reduces nothing, and casts all weights as a pass begins (rank/casting.py).
https://pytorch.org/docs/stable/distributed.fsdp.fully_shard.html

With an adapter all of that is the adapter's: the model below it is frozen, in the compute dtype and without gradients,
and an engine of vLLM keeps its own copy of it while it sleeps.
"""

from rljob_trainer.memory.held import GIB
from rljob_trainer.memory.model import ModelSize
from rljob_trainer.memory.sequences import cache_bytes
from rljob_trainer.memory.work import Work

Parts = dict[str, int]
"""Bytes by what they hold."""

CONTEXT = GIB // 2
"""A process on a GPU: CUDA's context, NCCL's or cuBLAS' workspaces."""

GRAPHS = GIB
"""What vLLM keeps outside of its share: CUDA graphs, also while it sleeps."""

_HEAD_ELEMENTS = 1 << 29
"""Logits of the output head at once (losses/output_head/function.py)."""

_SLICE_ELEMENTS = 1 << 28
"""Elements that an optimizer step copies from host memory at once (rank/optimizer.py)."""

_WIDE, _WIDE_ADAPTED = 2, 5
"""Tensors of a block's widest that its backward pass has at once, besides what autograd keeps; with an adapter in
compiled blocks, as counted by PyTorch on a CPU."""

_FETCHED = 2
"""Inputs of blocks on the GPU at once, if the others wait in host memory."""


def phases(size: ModelSize, work: Work, gpu: int) -> dict[str, Parts]:
    """The parts of each phase, by its name. gpu: bytes of the GPU."""
    largest = max(_moments(size, work), key=_sum)
    update = _kept(size, work) | {name: nbytes for name, nbytes in largest.items() if nbytes}
    if not work.engines:
        return {"update": {**update, "CUDA contexts": CONTEXT}}
    asleep = {"CUDA contexts": (1 + work.engines) * CONTEXT}
    asleep |= {} if work.eager or not work.share else {"CUDA graphs": work.engines * GRAPHS}
    if work.model_stays:
        update["engine's weights"] = _weights(size, work)
    return {
        "rollout": {**_kept(size, work), **_engine(size, work, gpu), **asleep},
        "update": {**update, **asleep},
        "sync": {**_kept(size, work), **_sync(size, work, gpu), **asleep},
    }


def _kept(size: ModelSize, work: Work) -> Parts:
    """Of a rank between steps."""
    reference = 4 * size.adapter if size.adapter else work.element * size.parameters
    parts = {
        "weights": 0 if work.host_weights else _master_weights(size, work) // work.shards,
        "optimizer": 0 if work.host_optimizer else 8 * size.trained // work.shards,
        "reference": reference // work.shards if work.reference and not work.host_weights else 0,
    }
    if work.average and not work.host_weights:
        parts["average"] = 4 * size.trained // work.shards
    if work.critic is not None:
        held = 0 if work.host_weights else _master_weights(work.critic, work)
        held += 0 if work.host_optimizer else 8 * work.critic.trained
        parts["critic"] = held // work.shards
    if work.teacher is not None and not work.host_weights:
        parts["teacher"] = work.element * work.teacher.parameters // work.shards
    return {name: nbytes for name, nbytes in parts.items() if nbytes}


def _master_weights(size: ModelSize, work: Work) -> int:
    """float32 of what trains, the compute dtype of what is frozen below an adapter."""
    return work.element * size.parameters + 4 * size.adapter if size.adapter else 4 * size.parameters


def _moments(size: ModelSize, work: Work) -> list[Parts]:
    """Of an update, besides what a rank keeps. The critic's update follows the policy's, whose gradients are gone."""
    return [*_own_moments(size, work), *(_own_moments(work.critic, work) if work.critic is not None else [])]


def _own_moments(size: ModelSize, work: Work) -> list[Parts]:
    gradients = 0 if work.host_weights else 4 * size.trained // work.shards
    earlier = gradients if work.accumulates else 0
    element, alone = work.element, work.shards == 1 and not work.host_weights
    cast = element * size.trained if element != 4 else 0  # masters of the compute dtype need none
    blocks = element * (min(3, size.layers) if work.reshard else size.layers) * size.layer
    matrix, layer, root = size.vocabulary * size.hidden, size.layer, size.root  # of which gradients exist
    if size.adapter:
        matrix, layer, root = 0, size.adapter // size.layers, 0
    between = element * size.hidden * work.tokens  # the input of a block
    block = (size.compiled if work.compiled else size.saved) * work.tokens
    inputs = between * (_FETCHED if work.host_inputs else size.layers)
    again = work.recompute and size.recomputes
    every = inputs if again else block * size.layers
    wide = (_WIDE_ADAPTED if size.adapter and work.compiled else _WIDE) * size.widest * work.tokens
    working = (block if again else 0) + wide
    logits = element * min(work.tokens * size.vocabulary, _HEAD_ELEMENTS)
    gathered = {"gathered weights": cast if alone else element * size.root + blocks}
    in_blocks = gathered | {"gradients on their way": element * (matrix + layer)}
    return [
        # the gradient of the head's weights in float32 and in the compute dtype
        {"gradients": earlier, **gathered, "activations": every, "output head": logits + (4 + element) * matrix},
        {"gradients": earlier, **in_blocks, "activations": every + working},
        {"gradients": gradients, **in_blocks, "activations": block + between + wide},
        {
            "gradients": gradients,
            "gathered weights": cast if alone else element * size.root,
            # the compute dtype, and FSDP's input and output in float32
            "gradients on their way": element * matrix + (0 if alone else (8 + element) * root),
        },
        {"gradients": gradients, "optimizer's slice": _slice(size, work)},
    ]


def _slice(size: ModelSize, work: Work) -> int:
    """What an optimizer step copies to the GPU: moments, or weights and gradients; with both on the host, nothing."""
    if work.host_weights == work.host_optimizer:
        return 0
    return 8 * min(max(size.largest // work.shards, _SLICE_ELEMENTS), size.trained // work.shards)


def _engine(size: ModelSize, work: Work, gpu: int) -> Parts:
    """Of the GPU's engines that generate. hf takes what its sequences need."""
    weights = _weights(size, work)
    if not work.share:
        weights *= 2 if work.keeps_model else 1  # an adapter is added to copies of its layers
        return {"engine's weights": weights, "KV cache": work.engines * size.kv.nbytes * work.longest * work.sequences}
    logits = (8 + work.element) * work.sequences * size.vocabulary  # and two copies in float32
    activations = work.engines * max(2 * size.widest * work.batched, logits) // work.tensor_parallel
    rest = max(int(work.share * gpu) - weights - activations, 0)
    kept, share = max(work.sequences, work.contexts), work.share * gpu / work.engines
    each = None if work.whole_share else cache_bytes(size.kv, work.tensor_parallel, work.longest, kept, share)
    cache = rest if each is None else work.engines * each
    return {"engine's weights": weights, "engine's activations": activations, "KV cache": cache}


def engine_bytes(size: ModelSize, work: Work, gpu: int) -> int:
    """What the GPU's engines take of its memory while they generate."""
    return _sum(_engine(size, work, gpu))


def _weights(size: ModelSize, work: Work) -> int:
    """Of the GPU's engines: each has its own."""
    blocks = (1 if work.quantized else work.element) * (size.parameters - size.root)
    return work.engines * (work.element * size.root + blocks) // work.tensor_parallel


def _sync(size: ModelSize, work: Work, gpu: int) -> Parts:
    """The larger of two moments: the last bucket on its way, and the KV cache awake once the buckets are freed."""
    tensor = work.element * size.largest
    sending = {
        "buckets": 2 * max(work.bucket, tensor),
        "tensor on its way": 2 * tensor,
        "engine's weights": _weights(size, work),
    }
    awake = {"tensor on its way": 2 * tensor, **_engine(size, work, gpu)} if work.share else sending
    return max(sending, awake, key=_sum)


def update_peak(size: ModelSize, work: Work) -> int:
    """Bytes of a rank's tensors in an update, without contexts and engines."""
    return _sum(_kept(size, work)) + max(map(_sum, _moments(size, work)))


def _sum(parts: Parts) -> int:
    return sum(parts.values())


def cached_tokens(size: ModelSize, work: Work, parts: Parts) -> int:
    """Tokens that the KV cache of one engine holds. parts: of the rollout."""
    return parts["KV cache"] // (work.engines * size.kv.on_gpu(work.tensor_parallel))
