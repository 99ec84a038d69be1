"""Which attention a model of transformers computes with: one of ours, or the one that transformers would choose."""

from collections.abc import Callable

from transformers import PreTrainedModel


def built_with(attention: str, build: Callable[[str | None], PreTrainedModel]) -> PreTrainedModel:
    """The model with that attention, or with transformers' choice if its layers cannot be given one."""
    try:
        model = build(attention)
    except KeyError:  # layers with a table of their own
        return build(None)
    return model if model._can_set_attn_implementation() else build(None)  # noqa: SLF001  no public way


def use_transformers_attention(model: PreTrainedModel) -> None:
    """sdpa, or eager for an architecture that sdpa cannot compute: it has no bound of attention's logits (Gemma 2)."""
    bounded = getattr(model.config, "attn_logit_softcapping", None) is not None
    try:
        model.set_attn_implementation("eager" if bounded else "sdpa")
    except ValueError:
        model.set_attn_implementation("eager")
