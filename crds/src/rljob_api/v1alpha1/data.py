"""`spec.data`: prompts, in verl's row format."""

from typing import Annotated, Literal

from pydantic import Field

from rljob_api.v1alpha1.base import ApiModel, Count, Path, Seed

Files = Annotated[list[Path], Field(max_length=256)]


class Data(ApiModel):
    """Training and validation prompts.

    Each file is .parquet or .jsonl with verl's columns: data_source, prompt (a list of {role, content}), ability,
    reward_model {style, ground_truth}, extra_info. `synthetic://TASK?rows=N&seed=S` names a generated task instead.
    """

    train: Annotated[Files, Field(min_length=1)] = Field(description="Training files, in this order.")
    validation: Files = Field(default_factory=list, description="Validation files; training does not use them.")
    max_prompt_tokens: Annotated[int, Field(ge=1, le=1_048_576)] = Field(512, description="Longest prompt, in tokens.")
    max_response_tokens: Annotated[int, Field(ge=1, le=1_048_576)] = Field(
        1024, description="Longest response, in tokens; a longer one is cut and counts as truncated."
    )
    prompts_per_step: Count = Field(128, description="Prompts per training step (verl's train_batch_size).")
    overlong_prompts: Literal["filter", "fail"] = Field(
        "filter", description="filter skips and counts prompts above maxPromptTokens; fail ends the job."
    )
    shuffle: bool = Field(True, description="Shuffle the prompts in each epoch.")
    seed: Seed = Field(0, description="Seed of the shuffling.")
