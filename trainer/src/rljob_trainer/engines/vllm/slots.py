"""Slots of a decode step without vLLM's bookkeeping, where that would change nothing.

For each sequence and step vLLM asks four layers of its KV cache whether blocks are to be freed, allocated or entered
into the prefix cache. A sequence that decodes needs that once a block; in between its token goes into the last block.
With 512 sequences these calls take more than a quarter of a decode step (docs/benchmarks/gpu.md).
"""

from collections.abc import Callable
from typing import Any

Allocate = Callable[..., Any]


def skip_idle_bookkeeping(engine: Any) -> bool:
    """Change the allocation of an LLMEngine whose scheduler is in this process. Returns whether it could be.

    Only of layers that attend to all earlier tokens, in one group: others free blocks as their window moves.
    """
    from vllm.v1.core.single_type_kv_cache_manager import FullAttentionManager

    core = getattr(engine.engine_core, "engine_core", None)
    kv_cache = getattr(getattr(core, "scheduler", None), "kv_cache_manager", None)
    if kv_cache is None:
        return False
    managers = kv_cache.coordinator.single_type_managers
    alone = len(managers) == 1 and type(managers[0]) is FullAttentionManager
    if not alone or not kv_cache.enable_caching or managers[0].block_size != kv_cache.block_pool.hash_block_size:
        return False
    kv_cache.allocate_slots = within_last_block(kv_cache.allocate_slots, managers[0], kv_cache.empty_kv_cache_blocks)
    return True


def within_last_block(allocate: Allocate, manager: Any, nothing: Any) -> Allocate:
    """KVCacheManager.allocate_slots that returns `nothing` at once if a sequence's blocks have room and stay.

    manager: of the one group of layers, whose prefix cache has whole blocks only.
    """
    size, blocks, cached = manager.block_size, manager.req_to_blocks, manager.num_cached_block

    def slots(request: Any, new_tokens: int, *args: Any, num_lookahead_tokens: int = 0, **others: Any) -> Any:
        name, filled = request.request_id, request.num_computed_tokens + new_tokens
        if (
            not args
            and not others
            and not num_lookahead_tokens
            and new_tokens > 0
            and name in cached  # it runs, so it has no new hits in the prefix cache
            and filled <= len(blocks[name]) * size
            and min(filled, request.num_tokens) // size <= cached[name]
        ):
            return nothing
        return allocate(request, new_tokens, *args, num_lookahead_tokens=num_lookahead_tokens, **others)

    return slots
