"""`spec.algorithm.rolloutCorrection`: engines and trainer give a token different probabilities; what corrects that.

Names, presets and thresholds are verl's (0.9), in camelCase; its comma-separated lists are lists here.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from rljob_api.v1alpha1.base import BOUND_PATTERN, ApiModel, Rule
from rljob_api.v1alpha1.governed import governed, of_preset_alone

Weighting = Literal["none", "token", "sequence"]
Rejecting = Literal[
    "token_k1", "token_k2", "token_k3", "seq_sum_k1", "seq_sum_k2", "seq_sum_k3", "seq_mean_k1", "seq_mean_k2",
    "seq_mean_k3", "seq_max_k2", "seq_max_k3",
]  # fmt: skip
BypassLoss = Literal["ppo_clip", "reinforce"]
CorrectionPreset = Literal[
    "disabled", "decoupled_token_is", "decoupled_seq_is", "decoupled_token_icepop", "decoupled_seq_is_rs",
    "decoupled_geo_rs", "decoupled_geo_rs_seq_tis", "decoupled_geo_rs_token_tis", "decoupled_k3_rs",
    "decoupled_k3_rs_seq_tis", "decoupled_k3_rs_token_tis", "bypass_ppo_clip", "bypass_ppo_clip_geo_rs",
    "bypass_ppo_clip_k3_rs", "bypass_pg_is", "bypass_pg_token_icepop", "bypass_pg_geo_rs", "bypass_pg_geo_rs_seq_tis",
    "bypass_pg_geo_rs_token_tis",
]  # fmt: skip

Bound = Annotated[str, StringConstraints(pattern=BOUND_PATTERN, min_length=1, max_length=40)]
"""An upper bound, or a lower and an upper one of a ratio: "2.0", "0.5_5.0"."""


@dataclass(frozen=True)
class CorrectionRow:
    """Values of the fields that a preset governs, as in `RolloutCorrection`."""

    rollout_is: Weighting = "none"
    rollout_is_threshold: str = "2.0"
    rollout_is_batch_normalize: bool = False
    rollout_rs: tuple[Rejecting, ...] = ()
    rollout_rs_threshold: tuple[str, ...] = ()
    bypass_mode: bool = False
    loss_type: BypassLoss = "ppo_clip"


_GEO: tuple[tuple[Rejecting, ...], tuple[str, ...]] = ("seq_mean_k1",), ("0.999_1.001",)
_K3: tuple[tuple[Rejecting, ...], tuple[str, ...]] = ("seq_mean_k3",), ("0.01",)
_ICEPOP = "0.5_5.0"

CORRECTIONS: dict[CorrectionPreset, CorrectionRow] = {
    "disabled": CorrectionRow(),
    "decoupled_token_is": CorrectionRow("token"),
    "decoupled_seq_is": CorrectionRow("sequence"),
    "decoupled_token_icepop": CorrectionRow("token", _ICEPOP),
    "decoupled_seq_is_rs": CorrectionRow("sequence", "2.0", False, ("seq_sum_k1",), ("0.5_2.0",)),
    "decoupled_geo_rs": CorrectionRow("none", "2.0", False, *_GEO),
    "decoupled_geo_rs_seq_tis": CorrectionRow("sequence", "2.0", False, *_GEO),
    "decoupled_geo_rs_token_tis": CorrectionRow("token", "2.0", False, *_GEO),
    "decoupled_k3_rs": CorrectionRow("none", "2.0", False, *_K3),
    "decoupled_k3_rs_seq_tis": CorrectionRow("sequence", "2.0", False, *_K3),
    "decoupled_k3_rs_token_tis": CorrectionRow("token", "2.0", False, *_K3),
    "bypass_ppo_clip": CorrectionRow(bypass_mode=True),
    "bypass_ppo_clip_geo_rs": CorrectionRow("none", "2.0", False, *_GEO, bypass_mode=True),
    "bypass_ppo_clip_k3_rs": CorrectionRow("none", "2.0", False, *_K3, bypass_mode=True),
    "bypass_pg_is": CorrectionRow("sequence", bypass_mode=True, loss_type="reinforce"),
    "bypass_pg_token_icepop": CorrectionRow("token", _ICEPOP, bypass_mode=True, loss_type="reinforce"),
    "bypass_pg_geo_rs": CorrectionRow("none", "2.0", False, *_GEO, bypass_mode=True, loss_type="reinforce"),
    "bypass_pg_geo_rs_seq_tis": CorrectionRow("sequence", "2.0", False, *_GEO, bypass_mode=True, loss_type="reinforce"),
    "bypass_pg_geo_rs_token_tis": CorrectionRow("token", "2.0", False, *_GEO, bypass_mode=True, loss_type="reinforce"),
}
"""verl 0.9.1, RolloutCorrectionConfig. Liu et al. 2025, When Speed Kills Stability: https://richardli.xyz/rl-collapse"""


def of_correction(field: str, column: str, owner: str = "self") -> str:
    """CEL for the value that a field has once its preset has filled it. column: of CorrectionRow."""
    return governed(field, {name: getattr(row, column) for name, row in CORRECTIONS.items()}, owner)


def rejections(owner: str = "self") -> str:
    """CEL for the number of entries of rolloutRs once the preset has filled it."""
    count = of_preset_alone({name: len(row.rollout_rs) for name, row in CORRECTIONS.items()}, owner)
    return f"(has({owner}.rolloutRs) ? size({owner}.rolloutRs) : {count})"


