"""Gates on the way to a driver: what can have pods at all, RayCluster, reward models, attempt, submission."""

from dataclasses import replace

from rljob_api.conditions import Reason
from rljob_api.v1alpha1 import DriverStatus
from rljob_api.v1alpha1.status import Phase
from rljob_operator import names
from rljob_operator.decide.ending import is_idle, pods_left, replaced, servers
from rljob_operator.decide.images import cluster_image, server_image
from rljob_operator.decide.judging import failed, settled
from rljob_operator.decide.recovering import WAIT_SECONDS
from rljob_operator.observe.cluster import ClusterState
from rljob_operator.observe.driver import DriverState
from rljob_operator.observe.facts import Facts
from rljob_operator.observe.pods import waits_for_its_node
from rljob_operator.observe.snapshot import is_deleting
from rljob_operator.plan import SECRET_SECONDS, Step, Submission
from rljob_operator.render import CannotMerge, Placements, cluster_of, placements, secret_of
from rljob_operator.settings import Settings


def unstartable(facts: Facts, settings: Settings) -> Step | None:
    """What cannot have pods asks for no quota, and gives back what it has. A cluster that exists is left alone."""
    if facts.cluster.exists or facts.driver.is_open:
        return None
    step = _own_namespace(facts, settings) or _no_image(facts, settings)
    if step is None:
        return None
    return replace(step, **(replaced(facts) if is_idle(facts) else {"delete": tuple(servers(facts.seen))}))


def _own_namespace(facts: Facts, settings: Settings) -> Step | None:
    """The operator creates no pods in the namespace of the key of all jobs."""
    namespace = facts.job.namespace
    if not settings.protect_own_namespace or namespace != settings.operator_namespace:
        return None
    message = f"Namespace {namespace} is the operator's own. Delete the RLJob, and create it in another namespace"
    return Step("Pending", Reason.NAMESPACE_REFUSED, message, deployed=False)


def _no_image(facts: Facts, settings: Settings) -> Step | None:
    if facts.job.spec.cluster.image or settings.trainer_image:
        return None
    message = "No image is set. Set spec.cluster.image, with spec.suspend: true, or the operator's trainer image"
    return Step("Pending", Reason.IMAGE_MISSING, message)


def ray_cluster(facts: Facts, settings: Settings) -> Step | None:
    """One RayCluster, all of whose pods are ready. Pods of an older one have to be gone: KubeRay takes every pod with
    the label of its name for its own.

    A driver that is heard may train on without what is missing, or save what it can; it reports itself how it ends.
    """
    state = facts.cluster.state
    image = facts.job.spec.cluster.image or settings.trainer_image
    if state in (ClusterState.ENDING, ClusterState.DELETING):
        left = pods_left(replace(facts.seen, pods=facts.seen.ray_pods))
        message = f"The previous RayCluster has not ended yet: waiting for {left}"
        return Step(on_the_way(facts), Reason.CLUSTER_DELETING, message, again_in=WAIT_SECONDS)
    if state is ClusterState.ABSENT and image is not None:
        return _made(facts, image, settings)
    return None if facts.cluster.is_ready or facts.driver.heard else _incomplete(facts, settings)


def _made(facts: Facts, image: str, settings: Settings) -> Step:
    job = facts.job
    if job.unread is not None:  # the new cluster would lack it
        return Step(on_the_way(facts), Reason.SPEC_NOT_READABLE, job.unread)
    try:
        made = (secret_of(job, settings.key), cluster_of(job, image, settings, placed(facts)))
    except CannotMerge as error:
        return unmergeable(facts, error)
    return Step(on_the_way(facts), Reason.CLUSTER_NOT_READY, facts.cluster.waits_for, create=made)


def placed(facts: Facts) -> Placements:
    """Where the job's pods go: anywhere, without a queue. Raises UnknownFlavor."""
    work = facts.workload
    return placements(work.found, facts.seen.flavors) if work.found is not None and work.admission else {}


