"""`spec.rollout`: how responses are generated."""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from rljob_api.v1alpha1.base import ApiModel, Duration, Rule, Seed

Engine = Literal["vllm", "hf"]


class ValidationSampling(ApiModel):
    """Sampling of validation responses."""

    samples_per_prompt: Annotated[int, Field(ge=1, le=1024)] = Field(
        1, description="Responses to each validation prompt."
    )
    temperature: Annotated[float, Field(ge=0, le=10)] = Field(0.0, description="0 is greedy.")
    top_p: Annotated[float, Field(gt=0, le=1)] = Field(1.0, description="Nucleus sampling.")


class WeightSync(ApiModel):
    """How new weights reach the engines, and how that is proven."""

    bucket_mib: Annotated[int, Field(ge=1, le=65_536)] = Field(
        512, description="Size of each of the two buckets that carry the weights, in MiB."
    )
    probe_tolerance: Annotated[float, Field(gt=0, le=100)] | None = Field(
        None,
        description=(
            "Largest mean difference between the engine's and the trainer's log-probabilities of the probe's tokens, "
            "in nats. The default follows the dtype: 0.15 for bfloat16; for float32 0.001 on CPUs and 0.02 on GPUs, "
            "where engines may multiply with TF32."
        ),
    )


class Rollout(ApiModel):
    """Generation of responses."""

    engine: Engine = Field("vllm", description="vllm, or hf (transformers: no further installation, any architecture).")
    samples_per_prompt: Annotated[int, Field(ge=1, le=4096)] = Field(
        8, description="Responses to each prompt, its group (verl's rollout.n)."
    )
    temperature: Annotated[float, Field(gt=0, le=10)] = Field(1.0, description="Sampling temperature.")
    top_p: Annotated[float, Field(gt=0, le=1)] = Field(
        1.0, description="Nucleus sampling: probability mass to sample from."
    )
    top_k: Annotated[int, Field(ge=-1, le=1_000_000)] = Field(
        -1, description="Number of likeliest tokens to sample from; -1 is all."
    )
    stop: Annotated[list[Annotated[str, StringConstraints(min_length=1, max_length=256)]], Field(max_length=16)] = (
        Field(default_factory=list, description="Strings that end a response, besides the end-of-text token.")
    )
    seed: Seed = Field(
        0,
        description=(
            "Seed of the sampling; each sample's own seed derives from it, the step, the prompt and the sample."
            " vLLM's first model runner on GPUs draws a whole batch from the engine's seed instead."
        ),
    )
    tensor_parallel_size: Annotated[int, Field(ge=1, le=64)] = Field(
        1, description="GPUs that one engine spreads over (vllm)."
    )
    gpu_memory_utilization: Annotated[float, Field(ge=0.05, le=0.95)] = Field(
        0.5, description="Share of the GPU's memory that the engine may use while it generates (vllm)."
    )
    max_num_seqs: Annotated[int, Field(ge=1, le=65_536)] = Field(
        256, description="Sequences that an engine generates at once; finished ones are replaced at once."
    )
    enforce_eager: bool = Field(
        False, description="Run vLLM without CUDA graphs and compilation: starts faster, generates slower."
    )
    deterministic: bool = Field(
        False,
        description=(
            "Generate each prompt's responses by themselves (engine hf), so that runs on CPUs of one kind and with the "
            "same number of ranks repeat bit for bit, also after failures. Slower: the batches are small."
        ),
    )
    deadline: Duration = Field("30m", description="Longest that one step's generation may take.")
    validation: ValidationSampling = Field(
        default_factory=ValidationSampling, description="Sampling of validation responses."
    )
    weight_sync: WeightSync = Field(default_factory=WeightSync, description="Transfer of weights into the engines.")

    rules = (
        Rule(
            "duration(self.deadline) > duration('0s')",
            "rollout.deadline must be above 0s: set it to 30m, say",
            "deadline",
        ),
        Rule(
            "!self.deterministic || self.engine == 'hf'",
            "rollout.deterministic needs rollout.engine: hf, because vllm's rounding depends on its batches: set it, or"
            " remove rollout.deterministic",
            "deterministic",
        ),
        Rule("self.topK != 0", "rollout.topK of 0 leaves no token to sample: set it to -1 for all tokens", "topK"),
    )
