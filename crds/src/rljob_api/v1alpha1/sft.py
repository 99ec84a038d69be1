"""`spec.sft`: supervised fine-tuning before the first RL step."""

from typing import Annotated

from pydantic import Field

from rljob_api.v1alpha1.base import ApiModel, Count
from rljob_api.v1alpha1.data import Files


class Sft(ApiModel):
    """Supervised fine-tuning of the policy on given responses before the first RL step.

    The target of a row is its column `response`, or the last assistant message of its column `messages`, as the chat
    template renders it: with the token that ends the turn.
    """

    steps: Count = Field(description="Supervised steps; the RL steps come after them and continue the count.")
    data: Files = Field(default_factory=list, description="Sources with responses; the default is data.train.")
    batch_size: Count = Field(64, description="Rows per step.")
    learning_rate: Annotated[float, Field(ge=0, le=1)] = Field(
        1e-4, description="Peak learning rate; it decreases linearly to 0."
    )
