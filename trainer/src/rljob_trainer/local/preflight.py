"""What of a run can be judged within moments, before anything starts: files, packages, the syntax of reward code."""

import warnings
from importlib.util import find_spec
from pathlib import Path

from rljob_api import ResolvedSpec
from rljob_api.v1alpha1.rewards import RewardFunction
from rljob_trainer.actor.folder import local_model
from rljob_trainer.data.tasks import SCHEME
from rljob_trainer.errors import DataError, RewardError
from rljob_trainer.loggers import require_packages
from rljob_trainer.paths import no_file
from rljob_trainer.rewards.code import describe
from rljob_trainer.rollout.engine import vllm_missing


def check(spec: ResolvedSpec, base_dir: Path) -> None:
    """Raises JobError, DataError or RewardError for the first thing that is missing or wrong. Runs none of it."""
    require_packages(spec.training.loggers)
    if not spec.supervised_only and spec.rollout.engine == "vllm" and find_spec("vllm") is None:
        raise vllm_missing("No module named 'vllm'")
    if spec.model.path is not None:
        local_model(spec.model, base_dir)
    supervised = spec.sft.data if spec.sft is not None else ()
    lists = {"data.train": spec.data.train, "data.validation": spec.data.validation, "sft.data": supervised}
    for part, names in lists.items():
        for index, name in enumerate(names):
            if not name.startswith(SCHEME) and not (base_dir / name).exists():
                raise DataError(no_file(base_dir / name), field=f"spec.{part}[{index}]")
    for index, function in enumerate(spec.rewards.functions):
        _check_reward(function, base_dir, f"spec.rewards.functions[{index}]")


def _check_reward(function: RewardFunction, base_dir: Path, field: str) -> None:
    origin = "source" if function.path is None else "path"
    try:
        source = function.source if function.path is None else (base_dir / function.path).read_text()
        with warnings.catch_warnings(action="ignore"):  # of the user's code, which is none of ours to print
            compile(source or "", function.path or f"<{field}>", "exec")
    except FileNotFoundError as error:
        raise RewardError(no_file(base_dir / str(function.path)), field=f"{field}.{origin}") from error
    except (SyntaxError, ValueError, OSError) as error:
        what = function.path or "the code"
        raise RewardError(f"{what}: {describe(error)}", field=f"{field}.{origin}") from error
