"""The protocol between the trainer and whatever generates tokens. Light: the driver imports it.

An engine moves through these states; any other call order raises InfrastructureError:

    start                   no weights yet (policy_version NO_WEIGHTS)
      begin_update(v)       weights' memory is back; the engine cannot generate
      load_bucket(bucket)   any number, in order; the weights are copied before it returns
      finish_update(v)      every parameter has arrived; prefix cache and KV cache forget the old weights. An engine
                            with an adapter keeps the model below it: later updates may bring the adapter alone
      wake()                KV cache's memory is back (the trainer freed its own first); policy_version is v
      submit(request)       at any moment; a request brings its own sampling
      step()                one token more for each running sample; gives those that ended
      sleep()               GPU memory is given back; the weights are gone, or the adapter is, so an update comes next
      begin_update(v + 1)   ...

Samples that are unfinished at an update or a sleep need a pause before it:

    pause(keep=True)        they stop where they are
      begin_update ... wake()
    resume()                they go on; their later tokens carry the version that samples them

sleep and wake may be left out if engine and trainer do not share a GPU. An update that was cut off, as by the death
of its driver, starts again with begin_update; one that raises leaves the engine unusable: the caller closes it and
starts another. One thread calls an engine.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from rljob_api.resolve import ResolvedLora
from rljob_api.v1alpha1.rollout import Engine, Quantization
from rljob_trainer.errors import InfrastructureError, JobError
from rljob_trainer.types import FinishReason, Floats, Ids, Sampling
from rljob_trainer.weights.bucket import BucketDescriptor

NO_WEIGHTS = -1
"""policy_version of an engine that has not received weights."""

NOTHING_TO_RUN = "the rollout engine has no weights or sleeps: finish a weight update and wake it before it generates"


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """How to build an engine; the same fields for all kinds.

    kind: hf (transformers) or vllm.
    model_dir: a local folder with config.json and the tokenizer's files; its weights are never read.
    max_model_len: prompt and answer together, in tokens.
    max_num_seqs: samples generated at once.
    more_if_room: as many more as memory.sequences allows on this GPU (vllm on cuda).
    contexts: of episodes that go on after a tool's answer, which the KV cache keeps too (vllm).
    gpu_memory_utilization: share of the GPU's memory for weights, activations and KV cache (vllm on cuda), of all
        engines of the GPU together.
    tensor_parallel_size: GPUs that one engine spreads over (vllm).
    engines_per_gpu: engines that share a GPU, or the cores of a rank on a CPU.
    enforce_eager: no CUDA graphs, no compilation (vllm).
    quantization: of the model's layers (vllm on cuda). Updates bring weights of `dtype` all the same.
    place: among the job's engines, from 0.
    seed: of an engine that does not sample by each request's seeds (vllm on cuda); different for each engine of a job,
        or engines would draw the same noise.
    arguments: spec.rollout.engineArguments (vllm).
    deterministic: samples are bit for bit the same whatever else is generated (hf, on one CPU thread).
    adapter: what the policy adds to the model that updates bring; None if they bring the policy whole.
    """

    kind: Engine
    model_dir: str
    max_model_len: int
    dtype: Literal["float32", "bfloat16"] = "float32"
    device: Literal["cpu", "cuda"] = "cpu"
    max_num_seqs: int = 256
    more_if_room: bool = False
    contexts: int = 0
    tensor_parallel_size: int = 1
    engines_per_gpu: int = 1
    gpu_memory_utilization: float = 0.5
    enforce_eager: bool = False
    quantization: Quantization = "none"
    place: int = 0
    seed: int = 0
    trust_remote_code: bool = False
    arguments: Mapping[str, Any] = field(default_factory=dict)
    deterministic: bool = False
    adapter: ResolvedLora | None = None


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What an engine can do.

    adapters: whether it serves LoRA adapters beside the policy.
    seeds: whether the seed of a sample decides it; otherwise the engine's own does.
    parallelism: the kinds of parallelism that one engine may spread over GPUs by.
    images: whether prompts may contain images.
    routed_experts: whether it reports the experts that each token went to.
    """

    adapters: bool = False
    seeds: bool = True
    parallelism: frozenset[Literal["tensor"]] = frozenset()
    images: bool = False
    routed_experts: bool = False


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt to continue.

    id: unique among the unfinished requests.
    token_ids: [P], the prompt.
    seeds: one sample for each; they share the pass over the prompt.
    adapter: name of the adapter to apply; None is the policy itself.
    """

    id: str
    token_ids: Ids
    sampling: Sampling
    seeds: tuple[int, ...]
    adapter: str | None = None


@dataclass(frozen=True, slots=True)
class Completion:
    """One finished sample.

    sample: index of its seed in the request.
    token_ids: [R], the end-of-text token included if it was sampled.
    log_probs: [R], of each sampled token, in nats, at the request's temperature and before top-k and top-p; for
        temperature 0 at temperature 1.
    versions: [R], policy version that sampled each token.
    cached_tokens: of the prompt, those that the engine had in its prefix cache; None: it has no such cache.
    """

    request_id: str
    sample: int
    token_ids: Ids
    log_probs: Floats
    versions: Ids
    finish_reason: FinishReason
    cached_tokens: int | None = None


class RolloutEngine(Protocol):
    """Token ids in, token ids and their log-probabilities out."""

    @property
    def capabilities(self) -> Capabilities: ...

    @property
    def policy_version(self) -> int:
        """The version of the last finished update, or NO_WEIGHTS."""

    @property
    def unfinished(self) -> int:
        """Samples that were submitted and have not finished."""

    def submit(self, request: Request) -> None:
        """Queue the samples of `request`.

        Raises JobError for a prompt that leaves no room and for an adapter that the engine cannot serve,
        InfrastructureError without weights.
        """

    def step(self) -> Sequence[Completion]:
        """Sample one token for each running sample; returns those that ended, in any order.

        Does nothing if none is unfinished, and while paused.
        Raises InfrastructureError if a sample cannot be made; a sample is never empty for that reason.
        """

    def abort(self, request_ids: Collection[str]) -> None:
        """Forget these requests; ids that the engine does not know are ignored."""

    def pause(self, keep: bool) -> None:
        """Stop generating, before an update or a sleep.

        keep: unfinished samples go on after `resume`, with the KV cache of the weights that are there then.
            Otherwise they are aborted.
        """

    def resume(self) -> None:
        """Go on after a pause."""

    def begin_update(self, version: int) -> None:
        """Get ready for the weights of `version`."""

    def load_bucket(self, bucket: BucketDescriptor) -> None:
        """Copy the bucket's tensors into the model.

        Raises InfrastructureError for a missed or repeated bucket, JobError naming weights that it cannot take.
        """

    def finish_update(self, version: int) -> None:
        """Use the new weights. Raises JobError naming parameters that did not arrive."""

    def sleep(self) -> None:
        """Give the GPU memory of weights and KV cache back."""

    def wake(self) -> None:
        """Take the KV cache's GPU memory again, after the update that follows a sleep."""

    def close(self) -> None:
        """End the engine and its processes. May be called twice."""


