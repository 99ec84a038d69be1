"""The size of the critic for a plan."""

from dataclasses import replace
from pathlib import Path

from rljob_api import ResolvedSpec
from rljob_trainer.compute.dtypes import compute_dtype
from rljob_trainer.errors import DataError
from rljob_trainer.memory.config import planned_config
from rljob_trainer.memory.measured import model_size
from rljob_trainer.memory.model import ModelSize
from rljob_trainer.rank.model_source import CRITIC_FIELD, critic_model


def critic_size(spec: ResolvedSpec, policy: ModelSize, base_dir: Path) -> ModelSize | None:
    """Of its own model, or the policy's, with a head of one row; None without a critic. Raises DataError."""
    if spec.critic is None:
        return None
    model, lora = critic_model(spec), spec.critic.adapter
    if model is None and lora is None:
        return _without_head(replace(policy, adapter=0))
    model = model or spec.model
    try:
        config = planned_config(model, base_dir)
    except DataError as error:
        raise DataError(error.message, field=CRITIC_FIELD) from error
    dtype = compute_dtype(spec, "cuda")
    return _without_head(model_size(config, trust_remote_code=model.trust_remote_code, lora=lora, dtype=dtype))


def _without_head(size: ModelSize) -> ModelSize:
    """Without an output head that is a matrix of its own, not the embeddings."""
    head = size.vocabulary * size.hidden
    own = head if size.root >= 2 * head else 0
    return replace(size, parameters=size.parameters - own, root=size.root - own, vocabulary=1)