_WEIGHTING = of_correction("rolloutIs", "rollout_is")
_BYPASS = of_correction("bypassMode", "bypass_mode")
_LOSS_TYPE = of_correction("lossType", "loss_type")
_COUNT = of_preset_alone({name: len(row.rollout_rs) for name, row in CORRECTIONS.items()})
_REJECTING = of_preset_alone({name: "".join(row.rollout_rs[:1]) for name, row in CORRECTIONS.items()})
_BOUND = of_preset_alone({name: "".join(row.rollout_rs_threshold[:1]) for name, row in CORRECTIONS.items()})
_REJECTIONS = rejections()
_BOUNDS = f"(has(self.rolloutRsThreshold) ? size(self.rolloutRsThreshold) : {_COUNT})"
_FIRST_BOUND = f"(has(self.rolloutRsThreshold) ? self.rolloutRsThreshold[0] : {_BOUND})"
_MOST = 11


def _fits(rejecting: str, bound: str) -> str:
    """CEL: whether an entry of rolloutRs can have that bound."""
    return f"({rejecting}.endsWith('k1') ? {bound}.matches('_|^[1-9]') : !{bound}.contains('_'))"


_EACH_FITS = " && ".join(
    f"(size(self.rolloutRs) <= {i} || size(self.rolloutRsThreshold) <= {i}"
    f" || {_fits(f'self.rolloutRs[{i}]', f'self.rolloutRsThreshold[{i}]')})"
    for i in range(_MOST)
)

_UNFIT = (
    "a bound in rolloutRsThreshold does not fit its entry of rolloutRs: write 0.5_2.0, or an upper bound from 1, for k1"
    " and one upper bound for k2 and k3"
)


class RolloutCorrection(ApiModel):
    """Corrects for the difference between the engine that sampled the tokens and the trainer, and for stale samples.

    r is the trainer's probability of a token over the engine's. Without any field it is only measured
    (`rollout_corr/*`).
    """

    preset: CorrectionPreset = Field(
        "disabled", description="Named correction that sets every omitted field of rolloutCorrection."
    )
    rollout_is: Weighting | None = Field(
        None,
        description=(
            "Importance weight of each token's loss: its own r, or the product of r over its sequence; none: no weight."
        ),
    )
    rollout_is_threshold: Bound | None = Field(
        None,
        description=(
            'Bound of the weights, as text: "2.0" truncates larger ones to it; "0.5_5.0" makes those outside 0'
            " (IcePop). In quotes: YAML reads 1_5 as the number 15."
        ),
    )
    rollout_is_batch_normalize: bool | None = Field(
        None, description="Divide the weights by their mean over the step; with bypassMode over the minibatch."
    )
    rollout_rs: list[Rejecting] | None = Field(
        None,
        max_length=_MOST,
        description=(
            "What leaves the loss: tokens, or whole sequences by the sum, mean or maximum over their tokens, of k1 ="
            " -log r, k2 = (log r)^2 / 2, k3 = r - 1 - log r. Each has to be within its bound."
        ),
    )
    rollout_rs_threshold: list[Bound] | None = Field(
        None,
        max_length=_MOST,
        description=(
            "Bound of each entry of rolloutRs, as text, or one for all: an upper one for k2 and k3; for k1 bounds of"
            ' the ratio, "0.5_2.0", or an upper one whose reciprocal is the lower.'
        ),
    )
    bypass_mode: bool | None = Field(
        None,
        description=(
            "Take the engine's log-probabilities for those of the policy at the start of the step, which saves a pass."
            " A rejection or rolloutIsBatchNormalize makes that pass before each minibatch."
        ),
    )
    loss_type: BypassLoss | None = Field(
        None,
        description=(
            "With bypassMode: ppo_clip is algorithm.loss with the engine's probabilities as the old ones; reinforce is"
            " -w A log pi with the weights w of rolloutIs under the trained policy, and needs algorithm.loss gpg."
        ),
    )

    rules = (
        Rule(
            f"!has(self.rolloutIsThreshold) || {_WEIGHTING} != 'none'",
            "rolloutIsThreshold has an effect only if rolloutIs is token or sequence: remove it, or change that",
            "rolloutIsThreshold",
        ),
        Rule(
            f"!has(self.rolloutIsBatchNormalize) || {_WEIGHTING} != 'none'",
            "rolloutIsBatchNormalize has an effect only if rolloutIs is token or sequence: remove it, or change that",
            "rolloutIsBatchNormalize",
        ),
        Rule(
            f"!has(self.lossType) || {_BYPASS}",
            "lossType has an effect only if bypassMode is true: remove it, or set that",
            "lossType",
        ),
        Rule(
            f"{_WEIGHTING} == 'none' || !{_BYPASS} || {_LOSS_TYPE} == 'reinforce'",
            "with bypassMode, rolloutIs has an effect only if lossType is reinforce: set rolloutIs: none, or change"
            " that; the ratio of ppo_clip corrects by itself",
            "rolloutIs",
        ),
        Rule(
            f"{_BOUNDS} == {_REJECTIONS} || {_BOUNDS} == 1 && {_REJECTIONS} > 0",
            "rolloutRsThreshold needs one bound for each entry of rolloutRs, or one for all",
            "rolloutRsThreshold",
        ),
        Rule(
            "!has(self.rolloutRs) || self.rolloutRs.all(each, self.rolloutRs.exists_one(other, other == each))",
            "rolloutRs names an entry twice: remove one",
            "rolloutRs",
        ),
        Rule(
            f"{_BOUNDS} != 1 || (has(self.rolloutRs) ? self.rolloutRs.all(each, {_fits('each', _FIRST_BOUND)})"
            f" : {_fits(_REJECTING, _FIRST_BOUND)})",
            _UNFIT,
            "rolloutRsThreshold",
        ),
        Rule(
            f"!has(self.rolloutRs) || !has(self.rolloutRsThreshold) || {_EACH_FITS}",
            _UNFIT,
            "rolloutRsThreshold",
        ),
    )
