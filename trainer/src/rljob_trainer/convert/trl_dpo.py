"""Settings of TRL's DPOConfig and their fields. Names and defaults are those of TRL 1.16; many are GRPOConfig's."""

from math import ceil
from typing import Final

from rljob_trainer.convert.conversion import Conversion, Only, Row, Table, Unneeded
from rljob_trainer.convert.trl_rules import NEVER, adapter, run, saves, schedule
from rljob_trainer.convert.trl_table import ONLY, ROWS, UNNEEDED

OF_DPO: Final = {
    "precompute_ref_log_probs", "precompute_ref_batch_size", "truncation_mode", "padding_free", "loss_weights",
    "ld_alpha", "f_divergence_type", "f_alpha_divergence_coef", "label_smoothing", "use_weighting", "discopop_tau",
    "max_length",
}  # fmt: skip
"""Settings that GRPOConfig does not have: they show which of the two a source is."""

LOSSES_OF_DPO: Final = {
    "sigmoid", "hinge", "ipo", "exo_pair", "nca_pair", "robust", "bco_pair", "sppo_hard", "aot", "aot_unpaired",
    "apo_zero", "apo_down", "discopop", "sft", "sigmoid_norm",
}  # fmt: skip

_SHARED: Final = {
    "model_name_or_path", "model_revision", "trust_remote_code", "attn_implementation", "learning_rate", "weight_decay",
    "adam_beta1", "adam_beta2", "max_grad_norm", "torch_compile", "project",
}  # fmt: skip

_ROWS: Final = (
    *(row for row in ROWS if row.key in _SHARED),
    Row("beta", "algorithm.dpoBeta", 0.1),
    Row(
        "dataset_name", "data.train", None, lambda value: value if isinstance(value, list) else [value],
        "rows need the columns chosen and rejected, and prompt as a list of messages if they are texts",
    ),
)  # fmt: skip

_DATA: Final = "the loss is dpo's alone"
_ONLY: Final = (
    Only("loss_weights", ([1.0],), _DATA),
    Only("ld_alpha", (1.0,), _DATA),
    Only("f_divergence_type", ("reverse_kl",), _DATA),
    Only("label_smoothing", (0.0,), _DATA),
    Only("use_weighting", (False,), _DATA),
    Only("sync_ref_model", (False,), "the reference of preset dpo stays the first policy"),
    Only("truncation_mode", ("keep_start",), "rows are left out and not cut"),
    Only("eval_strategy", NEVER, "preset dpo does not validate: evaluate checkpoints with `rljob eval`"),
    Only("activation_offloading", (False,), "set actor.recompute to offload"),
    *ONLY,
)
_UNNEEDED: Final = (
    Unneeded("rows are tokenized in one process, packed without padding, and scored by the reference as they are used",
             ("padding_free", "precompute_ref_*", "dataset_num_proc", "pad_token")),
    *UNNEEDED,
)  # fmt: skip
_UNREAD: Final = (
    "f_alpha_divergence_coef",
    "discopop_tau",
    "ref_model_mixup_alpha",
    "ref_model_sync_steps",
    "eval_steps",
)


def _loss(c: Conversion) -> None:
    c.fields = {"algorithm.preset": "dpo"} | c.fields
    kinds = c.get("loss_type", ["sigmoid"])
    if kinds not in ("sigmoid", ["sigmoid"]):
        c.leave("loss_type", "preset dpo has the loss sigmoid alone: choose it")
    c.seen.update(_UNREAD)


def _batches(c: Conversion) -> None:
    """TRL counts pairs of a device; RLJob counts those of a step."""
    ranks = c.number("num_processes", 1)
    rows = c.number("per_device_train_batch_size", 8) * c.number("gradient_accumulation_steps", 1) * ranks
    c.put("data.promptsPerStep", rows, f"{rows} pairs on {ranks} processes: pass num_processes=N for more")
    c.put("data.seed", c.number("data_seed", c.number("seed", 42)))
    if c.number("max_steps", -1) > 0:
        c.put("training.steps", c.number("max_steps"))
        c.get("num_train_epochs")
    else:
        c.put("training.epochs", ceil(c.number("num_train_epochs", 3)))
    c.put("cluster.gpusPerNode", ranks)
    saves(c, 1)


def _lengths(c: Conversion) -> None:
    longest = c.number("max_length", 1024)
    note = (
        f"TRL cuts prompt and response together at {longest} tokens; here each has the limit, and longer rows are left"
    )
    c.put("data.maxPromptTokens", longest, f"{note} out")
    c.put("data.maxResponseTokens", longest)
    c.put("actor.tokensPerMicroBatch", max(16384, 4 * longest))


TRL_DPO: Final = Table(_ROWS, _ONLY, _UNNEEDED, (_loss, _batches, _lengths, schedule, adapter, run))
