"""`spec.actor`: the optimisation of the policy."""

from typing import Annotated, Literal

from pydantic import Field

from rljob_api.v1alpha1.base import ApiModel, Count, CountOrZero


class Fsdp(ApiModel):
    """Sharding of the policy over the ranks (FSDP2)."""

    offload: bool = Field(False, description="Keep shards and optimizer state in host memory between uses.")
    reshard_after_forward: bool = Field(
        True,
        description="Free each layer's gathered weights after its forward pass and gather them again for the backward.",
    )


class Actor(ApiModel):
    """The optimizer and its batches."""

    learning_rate: Annotated[float, Field(ge=0, le=1)] = Field(1e-6, description="Peak learning rate of AdamW.")
    lr_schedule: Literal["constant", "linear", "cosine"] = Field(
        "constant",
        description="Course of the learning rate after its warm-up; linear and cosine end at 0 with the last step.",
    )
    lr_warmup_steps: CountOrZero = Field(0, description="Steps over which the learning rate rises from 0.")
    weight_decay: Annotated[float, Field(ge=0, le=1)] = Field(0.01, description="AdamW's decoupled weight decay.")
    beta1: Annotated[float, Field(ge=0, lt=1)] = Field(0.9, description="AdamW's decay of the gradient's mean.")
    beta2: Annotated[float, Field(ge=0, lt=1)] = Field(0.999, description="AdamW's decay of the gradient's square.")
    grad_clip: Annotated[float, Field(gt=0, le=1_000_000)] = Field(
        1.0, description="Norm that the gradient is clipped to, over all ranks."
    )
    mini_batch_size: Count | None = Field(
        None,
        description="Prompts of one optimizer step (verl's ppo_mini_batch_size); the default is data.promptsPerStep.",
    )
    epochs: Annotated[int, Field(ge=1, le=100)] = Field(
        1, description="Passes over a step's samples (verl's ppo_epochs)."
    )
    tokens_per_micro_batch: Annotated[int, Field(ge=1, le=16_777_216)] = Field(
        16384, description="Tokens of one forward and backward pass of one rank; samples are packed, not padded."
    )
    gradient_checkpointing: bool = Field(
        True, description="Keep no activations inside layers and compute them again for the backward pass."
    )
    fsdp: Fsdp = Field(default_factory=Fsdp, description="Sharding.")
