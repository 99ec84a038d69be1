"""Engine vllm: vLLM in this process, its workers in their own processes if one engine spreads over GPUs."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np

from rljob_trainer.engines.engine import (
    NO_WEIGHTS,
    NOTHING_TO_RUN,
    Capabilities,
    Completion,
    EngineSettings,
    Request,
    check_idle,
    check_request,
)
from rljob_trainer.engines.memory import in_phase
from rljob_trainer.engines.stop import end_token_ids
from rljob_trainer.engines.vllm.adapter import ADAPTER_ID
from rljob_trainer.engines.vllm.slots import skip_idle_bookkeeping
from rljob_trainer.engines.vllm.start import not_known, start, with_room_used
from rljob_trainer.errors import InfrastructureError, JobError, RLJobError
from rljob_trainer.memory.engine_advice import EnginePhase
from rljob_trainer.types import FinishReason
from rljob_trainer.weights.bucket import BucketDescriptor

LOWEST_TEMPERATURE = 0.01
"""vLLM raises lower ones to this, but for 0."""


@dataclass(slots=True)
class _Sample:
    """One sample that vLLM works on, as a request of its own: the prefix cache shares the prompt.

    earlier: (tokens, version) of each policy before the present one: it had so many when that policy left.
    """

    request_id: str
    index: int
    earlier: list[tuple[int, int]] = field(default_factory=list)

    def completion(self, outputs: Any, version: int) -> Completion:
        """outputs: vLLM's RequestOutput."""
        output = outputs.outputs[0]
        reasons: dict[str, FinishReason] = {"stop": "stop", "length": "length"}
        if output.finish_reason not in reasons:
            raise InfrastructureError(
                f"vLLM gave up on sample {self.index} of request {self.request_id}: {output.finish_reason}"
            )
        log_probs = np.asarray(output.logprobs, dtype=np.float32)
        token_ids = np.asarray(output.token_ids, dtype=np.int32)
        versions = np.full(len(token_ids), version, dtype=np.int32)
        for tokens, earlier in reversed(self.earlier):
            versions[:tokens] = earlier
        return Completion(
            self.request_id, self.index, token_ids, log_probs, versions, reasons[output.finish_reason],
            outputs.num_cached_tokens,
        )  # fmt: skip


