"""The PodGroup of a job's gang: it is there before the first pod and until the last one, and with a queue never without
quota. The gates that stop the job wait for its pods; then the PodGroup goes.

nothing ── create the PodGroup, then what has pods ──> the job runs ── zero pods ── delete the PodGroup ──> nothing
"""

from dataclasses import replace

from rljob_api.conditions import Reason
from rljob_operator import names
from rljob_operator.decide.ending import is_idle, nothing_runs, pods_left, replaced, servers
from rljob_operator.decide.recovering import WAIT_SECONDS
from rljob_operator.decide.serving import RUNS
from rljob_operator.kube.kinds import POD_GROUPS, Kind, Manifest, Ref
from rljob_operator.observe.facts import Facts
from rljob_operator.observe.snapshot import is_deleting
from rljob_operator.plan import Step
from rljob_operator.render import CannotMerge, pod_group_of
from rljob_operator.settings import Settings

NATIVE = POD_GROUPS["native"]

LOOK_SECONDS = 1.0
"""Between two looks at a PodGroup that is on its way out."""


def scheduler_missing(facts: Facts, _settings: Settings) -> Step | None:
    """Without the gang's scheduler no pod starts, and the job needs no quota. Pods that run are left alone."""
    kind = _kind(facts)
    if kind is None or kind not in facts.seen.missing or facts.cluster.exists or facts.driver.is_open:
        return None
    scheduler = facts.job.spec.gang.scheduler
    message = (
        f"spec.gang.scheduler is {scheduler}, and the operator cannot read podgroups of {kind.api_version}. Install the"
        f" scheduler and set gang.{scheduler} in the operator's chart; or set spec.gang.scheduler to none, with"
        " spec.suspend: true meanwhile"
    )
    freed = replaced(facts) if is_idle(facts) else {}
    return Step("Pending", Reason.GANG_SCHEDULER_MISSING, message, again_in=WAIT_SECONDS, **freed)


def pod_group_leaves(facts: Facts, settings: Settings) -> Step | None:
    """No pod is created beside a PodGroup that goes: its scheduler could place the pod alone. Reward models go too: the
    PodGroup of Kubernetes stays as long as a pod names it. One of an earlier spec.gang.scheduler goes after its pods.
    """
    if facts.cluster.exists:
        return None
    found, seen = _found(facts), facts.seen
    if found is not None and (is_deleting(found) or _excess(facts, settings, found)):
        going = () if is_deleting(found) else (Ref.of(found),)
        message = f"Waiting for the previous PodGroup {found['metadata']['name']} to be deleted"
    elif any(Ref.of(each).kind != _kind(facts) and not is_deleting(each) for each in seen.pod_groups):
        going, first = (), "" if nothing_runs(seen) else f"{pods_left(seen)} to end, and then for "
        message = f"Waiting for {first}the PodGroup of the earlier spec.gang.scheduler to be deleted"
    else:
        return None
    delete = (*going, *servers(seen))
    return Step("Pending", Reason.WAITING_FOR_REMOVAL, message, delete=delete, again_in=LOOK_SECONDS)


def is_too_large(facts: Facts, settings: Settings) -> bool:
    """Whether the PodGroup of what runs is immutable and asks for more pods than the spec: one that replaces a lost pod
    would wait for the rest.
    """
    found = _found(facts)
    if found is None or not facts.cluster.exists or facts.job.unread is not None:
        return False
    return _excess(facts, settings, found) > 0


def ganged(facts: Facts, settings: Settings, step: Step) -> Step:
    """The step, with what its phase requires of the PodGroup."""
    job, kind = facts.job, None
    if job.problem is None and step.deployed and step.phase in RUNS:
        kind = _kind(facts)
    others = (Ref.of(each) for each in facts.seen.pod_groups if not is_deleting(each))
    going = [ref for ref in others if ref.kind != kind and ref not in step.delete and nothing_runs(facts.seen)]
    wanted = () if kind is None else _wanted(facts, settings, kind)
    return replace(step, apply=(*wanted, *step.apply), delete=(*step.delete, *going))


def _wanted(facts: Facts, settings: Settings, kind: Kind) -> tuple[Manifest, ...]:
    """It follows the spec, except that of Kubernetes, which is immutable."""
    found = _found(facts)
    if kind in facts.seen.missing or (found is not None and (is_deleting(found) or kind == NATIVE)):
        return ()
    try:
        made = pod_group_of(facts.job, settings)
    except CannotMerge:  # a gate reports it
        return ()
    return () if made is None else (made,)


def _kind(facts: Facts) -> Kind | None:
    return POD_GROUPS.get(facts.job.spec.gang.scheduler)


def _found(facts: Facts) -> Manifest | None:
    kind = _kind(facts)
    return None if kind is None else facts.seen.child(kind, names.pod_group(facts.job.name))


def _excess(facts: Facts, settings: Settings, found: Manifest) -> int:
    """How many pods more than the spec it asks for. 0 for a PodGroup that can follow the spec."""
    made = pod_group_of(facts.job, settings) if _kind(facts) == NATIVE else None
    return 0 if made is None else _least(found) - _least(made)


def _least(group: Manifest) -> int:
    """How many pods a PodGroup of Kubernetes waits for."""
    return int(group["spec"].get("schedulingPolicy", {}).get("gang", {}).get("minCount", 0))
