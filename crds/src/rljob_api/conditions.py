"""The words of `status.conditions` and of an RLJob's events: what each means, and what a person can do about it.

The operator and the recovery policy take their reasons from here, and `make generate` writes docs/conditions.md.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, Self

CONDITIONS: Final[Mapping[str, str]] = {
    "Ready": "The job is as it should be: it runs, or it has succeeded.",
    "ClusterReady": "Head and workers of the Ray cluster are ready.",
    "RewardModelsReady": "Every server of every reward model is ready. Only jobs with reward models have it.",
    "Running": "The driver of the newest attempt runs.",
    "CheckpointAvailable": "There is a durable checkpoint that an attempt can continue from.",
    "Suspended": "`spec.suspend` is true, and nothing of the job runs.",
    "Succeeded": "The driver has done all its steps. This is final.",
    "Failed": "The job has ended otherwise. This is final: to run it again, delete it, and the claim that it leaves"
    " with its files, and create it anew; or create it under another name, or with another claim or sub-path.",
    "Reconciling": "The operator is on the way to what the spec asks for.",
    "Stalled": "It gets no further without a person; so does a failed job.",
}
"""What each type says where its status is True."""

_ON_THE_WAY = ("Starting", "Recovering")
_TRIED_AGAIN = ("Recovering", "Failed")
_ENDS_IT = ("Failed", "Recovering")
_ANY = ()
_REPEATS = "Where it repeats, read the attempt's log and look at the node."


class Word(StrEnum):
    """One CamelCase word, with what it means and what a person can do. where: what it comes with; empty is anything."""

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

    # ---- on the way to a running driver

    IMAGE_MISSING = (
        "ImageMissing", ("Pending",), "Neither the job nor the operator's settings name an image.",
        "Set `spec.cluster.image`, with `spec.suspend` true meanwhile.",
    )
    WAITING_FOR_REMOVAL = (
        "WaitingForRemoval", _ANY, "Objects of a deleted job of the same name are still there.",
        "Kubernetes removes them. Where it does not, look at the finalizers of the object that the message names.",
    )
    CLUSTER_DELETING = (
        "ClusterDeleting", _ON_THE_WAY, "The job's previous RayCluster is still being deleted.",
        "Where it lasts, look at the pods that do not end and at their nodes.",
    )
    CLUSTER_NOT_READY = (
        "ClusterNotReady", _ON_THE_WAY, "Not all pods are ready; the message says what they wait for.",
        (
            "Where a pod is not scheduled, free what it needs or lower `spec.cluster`. Where its image cannot be"
            " pulled, see to the registry, or set `spec.cluster.image` with `spec.suspend` true meanwhile."
        ),
    )
    VOLUME_DELETING = (
        "VolumeDeleting", ("Starting", "Recovering"),
        "Somebody deletes the job's claim, a pod still holds it, and another pod needs it: nothing changes by itself.",
        "Copy what you need of the checkpoints from that pod; then suspend and resume the job, and it begins anew.",
    )
    OBJECT_MISSING = (
        "ObjectMissing", ("Starting", "Recovering"),
        (
            "Pods need a PriorityClass or a PersistentVolumeClaim that does not exist, or a claim that is being"
            " deleted; the message names it."
        ),
        (
            "Create it, and the job goes on by itself; or set `spec.suspend`, and name another one in the spec. The"
            " claim of `checkpoint.volume` never changes: another one is for another RLJob."
        ),
    )
    REWARD_MODELS_NOT_READY = (
        "RewardModelsNotReady", _ON_THE_WAY,
        "The Ray cluster is ready, servers of reward models are not; the message says what their pods say.",
        "Where a pod is not scheduled, free what it needs or lower `replicas`. Where it crashes, correct the model.",
    )
    STARTING_DRIVER = (
        "StartingDriver", _ON_THE_WAY,
        "The pods are ready, and the next attempt's driver is submitted. Ray may take a while to start it.",
    )
    HEAD_NOT_ANSWERING = (
        "HeadNotAnswering", _ON_THE_WAY,
        (
            "Ray's head does not answer the operator, so nobody knows whether a driver runs. After 10 minutes:"
            " `RayLost`, unless its node finds the pod ready."
        ),
        "Read the head's log, and see whether a NetworkPolicy keeps the operator from it.",
    )
    UNAUTHORIZED = (
        "Unauthorized", _ON_THE_WAY,
        (
            "The head pod answers, or something on the way to it, and does not take the operator's token. After 10"
            " minutes: `RayLost`, unless the pod is ready: what trains in it trains on."
        ),
        (
            "See who has written the job's Secret `NAME-auth-...`, and whether a mesh or a proxy refuses the operator."
            " Without the Secret the next RayCluster gets a new one: delete it, then suspend and resume the job."
        ),
    )
    DRIVER_NOT_HEARD = (
        "DriverNotHeard", _ON_THE_WAY,
        (
            "Ray has the driver, but it has not begun for longer than `recovery.hangAfter`, or nobody tells of it."
            " After 10 minutes: `DriverHung`, unless it is the agent that does not answer, in a pod that is ready."
            " Or the driver has ended, and the agent does not answer for its record: for a minute, then Ray's word on"
            " it counts."
            " Or a driver that fell silent is to be ended, and Ray does not take that."
        ),
        "Read the logs of the driver and of the head's container `agent`, and see whether the volume answers.",
    )
    DRIVER_RUNNING = "DriverRunning", ("Running",), "The driver trains."

    # ---- failures, in the driver's words or in the operator's about it

    RANK_LOST = "RankLost", _TRIED_AGAIN, "A trainer process died or fell silent.", _REPEATS
    ENGINE_LOST = (
        "EngineLost", _TRIED_AGAIN, "Rollout engines died or fell silent, and new ones did not help.",
        _REPEATS,
    )
    REWARDS_LOST = (
        "RewardsLost", _TRIED_AGAIN, "The worker that scores died or fell silent, and a new one did not help.",
        _REPEATS,
    )
    INFRASTRUCTURE = (
        "Infrastructure", _TRIED_AGAIN, "Another process, a device, a volume or the network failed.",
        _REPEATS,
    )
    DRIVER_LOST = (
        "DriverLost", _TRIED_AGAIN, "The driver ended without a record, as one does that is killed.",
        "Where it ended by SIGKILL, it may have lacked memory: raise `spec.cluster.head.memory`.",
    )
    DRIVER_HUNG = (
        "DriverHung", _TRIED_AGAIN, "The driver gave no sign of life for longer than `recovery.hangAfter`.",
        "See whether the checkpoint volume answers. Where all is sound but slow, raise `recovery.hangAfter`.",
    )
    RAY_LOST = "RayLost", _TRIED_AGAIN, "Ray's head, its pod or the whole RayCluster is gone.", _REPEATS
    BUG = "Bug", _TRIED_AGAIN, "The driver met an error that nobody foresaw.", "Report it, with the attempt's log."
    JOB = "Job", _ENDS_IT, "The job or its configuration is wrong.", "Change the field that the message names."
    DATA = "Data", _ENDS_IT, "The data or the model is wrong.", "Change the field, or the file, that the message names."
    REWARD = (
        "Reward", _ENDS_IT, "The reward code is wrong.",
        (
            "Mend the function that the message names. Where it fails at some responses alone,"
            " `rewards.onError: drop_group` leaves their groups out."
        ),
    )
    NO_USABLE_CHECKPOINT = (
        "NoUsableCheckpoint", _ENDS_IT,
        "There are checkpoints, but none can be used, or nobody knows whether the newest count.",
        "Do what the message says: restore a file, name a checkpoint, or begin anew with `checkpoint.resume: never`.",
    )
    STORAGE_FULL = (
        "StorageFull", _ENDS_IT, "The checkpoint volume is full.",
        "Grow the volume, or lower `checkpoint.keepLast`.",
    )
    FENCED = (
        "Fenced", ("Failed",), "Another driver has the attempt's number on the volume.",
        "Let no two jobs share a volume and sub-path; a new job of an old name meets its claim. The message names it.",
    )

    # ---- recovery

    STOPPED_ON_REQUEST = (
        "StoppedOnRequest", ("Recovering",),
        "A pod was asked to end, so the driver saved a checkpoint and stopped. The next attempt is free of charge.",
    )
    MORE_STEPS = (
        "MoreSteps", ("Recovering",),
        "`training.steps` was raised after the driver had begun. The next attempt does the rest, free of charge.",
    )
    BACKOFF = (
        "Backoff", ("Recovering",),
        "The operator waits before the next attempt, after a failure that an older version of it did not note down.",
    )
    REPLACING_PODS = (
        "ReplacingPods", ("Recovering",), "The worker pods are being replaced.",
        "Where it lasts, look at the pods that do not end and at their nodes.",
    )
    REBUILDING_CLUSTER = (
        "RebuildingCluster", ("Recovering",), "The RayCluster is being deleted, to be created anew.",
        "Where it lasts, look at the pods that do not end and at their nodes.",
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
        (
            "An image does not exist, may not be pulled, or lacks the program to start. A job without any attempt yet"
            " fails; another one waits, and is Stalled."
        ),
        (
            "Set `spec.cluster.image`, a reward model's `image`, or `spec.imagePullSecrets`, to what can be pulled;"
            " of a job that waits, with `spec.suspend: true` first."
        ),
    )
    OBJECT_INVALID = (
        "ObjectInvalid", _ANY,
        (
            "The API server finds an object of the job's, or a pod, invalid. The job fails, unless an attempt has begun"
            " since it was created or resumed: then what runs goes on."
        ),
        (
            "Correct what the message names: a pod template, a volume, a name; with `spec.suspend` true meanwhile, or"
            " in another RLJob where this one has failed."
        ),
    )
    OBJECT_FORBIDDEN = (
        "ObjectForbidden", _ANY,
        "The API server refuses an object of the job's, or its deletion: quota, admission, permissions.",
        "Grant what the message names. The operator tries again; what runs goes on.",
    )
    OBJECT_FAILING = (
        "ObjectFailing", _ANY,
        "For longer than 10 seconds the API server has failed at an object of the job's, and not at its status.",
        (
            "Read what it says: a webhook that does not answer, a CRD that is gone (KubeRay's, where it finds no"
            " RayCluster), its storage. The operator tries again; what runs goes on."
        ),
    )
    NAME_TAKEN = (
        "NameTaken", _ANY,
        (
            "The name that an object of the job's needs is taken: by somebody else's, by one that keeps no label, or by"
            " a claim that an earlier job has left, of another access mode or storage class."
        ),
        "Do what the message says: choose another name, or free this one. It is tried again soon; what runs goes on.",
    )
    SPEC_NOT_READABLE = (
        "SpecNotReadable", _ANY,
        "The operator's version cannot read the spec, or a part that a new RayCluster needs; what runs goes on.",
        (
            "Install operator and CRD of one version; where the spec is older than the CRD, correct the field that the"
            " message names, with `spec.suspend` true where the job has pods."
        ),
    )

    OPERATOR_ERROR = (
        "OperatorError", _ANY,
        "The operator's own code fails at this job, which it tries again and again; what runs goes on.",
        "Report it, with the message. Where a field of the spec brings it about, change that.",
    )

    # ---- stops and ends

    SUSPENDED = "Suspended", ("Suspending", "Suspended"), "`spec.suspend` is true.", "Set it to false to go on."
    SPEC_CHANGED = (
        "SpecChanged", ("Suspending",), "The spec was changed before the RayCluster that was made for it was gone.",
        "Nothing: the job saves a checkpoint, and goes on in a new RayCluster.",
    )
    KEY_CHANGED = (
        "KeyChanged", ("Suspending",),
        "The RayCluster was made with another key of the operator's, so its head does not take the operator's tokens.",
        "Nothing: the job saves a checkpoint, and goes on in a new RayCluster, free of charge.",
    )
    DEADLINE_EXCEEDED = (
        "DeadlineExceeded", ("Suspending", "Failed"),
        "`spec.activeDeadline` has passed. The job saves a checkpoint, stops and fails.",
    )
    COMPLETED = "Completed", ("Succeeded",), "The driver has done all its steps."
    DELETING = (
        "Deleting", ("Deleting",),
        "The job was deleted: its pods are ending, or finalizers of others, which the message names, keep it.",
        "After some minutes the job goes without its pods. Finalizers are for those to take away who put them there.",
    )
# fmt: on


class Aspect(Word):
    """Why one condition is as it is, where the phase does not say it. where: that condition."""

    NO_CLUSTER = "NoCluster", ("ClusterReady",), "There is no RayCluster."
    PODS_NOT_READY = "PodsNotReady", ("ClusterReady",), "Not all pods are ready; the message says what they wait for."
    ALL_PODS_READY = "AllPodsReady", ("ClusterReady",), "Head and workers are ready."
    NO_SERVERS = "NoServers", ("RewardModelsReady",), "There are none: the job does not run."
    SERVERS_NOT_READY = (
        "ServersNotReady",
        ("RewardModelsReady",),
        "Servers are missing; the message says what their pods say. A driver waits for them, up to `lostAfter`.",
    )
    ALL_SERVERS_READY = "AllServersReady", ("RewardModelsReady",), "All servers of all reward models are ready."
    NOT_RUNNING = "NotRunning", ("Running",), "No driver runs; Ready says why."
    NONE_YET = "NoneYet", ("CheckpointAvailable",), "No checkpoint is durable yet."
    LOST = (
        "Lost",
        ("CheckpointAvailable",),
        "There was one; the message says where it went. The next attempt begins anew.",
    )
    SAVED = "Saved", ("CheckpointAvailable",), "The message says after which step."
    NOT_SUSPENDED = "NotSuspended", ("Suspended",), "It is not, or not yet."
    NOT_FINISHED = "NotFinished", ("Succeeded",), "Steps are left."
    FAILED = "Failed", ("Succeeded",), "It failed; the condition Failed says why."
    NOT_FAILED = "NotFailed", ("Failed",), "It has not."
    SETTLED = "Settled", ("Reconciling",), "There is nothing left to do, or nothing that the operator could."
    NOT_STALLED = "NotStalled", ("Stalled",), "Nothing waits for a person."


class Note(Word):
    """What an event says that no condition does."""

    ATTEMPT_STARTING = "AttemptStarting", (), "The next attempt has its number, and its driver will be submitted."
    CHECKPOINT_SAVED = "CheckpointSaved", (), "The first checkpoint is durable; later ones are in the status only."
    CHECKPOINT_LOST = "CheckpointLost", (), "The condition CheckpointAvailable says how."
    FIELD_IGNORED = (
        "FieldIgnored",
        (),
        (
            "The RayCluster was made without a field that the API server does not know: a pod template has a typo, or"
            " KubeRay's CRD is of another version. Correct it with `spec.suspend` true meanwhile."
        ),
    )
