"""Engine hf: transformers' model, our own batching. The fallback that needs no further installation."""

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from rljob_trainer.compute.attention_choice import built_with, use_transformers_attention
from rljob_trainer.compute.linear import speed_up_linear_layers
from rljob_trainer.engines.engine import (
    NO_WEIGHTS,
    Capabilities,
    Completion,
    EngineSettings,
    Request,
    check_idle,
    check_request,
    not_taken,
)
from rljob_trainer.engines.hf.adapter import MergedAdapter
from rljob_trainer.engines.hf.attention import GROUPED
from rljob_trainer.engines.hf.decoder import caches_keys, make_decoder
from rljob_trainer.engines.hf.generation import Generation
from rljob_trainer.engines.memory import in_phase
from rljob_trainer.engines.stop import StopStrings, end_token_ids, load_tokenizer
from rljob_trainer.errors import InfrastructureError
from rljob_trainer.weights.bucket import BucketDescriptor, torch_dtype
from rljob_trainer.weights.receiver import BucketReceiver
from rljob_trainer.weights.saved_names import all_weights


class HfEngine:
    """RolloutEngine on transformers. A sample depends on its prompt, the weights and its seed, not on the others.

    Rounding depends on the shapes of a batch. So a deterministic engine generates one request after the other: the
    shapes of its samples, from the first token to the last, follow from it and the weights alone.
    """

    capabilities = Capabilities()

    def __init__(self, settings: EngineSettings) -> None:
        self._settings = settings
        with in_phase("start", settings, dict):
            self._model = _build(settings)
        self._decoder = make_decoder(self._model)
        self._stops = StopStrings(load_tokenizer(settings.model_dir, settings.trust_remote_code))
        self._end_ids = torch.tensor(end_token_ids(settings.model_dir, settings.trust_remote_code)).to(settings.device)
        self._adapter = None if settings.adapter is None else MergedAdapter(self._model, settings.adapter)
        self._holds_model = False  # all of the weights below an adapter
        self._receiver = BucketReceiver()
        self._version = NO_WEIGHTS
        self._paused = False
        self._waiting: deque[Request] = deque()  # for a turn of their own, if the engine is deterministic
        self._generation = self._begin()

    def _begin(self) -> Generation:
        return Generation(self._model, self._decoder, self._settings, self._end_ids, self._stops)

    @property
    def policy_version(self) -> int:
        return self._version

    @property
    def unfinished(self) -> int:
        return self._generation.unfinished + sum(len(request.seeds) for request in self._waiting)

    def submit(self, request: Request) -> None:
        self._check_weights()
        check_request(request, self._settings, self.capabilities)
        if self._settings.deterministic and self._generation.unfinished:
            self._waiting.append(request)
        else:
            self._generation.add(request)

    def _check_weights(self) -> None:
        if self._version == NO_WEIGHTS:
            raise InfrastructureError(
                "the rollout engine has no weights: a weight sync must finish before it generates"
            )

    def step(self) -> Sequence[Completion]:
        if self._paused or not self._generation.unfinished:
            return ()
        self._check_weights()
        with in_phase("rollout", self._settings, self._held):
            completions = self._generation.step(self._version)
        self._tidy()
        return completions

    def _held(self) -> dict[str, int]:
        return {"weights": sum(each.nbytes for each in self._model.state_dict().values())}

    def _tidy(self) -> None:
        """Keep no batch and no KV cache if nothing is left of them; begin the next request that waited for that."""
        if not self._generation.unfinished:
            self._generation = self._begin()
            if self._waiting:
                self._generation.add(self._waiting.popleft())

    def abort(self, request_ids: Collection[str]) -> None:
        self._waiting = deque(request for request in self._waiting if request.id not in request_ids)
        self._generation.abort(request_ids)
        self._tidy()

    def pause(self, keep: bool) -> None:
        self._paused = True
        if not keep:
            self._waiting.clear()
            self._generation = self._begin()

    def resume(self) -> None:
        self._paused = False

    def begin_update(self, version: int) -> None:
        check_idle(self, self._paused, "a weight update began")
        self._lose_weights()
        with in_phase("weight sync", self._settings, self._held):
            self._model.to(self._settings.device)
            if self._adapter is not None:
                self._adapter.to(self._settings.device)
            if self._decoder is not None:
                self._decoder.bind()
        self._receiver.begin(version)

    def _lose_weights(self) -> None:
        self._generation.unload(self._version)
        self._version = NO_WEIGHTS

    @torch.no_grad()
    def load_bucket(self, bucket: BucketDescriptor) -> None:
        own = self._model.state_dict()
        with self._receiver.open(bucket) as tensors:
            for name, tensor in tensors:
                if self._adapter is not None and name in self._adapter.names:
                    self._adapter.load(name, tensor)
                else:
                    self._load(own, name, tensor)

    def _load(self, own: Mapping[str, Tensor], name: str, tensor: Tensor) -> None:
        if name not in own or own[name].shape != tensor.shape:
            raise not_taken([name], f"its model has {list(own[name].shape) if name in own else 'none'}")
        own[name].copy_(tensor)
        self._holds_model = False
        if self._adapter is not None:
            self._adapter.forget(name)

    def finish_update(self, version: int) -> None:
        received = self._receiver.finish(version)
        expected = set(self._adapter.names) if self._adapter is not None else set()
        if self._adapter is None or not self._holds_model:
            expected |= {name for name, _ in all_weights(self._model)}
        if missing := expected - received:
            raise not_taken(sorted(missing), "they did not arrive")
        if self._adapter is not None:
            self._adapter.apply()
        self._holds_model = True
        self._version = version

    def sleep(self) -> None:
        """Give up the weights' GPU memory; without running samples there is no KV cache."""
        check_idle(self, self._paused, "a sleep began")
        if self._settings.device == "cuda":
            self._lose_weights()
            if self._decoder is not None:
                self._decoder.release()
            self._model.to("cpu")
            if self._adapter is not None:
                self._adapter.to("cpu")
            torch.cuda.empty_cache()

    def wake(self) -> None: ...

    def close(self) -> None:
        self._version = NO_WEIGHTS


def _build(settings: EngineSettings) -> Any:
    """The model of config.json with weights that mean nothing yet."""
    config = AutoConfig.from_pretrained(settings.model_dir, trust_remote_code=settings.trust_remote_code)

    def build(attention: str | None) -> Any:
        return AutoModelForCausalLM.from_config(
            config,
            dtype=torch_dtype(settings.dtype),
            attn_implementation=attention,
            trust_remote_code=settings.trust_remote_code,
        )

    with torch.device(settings.device):
        model: Any = built_with(GROUPED, build)
    if not caches_keys(model):
        use_transformers_attention(model)
    speed_up_linear_layers(model)
    return model.eval().requires_grad_(False)
