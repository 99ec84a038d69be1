"""Writes the page of all algorithms: `python -m rljob_trainer.algorithms_reference [FILE]`.

The page is made of the registries: rows of PRESETS, and the docstrings of ADVANTAGES and LOSSES. Such a docstring has
paragraphs: the formula first, then what there is to say about it, when to use it ("Use it ..."), and the paper.
"""

import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rljob_api.markdown import table
from rljob_api.v1alpha1.presets import PRESETS
from rljob_api.v1alpha1.rollout_correction import CORRECTIONS
from rljob_trainer.advantage import ADVANTAGES
from rljob_trainer.losses.policy import LOSSES

FILE = "docs/algorithms.md"

_HEAD = """# Algorithms

Generated from the registries by `make generate`; do not edit.

An algorithm is an advantage, a loss, an aggregation of the loss, and a KL penalty. `algorithm.preset` sets all of them,
and any field beside it replaces one: `algorithm: {preset: grpo, loss: gspo, aggregation: sequence_mean}`.
[api.md](api.md#presets) has the values of every preset.

With one update a step (`actor.epochs: 1`, and `actor.miniBatchSize` as large as `data.promptsPerStep`), the policy that
is trained is the one that sampled. Probability ratios are then 1, nothing is clipped, and clip, gspo, geo_mean, cispo,
sapo, dppo and topr have the same gradient, up to the aggregation. They differ once a step has several updates.
"""

_ADVANTAGES = """## Advantages

`algorithm.advantage`: what a response's reward is compared with. s_i is the score of episode i, and s those of its
group: the episodes of the same prompt.
"""

_LOSSES = """## Losses

`algorithm.loss`: the loss of a token. A is its advantage, pi its probability now and pi_old the one at the start of the
step, r = pi / pi_old. A sequence is a trajectory: what one forward pass sees, with all its turns.
"""

_CORRECTIONS = """## Rollout correction

The engine that sampled a token and the trainer give it different probabilities: their kernels differ, and samples may
be older than the policy. r is the trainer's probability over the engine's. Every step measures the difference, as the
metrics `rollout_corr/*`; [verl's documentation](https://verl.readthedocs.io/en/latest/algo/rollout_corr.html) explains
them. If `rollout_corr/kl` is above about 0.01, or `rollout/effective_sample_size` falls, correct it with
`algorithm.rolloutCorrection`; its fields and presets are verl's, and its comma-separated lists are lists here.

- `rolloutIs` weighs the loss of each token by r, or by the product of r over its sequence. A single bound truncates
  weights ([Yao et al. 2025](https://fengyao.notion.site/off-policy-rl)); two bounds make those outside 0 (IcePop).
- `rolloutRs` takes tokens or sequences out of the loss, which is then divided by the number of those that remain.
  Advantages are computed before that, over all responses. [Liu et al. 2025](https://richardli.xyz/rl-collapse)
- `bypassMode` saves the pass that computes old log-probabilities: the engine's take their place.
  Its presets with `lossType` reinforce need `algorithm.loss: gpg`.
"""

_OWN = """## Your own

`algorithm.advantageFrom` and `algorithm.lossFrom` name a function in a Python file (`path`) or an importable module,
and its keyword `arguments`. `entry` is its name, by default `compute_advantage` and `compute_loss`.

```yaml
  algorithm:
    advantageFrom: {path: mine.py}
    lossFrom: {path: mine.py, arguments: {bound: 3.0}}
```

```python
def compute_advantage(batch):
    \"\"\"The distance of each episode's reward from the step's mean.\"\"\"
    return batch.spread(batch.scores() - batch.rewards.mean())


def compute_loss(batch, bound=5.0):
    \"\"\"Policy gradient, with the weight of a token up to a bound.\"\"\"
    weight = batch.ratio().detach()
    return -weight.clamp(max=bound) * batch.advantages * batch.log_probs, weight > bound
```

`compute_advantage(batch)` runs in the driver, on numpy arrays of a whole step: N episodes with T tokens in the loss.

| attribute | shape | meaning |
| --- | --- | --- |
| `rewards`, `groups` | [N] | rewards; equal numbers for episodes of one prompt |
| `lengths` | [N] | tokens in the loss of each episode; their sum is T |
| `token_penalties` | [T] | KL penalties, if `kl.placement` is `reward`; else None |
| `token_rewards` | [T] | rewards inside responses (`spans`), besides `rewards`; None without any |
| `values` | [T] | of the critic, if the job has a `critic`; else None |
| `gamma`, `lambda_` | numbers | `algorithm.gamma` and `lambda` |
| `scores()` | [N] | rewards minus penalties |
| `spread(numbers)` | [N] to [T] | every token gets its episode's number |

It returns [T] finite numbers. `compute_loss(batch)` runs in every rank, on torch tensors of some whole trajectories.

| attribute | shape | meaning |
| --- | --- | --- |
| `log_probs` | [T] | of the sampled tokens; the only tensor with a gradient |
| `advantages` | [T] | as computed |
| `ratio()`, `log_ratio()` | [T] | to the policy at the start of the step |
| `engine_log_probs`, `reference_log_probs` | [T] | of the engine that sampled, and of the KL's reference; or None |
| `lengths` | [n] | tokens of each trajectory |
| `sequence_sums(x)`, `sequence_means(x)` | [T] | over a token's trajectory |

It returns the loss [T], to be minimised, or a pair of it and of the clipped tokens [T], which `actor/clip_fraction`
and `earlyStop.clipFraction` count. `algorithm.aggregation`, `kl`, `entropyCoefficient` and `rolloutCorrection` apply
to it as to any loss. A sum over more than a trajectory would depend on how trajectories are packed.

`rljob validate` and `rljob run` call both on a few tokens, in a process of their own, and report wrong signatures,
shapes, numbers that are not finite, and a missing gradient. The code has the rights of the trainer's processes; unlike
rewards, it sees their whole environment. In a cluster, every node needs the file: put it into the image or on a volume.
The file's content is part of the run's fingerprint, as that of reward files: after a change, a resume continues from
the checkpoint and replays no step of the journal.
"""


