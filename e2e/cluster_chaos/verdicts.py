"""What is wrong with a job under faults, told from what was seen of its volume. Pure."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence

from e2e.cluster_chaos.volume_watch import Made
from rljob_trainer.journal.record import Match


def made_again(made: Sequence[Made], rescored: Collection[int] = ()) -> list[str]:
    """Finished groups that were made once more, by attempt. The trainer would have found them: a group is the same that
    was made for the same step, policy, settings and prompt, in whichever attempt.

    rescored: attempts that lost a scorer. It may die between a group's record and its answer; then the group is scored
    again, and its second record cannot be told from that of one that was generated again.
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
    """Of the journal: where groups were not seen, nobody can say that they were not made again. each: of a step."""
    groups = _by_step((match.step, match.prompt_id) for _, match in made)
    missing = [step for step in steps if len(groups[step]) < each]
    return (
        [f"groups of {len(missing)} steps were not seen in the journal, of step {missing[0]} first"] if missing else []
    )


def policies(made: Sequence[Made]) -> list[str]:
    """A group by another name of its policy is not found. In a deterministic job, a step's policy has one name."""
    digests = _by_step((match.step, match.policy_digest) for _, match in made)
    return [f"groups of step {step} were made for {len(of)} policies" for step, of in digests.items() if len(of) > 1]


def _by_step(pairs: Iterable[tuple[int, str]]) -> defaultdict[int, set[str]]:
    found: defaultdict[int, set[str]] = defaultdict(set)
    for step, name in pairs:
        found[step].add(name)
    return found
