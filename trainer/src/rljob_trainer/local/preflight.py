"""Quick checks before anything starts: packages, the model's configuration, files and their columns, reward code.

Of the user's code only an advantage or a loss runs here, in a process of its own.
"""

import tempfile
from pathlib import Path

from rljob_api import ResolvedSpec
from rljob_trainer.data.chat import check_arguments
from rljob_trainer.data.rows import peek
from rljob_trainer.data.sources import prompt_rows, supervised_rows
from rljob_trainer.data.torchless import import_transformers
from rljob_trainer.engines.registry import ENGINES, argument_errors
from rljob_trainer.environments.check import check_environment
from rljob_trainer.environments.tool_template import check_tool_template_here
from rljob_trainer.errors import JobError
from rljob_trainer.local.ray_cluster import LONGEST_TEMPORARY
from rljob_trainer.loggers import require_packages
from rljob_trainer.lora.source import with_adapter
from rljob_trainer.own.check import check_own_functions
from rljob_trainer.rank.model_source import critic_model, local_critic, local_model, local_teacher, teacher_model
from rljob_trainer.rank.supported import (
    check_critic,
    check_quantization,
    check_supported,
    check_teacher,
    check_token_ids,
    largest_saved_id,
    load_config,
    saved_vocabulary,
)
from rljob_trainer.rewards.check import check_code


def check(spec: ResolvedSpec, base_dir: Path) -> None:
    """Raise JobError, DataError or RewardError for the first problem."""
    _check_temporary_folder()
    require_packages(spec.training.loggers)
    if not spec.supervised_only:
        ENGINES[spec.rollout.engine].preflight()
    for error in argument_errors(spec.rollout.engine, spec.rollout.engine_arguments, supervised=spec.supervised_only):
        raise error
    check_quantization(spec, "cuda" if spec.cluster.gpus_per_node else "cpu")
    _check_model(spec, base_dir)
    with_adapter(spec, base_dir)
    check_own_functions(spec, base_dir)
    _check_critic(spec, base_dir)
    _check_teacher(spec, base_dir)
    _check_data(spec, base_dir)
    for index, function in enumerate(spec.rewards.functions):
        check_code(function, base_dir, f"spec.rewards.functions[{index}]")
    if spec.environment is not None:
        check_environment(spec.environment, base_dir)
        check_tool_template_here(spec, base_dir)


def _check_model(spec: ResolvedSpec, base_dir: Path) -> None:
    folder = local_model(spec.model, base_dir) if spec.model.path is not None else None
    if folder is None:  # made from scratch, or on the hub
        return
    import_transformers()
    config = load_config(folder, trust_remote_code=False) if not spec.model.trust_remote_code else None
    if config is not None:
        check_supported(config, spec)
        check_token_ids(config, largest_saved_id(folder))


def _check_critic(spec: ResolvedSpec, base_dir: Path) -> None:
    """What of its own model can be known here; the driver compares it with the tokenizer."""
    model = critic_model(spec)
    folder = local_critic(model, base_dir) if model is not None else None
    if folder is not None and not spec.model.trust_remote_code:
        import_transformers()
        check_critic(spec, folder, -1)


def _check_teacher(spec: ResolvedSpec, base_dir: Path) -> None:
    """With the tokenizer of a model that is here; the driver compares any other."""
    model = teacher_model(spec)
    folder = local_teacher(model, base_dir) if model is not None else None
    if folder is None or spec.model.trust_remote_code:
        return
    import_transformers()
    policy = local_model(spec.model, base_dir) if spec.model.path is not None else None
    check_teacher(spec, folder, saved_vocabulary(policy, trust_remote_code=False) if policy is not None else {})


def _check_temporary_folder() -> None:
    folder = tempfile.gettempdir()
    if len(folder) > LONGEST_TEMPORARY:
        raise JobError(
            f"TMPDIR={folder} is too long for the names of Ray's sockets; set it to a folder of at most"
            f" {LONGEST_TEMPORARY} characters, such as /tmp"
        )


def _check_data(spec: ResolvedSpec, base_dir: Path) -> None:
    check_arguments(spec.data.template_arguments)
    if not spec.supervised_only:
        prompt_rows(spec.data, "train", base_dir, peek)
        prompt_rows(spec.data, "validation", base_dir, peek)
    if spec.sft or spec.supervised_only:
        supervised_rows(spec, base_dir, peek)