def check_request(request: Request, settings: EngineSettings, capabilities: Capabilities) -> None:
    """Raises JobError for a prompt that leaves no room for an answer, and for what the engine is not capable of."""
    if len(request.token_ids) >= settings.max_model_len:
        raise JobError(
            f"a prompt of {len(request.token_ids)} tokens leaves no room for a response in {settings.max_model_len} "
            "tokens: lower it",
            field="spec.data.maxPromptTokens",
        )
    if request.adapter is not None and not capabilities.adapters:
        raise JobError(
            f"engine {settings.kind} serves no adapters, and a request names {request.adapter}: choose another engine",
            field="spec.rollout.engine",
        )


def not_taken(names: Sequence[str], reason: str) -> JobError:
    """For weights that an engine cannot take: another try would end the same way."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return JobError(
        f"the rollout engine cannot take the weights {', '.join(names[:3])}{more} ({reason}): choose another engine or"
        " another model",
        field="spec.rollout.engine",
    )


def check_idle(engine: RolloutEngine, paused: bool, action: str) -> None:
    """Raises InfrastructureError for an update or a sleep under running samples."""
    if engine.unfinished and not paused:
        raise InfrastructureError(
            f"{action} while {engine.unfinished} samples are unfinished: pause the rollout engine before it"
        )
