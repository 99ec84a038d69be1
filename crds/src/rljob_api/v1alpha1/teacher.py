"""`spec.algorithm.teacher`: the model that on-policy distillation learns from."""

from typing import Annotated

from pydantic import Field, StringConstraints

from rljob_api.v1alpha1.base import ApiModel, Path


class Teacher(ApiModel):
    """A frozen model, whose probability of each sampled token is compared with the policy's.

    What `spec.actor` says of sharding holds for it too. Checkpoints do not have it.
    """

    path: Path = Field(
        description=(
            "A model on the Hugging Face hub, or a folder, with the policy's tokenizer: every token of the policy has"
            " the same id."
        ),
    )
    revision: Annotated[str, StringConstraints(min_length=1, max_length=128)] | None = Field(
        None, description="Branch, tag or commit of a hub model."
    )
    coefficient: Annotated[float, Field(gt=0, le=1000)] = Field(
        1.0,
        description=(
            "Weight of the teacher's signal, log pi_teacher - log pi of each sampled token, which is added to the"
            " token's advantage (slime's opd_kl_coef)."
        ),
    )
