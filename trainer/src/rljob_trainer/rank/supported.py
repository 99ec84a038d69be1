"""What can be known of a model from its configuration: whether this trainer and the engine compute it. Light.

`rljob run` asks before it starts Ray, the driver before it loads weights. What only a forward pass shows: packable.py.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rljob_api import ResolvedSpec
from rljob_trainer.engines.registry import ENGINES
from rljob_trainer.errors import DataError, JobError, first_line
from rljob_trainer.rank.model_source import CRITIC_FIELD, FIELD, TEACHER_FIELD

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

_CHANGED_LOGITS = ("logits_mup_width_multiplier", "logits_soft_cap", "output_logit_soft_cap")
"""What changes the output head's logits, and LogitTransform does not know. packable.py finds other names."""

_UNLIKE_IN_VLLM = {"doge": "the masks of Doge's heads"}
"""What vLLM leaves out, by model_type. docs/models.md has what was compared."""


def max_model_len(spec: ResolvedSpec) -> int:
    """Length in tokens of the longest sequence in an engine: a sample or a probe."""
    probe = ENGINES[spec.rollout.engine].probe
    return max(spec.longest_sample, probe.length + probe.tokens)


def check_quantization(spec: ResolvedSpec, device: str) -> None:
    """Raises JobError for a job on CPUs. On GPUs the engine asks which they are."""
    if spec.rollout.quantization != "none" and device == "cpu":
        raise JobError("CPUs do not multiply FP8: remove it, or run on GPUs", field="spec.rollout.quantization")


def load_config(folder: Path, *, trust_remote_code: bool, field: str = FIELD) -> "PreTrainedConfig":
    """Raises DataError for a folder that transformers cannot load."""
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoConfig

    try:
        config: PreTrainedConfig = AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code)
    except (ValueError, OSError, KeyError, ImportError, TypeError, StrictDataclassError) as error:
        raise DataError(f"transformers cannot load the model: {first_line(error)}", field=field) from error
    return config


def check_supported(config: "PreTrainedConfig", spec: ResolvedSpec) -> None:
    """Raises JobError or DataError, naming what is not computed, for a model that cannot be trained as `spec` asks."""
    _check_computed(config, FIELD)
    longest = _positions(config)
    if longest is not None and longest < spec.longest_sample:
        raise DataError(
            f"the model's context has {longest} tokens; lower data.maxPromptTokens or data.maxResponseTokens",
            field="spec.data.maxResponseTokens",
        )
    in_vllm = spec.rollout.engine == "vllm" and not spec.supervised_only
    if in_vllm and (what := _UNLIKE_IN_VLLM.get(config.model_type)):
        raise JobError(f"vLLM leaves out {what}: set the engine to hf", field="spec.rollout.engine")
    for rope in _ropes(config):
        _check_rope(rope, spec)


def _check_computed(config: "PreTrainedConfig", field: str) -> None:
    """Whether the ranks compute its log-probabilities."""
    if config.get_text_config() is not config:
        kind = (config.architectures or [type(config).__name__])[0]
        raise JobError(f"{kind} is multimodal, and only language models train: choose a text-only model", field=field)
    changed = [name for name in _CHANGED_LOGITS if getattr(config, name, None) not in (None, 1, 1.0)]
    if changed:
        raise JobError(f"models with {changed[0]} are not supported yet: choose another model", field=field)
    if getattr(config, "quantization_config", None) is not None:
        raise JobError("its weights are quantized, and training needs them whole: give the original", field=field)


def _ropes(config: "PreTrainedConfig") -> Iterator[Mapping[str, Any]]:
    """The rotary parameters, of each kind of layers if they differ."""
    parameters = getattr(config, "rope_parameters", None) or {}
    yield from ([parameters] if "rope_type" in parameters else [each for each in parameters.values() if each])


def _check_rope(rope: Mapping[str, Any], spec: ResolvedSpec) -> None:
    """Rotations that depend on a sequence's length differ between its tokens' first pass and a later one."""
    kind = str(rope.get("rope_type"))
    if "dynamic" in kind and spec.rollout.engine == "vllm" and not spec.supervised_only:
        raise JobError(
            f"vLLM computes rope type {kind} unlike transformers: set the engine to hf", field="spec.rollout.engine"
        )
    original = rope.get("original_max_position_embeddings")
    if kind == "longrope" and original is not None and max_model_len(spec) > original:
        raise JobError(
            f"rope type longrope changes at {original} tokens, and a sample may have {max_model_len(spec)}, so its"
            f" tokens would not agree: lower data.maxPromptTokens and data.maxResponseTokens to {original} together",
            field="spec.data.maxResponseTokens",
        )


