"""`spec.actor`: the optimisation of the policy."""

from typing import Annotated, Literal

from pydantic import Field

from rljob_api.v1alpha1.base import ApiModel, Count, CountOrZero, Rule
from rljob_api.v1alpha1.terms import LrSchedule


def schedule_rules(block: str) -> tuple[Rule, ...]:
    """Of the learning rate's fields. block: that has them."""
    return (
        Rule(
            "double(self.minLrRatio) == 0.0 || self.lrSchedule != 'constant'",
            f"a constant learning rate does not fall: remove {block}.minLrRatio, or set {block}.lrSchedule",
            "minLrRatio",
        ),
        Rule(
            "!has(self.lrDecaySteps) || self.lrSchedule == 'wsd'",
            f"only schedule wsd reads lrDecaySteps: set {block}.lrSchedule to wsd, or remove it",
            "lrDecaySteps",
        ),
    )


class Fsdp(ApiModel):
    """Sharding of the policy over the ranks (FSDP2)."""

    replicas: Annotated[int, Field(ge=1, le=4096)] = Field(
        1,
        description="Copies of the policy (HSDP). Each is sharded over ranks / replicas neighbouring ranks, which"
        " gather its layers; gradients are averaged over the copies. More copies gather over fewer ranks, such as those"
        " of a node, and take more memory: their weights, gradients and optimizer each.",
    )

    offload: Literal["none", "parameters", "optimizer", "all"] = Field(
        "none",
        description="What lies in host memory instead of a GPU's. parameters: the float32 shards and their gradients;"
        " each layer's weights are copied to the GPU for a pass. optimizer: AdamW's two moments, which are copied to"
        " the GPU for an optimizer step. all: both, and AdamW computes on the host. Without GPUs it changes nothing.",
    )
    reshard_after_forward: bool = Field(
        True,
        description="Free the gathered weights of a layer after its forward pass and gather them again in the"
        " backward pass.",
    )


class Actor(ApiModel):
    """The optimizer and its batches."""

    optimizer: Literal["adamw", "muon"] = Field(
        "adamw",
        description="Of the policy. muon makes orthogonal updates of the matrices in the decoder's layers, of the size"
        " of AdamW's, and leaves the rest to AdamW. Every rank computes each of them whole.",
    )
    learning_rate: Annotated[float, Field(ge=0, le=1)] = Field(1e-6, description="Peak learning rate of AdamW.")
    lr_schedule: LrSchedule = Field(
        "constant",
        description="Learning rate after the warm-up. linear and cosine fall to minLrRatio over all steps; wsd (warm-up"
        ", stable, decay) stays, and falls linearly in the last lrDecaySteps.",
    )
    lr_warmup_steps: CountOrZero = Field(0, description="Steps in which the learning rate rises linearly from 0.")
    min_lr_ratio: Annotated[float, Field(ge=0, le=1)] = Field(
        0.0, description="What a falling learning rate ends at, as a share of its peak."
    )
    lr_decay_steps: Count | None = Field(
        None, description="Steps in which wsd falls; the default is a tenth of all steps."
    )
    weight_decay: Annotated[float, Field(ge=0, le=1)] = Field(0.01, description="AdamW's decoupled weight decay.")
    weight_decay_on: Literal["all", "matrices"] = Field(
        "all", description="What weight decay acts on: all weights, or all but biases and the weights of norms."
    )
    beta1: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.9, description="AdamW's decay rate of the mean of the gradient."
    )
    beta2: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.999, description="AdamW's decay rate of the mean of the squared gradient."
    )
    grad_clip: Annotated[float, Field(gt=0, le=1_000_000)] = Field(
        1.0, description="Largest norm of the gradient over all ranks; a larger gradient is scaled down."
    )
    ema_decay: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        None,
        description="Keep an exponential moving average of the policy, of which this share remains in a step."
        " Validations and `rljob export --ema` use it; training and its samples do not.",
    )
    mini_batch_size: Count | None = Field(
        None,
        description="Prompts per optimizer step (verl's ppo_mini_batch_size); the default is data.promptsPerStep.",
    )
    epochs: Annotated[int, Field(ge=1, le=100)] = Field(
        1, description="Passes over a step's samples (verl's ppo_epochs)."
    )
    tokens_per_micro_batch: Annotated[int, Field(ge=1, le=16_777_216)] = Field(
        16384,
        description="Largest number of tokens in one forward and backward pass of a rank; samples are packed without"
        " padding.",
    )
    recompute: Literal["none", "layer", "offload"] | None = Field(
        None,
        description="How the backward pass gets the activations inside layers. none: they are kept, which takes most"
        " memory. layer: only each layer's input is kept, and the rest is computed again. offload: as layer, with the"
        " inputs in host memory. The default is none on GPUs whose memory suffices by `rljob plan` with a tenth to"
        " spare, and for models whose layers transformers cannot compute again; else layer.",
    )
    compile: bool | None = Field(
        None,
        description="Compile the decoder's layers with torch.compile: a minute at the first steps, then faster passes."
        " The default is to compile on GPUs and not on CPUs.",
    )
    fsdp: Fsdp = Field(default_factory=Fsdp, description="Sharding.")

    rules = (
        *schedule_rules("actor"),
        Rule(
            "self.optimizer == 'adamw' || self.fsdp.offload == 'none'",
            "muon needs gradients and momentum on the GPU: set actor.fsdp.offload to none, or actor.optimizer to adamw",
            "optimizer",
        ),
    )
