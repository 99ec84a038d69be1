"""Engine hf: transformers' model, our own batching. The fallback that needs no further installation.

queue of requests ──admit──> rows of the batch ──decode step──> one more token for every active row
      ^                                                │
      └────────── a finished row's slot is free ◄──────┴──> its Sample is yielded at once
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from threading import Event
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.cache_utils import DynamicCache

from rljob_trainer.compute.linear import speed_up_linear_layers
from rljob_trainer.compute.out_of_memory import GENERATING, explained
from rljob_trainer.engines.engine import NO_WEIGHTS, EngineSettings, check_abandoned, check_lengths
from rljob_trainer.engines.hf.attention import GROUPED
from rljob_trainer.engines.hf.batch import Batch
from rljob_trainer.engines.hf.decoder import Decoder, make_decoder
from rljob_trainer.engines.hf.slots import SlotCache
from rljob_trainer.engines.stop import StopStrings, end_token_ids, load_tokenizer
from rljob_trainer.errors import InfrastructureError, JobError
from rljob_trainer.old_types import GenerationRequest, Ids, Sample, Sampling
from rljob_trainer.weights.bucket import BucketDescriptor, torch_dtype
from rljob_trainer.weights.receiver import BucketReceiver

REFILL_SHARE = 1 / 16
"""Free slots are refilled when this share of them is free: a prompt pass costs a step, however few rows it fills."""

PREFILL_TOKENS = 16_384
"""Prompt tokens, padding included, in one pass."""


class HfEngine:
    """RolloutEngine on transformers. A sample depends on its prompt, the weights and its seed, not on the batch."""

    def __init__(self, settings: EngineSettings) -> None:
        self._settings = settings
        self._model = _build(settings)
        self._decoder = make_decoder(self._model)
        self._tokenizer = load_tokenizer(settings.model_dir, settings.trust_remote_code)
        self._end_ids = torch.tensor(end_token_ids(settings.model_dir, settings.trust_remote_code)).to(settings.device)
        self._receiver = BucketReceiver()
        self._version = NO_WEIGHTS

    @property
    def policy_version(self) -> int:
        return self._version

    def generate(
        self, requests: Sequence[GenerationRequest], sampling: Sampling, abandoned: Event | None = None
    ) -> Iterator[Sequence[Sample]]:
        if self._version == NO_WEIGHTS:
            raise InfrastructureError(
                "the rollout engine has no weights: a weight sync must finish before it generates"
            )
        check_lengths(requests, self._settings)
        stops = StopStrings(self._tokenizer, sampling.stop)
        with explained(GENERATING):
            for batch in self._batches(requests):
                generation = _Generation(
                    self._model, self._decoder, self._settings, batch, sampling, self._end_ids, stops
                )
                yield from generation.run(abandoned)

    def _batches(self, requests: Sequence[GenerationRequest]) -> Iterable[Sequence[GenerationRequest]]:
        """What is generated together: everything or, deterministic, the requests of one prompt.

        Rounding depends on the shapes of a batch. Those of a group alone, from its first token to its last, follow
        from its prompt, seeds and weights, and from nothing else.
        """
        if not self._settings.deterministic:
            return [requests] if requests else []
        groups: dict[str, list[GenerationRequest]] = {}
        for request in requests:
            groups.setdefault(request.prompt_id, []).append(request)
        return groups.values()

    def begin_update(self, version: int) -> None:
        self._version = NO_WEIGHTS
        self._model.to(self._settings.device)
        self._decoder.bind()
        self._receiver.begin(version)

    @torch.no_grad()
    def load_bucket(self, bucket: BucketDescriptor) -> None:
        own = self._model.state_dict()
        with self._receiver.open(bucket) as tensors:
            for name, tensor in tensors:
                if name not in own:
                    raise InfrastructureError(f"the rollout engine's model has no parameter {name}")
                own[name].copy_(tensor)

    def finish_update(self, version: int) -> None:
        self._receiver.finish(version, {name for name, _ in self._model.named_parameters()})
        self._version = version

    def sleep(self) -> None:
        """Give up the weights' GPU memory; between calls of generate there is no KV cache."""
        if self._settings.device == "cuda":
            self._version = NO_WEIGHTS
            self._decoder.release()
            self._model.to("cpu")
            torch.cuda.empty_cache()

    def wake(self) -> None: ...

    def close(self) -> None:
        self._version = NO_WEIGHTS