class VllmEngine:
    """RolloutEngine on vLLM 0.26 or newer: CUDA, or its CPU build."""

    def __init__(self, settings: EngineSettings) -> None:
        self._settings = settings = with_room_used(settings)
        self._end_ids = end_token_ids(settings.model_dir, settings.trust_remote_code)
        self._engine = start(settings)
        skip_idle_bookkeeping(self._engine)
        self._in_workers("rljob_prepare", settings.adapter)
        # vLLM's first model runner draws each seeded row by itself, which takes a quarter of a GPU's step; there the
        # engine's seed decides. Its second one and the CPU's sampler have a stream for each seed.
        config = self._engine.vllm_config
        seeds = settings.device == "cpu" or getattr(config, "use_v2_model_runner", False)
        self.capabilities = Capabilities(seeds=seeds, parallelism=frozenset(["tensor"]))
        self._version = NO_WEIGHTS
        self._asleep: set[str] = set()
        self._paused = False
        self._works = False  # whether a step has succeeded
        self._samples: dict[str, _Sample] = {}
        self._keys = count()

    @property
    def policy_version(self) -> int:
        return self._version

    @property
    def unfinished(self) -> int:
        return len(self._samples)

    def submit(self, request: Request) -> None:
        self._check_awake()
        check_request(request, self._settings, self.capabilities)
        if 0 < request.sampling.temperature < LOWEST_TEMPERATURE:
            raise JobError(
                f"vLLM samples at temperatures of {LOWEST_TEMPERATURE} and more: raise it, or set it to 0 if it is "
                "the validation's",
                field="spec.rollout.temperature",
            )
        for index, seed in enumerate(request.seeds):
            key = str(next(self._keys))
            self._add(key, request, seed)
            self._samples[key] = _Sample(request.id, index)

    def _check_awake(self) -> None:
        if self._version == NO_WEIGHTS or self._asleep:
            raise InfrastructureError(NOTHING_TO_RUN)

    def _add(self, key: str, request: Request, seed: int) -> None:
        from vllm import SamplingParams, TokensPrompt
        from vllm.sampling_params import RequestOutputKind

        sampling, room = request.sampling, self._settings.max_model_len - len(request.token_ids)
        params = SamplingParams(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            max_tokens=min(sampling.max_tokens, room),
            seed=seed if self.capabilities.seeds else None,
            stop=list(sampling.stop),
            stop_token_ids=self._end_ids,
            include_stop_str_in_output=True,
            detokenize=bool(sampling.stop),
            skip_special_tokens=False,
            logprobs=0,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        self._engine.add_request(
            key, TokensPrompt(prompt_token_ids=request.token_ids.tolist()), params, lora_request=self._lora_request()
        )

    def _lora_request(self) -> Any:
        """The adapter of this version, under a name of its own: the prefix cache goes by names."""
        if self._settings.adapter is None:
            return None
        from vllm.lora.request import LoRARequest

        return LoRARequest(f"version-{self._version}", ADAPTER_ID, "in memory")

    def step(self) -> Sequence[Completion]:
        if self._paused or not self._samples:
            return ()
        self._check_awake()
        with self._in_our_terms("rollout", "while generating", never_worked=not self._works):
            outputs = self._engine.step()
        self._works = True
        return [self._samples.pop(each.request_id).completion(each, self._version) for each in outputs]

    def abort(self, request_ids: Collection[str]) -> None:
        keys = [key for key, sample in self._samples.items() if sample.request_id in request_ids]
        self._engine.abort_request(keys)
        for key in keys:
            del self._samples[key]

    def pause(self, keep: bool) -> None:
        self._paused = True
        if not keep:
            self.abort({sample.request_id for sample in self._samples.values()})

    def resume(self) -> None:
        self._paused = False

    def _in_workers(self, method: str, *arguments: Any) -> None:
        with self._in_our_terms("weight sync", f"in {method}"):
            self._engine.collective_rpc(method, args=arguments)

    def begin_update(self, version: int) -> None:
        check_idle(self, self._paused, "a weight update began")
        self._lose_weights()
        self._wake("weights")
        self._in_workers("rljob_begin_update", version)

    def _lose_weights(self) -> None:
        """Note which tokens of the samples that are kept are by the version that leaves."""
        if self._version != NO_WEIGHTS:
            for state in self._engine.output_processor.request_states.values():
                tokens = state.detokenizer.num_output_tokens()
                self._samples[state.external_req_id].earlier.append((tokens, self._version))
        self._version = NO_WEIGHTS

    def load_bucket(self, bucket: BucketDescriptor) -> None:
        self._in_workers("rljob_load_bucket", bucket)

    def finish_update(self, version: int) -> None:
        self._in_workers("rljob_finish_update", version)
        # Samples that are kept compute their prompts and tokens again.
        if not self._engine.reset_prefix_cache(reset_running_requests=bool(self._samples)):
            raise InfrastructureError("vLLM did not reset its prefix cache: requests are still running")
        self._version = version

    def sleep(self) -> None:
        check_idle(self, self._paused, "a sleep began")
        parts = {"weights", "kv_cache"}
        if self._settings.device == "cuda" and self._asleep != parts:
            for part in parts:  # vLLM lays down all or nothing; a driver may have died between the parts of an update
                self._wake(part)
            self._lose_weights()
            self._engine.sleep(level=2, **({"mode": "keep"} if self._samples else {}))
            self._asleep = parts

    def wake(self) -> None:
        self._wake("kv_cache")

    def _wake(self, tag: str) -> None:
        """Once for each sleep: mapping memory that is mapped is an error."""
        if tag in self._asleep:
            with self._in_our_terms("weight sync", f"to wake its {tag}"):
                self._engine.wake_up(tags=[tag])
            self._asleep.remove(tag)

    def close(self) -> None:
        if self._engine is not None:
            from vllm.distributed import cleanup_dist_env_and_memory

            self._engine.engine_core.shutdown()
            self._engine = None
            cleanup_dist_env_and_memory()

    @contextmanager
    def _in_our_terms(self, phase: EnginePhase, where: str, *, never_worked: bool = False) -> Iterator[None]:
        """Raises JobError with the remedy where memory ran out, InfrastructureError for whatever else goes wrong.

        never_worked: JobError also for what vLLM rejects: a new engine would reject it again.
        """
        try:
            with in_phase(phase, self._settings, self._held):
                yield
        except RLJobError:
            raise
        except (AssertionError, ValueError, KeyError, TypeError, NotImplementedError, AttributeError) as error:
            if never_worked:
                raise not_known(error) from error
            raise InfrastructureError(f"vLLM failed {where}: {error}") from error
        except Exception as error:
            raise InfrastructureError(f"vLLM failed {where}: {error}") from error

    def _held(self) -> dict[str, int]:
        """Bytes of what one of its GPUs holds; what sleeps holds nothing. Empty if its workers do not answer."""
        with suppress(Exception):
            held: dict[str, int] = self._engine.collective_rpc("rljob_held")[0]
            return {name: size for name, size in held.items() if name not in self._asleep}
        return {}
