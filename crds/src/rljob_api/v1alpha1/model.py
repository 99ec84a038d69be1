"""`spec.model`: the policy, loaded from a path or created with random weights."""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from rljob_api.v1alpha1.base import ApiModel, Path, Rule

Dtype = Literal["auto", "bfloat16", "float32"]
Attention = Literal["auto", "sdpa", "eager", "flash_attention_2"]


class Tokenizer(ApiModel):
    """The tokenizer of a model from scratch."""

    kind: Literal["byte", "bpe", "character"] = Field(
        "character",
        description=(
            "byte: one token per byte. character: one token for each character of the training data. "
            "bpe: byte-pair encoding learned from the training data."
        ),
    )
    vocab_size: Annotated[int, Field(ge=260, le=262_144)] | None = Field(
        None, description="Vocabulary size of bpe; the data determines it for the other kinds."
    )

    rules = (
        Rule(
            "self.kind == 'bpe' ? has(self.vocabSize) : !has(self.vocabSize)",
            "tokenizer.vocabSize is required for kind bpe and not allowed for other kinds: set it for bpe, or remove"
            " it",
            "vocabSize",
        ),
    )


class FromScratch(ApiModel):
    """A small model with random weights, for tasks that need no pretrained model."""

    architecture: Literal["llama", "qwen2"] = Field(
        "llama", description="Architecture family, as transformers names it."
    )
    layers: Annotated[int, Field(ge=1, le=256)] = Field(4, description="Transformer layers.")
    hidden_size: Annotated[int, Field(ge=32, le=16_384)] = Field(256, description="Width of the residual stream.")
    heads: Annotated[int, Field(ge=1, le=256)] = Field(
        4, description="Attention heads; hiddenSize / heads is the head size, at least 32 (vLLM's kernels need it)."
    )
    kv_heads: Annotated[int, Field(ge=1, le=256)] | None = Field(
        None, description="Key and value heads of grouped-query attention; the default is heads."
    )
    intermediate_size: Annotated[int, Field(ge=32, le=65_536)] | None = Field(
        None, description="Width of the feed-forward layers; the default is 4 x hiddenSize."
    )
    tie_embeddings: bool = Field(False, description="Share the input and output embeddings.")
    tokenizer: Tokenizer = Field(default_factory=Tokenizer, description="The tokenizer, built from data.train.")

    rules = (
        Rule(
            "self.architecture != 'qwen2' || self.tokenizer.kind != 'character'",
            "transformers loads every qwen2 folder with Qwen2's byte-level tokenizer, which cannot load a character"
            " tokenizer: set architecture to llama, or tokenizer.kind to byte",
            "architecture",
        ),
        Rule(
            "self.hiddenSize % self.heads == 0 && self.hiddenSize / self.heads >= 32",
            "hiddenSize must be a multiple of heads, and hiddenSize / heads must be at least 32: lower heads or raise"
            " hiddenSize",
            "heads",
        ),
        Rule(
            "!has(self.kvHeads) || (self.kvHeads <= self.heads && self.heads % self.kvHeads == 0)",
            "kvHeads must divide heads: set kvHeads to a divisor of heads, or remove it",
            "kvHeads",
        ),
    )


class Lora(ApiModel):
    """Low-rank adaptation: two narrow matrices beside each linear layer train, and the model itself stays as it is.

    Hu et al. 2021, https://arxiv.org/abs/2106.09685. A layer computes W x + alpha / rank * B A x.
    """

    rank: Annotated[int, Field(ge=1, le=512)] | None = Field(
        None, description="Rows of A and columns of B; the default is 32."
    )
    alpha: Annotated[float, Field(gt=0, le=65_536)] | None = Field(
        None, description="The adapter counts alpha / rank; the default is 32."
    )
    dropout: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.0,
        description=(
            "Share of an adapter's inputs that training leaves out. It makes the ratio of old and new probabilities"
            " noisy, so it suits supervised steps."
        ),
    )
    target_modules: (
        Annotated[
            list[Annotated[str, StringConstraints(min_length=1, max_length=256)]], Field(min_length=1, max_length=256)
        ]
        | None
    ) = Field(
        None,
        description=(
            "Linear layers that get an adapter, by the last parts of their names, such as q_proj or self_attn.o_proj."
            " The default, all-linear, is all of them except the output head."
        ),
    )
    path: Path | None = Field(
        None,
        description=(
            "Folder of an adapter to continue, in peft's format (adapter_config.json, adapter_model.safetensors); a"
            " relative folder is relative to the RLJob's file. It says rank, alpha and modules."
        ),
    )
    merge: bool = Field(
        False,
        description=(
            "Send the whole model with the adapter added to its weights, instead of the adapter alone. Each sync then"
            " takes as long as without an adapter; engines generate as fast as without one."
        ),
    )

    rules = (
        Rule(
            "!has(self.path) || !(has(self.rank) || has(self.alpha) || has(self.targetModules))",
            "an adapter that exists has its own rank, alpha and modules: remove lora.rank, lora.alpha and"
            " lora.targetModules, or remove lora.path",
            "path",
        ),
        Rule(
            "!has(self.targetModules) || self.targetModules.size() == 1 || !('all-linear' in self.targetModules)",
            "all-linear already names every linear layer: remove the other names, or remove all-linear",
            "targetModules",
        ),
    )


class Model(ApiModel):
    """The policy to train."""

    path: Path | None = Field(
        None,
        description=(
            "A model on the Hugging Face hub (org/name), or a folder that transformers can load; "
            "a relative folder is relative to the RLJob's file."
        ),
    )
    from_scratch: FromScratch | None = Field(
        None, description="Create a model with random weights instead of loading one."
    )
    revision: Annotated[str, StringConstraints(min_length=1, max_length=128)] | None = Field(
        None, description="Branch, tag or commit of a hub model."
    )
    dtype: Dtype = Field(
        "auto",
        description=(
            "Type of matrix products and of the engine's weights; auto is bfloat16 on GPUs and float32 on CPUs. "
            "Master weights and optimizer state are always float32."
        ),
    )
    attention: Attention = Field(
        "auto",
        description=(
            "Attention implementation of the trainer. auto computes packed sequences without padding: flash"
            " attention's variable-length kernel on GPUs, PyTorch's scaled dot product on CPUs. An architecture that"
            " cannot be packed gets a row for each sequence, with every setting."
        ),
    )
    lora: Lora | None = Field(
        None, description="Train a low-rank adapter of the model in path, instead of all its weights."
    )
    trust_remote_code: bool = Field(False, description="Run Python code that comes with the model.")
    chat_template: Annotated[str, StringConstraints(min_length=1, max_length=32_768)] | None = Field(
        None, description="Jinja chat template that replaces the tokenizer's own."
    )

    rules = (
        Rule(
            "has(self.path) != has(self.fromScratch)",
            "a model has one source: set either path or fromScratch",
            "path",
        ),
        Rule(
            "!has(self.revision) || has(self.path)",
            "revision needs path: set path, or remove revision",
            "revision",
        ),
        Rule(
            "!has(self.lora) || has(self.path)",
            "lora adapts a model that exists: set path, or remove lora",
            "lora",
        ),
    )
