"""verl's settings of a teacher (`distillation`), as verl_objective.py has those of the policy's own loss."""

from typing import Final

from rljob_trainer.convert.conversion import Conversion
from rljob_trainer.convert.verl_objective import ACTOR, ESTIMATORS, vanilla

_LOSS: Final = "distillation.distillation_loss"
_TOP_K: Final = "forward_kl_topk"
_BOUND: Final = 3.0
"""clip_ratio_c, which verl's loss of a teacher does not have as a setting."""

_UNCLIPPED: Final = "verl's k2 as a loss has this signal's gradient, and no clipping"
_ADDED: Final = "verl adds the teacher's loss to that of rewards; here the signal is added to the advantages"
_REVERSE: Final = (
    "verl's forward_kl_topk is the forward KL over these tokens alone; here it is the reverse KL over them and the rest"
)


def distillation(c: Conversion) -> None:
    if not c.get("distillation.enabled", default=False):
        unused = [key for key in c.settings if key.startswith("distillation.")]
        c.seen.update(unused)
        c.unneeded.update({"distillation is not enabled": unused} if unused else {})
        return
    alone = not c.get(f"{_LOSS}.use_task_rewards", default=True)
    gradient = c.get(f"{_LOSS}.use_policy_gradient", default=False)
    low, high = (c.number(f"{_LOSS}.clip_ratio_{name}", 0.2) for name in ("low", "high"))
    if alone:
        _drop_rewards(c)
        if gradient:
            vanilla(c, low, high, _BOUND)
    elif gradient:
        for name, value in (("clip_ratio_low", low), ("clip_ratio_high", high)):
            if value != c.number(f"{ACTOR}.{name}", 0.2):
                c.leave(f"{_LOSS}.{name}", "one loss has the advantages of rewards and teacher, clipped as the actor's")
    _teacher(c)
    _signal(c, alone=alone, gradient=gradient)


def _drop_rewards(c: Conversion) -> None:
    """verl then leaves out the policy's own loss, with its entropy bonus and its penalty."""
    if c.fields.get("algorithm.dynamicSampling.enabled"):
        c.leave("algorithm.filter_groups.enable", "with a teacher alone, no rewards are compared")
    for field in [each for each in c.fields if each.startswith("algorithm.") and each != "algorithm.aggregation"]:
        c.fields.pop(field)
        c.notes.pop(field, None)
    c.put("algorithm.advantage", "distillation")


def _teacher(c: Conversion) -> None:
    """verl forgets the entry teacher_model if there are others."""
    prefix, suffix = "distillation.teacher_models.", ".model_path"
    keys = [key for key in c.settings if key.startswith(prefix) and key.endswith(suffix)]
    paths = {key: path for key in keys if (path := c.get(key)) is not None}
    if len(paths) > 1:
        paths.pop(f"{prefix}teacher_model{suffix}", None)
    if len(paths) > 1:
        for key in paths:
            c.leave(key, "a job has one teacher: set algorithm.teacher.path")
        return
    for path in paths.values():
        note = "verl's teacher has GPUs of its own; here the ranks hold it, or set teacher.server in place of path"
        c.put("algorithm.teacher.path", path, note)


def _signal(c: Conversion, *, alone: bool, gradient: bool) -> None:
    mode, top_k = c.get(f"{_LOSS}.loss_mode", "k3"), c.number(f"{_LOSS}.topk", 32)
    coefficient = c.number(f"{_LOSS}.distillation_loss_coef", 1.0)
    notes = [] if alone or mode == _TOP_K else [_ADDED]
    if mode == _TOP_K and not gradient:
        c.put("algorithm.teacher.topK", top_k, _REVERSE)
        c.leave(f"{_LOSS}.log_prob_min_clamp", "the teacher's log-probabilities are not clamped")
    else:
        c.get(f"{_LOSS}.log_prob_min_clamp")  # verl reads it with top-k tokens alone
        match ESTIMATORS.get(mode), gradient:
            case "k1", True:
                pass
            case "k2", False:
                notes.append(_UNCLIPPED)
            case _:
                kind = "the advantage" if gradient else "a loss"
                notes.append(f"verl has {mode} as {kind}; here the advantage is log pi_teacher - log pi of each token")
    c.put("algorithm.teacher.coefficient", 1.0 if alone else coefficient, "; ".join(notes))
