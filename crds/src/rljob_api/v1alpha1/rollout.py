"""`spec.rollout`: how responses are generated."""

from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from rljob_api.v1alpha1.base import ApiModel, Duration, Rule, Seed

Engine = Literal["vllm", "hf"]
Quantization = Literal["none", "fp8"]


class ValidationSampling(ApiModel):
    """Sampling of validation responses."""

    samples_per_prompt: Annotated[int, Field(ge=1, le=1024)] = Field(1, description="Responses per validation prompt.")
    temperature: Annotated[float, Field(ge=0, le=10)] = Field(0.0, description="Sampling temperature; 0 is greedy.")
    top_p: Annotated[float, Field(gt=0, le=1)] = Field(1.0, description="Nucleus sampling.")


class WeightSync(ApiModel):
    """How new weights reach the engines, and how the transfer is verified."""

    bucket_mib: Annotated[int, Field(ge=1, le=65_536)] = Field(
        512, description="Size of each of the two buckets that transfer the weights, in MiB."
    )
    probe_tolerance: Annotated[float, Field(gt=0, le=100)] | None = Field(
        None,
        description=(
            "Largest mean difference between the log-probabilities of engine and trainer for the tokens of the probe, "
            "in nats. The default depends on the dtype: 0.15 for bfloat16; for float32 0.001 on CPUs and 0.02 on GPUs, "
            "because engines may multiply with TF32; 1 for rollout.quantization fp8."
        ),
    )


class Rollout(ApiModel):
    """Generation of responses."""

    engine: Engine = Field(
        "vllm", description="vllm; or hf, which is transformers: no extra installation, any architecture."
    )
    samples_per_prompt: Annotated[int, Field(ge=1, le=4096)] = Field(
        8, description="Responses per prompt; they form a group (verl's rollout.n)."
    )
    temperature: Annotated[float, Field(gt=0, le=10)] = Field(1.0, description="Sampling temperature.")
    top_p: Annotated[float, Field(gt=0, le=1)] = Field(
        1.0, description="Nucleus sampling: total probability of the tokens to sample from."
    )
    top_k: Annotated[int, Field(ge=-1, le=1_000_000)] = Field(
        -1, description="Number of most likely tokens to sample from; -1 is all."
    )
    stop: Annotated[list[Annotated[str, StringConstraints(min_length=1, max_length=256)]], Field(max_length=16)] = (
        Field(default_factory=list, description="Strings that end a response, in addition to the end-of-text token.")
    )
    seed: Seed = Field(
        0,
        description=(
            "Seed of the sampling. It determines the seed of each sample, together with the step, the prompt and the"
            " sample's index. vLLM's V1 model runner on GPUs uses one seed for a whole batch instead."
        ),
    )
    tensor_parallel_size: Annotated[int, Field(ge=1, le=64)] = Field(1, description="GPUs per engine (vllm).")
    engines_per_gpu: Annotated[int, Field(ge=1, le=8)] = Field(
        1,
        description=(
            "Engines that share a GPU; on CPUs, engines per rank. Two generate faster than one if a step of the model"
            " takes the GPU less time than the host, as below 2B parameters."
        ),
    )
    gpu_memory_utilization: Annotated[float, Field(ge=0.05, le=0.95)] = Field(
        0.5,
        description=(
            "Fraction of the GPU's memory that its engines together may use while they generate (vllm). Engines of one"
            " GPU share it equally."
        ),
    )
    max_num_seqs: Annotated[int, Field(ge=1, le=65_536)] | None = Field(
        None,
        description=(
            "Sequences that an engine generates at the same time; a waiting one replaces a finished one. The default is"
            " 256, and 512 for vllm on GPUs if the KV cache of so many full ones takes at most half of the engine's"
            " memory."
        ),
    )
    enforce_eager: bool = Field(
        False, description="Run vLLM without CUDA graphs and compilation: it starts faster and generates slower."
    )
    quantization: Quantization = Field(
        "none",
        description=(
            "fp8: vLLM multiplies FP8 in linear layers and experts, and quantises their weights again at each sync,"
            " with a scale for each output channel and each token. GPUs must have compute capability 8.9 or more: Ada,"
            " Hopper and later. Samples are then a little off the policy: algorithm.rolloutCorrection weighs them. The"
            " trainer, checkpoints and `rljob eval` are not quantised."
        ),
    )
    engine_arguments: Annotated[dict[str, Any], Field(max_length=64)] = Field(
        default_factory=dict,
        description=(
            "Arguments of vLLM's EngineArgs that this API does not name, such as kv_cache_dtype: fp8. Names, types and"
            " conflicts with fields of this API are checked by `rljob validate` if vLLM is installed, and at the start"
            " of the run."
        ),
    )
    deterministic: bool = Field(
        False,
        description=(
            "Generate the responses of each prompt in a batch of their own (engine hf). Then a run repeats bit for"
            " bit, also after failures, on the same kind of CPU and with the same number of ranks. It is slower."
        ),
    )
    deadline: Duration = Field("30m", description="Time limit of the generation of one step.")
    validation: ValidationSampling = Field(
        default_factory=ValidationSampling, description="Sampling of validation responses."
    )
    weight_sync: WeightSync = Field(default_factory=WeightSync, description="Transfer of weights to the engines.")

    rules = (
        Rule(
            "duration(self.deadline) > duration('0s')",
            "rollout.deadline must be above 0s: set it to 30m, for example",
            "deadline",
        ),
        Rule(
            "!self.deterministic || self.engine == 'hf'",
            "rollout.deterministic needs engine hf, because the rounding of vllm depends on its batches: set"
            " rollout.engine to hf, or remove rollout.deterministic",
            "deterministic",
        ),
        Rule(
            "self.quantization == 'none' || self.engine == 'vllm'",
            "engine hf computes with the policy as it is: set rollout.engine to vllm, or remove rollout.quantization",
            "quantization",
        ),
        Rule(
            "self.enginesPerGpu == 1 || self.tensorParallelSize == 1",
            "an engine that spreads over GPUs shares them with no other: set rollout.enginesPerGpu or"
            " rollout.tensorParallelSize to 1",
            "enginesPerGpu",
        ),
        Rule(
            "self.topK != 0",
            "rollout.topK must not be 0, which leaves no token to sample: set it to -1 for all tokens",
            "topK",
        ),
    )