def _build(settings: EngineSettings) -> Any:
    """The model of config.json with weights that mean nothing yet."""
    config = AutoConfig.from_pretrained(settings.model_dir, trust_remote_code=settings.trust_remote_code)
    window = getattr(config, "sliding_window", None)
    if set(getattr(config, "layer_types", ["full_attention"])) != {"full_attention"} and settings.max_model_len > (
        window or 0
    ):
        raise JobError(
            "engine hf knows full attention only: use engine vllm for this model", field="spec.rollout.engine"
        )
    with torch.device(settings.device):
        model = AutoModelForCausalLM.from_config(
            config,
            dtype=torch_dtype(settings.dtype),
            attn_implementation=GROUPED,
            trust_remote_code=settings.trust_remote_code,
        )
    speed_up_linear_layers(model)
    return model.eval().requires_grad_(False)


class _Generation:
    """One call of generate: its queue, its batch and its KV cache."""

    def __init__(
        self,
        model: Any,
        decoder: Decoder,
        settings: EngineSettings,
        requests: Sequence[GenerationRequest],
        sampling: Sampling,
        end_ids: Tensor,
        stops: StopStrings,
    ) -> None:
        longest = max(len(request.prompt_token_ids) for request in requests)
        slots = min(settings.max_num_seqs, len(requests))
        self.model, self.decoder, self.stops, self.queue = model, decoder, stops, deque(requests)
        self.batch = Batch(slots, sampling, end_ids, settings.max_model_len)
        capacity = min(longest + sampling.max_tokens, settings.max_model_len)
        self.cache = SlotCache(model.config.get_text_config().num_hidden_layers, slots, capacity)
        self.columns = torch.arange(capacity, device=end_ids.device)
        self.device = end_ids.device

    def run(self, abandoned: Event | None) -> Iterator[Sequence[Sample]]:
        while self.queue or self.batch.active:
            check_abandoned(abandoned)
            free = self.batch.slots - self.batch.active
            if self.queue and free >= self.batch.slots * REFILL_SHARE:
                self._prefill(free)
            else:
                self._decode()
            if finished := self._collect():
                yield finished

    @torch.inference_mode()
    def _prefill(self, free: int) -> None:
        """Admit requests from the queue and sample their first tokens; equal prompts are computed once."""
        requests, prompts, source = self._take(free)
        ids, last = _padded(prompts, self.device)
        cache = DynamicCache(config=self.model.config)
        needed, where = last.unique(return_inverse=True)
        logits = self.model(ids, past_key_values=cache, use_cache=True, logits_to_keep=needed).logits
        prompt_of_row = torch.tensor(source, device=self.device)
        self.cache.admit(cache, self.batch.active, prompt_of_row)
        rows = self.batch.admit(requests)
        self.batch.append(rows, logits[prompt_of_row, where[prompt_of_row]])

    def _take(self, free: int) -> tuple[list[GenerationRequest], list[Ids], list[int]]:
        """Requests for up to `free` rows, their distinct prompts, and the prompt of each request."""
        requests: list[GenerationRequest] = []
        source: list[int] = []
        index: dict[bytes, int] = {}
        prompts: list[Ids] = []
        longest = 0
        while self.queue and len(requests) < free:
            ids = self.queue[0].prompt_token_ids
            key = ids.tobytes()
            if key not in index:
                longest = max(longest, len(ids))
                if prompts and longest * (len(prompts) + 1) > PREFILL_TOKENS:
                    break
                index[key] = len(prompts)
                prompts.append(ids)
            source.append(index[key])
            requests.append(self.queue.popleft())
        return requests, prompts, source

    @torch.inference_mode()
    def _decode(self) -> None:
        """Sample one more token for each active row."""
        rows = slice(self.batch.active)
        positions = self.batch.lengths[rows] - 1
        longest = int(positions.max()) + 1
        self.cache.expect(positions, longest)
        # Additive, because eager attention adds its mask and sdpa takes both kinds.
        hidden = self.columns[:longest] > positions[:, None]
        mask = torch.zeros(hidden.shape, dtype=self.model.dtype, device=self.device).masked_fill_(hidden, -torch.inf)
        logits = self.decoder.step(self.batch.last_ids()[:, 0], positions, mask[:, None, None], self.cache)
        self.batch.append(rows, logits)

    @torch.inference_mode()
    def _collect(self) -> list[Sample]:
        """Take finished rows out of the batch."""
        ended = self.batch.ended(self.stops)
        finished = ended | (self.batch.counts >= self.batch.limits)[: self.batch.active]
        rows = finished.nonzero()[:, 0].tolist()
        if not rows:
            return []
        samples = self.batch.samples(rows, ended[rows].tolist())
        self.cache.move(*self.batch.remove(rows))
        return samples


def _padded(prompts: Sequence[Ids], device: torch.device) -> tuple[Tensor, Tensor]:
    """(ids [prompts, P] padded on the right, which causal attention never sees; index of each last token)."""
    rows = [torch.from_numpy(ids).long() for ids in prompts]
    last = torch.tensor([len(row) - 1 for row in rows])
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True).to(device), last.to(device)