@dataclass(frozen=True, slots=True)
class Entry:
    """One row: Markdown of each part. remarks may be empty."""

    name: str
    formula: str
    remarks: str
    use: str
    paper: str


def entry(name: str, function: Callable[..., Any]) -> Entry:
    """What the docstring says. Raises ValueError for one without when to use it, or without a paper."""
    formula, *rest = [" ".join(part.split()) for part in (inspect.getdoc(function) or "").split("\n\n")]
    uses = [part for part in rest if part.startswith("Use it ")]
    papers = [part for part in rest if "https://" in part]
    if len(uses) != 1 or len(papers) != 1:
        raise ValueError(f"the docstring of {name} needs one paragraph 'Use it ...' and one with the paper's link")
    remarks = " ".join(part for part in rest if part not in (*uses, *papers))
    use = uses[0].removeprefix("Use it ")
    return Entry(name, formula, remarks, use[0].upper() + use[1:], _linked(papers[0]))


def _linked(papers: str) -> str:
    """Each "Title: https://..." as a Markdown link; papers are separated by semicolons."""
    return re.sub(r"([^;\s][^;]*?): (https://[^\s;,]*[^\s;,.])", r"[\1](\2)", papers)


def _section(head: str, registry: Mapping[Any, Callable[..., Any]]) -> Iterator[str]:
    yield head
    for each in (entry(name, function) for name, function in registry.items()):
        yield f"### `{each.name}`\n"
        yield f"{_escaped(each.formula)}\n"
        if each.remarks:
            yield f"{_escaped(each.remarks)}\n"
        yield f"**Use it** {each.use[0].lower()}{_escaped(each.use[1:])}\n"
        yield f"{each.paper}\n"


def _escaped(text: str) -> str:
    """Text whose stars, underscores and angle brackets are not Markdown."""
    return "".join(f"\\{each}" if each in "*_<>|" else each for each in text)


def _presets() -> Iterator[str]:
    yield "## Presets\n"
    rows = [(f"`{name}`", row.use, _linked(row.paper)) for name, row in PRESETS.items()]
    yield table(("`algorithm.preset`", "For", "Values from"), rows)


def _corrections() -> Iterator[str]:
    yield _CORRECTIONS
    rows = []
    for name, row in CORRECTIONS.items():
        weights = "" if row.rollout_is == "none" else f"{row.rollout_is}, {row.rollout_is_threshold}"
        rejects = ", ".join(
            f"{each}, {bound}" for each, bound in zip(row.rollout_rs, row.rollout_rs_threshold, strict=True)
        )
        rows.append((f"`{name}`", weights, rejects, row.loss_type if row.bypass_mode else ""))
    yield table(("`rolloutCorrection.preset`", "`rolloutIs`", "`rolloutRs`", "`lossType` of a bypass"), rows)


def render() -> str:
    """The page as Markdown."""
    parts = (*_presets(), *_section(_ADVANTAGES, ADVANTAGES), *_section(_LOSSES, LOSSES), _OWN, *_corrections())
    return "\n".join((_HEAD, *parts)).rstrip() + "\n"


if __name__ == "__main__":
    Path(sys.argv[1] if len(sys.argv) > 1 else FILE).write_text(render())
