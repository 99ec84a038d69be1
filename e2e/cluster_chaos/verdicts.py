"""What is wrong with a job under faults, judged by what was seen of it. Pure."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from math import inf

from e2e.cluster_chaos.cluster_watch import Running
from e2e.cluster_chaos.volume_watch import Attempts, Checkpoint, Made, Match
from rljob_trainer.checkpoint.lineage import Claim
from rljob_trainer.progress.history import Line

SIDE_BY_SIDE_SECONDS = 30.0
"""A driver that is replaced while it works is fenced from all that counts, and ends a little later by itself; so does a
head whose pod is deleted by force, for which no operator can wait.
"""


def made_again(made: Sequence[Made], rescored: Collection[int] = ()) -> list[str]:
    """Finished groups that were made once more, by attempt. The trainer would have found them: a group is the same that
    was made for the same step, policy, settings and prompt, in whichever attempt.

    rescored: attempts that lost a scorer. It may die between a group's record and its answer; then the group is scored
    again, and its second record looks like that of one that was generated again.
    """
    holders: defaultdict[Match, set[int]] = defaultdict(set)
    again: defaultdict[int, Counter[int]] = defaultdict(Counter)
    for attempt, match in made:
        held = holders[match]
        if held and not (attempt in held and attempt in rescored):
            again[attempt][match.step] += 1
        held.add(attempt)
    return [
        f"attempt {attempt} made {steps.total()} finished groups again, {steps[first := min(steps)]} of step {first}"
        for attempt, steps in again.items()
    ]


def unseen(made: Sequence[Made], steps: Sequence[int], each: int) -> list[str]:
    """Of the journal: groups that were not seen may have been made again. each: of a step."""
    groups = _by_step((match.step, match.task_id) for _, match in made)
    missing = [step for step in steps if len(groups[step]) < each]
    return (
        [f"groups of {len(missing)} steps were not seen in the journal, of step {missing[0]} first"] if missing else []
    )


def renamed(made: Sequence[Made]) -> list[str]:
    """A group that was made twice under two names is not found. In a deterministic job a step has one policy with one
    fingerprint of its settings, and each of its prompts one hash.
    """
    policies: defaultdict[int, set[tuple[str, str]]] = defaultdict(set)
    prompts: defaultdict[tuple[int, str], set[str]] = defaultdict(set)
    for _, match in made:
        policies[match.step].add((match.policy_digest, match.fingerprint))
        prompts[match.step, match.task_id].add(match.prompt)
    wrong = [
        f"groups of step {step} were made for {len(of)} policies or settings"
        for step, of in policies.items()
        if len(of) > 1
    ]
    if changed := [each for each, of in prompts.items() if len(of) > 1]:
        step, prompt = min(changed)
        wrong.append(f"{len(changed)} prompts had two hashes within a step, {prompt} of step {step} first")
    return wrong


def went_back(attempts: Attempts) -> list[str]:
    """Attempts that went on after a step before the newest checkpoint that was durable when they claimed their number,
    and so also when what was before them was struck.
    """
    wrong = []
    decided = {number: claim for number, claim in attempts.claims.items() if claim.resumed_step is not None}
    for number, claim in decided.items():
        before = max((each for each in decided if each < number), default=None)
        durable = durable_step(decided, before, attempts.before[number])
        if (after := claim.resumed_step or 0) < durable:
            wrong.append(f"attempt {number} went back to step {after}, {durable} was durable")
    return wrong


def durable_step(claims: Mapping[int, Claim], newest: int | None, checkpoints: Collection[Checkpoint]) -> int:
    """Of the newest checkpoint that counts for who comes after attempt `newest`; 0 for none.

    The lineage of docs/architecture.md, from the claims alone: the trainer's own would repeat its mistakes.
    """
    found, limit = 0, inf
    while newest is not None and newest in claims:
        found = max([found, *(step for step, attempt in checkpoints if attempt == newest and step <= limit)])
        limit = min(limit, claims[newest].checkpoint_step)
        newest = claims[newest].parent
    return found


def repeated_within(lines: Sequence[Line], attempts: Attempts) -> list[str]:
    """Steps that an attempt did twice, or did although it said that it went on after them.

    The step after which it went on may be among its own: its ranks had made the update, and it finished the rest.
    """
    wrong = []
    for number, claim in attempts.claims.items():
        steps = Counter(line["step"] for line in lines if line["attempt"] == number)
        wrong += [f"attempt {number} did step {step} {times} times" for step, times in steps.items() if times > 1]
        if steps and (first := min(steps)) < (claim.resumed_step or 0):
            wrong.append(f"attempt {number} did step {first}, and went on after {claim.resumed_step}")
    return wrong


def doubles(running: Running) -> list[str]:
    """Clusters and drivers that were there twice; also if none was seen, because then no look took place."""
    wrong = []
    if running.heads != 1:
        wrong.append(f"{running.heads} head pods ran at once")
    if running.clusters != 1:
        wrong.append(f"pods of {running.clusters} RayClusters ran at once")
    if running.asked != 1:
        wrong.append(f"there were {running.asked} RayClusters at once")
    if not running.head_seen:
        wrong.append("none of its Ray heads was seen")
    if running.ray_heads.longest > SIDE_BY_SIDE_SECONDS:
        wrong.append(f"two Ray heads ran for {running.ray_heads.longest:.0f} s")
    if not running.driven:
        wrong.append("none of its drivers was seen")
    if running.twice:
        wrong.append(f"attempt {min(running.twice)} had two drivers")
    if running.awake.longest > SIDE_BY_SIDE_SECONDS:
        wrong.append(f"two drivers were awake for {running.awake.longest:.0f} s")
    return wrong


def _by_step(pairs: Iterable[tuple[int, str]]) -> defaultdict[int, set[str]]:
    found: defaultdict[int, set[str]] = defaultdict(set)
    for step, name in pairs:
        found[step].add(name)
    return found