def check_critic(spec: ResolvedSpec, folder: Path, largest: int) -> None:
    """largest: id of the policy's tokenizer. Raises DataError for a model that cannot be this policy's critic."""
    config = load_config(folder, trust_remote_code=spec.model.trust_remote_code, field=CRITIC_FIELD)
    _check_reads(config, spec, largest, "critic", CRITIC_FIELD)


def check_teacher(spec: ResolvedSpec, folder: Path, vocabulary: Mapping[str, int]) -> None:
    """vocabulary: {token: id} of the policy's tokenizer, as far as it is known.

    Raises JobError or DataError for a model that cannot be this policy's teacher.
    """
    config = load_config(folder, trust_remote_code=spec.model.trust_remote_code, field=TEACHER_FIELD)
    _check_computed(config, TEACHER_FIELD)
    _check_reads(config, spec, max(vocabulary.values(), default=-1), "teacher", TEACHER_FIELD)
    theirs = saved_vocabulary(folder, trust_remote_code=spec.model.trust_remote_code) if vocabulary else {}
    differing = [token for token, own in vocabulary.items() if theirs.get(token) != own]
    if differing:
        other = min(differing, key=vocabulary.__getitem__)
        raise DataError(
            f"its tokenizer is not the policy's: token {other!r} has id {vocabulary[other]} in the policy's, and"
            f" {theirs.get(other, 'none')} in the teacher's; give a teacher with the policy's tokenizer, such as a"
            " larger model of the same family",
            field=TEACHER_FIELD,
        )


def saved_vocabulary(folder: Path, *, trust_remote_code: bool) -> dict[str, int]:
    """{token: id} of the tokenizer in the folder; empty for one that transformers cannot load."""
    from transformers import AutoTokenizer

    try:
        known: dict[str, int] = AutoTokenizer.from_pretrained(folder, trust_remote_code=trust_remote_code).get_vocab()
    except Exception:  # noqa: BLE001  the tokenizers library raises just that
        return {}
    return known


def _check_reads(config: "PreTrainedConfig", spec: ResolvedSpec, largest: int, noun: str, field: str) -> None:
    """Raises DataError for a model that does not know each id up to `largest`, or is too short for a sample."""
    longest, room = spec.longest_sample, _positions(config)
    rows = config.get_text_config().vocab_size
    if largest >= rows:
        raise DataError(
            f"its embeddings have {rows} rows, and the policy's tokenizer has {largest + 1} ids: give a {noun} with"
            " the policy's tokenizer",
            field=field,
        )
    if room is not None and room < longest:
        raise DataError(
            f"its context has {room} tokens, and a sample may have {longest}: give another {noun}", field=field
        )


def _positions(config: "PreTrainedConfig") -> int | None:
    found: int | None = getattr(config, "max_position_embeddings", None)
    return found


def check_token_ids(config: "PreTrainedConfig", largest: int) -> None:
    """largest: id of the tokenizer. Raises DataError for one without a row in the embeddings."""
    rows = config.get_text_config().vocab_size
    if largest >= rows:
        raise DataError(
            f"the tokenizer has {largest + 1} ids, and the model's embeddings have {rows} rows: resize them"
            " (model.resize_token_embeddings(len(tokenizer))) and save both again, or give the model's own tokenizer",
            field=FIELD,
        )


def largest_saved_id(folder: Path) -> int:
    """The largest id in tokenizer.json and tokenizer_config.json; -1 if they do not say."""
    ids = [-1]
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        saved = json.loads((folder / "tokenizer.json").read_text())
        vocabulary = saved["model"]["vocab"]
        ids += [each["id"] for each in saved["added_tokens"]]
        ids += vocabulary.values() if isinstance(vocabulary, dict) else [len(vocabulary) - 1]
    with suppress(OSError, ValueError, AttributeError):
        ids += map(int, json.loads((folder / "tokenizer_config.json").read_text()).get("added_tokens_decoder", {}))
    return max(ids)
