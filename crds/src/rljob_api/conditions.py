"""The vocabulary of `status.conditions` and of an RLJob's events: what each word means, and what a person can do.

The operator and the recovery policy take their reasons from here, and `make generate` writes docs/conditions.md.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, Self

CONDITIONS: Final[Mapping[str, str]] = {
    "Ready": "The job is as it should be: it runs, or it has succeeded.",
    "Admitted": "Kueue has admitted the job: it has quota. Only jobs with a queue have it.",
    "ClusterReady": "Head and workers of the Ray cluster are ready.",
    "RewardModelsReady": "Every server of every reward model is ready. Only jobs with reward models have it.",
    "PreflightPassed": "The links between the ranks passed the last fabric preflight; otherwise the message names the"
    " pairs of nodes. Only jobs with `preflight.fabric` have it, once it was measured.",
    "Running": "The driver of the newest attempt runs.",
    "CheckpointAvailable": "There is a durable checkpoint that an attempt can continue from.",
    "Evicted": "The job lost its quota and was not admitted since. The message says why, and how many steps were lost."
    " Only jobs with a queue have it.",
    "Suspended": "`spec.suspend` is true, and nothing of the job runs.",
    "Succeeded": "The driver has done all its steps. This is final.",
    "Failed": "The job has ended otherwise. This is final. To run it again, delete it and the claim with its files, and"
    " create it again; or create it under another name, or with another claim or sub-path.",
    "Reconciling": "The operator works towards what the spec asks for.",
    "Stalled": "The job needs a person to continue; so does a failed job.",
}
"""What each type means if its status is True."""

_ON_THE_WAY = ("Starting", "Recovering")
_TRIED_AGAIN = ("Recovering", "Failed")
_ENDS_IT = ("Failed", "Recovering")
_ANY = ()
_REPEATS = "If it repeats, read the attempt's log and check the node."


class Word(StrEnum):
    """One CamelCase word, its meaning, and what a person can do. where: what it comes with; empty for anything."""

    where: tuple[str, ...]
    meaning: str
    remedy: str

    def __new__(cls, word: str, where: tuple[str, ...], meaning: str, remedy: str = "") -> Self:
        self = str.__new__(cls, word)
        self._value_ = word
        self.where, self.meaning, self.remedy = where, meaning, remedy
        return self


# fmt: off
class Reason(Word):
    """Why a job is in its phase. where: the phases."""

    # ---- in a queue

    KUEUE_MISSING = (
        "KueueMissing", ("Pending",),
        "The job has the label `kueue.x-k8s.io/queue-name`, and Kueue is not installed, or may not be used.",
        "Install Kueue, and set `kueue.enabled` in the operator's chart; or remove the label.",
    )
    PRIORITY_CLASS_MISSING = (
        "PriorityClassMissing", ("Pending", "Queued"),
        "The label `kueue.x-k8s.io/priority-class` names a WorkloadPriorityClass that does not exist.",
        "Create it, or change the label.",
    )
    QUEUE_NAME_INVALID = (
        "QueueNameInvalid", ("Pending",),
        "The label `kueue.x-k8s.io/queue-name` has a value that no LocalQueue can have as its name.",
        "Change the label to the name of a LocalQueue of the job's namespace.",
    )
    QUEUE_MISSING = (
        "QueueMissing", ("Queued",), "The job's namespace has no LocalQueue of the name in its label.",
        "Create it, or change the label `kueue.x-k8s.io/queue-name`.",
    )
    ADMISSION_CONFLICT = (
        "AdmissionConflict", ("Queued",),
        (
            "Kueue admitted the job, and an admission check, a flavor or Kueue itself sets a label, an annotation or a"
            " node selector otherwise than a pod template. The quota is free again, and no pod was created."
        ),
        "Change the template that the message names while the job is suspended; or change the check or the queue.",
    )
    QUEUED = (
        "Queued", ("Queued",), "The job waits in its queue; the message is the queue's own.",
        "Nothing, if the message names quota that others use. Otherwise check the LocalQueue and its ClusterQueue.",
    )
    DEACTIVATED = (
        "WorkloadDeactivated", ("Queued",),
        "The Workload's `spec.active` is false: a person or Kueue's limit for requeues deactivated it.",
        "Fix what the message names. Then set it to true, or suspend and resume the job.",
    )
    EVICTED = (
        "Evicted", ("Suspending", "Queued"),
        "The job has no quota any more. It saves a checkpoint, stops, and waits for its next admission.",
        "Nothing. The condition Evicted says by whom and why. The next attempt is free of charge.",
    )

    # ---- on the way to a running driver

    GANG_SCHEDULER_MISSING = (
        "GangSchedulerMissing", ("Pending",),
        "The API server has no PodGroups of the scheduler in `spec.gang.scheduler`, or the operator may not use them.",
        (
            "Install the scheduler, and set its value under `gang` in the operator's chart; or set"
            " `spec.gang.scheduler: none`, with `spec.suspend: true` meanwhile."
        ),
    )
    IMAGE_MISSING = (
        "ImageMissing", ("Pending",), "Neither the job nor the operator's settings name an image.",
        "Set `spec.cluster.image`, with `spec.suspend: true` meanwhile.",
    )
    NAMESPACE_REFUSED = (
        "NamespaceRefused", ("Pending",),
        "The job is in the operator's own namespace, whose Secret is the key of all jobs. Nothing is created for it.",
        "Delete it, and create it in another namespace.",
    )
    WAITING_FOR_REMOVAL = (
        "WaitingForRemoval", _ANY,
        "Objects of a deleted job of the same name, or the job's previous PodGroup, still exist.",
        "Kubernetes removes them. If it does not, check the finalizers of the object that the message names.",
    )
    CLUSTER_DELETING = (
        "ClusterDeleting", _ON_THE_WAY, "The job's previous RayCluster, or its pods, still exist.",
        "If it lasts, check the pods that do not end, their nodes, and whether the RayCluster still exists.",
    )
    CLUSTER_NOT_READY = (
        "ClusterNotReady", _ON_THE_WAY, "Not all pods are ready; the message says what they wait for.",
        (
            "If a pod is not scheduled, free or create what it needs, or lower `spec.cluster`. If its image cannot be"
            " pulled, check the registry, or set `spec.cluster.image` with `spec.suspend: true` meanwhile."
        ),
    )
    REWARD_MODELS_NOT_READY = (
        "RewardModelsNotReady", _ON_THE_WAY,
        "The Ray cluster is ready, and servers of reward models are not; the message quotes their pods.",
        "If a pod is not scheduled, free what it needs or lower `replicas`. If it crashes, fix the model.",
    )
    STARTING_DRIVER = (
        "StartingDriver", _ON_THE_WAY,
        "The pods are ready, and the next attempt's driver is submitted. Ray may take a while to start it.",
    )
    HEAD_NOT_ANSWERING = (
        "HeadNotAnswering", _ON_THE_WAY,
        (
            "Ray's head does not answer the operator, so the state of the attempt is unknown. After 10 minutes:"
            " `RayLost`, unless its node finds the pod ready."
        ),
        "Read the head's log, and check whether a NetworkPolicy blocks the operator.",
    )
    UNAUTHORIZED = (
        "Unauthorized", _ON_THE_WAY,
        (
            "The head pod, or a proxy before it, refuses the operator's token. After 10 minutes: `RayLost`, unless the"
            " pod is ready; then training continues."
        ),
        (
            "Check the writer of the job's Secret `NAME-auth-...`, and whether a mesh or a proxy refuses the operator."
            " The next RayCluster gets a new Secret if there is none: delete it, then suspend and resume the job."
        ),
    )
    DRIVER_NOT_HEARD = (
        "DriverNotHeard", _ON_THE_WAY,
        (
            "Ray has the driver, and it has given no sign of life for longer than `recovery.hangAfter`. After 10"
            " minutes: `DriverHung`, unless only the agent of a ready pod does not answer."
            " Or the driver has ended, and the agent does not serve its record; after a minute Ray's report counts."
            " Or a silent driver is to be ended, and Ray does not do that."
        ),
        "Read the logs of the driver and of the head's container `agent`, and check whether the volume answers.",
    )
    DRIVER_RUNNING = "DriverRunning", ("Running",), "The driver trains."

    # ---- failures, as the driver or the operator reports them

    RANK_LOST = "RankLost", _TRIED_AGAIN, "A trainer process died or fell silent.", _REPEATS
    ENGINE_LOST = (
        "EngineLost", _TRIED_AGAIN, "Rollout engines died or fell silent, and new ones did not help.",
        _REPEATS,
    )
    REWARDS_LOST = (
        "RewardsLost", _TRIED_AGAIN, "The worker that scores died or fell silent, and a new one did not help.",
        _REPEATS,
    )
    FABRIC_SLOW = (
        "FabricSlow", _TRIED_AGAIN,
        "Two nodes exchange data more slowly than `preflight.fabric.minBusBandwidthGBps`, or not at all.",
        "Check the links of the node that the message blames, or lower `preflight.fabric.minBusBandwidthGBps`.",
    )
    FABRIC_WRONG = (
        "FabricWrong", _TRIED_AGAIN, "Data arrived wrong in the fabric preflight; the message names the nodes.",
        "Take the node that the message blames out of service, and check its GPUs, memory and links.",
    )
    INFRASTRUCTURE = (
        "Infrastructure", _TRIED_AGAIN, "Another process, a device, a volume or the network failed.",
        _REPEATS,
    )
    DRIVER_LOST = (
        "DriverLost", _TRIED_AGAIN, "The driver ended without an exit record, for example because it was killed.",
        "If SIGKILL ended it, it may have lacked memory: raise `spec.cluster.head.memory`.",
    )
    DRIVER_HUNG = (
        "DriverHung", _TRIED_AGAIN, "The driver gave no sign of life for longer than `recovery.hangAfter`.",
        "Check whether the checkpoint volume answers. If everything works but is slow, raise `recovery.hangAfter`.",
    )
    RAY_LOST = "RayLost", _TRIED_AGAIN, "Ray's head, its pod or the whole RayCluster is gone.", _REPEATS
    BUG = "Bug", _TRIED_AGAIN, "The driver met an unexpected error.", "Report it, with the attempt's log."
    JOB = "Job", _ENDS_IT, "The job or its configuration is wrong.", "Change the field that the message names."
    DATA = "Data", _ENDS_IT, "The data or the model is wrong.", "Change the field, or the file, that the message names."
    REWARD = (
        "Reward", _ENDS_IT, "The reward code is wrong.",
        (
            "Fix the function that the message names. If it fails for some responses only,"
            " `rewards.onError: drop_group` leaves their groups out."
        ),
    )
    ENVIRONMENT_FAILED = (
        "EnvironmentFailed", _ENDS_IT, "The environment's code is wrong.",
        (
            "Fix the code that the message names; `rljob env try` plays one episode. If it fails in some episodes only,"
            " `environment.onError: drop_episode` leaves them out."
        ),
    )
    ENGINE_MISMATCH = (
        "EngineMismatch", _ENDS_IT,
        (
            "Engine and trainer compute different log-probabilities for the same tokens and weights, beyond the"
            " tolerance: in three steps in a row, or in the probe of a new engine."
        ),
        "Set the other engine or `model.dtype: float32`; docs/models.md says what agrees with which engine.",
    )
    NO_USABLE_CHECKPOINT = (
        "NoUsableCheckpoint", _ENDS_IT,
        "There are checkpoints, but none can be used, or it is unknown whether the newest count.",
        "Follow the message: restore a file, name a checkpoint, or begin again with `checkpoint.resume: never`.",
    )
    STORAGE_FULL = (
        "StorageFull", _ENDS_IT, "The checkpoint volume is full.",
        "Grow the volume, or lower `checkpoint.keepLast`.",
    )
    FENCED = (
        "Fenced", ("Failed",), "Another driver has the attempt's number on the volume.",
        "Give each job its own volume or sub-path; a new job of an old name finds the old claim. The message names it.",
    )

    # ---- recovery

    STOPPED_ON_REQUEST = (
        "StoppedOnRequest", ("Recovering",),
        "A pod was asked to end, so the driver saved a checkpoint and stopped. The next attempt is free of charge.",
    )
    MORE_STEPS = (
        "MoreSteps", ("Recovering",),
        "`training.steps` was raised after the driver began. The next attempt does the rest, free of charge.",
    )
    BACKOFF = (
        "Backoff", ("Recovering",),
        "The operator waits before the next attempt, after a failure that an older version did not record.",
    )
    REPLACING_PODS = (
        "ReplacingPods", ("Recovering",), "The worker pods are being replaced.",
        "If it lasts, check the pods that do not end and their nodes.",
    )
    REBUILDING_CLUSTER = (
        "RebuildingCluster", ("Recovering",), "The RayCluster is being deleted; a new one follows.",
        "If it lasts, check the pods that do not end and their nodes.",
    )
    RESTARTS_EXHAUSTED = (
        "RestartsExhausted", ("Failed",), "Too many restarts without a new durable checkpoint.",
        "Remove the cause that the message names, or raise `spec.recovery.maxRestarts`; in another RLJob.",
    )
    BUG_REPEATED = (
        "BugRepeated", ("Failed",), "A second bug without a new durable checkpoint.",
        "Report it, with the attempt's log.",
    )

    # ---- the operator's own verdicts

    IMAGE_NOT_USABLE = (
        "ImageNotUsable", ("Failed", "Starting", "Recovering"),
        "An image does not exist or may not be pulled. A job without an attempt fails; another waits, and is Stalled.",
        (
            "Set `spec.cluster.image`, a reward model's `image`, or `spec.imagePullSecrets`, so that the image can be"
            " pulled; for a job that waits, with `spec.suspend: true` first."
        ),
    )
    OBJECT_INVALID = (
        "ObjectInvalid", _ANY,
        (
            "The API server finds an object of the job, or a pod, invalid. The job fails, unless an attempt has begun"
            " since it was created or resumed; then what runs goes on."
        ),
        (
            "Fix what the message quotes: a pod template, a volume, a name; with `spec.suspend: true` meanwhile, or in"
            " another RLJob if this one has failed."
        ),
    )
    OBJECT_FORBIDDEN = (
        "ObjectForbidden", _ANY,
        "The API server refuses an object of the job, or its deletion: quota, admission, permissions.",
        "Grant what the message names. The operator retries; what runs goes on.",
    )
    OBJECT_FAILING = (
        "ObjectFailing", _ANY,
        "For longer than 10 seconds the API server has failed at an object of the job, and not at its status.",
        (
            "Read what it reports: a webhook that does not answer, a missing CRD (KubeRay's, for RayClusters),"
            " its storage. The operator retries; what runs goes on."
        ),
    )
    NAME_TAKEN = (
        "NameTaken", _ANY,
        (
            "The name of an object that the job needs is taken: by an object of another owner, by one without the"
            " operator's label, or by a claim of an earlier job with another access mode or storage class."
        ),
        "Follow the message: choose another name, or free this one. The operator retries soon; what runs goes on.",
    )
    SPEC_NOT_READABLE = (
        "SpecNotReadable", _ANY,
        "The operator's version cannot read the spec, or a part that a new RayCluster needs; what runs goes on.",
        (
            "Install operator and CRD of one version; if the spec is older than the CRD, fix the field that the message"
            " names, with `spec.suspend: true` if the job has pods."
        ),
    )

    OPERATOR_ERROR = (
        "OperatorError", _ANY,
        "The operator has a bug that this job triggers. It retries; what runs goes on.",
        "Report the message. If a field of the spec triggers it, change that.",
    )

    # ---- stops and ends

    SUSPENDED = "Suspended", ("Suspending", "Suspended"), "`spec.suspend` is true.", "Set it to false to continue."
    SPEC_CHANGED = (
        "SpecChanged", ("Suspending",), "The spec changed before the RayCluster that was created for it was gone.",
        "Nothing: the job saves a checkpoint, and continues in a new RayCluster.",
    )
    NODES_EXCLUDED = (
        "NodesExcluded", ("Suspending",),
        "Kueue had chosen nodes for the worker pods before one of them was excluded after a fabric preflight.",
        "Nothing: the job gives its quota back, and continues with its next admission, on other nodes.",
    )
    KEY_CHANGED = (
        "KeyChanged", ("Suspending",),
        "The RayCluster was created with another key of the operator, so its head refuses the operator's tokens.",
        "Nothing: the job saves a checkpoint, and continues in a new RayCluster, free of charge.",
    )
    DEADLINE_EXCEEDED = (
        "DeadlineExceeded", ("Suspending", "Failed"),
        "`spec.activeDeadline` has passed. The job saves a checkpoint, stops and fails.",
    )
    COMPLETED = "Completed", ("Succeeded",), "The driver has done all its steps."
    DELETING = (
        "Deleting", ("Deleting",),
        "The job was deleted: its pods are ending, or finalizers of other controllers keep it; the message names them.",
        (
            "After some minutes the job goes without its pods. Each finalizer must be removed by the controller that"
            " added it."
        ),
    )
# fmt: on


class Aspect(Word):
    """Why one condition is as it is, if the phase does not say it. where: that condition."""

    ADMITTED = "Admitted", ("Admitted",), "The message names the ClusterQueue and the flavors."
    NOT_ADMITTED = "NotAdmitted", ("Admitted",), "The job has no quota; the message is the queue's own."
    NO_CLUSTER = "NoCluster", ("ClusterReady",), "There is no RayCluster."
    PODS_NOT_READY = "PodsNotReady", ("ClusterReady",), "Not all pods are ready; the message says what they wait for."
    ALL_PODS_READY = "AllPodsReady", ("ClusterReady",), "Head and workers are ready."
    NO_SERVERS = "NoServers", ("RewardModelsReady",), "There are none: the job does not run."
    SERVERS_NOT_READY = (
        "ServersNotReady",
        ("RewardModelsReady",),
        "Servers are missing; the message quotes their pods. A driver waits for them, up to `lostAfter`.",
    )
    ALL_SERVERS_READY = "AllServersReady", ("RewardModelsReady",), "All servers of all reward models are ready."
    ALL_PAIRS_PASSED = "AllPairsPassed", ("PreflightPassed",), "The message names the slowest pair of nodes."
    NOT_RUNNING = "NotRunning", ("Running",), "No driver runs; Ready says why."
    NONE_YET = "NoneYet", ("CheckpointAvailable",), "No checkpoint is durable yet."
    LOST = (
        "Lost",
        ("CheckpointAvailable",),
        "There was one; the message says how it was lost. The next attempt begins at step 0.",
    )
    SAVED = "Saved", ("CheckpointAvailable",), "The message names the step."
    PREEMPTED = "Preempted", ("Evicted",), "A job of higher priority, or another queue's claim, needs the quota."
    PODS_READY_TIMEOUT = "PodsReadyTimeout", ("Evicted",), "Not all pods were ready within Kueue's time-out."
    ADMISSION_CHECK = "AdmissionCheck", ("Evicted",), "An admission check does not hold any more."
    CLUSTER_QUEUE_STOPPED = "ClusterQueueStopped", ("Evicted",), "A person stopped the ClusterQueue."
    LOCAL_QUEUE_STOPPED = "LocalQueueStopped", ("Evicted",), "A person stopped the LocalQueue."
    NODE_FAILURES = "NodeFailures", ("Evicted",), "Nodes of the topology assignment failed."
    DEACTIVATED = "Deactivated", ("Evicted",), "The Workload was deactivated, or evicted for another reason of Kueue's."
    WORKLOAD_LOST = "WorkloadLost", ("Evicted",), "The Workload was deleted, or lost its quota without an eviction."
    NOT_EVICTED = "NotEvicted", ("Evicted",), "It is not, or it was admitted since."
    NOT_SUSPENDED = "NotSuspended", ("Suspended",), "It is not, or not yet."
    NOT_FINISHED = "NotFinished", ("Succeeded",), "Steps are left."
    FAILED = "Failed", ("Succeeded",), "It failed; the condition Failed says why."
    NOT_FAILED = "NotFailed", ("Failed",), "It has not."
    SETTLED = "Settled", ("Reconciling",), "There is nothing left to do, or nothing that the operator could do."
    NOT_STALLED = "NotStalled", ("Stalled",), "Nothing needs a person."


class Note(Word):
    """What an event says that no condition does."""

    ATTEMPT_STARTING = "AttemptStarting", (), "The next attempt has its number, and its driver will be submitted."
    CHECKPOINT_SAVED = "CheckpointSaved", (), "The first checkpoint is durable; later ones are in the status only."
    CHECKPOINT_LOST = "CheckpointLost", (), "The condition CheckpointAvailable says how."
    ENGINE_DIFFERS = (
        "EngineDiffers",
        (),
        (
            "The last step's `status.progress.engineDifference` is above `engineTolerance`. Three such steps in a row"
            " end the job as EngineMismatch."
        ),
    )
    NODE_EXCLUDED = (
        "NodeExcluded",
        (),
        "A fabric preflight blames the node: worker pods of the job's next RayClusters avoid it, until a suspension.",
    )
    FIELD_IGNORED = (
        "FieldIgnored",
        (),
        (
            "The RayCluster was created without a field that the API server does not know: a pod template has a typo,"
            " or KubeRay's CRD is of another version. Fix it, with `spec.suspend: true` meanwhile."
        ),
    )
