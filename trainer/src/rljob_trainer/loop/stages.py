"""Which kind of step comes when: supervised ones first, if the job has them, then RL."""

from collections.abc import Mapping
from typing import Any

from rljob_api import ResolvedSpec
from rljob_trainer.errors import JobError
from rljob_trainer.progress.metrics import Stage
from rljob_trainer.rank.learning_rate import learning_rate


def with_length(spec: ResolvedSpec, rows: int) -> ResolvedSpec:
    """The spec with the real number of steps, on which schedules depend: training.epochs may end the run earlier.

    rows: of the training data, or of the data of presets sft and dpo.

    Raises JobError where only the critic would learn.
    """
    training = spec.training
    if training.epochs is None:
        return spec
    steps = -(-rows * training.epochs // spec.data.prompts_per_step)
    if training.steps is not None:
        steps = min(steps, training.steps)
    if spec.critic and spec.critic.warmup_steps >= steps:
        length = f"training.epochs of {rows} rows is {steps} steps, in which only the critic learns"
        raise JobError(f"{length}: lower critic.warmupSteps, or raise training.epochs", field="spec.critic.warmupSteps")
    return spec.model_copy(update={"training": training.model_copy(update={"steps": steps})})


def supervised_steps(spec: ResolvedSpec) -> int:
    """How many of the run's steps, from its first, are supervised."""
    if spec.supervised_only:
        return spec.total_steps
    return spec.sft.steps if spec.sft else 0


def stage_of(spec: ResolvedSpec, step: int) -> Stage:
    """The stage of step `step`, counted from 1."""
    return supervised_stage(spec) if step <= supervised_steps(spec) else "rl"


def supervised_stage(spec: ResolvedSpec) -> Stage:
    """What the run's supervised steps are, if it has any."""
    return "dpo" if spec.pairs and spec.supervised_only else "sft"


def known_length(spec: ResolvedSpec, state: Mapping[str, Any]) -> ResolvedSpec:
    """As with_length, from the LoopState of a checkpoint."""
    at = state.get("examples" if spec.supervised_only else "prompts")
    return with_length(spec, at["rows"]) if at else spec


def data_exhausted(spec: ResolvedSpec, step: int, state: Mapping[str, Any]) -> bool:
    """Whether training.epochs leaves no data for the step after `step`. state: LoopState's, of that step."""
    epochs = spec.training.epochs
    if epochs is None or step < (0 if spec.supervised_only else supervised_steps(spec)):
        return False
    at = state["examples" if spec.supervised_only else "prompts"]
    return at is not None and bool(at["epoch"] + 1 >= epochs and at["position"] >= at["rows"])


def supervised_batch(spec: ResolvedSpec) -> int:
    """Rows of one supervised step."""
    return spec.sft.batch_size if spec.sft else spec.data.prompts_per_step


def learning_rate_of(spec: ResolvedSpec, step: int) -> float:
    """Learning rate of step `step`, counted from 1: each stage has a schedule of its own."""
    if spec.sft and stage_of(spec, step) == "sft":
        return learning_rate(step - 1, spec.sft.learning_rate, spec.sft.steps, schedule="linear")
    before = 0 if spec.supervised_only else supervised_steps(spec) + (spec.critic.warmup_steps if spec.critic else 0)
    actor = spec.actor
    return learning_rate(
        max(0, step - before - 1), actor.learning_rate, max(1, spec.total_steps - before), actor.lr_warmup_steps,
        actor.lr_schedule, actor.min_lr_ratio, actor.lr_decay_steps,
    )  # fmt: skip


def critic_learning_rate_of(spec: ResolvedSpec, step: int) -> float:
    """The critic's learning rate of RL step `step`, counted from 1 over the whole run."""
    critic, before = spec.critic, supervised_steps(spec)
    assert critic is not None
    steps = spec.total_steps - before
    return learning_rate(
        step - before - 1, critic.learning_rate, steps, critic.lr_warmup_steps, critic.lr_schedule,
        critic.min_lr_ratio, critic.lr_decay_steps,
    )  # fmt: skip


def critic_learns_alone(spec: ResolvedSpec, step: int) -> bool:
    """Whether RL step `step` updates no policy (critic.warmupSteps)."""
    return spec.critic is not None and step - supervised_steps(spec) <= spec.critic.warmup_steps
