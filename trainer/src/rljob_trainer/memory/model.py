"""Sizes of a model. Pure."""

from dataclasses import dataclass

from rljob_trainer.memory.sequences import KvSize


@dataclass(frozen=True, slots=True)
class ModelSize:
    """Sizes of a model with products in the compute dtype.

    parameters: elements of the whole model. layers: blocks of the decoder. layer: elements of the largest block.
    root: elements outside of the blocks: embeddings, head, last norm. largest: elements of the largest parameter.
    vocabulary, hidden: rows and columns of the output head.
    saved: bytes a token that autograd keeps for the backward pass of one block, on average.
    compiled: the same if torch.compile fuses the block.
    widest: bytes a token of the widest of them.
    kv: of all blocks. recomputes: whether transformers can compute the activations of its blocks again.
    adapter: elements of the adapter, which then trains alone; 0 without one.
    """

    parameters: int
    layers: int
    layer: int
    root: int
    largest: int
    vocabulary: int
    hidden: int
    saved: int
    compiled: int
    widest: int
    kv: KvSize
    recomputes: bool
    adapter: int = 0

    @property
    def trained(self) -> int:
        """Elements that have a gradient."""
        return self.adapter or self.parameters
