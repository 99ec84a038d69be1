"""`spec.critic`: the model of values that advantage gae compares rewards with (PPO)."""

from typing import Annotated

from pydantic import Field, StringConstraints

from rljob_api.v1alpha1.actor import schedule_rules
from rljob_api.v1alpha1.base import ApiModel, Count, CountOrZero, Path, Rule
from rljob_api.v1alpha1.terms import LrSchedule


class CriticLora(ApiModel):
    """A low-rank adapter of the critic's layers, trained with its head in place of all its weights.

    A layer computes W x + B A x, and learningRate scales it. It begins afresh. Checkpoints hold the whole critic.
    """

    rank: Annotated[int, Field(ge=1, le=512)] = Field(32, description="Rows of A and columns of B.")
    target_modules: (
        Annotated[
            list[Annotated[str, StringConstraints(min_length=1, max_length=256)]], Field(min_length=1, max_length=256)
        ]
        | None
    ) = Field(None, description="Linear layers that get an adapter, as model.lora.targetModules names them.")


class Critic(ApiModel):
    """A model with a head of one value for each token, and its optimizer; names are verl's.

    What `spec.actor` says of AdamW's decay rates, of sharding, recomputation and compilation, and of the tokens of a
    pass holds for it too.
    """

    model: Path | None = Field(
        None,
        description=(
            "A model on the Hugging Face hub, or a folder, with the policy's tokenizer. Its head is used if it has one"
            " value for a token (a token or sequence classifier with one label); otherwise a head that begins as 0 is"
            " put on it. Without it the critic begins as a copy of the policy before the first RL step."
        ),
    )
    revision: Annotated[str, StringConstraints(min_length=1, max_length=128)] | None = Field(
        None, description="Branch, tag or commit of a hub model."
    )
    lora: CriticLora | None = Field(
        None, description="Train a low-rank adapter of the critic and its head, instead of all its weights."
    )
    learning_rate: Annotated[float, Field(ge=0, le=1)] = Field(1e-5, description="Peak learning rate of AdamW.")
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
    warmup_steps: CountOrZero | None = Field(
        None,
        description=(
            "First RL steps in which only the critic learns (verl's critic_warmup minus 1); the policy's learning rate"
            " begins after them. The default is 50 with preset vapo, else 0."
        ),
    )
    weight_decay: Annotated[float, Field(ge=0, le=1)] = Field(0.01, description="AdamW's decoupled weight decay.")
    grad_clip: Annotated[float, Field(gt=0, le=1_000_000)] = Field(
        1.0, description="Largest norm of the gradient over all ranks; a larger gradient is scaled down."
    )
    clip_range: Annotated[float, Field(gt=0, le=1_000_000)] = Field(
        0.5,
        description=(
            "Distance from a token's value at the start of the step beyond which its loss has no gradient (verl's"
            " cliprange_value)."
        ),
    )
    epochs: Annotated[int, Field(ge=1, le=100)] | None = Field(
        None, description="Passes over a step's samples (verl's ppo_epochs); the default is actor.epochs."
    )
    mini_batch_size: Count | None = Field(
        None,
        description=(
            "Prompts per optimizer step (verl's ppo_mini_batch_size); the default is that of actor. One of the two"
            " divides the other."
        ),
    )
    lambda_: Annotated[float, Field(ge=0, le=1)] | None = Field(
        None,
        description=(
            "Lambda of the returns that the critic learns (VAPO's decoupled GAE; 1 there); the default is"
            " algorithm.lambda."
        ),
    )

    rules = (
        *schedule_rules("critic"),
        Rule(
            "!has(self.revision) || has(self.model)",
            "revision needs model: set critic.model, or remove critic.revision",
            "revision",
        ),
    )
