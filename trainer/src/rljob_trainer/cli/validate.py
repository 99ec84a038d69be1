"""`rljob validate`"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:  # slow to import, and `--help` does not need them
    from rljob_api import ResolvedSpec
    from rljob_api.validation import Judged, Problem, Validated
    from rljob_trainer.memory.plan import TooMuch


def validate(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="YAML files with RLJobs.")],
) -> None:
    """Check RLJob files as a cluster would, and also generated data and local reward code.

    Prints every error with its line, and exits with code 64 if there is one.
    """
    from rljob_api.contract import ExitCode
    from rljob_api.printable import printable
    from rljob_api.validation import in_order, render_problems, validate_file

    errors = 0
    for file in files:
        found = validate_file(file)
        ours = (
            each
            for one in found.documents
            for each in (
                *_wrong_data(one),
                *_wrong_arguments(one),
                *_wrong_code(one, file),
                *_wrong_environment(one, file),
            )
        )
        problems = in_order([*found.problems, *ours])
        problems = problems or in_order([*_wrong_algorithm(found, file), *_wrong_template(found, file)])
        errors += len(problems)
        notes = [*found.notes, *([] if problems else _too_large(found, file))]
        if problems or notes:
            typer.echo(printable(render_problems([*problems, *notes])))
        if not problems:
            typer.echo(f"{file}: valid: {', '.join(job.metadata.name for job in found.jobs)}")
    if errors:
        typer.echo(f"{errors} error{'s' if errors > 1 else ''}", err=True)
        raise typer.Exit(ExitCode.JOB)


def _wrong_data(judged: "Judged") -> "Iterator[Problem]":
    """Errors in the URLs of generated tasks and in the arguments of data sets."""
    from rljob_api.validation import Problem
    from rljob_trainer.data.generated import generator
    from rljob_trainer.data.library import argument_errors

    for block, name in (("data", "train"), ("data", "validation"), ("sft", "data")):
        for index in judged.entries("spec", block, name):
            place = ("spec", block, name, index)
            url = judged.sound(*place)
            if isinstance(url, str):
                field = f"spec.{block}.{name}[{index}]"
                generated = generator(url)
                errors = generated.errors if generated else argument_errors
                for error in errors(url, field):
                    yield Problem(*judged.document.locate(place, key=False), field, error.message)


def _wrong_arguments(judged: "Judged") -> "Iterator[Problem]":
    """Errors in the arguments of the engine; of vLLM's list only if vLLM is installed here."""
    from rljob_api.v1alpha1.terms import OFFLINE
    from rljob_api.validation import Problem
    from rljob_trainer.engines.registry import argument_errors

    place, engine = ("spec", "rollout", "engineArguments"), ("spec", "rollout", "engine")
    arguments = judged.sound(*place)
    if not arguments or judged.is_broken(*engine):
        return
    supervised = judged.sound("spec", "algorithm", "preset") in OFFLINE
    for error in argument_errors(judged.sound(*engine) or "vllm", arguments, supervised=supervised):
        assert error.field is not None
        at = tuple(error.field.split(".", 3))
        yield Problem(*judged.document.locate(at, key=True), error.field, error.message)


def _too_large(found: "Validated", file: Path) -> "Iterator[Problem]":
    """A warning for each remedy without which a job does not fit the default GPU; the cluster's are not known here."""
    from rljob_api import resolve
    from rljob_api.validation import Problem
    from rljob_trainer.memory.gpus import DEFAULT
    from rljob_trainer.memory.table import needs

    for judged, job in zip(found.documents, found.jobs, strict=True):
        planned = _planned(resolve(job.spec), file.resolve().parent)
        for remedy in dict.fromkeys(each.remedy for each in planned):
            needed = ", ".join(needs(each) for each in planned if each.remedy == remedy)
            message = (
                f"warning: an {DEFAULT} does not suffice, because the job needs {needed}: {remedy.advice};"
                f" `rljob plan {file} --gpu NAME` plans for another GPU"
            )
            place = tuple(remedy.field.split("."))
            yield Problem(*judged.document.locate(place, key=False), remedy.field, message)


def _planned(spec: "ResolvedSpec", base_dir: Path) -> "tuple[TooMuch, ...]":
    """What does not fit, of a model whose configuration is here and that may be large."""
    from rljob_trainer.compute.dtypes import compute_dtype
    from rljob_trainer.errors import RLJobError
    from rljob_trainer.lora.source import with_adapter
    from rljob_trainer.memory import plan
    from rljob_trainer.memory.config import config_folder, planned_config
    from rljob_trainer.memory.gpus import DEFAULT, gpu_bytes
    from rljob_trainer.memory.work import work_of

    try:
        scratch = spec.model.from_scratch
        large = scratch is not None and scratch.layers * scratch.hidden_size**2 > _SMALL
        here = large or config_folder(spec.model, base_dir) is not None
        if spec.cluster.gpus_per_node == 0 or spec.model.trust_remote_code or not here:
            return ()
        from rljob_trainer.memory.critic import critic_size
        from rljob_trainer.memory.defaults import with_defaults
        from rljob_trainer.memory.measured import model_size
        from rljob_trainer.memory.teacher import teacher_size
        from rljob_trainer.rank.model_source import teacher_model

        spec = with_adapter(spec, base_dir)
        dtype = compute_dtype(spec, "cuda")
        size = model_size(planned_config(spec.model, base_dir), lora=spec.model.lora, dtype=dtype)
        critic, gpu = critic_size(spec, size, base_dir), gpu_bytes(DEFAULT)
        teacher = teacher_size(teacher_model(spec), base_dir, dtype)
        filled = with_defaults(spec, size, gpu, critic, teacher)
        return plan.plan(size, work_of(filled, critic, teacher), gpu).too_much
    except RLJobError:  # a folder that is missing here may exist in the cluster
        return ()


