"""The size of the teacher for a plan."""

from pathlib import Path

from rljob_api.resolve import ResolvedModel
from rljob_trainer.compute.dtypes import ComputeDtype
from rljob_trainer.errors import blamed
from rljob_trainer.memory.config import planned_config
from rljob_trainer.memory.measured import model_size
from rljob_trainer.memory.model import ModelSize
from rljob_trainer.rank.model_source import TEACHER_FIELD


def teacher_size(model: ResolvedModel | None, base_dir: Path, dtype: ComputeDtype) -> ModelSize | None:
    """model: the teacher (model_source.teacher_model); None gives None. dtype: of the job. Raises DataError."""
    if model is None:
        return None
    with blamed(TEACHER_FIELD):
        config = planned_config(model, base_dir)
        return model_size(config, trust_remote_code=model.trust_remote_code, dtype=dtype)
