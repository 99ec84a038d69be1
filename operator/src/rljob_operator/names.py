"""Names of everything that belongs to an RLJob, each derived from the job's, so that creating twice makes one."""

import hashlib
from collections.abc import Mapping

GROUP = "rljob.dev"
MANAGER = "rljob-operator"
MANAGER_NAME = f"{GROUP}/operator"
OUR_MANAGERS = (None, MANAGER_NAME)
"""spec.managedBy of jobs that this operator manages."""

MULTIKUEUE = "kueue.x-k8s.io/multikueue"
"""spec.managedBy of jobs that Kueue runs in another cluster."""

FINALIZER = f"{GROUP}/cleanup"

JOB_LABEL = f"{GROUP}/job"
"""On every child: the name of its RLJob, which lives in the same namespace."""

ROLE_LABEL = f"{GROUP}/role"
REWARD_MODEL_LABEL = f"{GROUP}/reward-model"
"""On the pods of a reward model: its name in the spec."""

DIGEST_ANNOTATION = f"{GROUP}/digest"
RENDERER_ANNOTATION = f"{GROUP}/renderer"
SPEC_ANNOTATION = f"{GROUP}/spec"
"""On a RayCluster and on a reward model's Deployment: a digest of what may not change in the spec while it lives."""

TEMPLATE_ANNOTATION = f"{GROUP}/template"
"""On a reward model's Deployment: a digest of its pod template, as the operator that created it rendered it."""

IMAGE_ANNOTATION = f"{GROUP}/image"
"""On a RayCluster: the image that it was created with, unless a template names another."""

GENERATION_ANNOTATION = f"{GROUP}/generation"
"""On a RayCluster: the job's generation that it was created for."""

EVICTION_ANNOTATION = f"{GROUP}/eviction"
"""On a RayCluster: the part of spec.recovery that its pods keep, as text for people."""

MAKER_ANNOTATION = f"{GROUP}/made-for"
"""On a volume claim: the uid of the job that it was created for. A later job of the name may use it, not own it."""

KEY_ANNOTATION = f"{GROUP}/key"
"""On a RayCluster: the fingerprint of the operator's key, from which its tokens are derived."""

QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
"""On an RLJob: the LocalQueue that it waits in. Kueue's own names follow."""

PRIORITY_LABEL = "kueue.x-k8s.io/priority-class"
WORKLOAD_FINALIZER = "kueue.x-k8s.io/resource-in-use"
"""On a Workload until no pod needs its quota."""

PREBUILT_WORKLOAD = "kueue.x-k8s.io/prebuilt-workload-name"
"""Label or annotation of the copy of a job of another cluster: the Workload that MultiKueue created for it."""

JOB_UID_LABEL = "kueue.x-k8s.io/job-uid"
POD_SET_LABEL = "kueue.x-k8s.io/podset"
CLUSTER_QUEUE_LABEL = "kueue.x-k8s.io/cluster-queue-name"
LOCAL_QUEUE_LABEL = "kueue.x-k8s.io/local-queue-name"
WORKLOAD_ANNOTATION = "kueue.x-k8s.io/workload"
TOPOLOGY_ANNOTATION = "kueue.x-k8s.io/podset-%s-topology"
"""On a pod template: %s is required, preferred or unconstrained."""

TOPOLOGY_GATE = "kueue.x-k8s.io/topology"
"""Kueue removes this scheduling gate from a pod that it has assigned to a node."""

VOLCANO_GROUP_ANNOTATION = "scheduling.k8s.io/group-name"
COSCHEDULING_GROUP_LABEL = "scheduling.x-k8s.io/pod-group"
POD_GROUP_LABEL = f"{GROUP}/pod-group"
"""On a pod: its PodGroup of Kubernetes, which a MutatingAdmissionPolicy of the chart writes into its spec: KubeRay's
types lack the field."""

VOLCANO_SCHEDULER = "volcano"

ROLES = HEAD, WORKER, REWARD_MODEL = "head", "worker", "reward-model"
HEAD_CONTAINER, WORKER_CONTAINER, AGENT_CONTAINER, SERVER_CONTAINER = "ray-head", "ray-worker", "agent", "vllm"

VOLUME_FOLDER = "/checkpoints"
JOB_FOLDER = "/etc/rljob/job"
TOKEN_FOLDER = "/etc/rljob/auth"
JOB_FILE = "job.json"
AUTH_TOKEN, AGENT_TOKEN, REWARD_KEY = "auth_token", "agent_token", "reward_key"


def labels(job: str) -> Mapping[str, str]:
    """Labels of every child."""
    return {JOB_LABEL: job, "app.kubernetes.io/managed-by": MANAGER}


def ray_cluster(job: str) -> str:
    """The API server allows one object of a name, so a job has one cluster."""
    return job


def pod_group(job: str) -> str:
    return job


def job_config(job: str) -> str:
    return f"{job}-job"


def auth_secret(job: str, uid: str, key: str) -> str:
    """Unique per job and per key of the operator, which may not read Secrets and so could not check the content.

    key: its fingerprint.
    """
    return f"{job}-auth-{uid[:8]}-{key}"


def claim(job: str) -> str:
    return f"{job}-checkpoints"


def reward_model(job: str, model: str) -> str:
    """Name of its Deployment and Service. `-model` contains no `-rm-`, so the last one of the name ends the job's."""
    return f"{job}-rm-{model}"


HEAD_GROUP, TRAINER_GROUP = "head", "trainer"
"""Groups of a job's pods, which are the podSets of its Workload."""


def reward_group(model: str) -> str:
    """The group of a reward model's servers."""
    return f"reward-{model}"


def workload(job: str, uid: str) -> str:
    """As Kueue names the Workload of a job: it has the job's uid, so an earlier job's Workload is another object."""
    written = hashlib.sha1(f"RLJob\n{GROUP}\n{job}\n{uid}".encode(), usedforsecurity=False).hexdigest()
    return f"rljob-{job}-{written[:5]}"


def submission(uid: str, attempt: int) -> str:
    """Ray refuses a second submission of the same id, so an attempt has one driver."""
    return f"{uid}-a{attempt}"