def unmergeable(facts: Facts, error: CannotMerge) -> Step:
    """A template that cannot be merged."""
    if facts.job.has_begun:  # an older operator created its pods, and there are checkpoints
        return Step(on_the_way(facts), Reason.OBJECT_INVALID, f"{error}")
    return failed(facts, Reason.OBJECT_INVALID, f"{error}")


def _incomplete(facts: Facts, settings: Settings) -> Step:
    phase, polls = on_the_way(facts), facts.driver.is_open  # an open driver may live, or end, unheard
    if not polls and (message := cluster_image(facts)) is not None:  # the job was resumed with it
        return Step(phase, Reason.IMAGE_NOT_USABLE, f"{message}, with spec.suspend: true meanwhile")
    again = settings.poll_seconds if polls else None
    if not polls and any(map(is_deleting, facts.seen.pods)):  # no watch reports that a lost pod's time is over
        again = WAIT_SECONDS
    step = Step(phase, Reason.CLUSTER_NOT_READY, facts.cluster.waits_for, again_in=again)
    if not any(map(waits_for_its_node, facts.seen.ray_pods)):
        return step
    # A pod may wait for its Secret. The operator may not read Secrets, so no watch reports a deleted one.
    return replace(step, secret=secret_of(facts.job, settings.key), again_in=again or SECRET_SECONDS)


def reward_models(facts: Facts, _settings: Settings) -> Step | None:
    """No driver starts before all servers are ready. A driver that runs waits for them by itself.

    It polls: no watch repeats what the answer to the operator's own write to a Deployment says about its servers.
    """
    if facts.driver.is_open or not facts.servers.missing:
        return None
    reason, message = Reason.REWARD_MODELS_NOT_READY, facts.servers.waits_for
    if (image := server_image(facts)) is not None:
        reason, message = Reason.IMAGE_NOT_USABLE, f"{image}, with spec.suspend: true meanwhile"
    return Step(on_the_way(facts), reason, message, again_in=WAIT_SECONDS)


def attempt(facts: Facts, _settings: Settings) -> Step | None:
    """Reserve the next number. It must be in the status before it is submitted, so only the status changes."""
    job, status = facts.job, facts.job.status
    if facts.driver.is_open:
        return None
    number = status.attempt + 1
    old = job.unread is not None  # the driver will read an older spec
    driver = DriverStatus(
        submission_id=names.submission(job.uid, number),
        cluster_uid=facts.seen.cluster_uid or "",
        state="Reserved",
        generation=None if old else job.generation,
        steps=status.driver.steps if old and status.driver is not None else job.spec.training.steps,
        reserved=facts.now,
    )
    changes = {"attempt": number, "driver": driver, "recovery": settled(status.recovery)}
    return Step(on_the_way(facts), Reason.STARTING_DRIVER, f"Starting attempt {number}", changes, again_in=0.0)


def submission(facts: Facts, settings: Settings) -> Step | None:
    """Submit the reserved attempt. Ray refuses a second submission of its id, so this may be repeated. But Ray's head
    forgets with its container, and then only the agent knows whether the attempt has begun: it is never started twice.
    """
    driver, number, phase = facts.driver, facts.job.status.attempt, on_the_way(facts)
    if driver.state is DriverState.UNCONFIRMED:
        message = f"Attempt {number} waits for the agent beside Ray's head to confirm that it has not begun"
        return Step(phase, Reason.STARTING_DRIVER, message, again_in=settings.poll_seconds)
    if driver.state is not DriverState.RESERVED or driver.status is None:
        return None
    order = Submission(driver.status.submission_id, number, driver.status.generation)
    return Step(phase, Reason.STARTING_DRIVER, f"Starting attempt {number}", submit=order, again_in=0.0)


def on_the_way(facts: Facts) -> Phase:
    """Recovering until it runs again; what was suspended starts."""
    return "Recovering" if facts.job.status.phase in ("Running", "Recovering") else "Starting"