_SMALL = 4_000_000
"""Layers times the square of the width, of a model of 50M parameters: smaller ones fit, and a plan takes seconds."""

_CODE_FIELDS = ("builtin", "path", "source", "function", "arguments")
"""Fields of a reward function that determine its code. Errors in other fields do not prevent this check."""


def _wrong_code(judged: "Judged", file: Path) -> "Iterator[Problem]":
    """Errors in reward functions. A file that is missing here may exist in the cluster."""
    from rljob_api.v1alpha1.rewards import RewardFunction
    from rljob_api.validation import Problem
    from rljob_trainer.paths import is_here, locate
    from rljob_trainer.rewards.check import code_errors

    base_dir = file.resolve().parent
    for index in judged.entries("spec", "rewards", "functions"):
        at = ("spec", "rewards", "functions", index)
        if any(judged.is_broken(*at, name) for name in _CODE_FIELDS):
            continue
        written = {name: value for name in _CODE_FIELDS if (value := judged.sound(*at, name)) is not None}
        function = RewardFunction.model_validate({"name": "any"} | written, strict=True, by_alias=True, by_name=False)
        if function.path is not None and not is_here(locate(function.path, base_dir)):
            continue
        field = f"spec.rewards.functions[{index}]"
        for error in code_errors(function, base_dir, field):
            named = error.field or field
            place = (*at, named.rpartition(".")[2])
            yield Problem(*judged.document.locate(place, key=False), named, error.message)


def _wrong_environment(judged: "Judged", file: Path) -> "Iterator[Problem]":
    """Errors in the environment's code and programs. What is missing here may exist in the cluster: a file, or a
    program in an image of the job's own or on a volume.
    """
    from rljob_api.v1alpha1 import Environment
    from rljob_api.validation import Problem
    from rljob_trainer.environments.check import environment_errors, program_errors
    from rljob_trainer.paths import is_here, locate

    place = ("spec", "environment")
    names = ("path", "module", "source", "command", "entry", "tools", "builtinTools", "mcpServers", "arguments")
    if not judged.sound(*place) or any(judged.is_broken(*place, name) for name in names):
        return
    written = {name: value for name in names if (value := judged.sound(*place, name)) is not None}
    environment = Environment.model_validate(written, strict=True, by_alias=True, by_name=False)
    base_dir = file.resolve().parent
    files = [environment.path, *(tool.corpus for tool in environment.builtin_tools)]
    if not all(is_here(locate(name, base_dir)) for name in files if name is not None):
        return
    blocks = (("cluster", "image"), ("cluster", "head", "template"), ("cluster", "worker", "template"), ("volumes",))
    elsewhere = any(judged.sound("spec", *block) for block in blocks)
    programs = () if elsewhere else program_errors(environment, base_dir)
    for error in (*environment_errors(environment, base_dir), *programs):
        assert error.field is not None
        at = tuple(int(part) if part.isdecimal() else part for part in re.findall(r"\w+", error.field))
        yield Problem(*judged.document.locate(at, key=False), error.field, error.message)


def _wrong_template(found: "Validated", file: Path) -> "Iterator[Problem]":
    """What prevents tools in a chat template that is in the job, or with its model on this machine."""
    from rljob_api import resolve
    from rljob_api.validation import Problem
    from rljob_trainer.errors import DataError

    for judged, job in zip(found.documents, found.jobs, strict=True):
        if job.spec.environment is None:
            continue
        from rljob_trainer.environments.tool_template import check_tool_template_here

        try:
            check_tool_template_here(resolve(job.spec), file.resolve().parent)
        except DataError as error:
            field = str(error.field)
            yield Problem(*judged.document.locate(tuple(field.split(".")), key=False), field, error.message)


def _wrong_algorithm(found: "Validated", file: Path) -> "Iterator[Problem]":
    """Errors in an advantage or a loss of the user's own. Code that is missing here may exist in the cluster."""
    from rljob_api import resolve
    from rljob_api.validation import Problem
    from rljob_trainer.own.check import own_function_errors
    from rljob_trainer.paths import is_here, locate

    base_dir = file.resolve().parent
    for judged, job in zip(found.documents, found.jobs, strict=True):
        algorithm = job.spec.algorithm
        missing = {
            name: None
            for name in ("advantage_from", "loss_from")
            if (own := getattr(algorithm, name)) is not None
            and own.path is not None
            and not is_here(locate(own.path, base_dir))
        }
        spec = resolve(job.spec)
        here = spec.model_copy(update={"algorithm": spec.algorithm.model_copy(update=missing)})
        for error in own_function_errors(here, base_dir):
            assert error.field is not None
            if not error.field.endswith(".module"):
                place = tuple(error.field.split("."))
                yield Problem(*judged.document.locate(place, key=False), error.field, error.message)
