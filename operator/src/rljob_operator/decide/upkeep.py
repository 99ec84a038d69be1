"""What Kueue has to know of an admitted job, beside what a gate decided: readiness, priority, pods that it got back."""

from rljob_operator import names
from rljob_operator.decide.asking import reprioritized
from rljob_operator.decide.queueing import has_quota
from rljob_operator.decide.serving import RUNS
from rljob_operator.kube.kinds import Manifest
from rljob_operator.observe.facts import Facts
from rljob_operator.plan import Patch, Step
from rljob_operator.render.workload import reported


def upkeep(facts: Facts, step: Step) -> tuple[Patch, ...]:
    """One patch of the Workload at most; the next look makes the next one."""
    job, found = facts.job, facts.workload.found
    if found is None or job.problem is not None or step.phase not in RUNS:
        return ()
    if not has_quota(facts):
        return ()
    if patch := reprioritized(facts, found):
        return patch
    ready = facts.cluster.is_ready and not facts.servers.missing
    return reported(found, facts.now, ready=ready, reclaimable=_reclaimable(facts, found))


def _reclaimable(facts: Facts, found: Manifest) -> dict[str, int]:
    """Pods that the job does not need, by group, since Kueue admitted it: of a reward model that got fewer replicas, or
    worker pods that the batch cannot use. They have ended.
    """
    spec, counts = facts.job.spec, facts.workload.counts
    needed = {names.TRAINER_GROUP: max(spec.cluster.nodes, len(facts.seen.pods_of(names.WORKER)))}
    for model in spec.rewards.served:
        needed[names.reward_group(model.name)] = max(model.replicas, len(facts.seen.servers_of(model.name)))
    back = {each["name"]: int(each["count"]) for each in found["status"].get("reclaimablePods", ())}
    for each in found["spec"]["podSets"]:
        name, whole = each["name"], int(each["count"])
        if (least := needed.get(name, whole)) < counts.get(name, 0):
            back[name] = whole - least
    return back
