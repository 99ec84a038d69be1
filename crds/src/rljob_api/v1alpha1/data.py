"""`spec.data`: prompts, in verl's row format."""

from typing import Annotated, Any, Literal

from pydantic import Field

from rljob_api.v1alpha1.base import ApiModel, Count, Path, Seed, Text

Files = Annotated[list[Path], Field(max_length=256)]


class Data(ApiModel):
    """Training and validation prompts.

    A source is a .parquet, .jsonl or .json file, a pattern such as data/*.parquet, a folder, or a data set of the hub.
    The `datasets` library reads the last two, with arguments as in org/name?config=main&split=test. Each row has
    verl's columns: data_source, prompt (a list of messages), reward_model {style, ground_truth}, extra_info, ability.
    The chat template renders the messages with all their fields, and the JSON schemas of column tools.
    `synthetic://TASK?rows=N&seed=S` names a generated task instead, and `reasoning-gym://TASK?size=N&seed=S` one of the
    library reasoning-gym.
    """

    train: Annotated[Files, Field(min_length=1)] = Field(description="Sources of training rows, in this order.")
    validation: Files = Field(
        default_factory=list, description="Sources of validation rows; training does not use them."
    )
    template_arguments: Annotated[dict[str, Any], Field(max_length=64)] = Field(
        default_factory=dict,
        description=(
            "Arguments of the chat template for every row, such as enable_thinking: false. With continue_final_message:"
            " true, a prompt that ends with an assistant's message is continued instead of followed by a new message."
        ),
    )
    max_prompt_tokens: Annotated[int, Field(ge=1, le=1_048_576)] = Field(512, description="Longest prompt, in tokens.")
    max_response_tokens: Annotated[int, Field(ge=1, le=1_048_576)] = Field(
        1024, description="Longest response, in tokens; a longer one is cut and counts as truncated."
    )
    prompts_per_step: Count = Field(128, description="Prompts per training step (verl's train_batch_size).")
    overlong_prompts: Literal["filter", "fail"] = Field(
        "filter", description="filter skips and counts prompts above maxPromptTokens; fail ends the job."
    )
    shuffle: bool = Field(True, description="Shuffle the prompts in each epoch.")
    difficulty: Text | None = Field(
        None,
        description=(
            "Key of extra_info with each training row's difficulty, a number: every epoch begins with the easiest rows."
            " Rows of equal difficulty keep the order of shuffle."
        ),
    )
    measured_difficulty: bool = Field(
        False,
        description=(
            "From the second epoch on, begin with the rows whose responses had the highest mean reward, without"
            " length_penalty, when they were last sampled. Rows that no step has sampled come last."
        ),
    )
    seed: Seed = Field(0, description="Seed of the shuffling.")
