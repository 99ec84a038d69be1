"""The nouns of one training step. Light: numpy only.

A worked example, with two prompts and samplesPerPrompt: 2:

    Prompt("0/17", token_ids=[5 9 2])                     one row of data, tokenised
    GenerationRequest("0/17", 0, prompt ids, seed=..)     one response to make; (prompt id, sample index) names it
    GenerationRequest("0/17", 1, prompt ids, seed=..)
    Sample("0/17", 0, token_ids=[7 7 1], log_probs=[-.1 -.9 -.2], "stop")
    Group(prompt, samples=(Sample 0, Sample 1), policy_version=4)    all responses to one prompt: the unit of advantage
    GroupScore("0/17", rewards=[1. 0.], components={"exact": [1. 0.]})

"actor" is the policy; a Ray actor is a "worker"; "job" is the RLJob; "attempt" is one driver run.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int32]
Floats = NDArray[np.float32]

FinishReason = Literal["stop", "length"]
"""stop: the end-of-text token or a stop string; length: cut at the limit."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One row of data, tokenised.

    id: "EPOCH/ROW", unique within a run and the same after a resume.
    token_ids: [P].
    ground_truth, extra_info, data_source: as in the row, for the reward.
    text: the prompt as the model sees it, for people.
    messages: the row's conversation, {role, content} each, for reward models.
    """

    id: str
    token_ids: Ids
    data_source: str
    ground_truth: Any
    extra_info: Mapping[str, Any]
    text: str
    messages: Sequence[Mapping[str, str]] = ()


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to sample. temperature 0 is greedy; top_k -1 is all tokens; stop strings end a response and stay in it."""

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    stop: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One response to make. `seed` alone, with the prompt and the weights, decides the response of engine hf."""

    prompt_id: str
    sample_index: int
    prompt_token_ids: Ids
    seed: int


@dataclass(frozen=True, slots=True)
class Sample:
    """One response.

    token_ids: [R], the end-of-text token included where it was sampled.
    log_probs: [R], the engine's log-probability of each sampled token, in nats, at the sampling temperature and
        before top-k and top-p; for temperature 0 at temperature 1.
    """

    prompt_id: str
    sample_index: int
    token_ids: Ids
    log_probs: Floats
    finish_reason: FinishReason


@dataclass(frozen=True, slots=True)
class Group:
    """All responses to one prompt, made by one version of the policy, in the order of sample_index."""

    prompt: Prompt
    samples: tuple[Sample, ...]
    policy_version: int

    def __reduce__(self) -> tuple[Any, ...]:
        """As two arrays, whatever the number of samples: groups cross processes several times in each step."""
        ids = np.concatenate([sample.token_ids for sample in self.samples])
        log_probs = np.concatenate([sample.log_probs for sample in self.samples])
        ends = np.cumsum([len(sample.token_ids) for sample in self.samples])
        others = [(sample.prompt_id, sample.sample_index, sample.finish_reason) for sample in self.samples]
        return _group, (self.prompt, self.policy_version, ids, log_probs, ends, others)


def _group(
    prompt: Prompt, policy_version: int, ids: Ids, log_probs: Floats, ends: NDArray[np.int64],
    others: list[tuple[str, int, FinishReason]],
) -> Group:  # fmt: skip
    """What Group.__reduce__ took apart; the samples' arrays are views."""
    parts = zip(np.split(ids, ends[:-1]), np.split(log_probs, ends[:-1]), others, strict=True)
    samples = (
        Sample(name, index, own_ids, own_log_probs, reason) for own_ids, own_log_probs, (name, index, reason) in parts
    )
    return Group(prompt, tuple(samples), policy_version)


@dataclass(frozen=True, slots=True)
class GroupScore:
    """Rewards of one group.

    rewards: [samples], the weighted sum.
    components: each reward function's own value and its logged numbers, [samples] each.
    error: why the group must be left out (policy drop_group), naming the sample; None if it was scored.
    retries: how often a response was scored anew because its process was killed, or its server did not answer; 0 for
        a group of the journal.
    """

    prompt_id: str
    rewards: Floats
    components: Mapping[str, Floats] = field(default_factory=dict)
    error: str | None = None
    retries: int = 0


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """What the controller knows of a group while its tensors stay where they are: metadata only.

    prompt_tokens: P. response_tokens: [samples]. truncated: [samples], cut at the limit.
    digest: names the group by all that an update can depend on.
    """

    prompt_id: str
    policy_version: int
    prompt_tokens: int
    response_tokens: tuple[int, ...]
    truncated: tuple[bool, ...]
    score: GroupScore
    digest: str
