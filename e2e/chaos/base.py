"""A model folder for jobs that adapt a model: random weights, and the tokenizer of the job's data."""

from pathlib import Path
from typing import Any

from rljob_api import resolve
from rljob_api.v1alpha1 import RLJobSpec

BASE = "base"
"""spec.model.path of such a job: a folder beside its file."""

SHAPE = {"layers": 2, "hiddenSize": 64, "heads": 2}
"""spec.model.fromScratch of models for chaos."""


def write_base(folder: Path, spec: dict[str, Any], scratch: dict[str, Any], seed: int = 0) -> Path:
    """spec: of the job. scratch: spec.model.fromScratch of the model. seed: of its weights."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from rljob_trainer.attempt.model_folder import prepare_model_folder
    from rljob_trainer.data.tokenizer import make_tokenizer

    made = resolve(RLJobSpec.model_validate(spec | {"model": {"fromScratch": scratch}}))
    prepare_model_folder(made, folder, folder, make_tokenizer(made, folder))
    torch.manual_seed(seed)
    AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder)).save_pretrained(folder)
    return folder
