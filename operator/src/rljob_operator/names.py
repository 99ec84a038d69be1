"""Names of everything that belongs to an RLJob, each derived from the job's, so that creating twice makes one."""

from collections.abc import Mapping

GROUP = "rljob.dev"
MANAGER = "rljob-operator"
MANAGER_NAME = f"{GROUP}/operator"
OUR_MANAGERS = (None, MANAGER_NAME)
"""What spec.managedBy says of jobs that are ours."""

FINALIZER = f"{GROUP}/cleanup"

JOB_LABEL = f"{GROUP}/job"
"""On every child: the name of its RLJob, which lives in the same namespace."""

ROLE_LABEL = f"{GROUP}/role"
REWARD_MODEL_LABEL = f"{GROUP}/reward-model"
"""On the pods of a reward model: its name in the spec."""

DIGEST_ANNOTATION = f"{GROUP}/digest"
RENDERER_ANNOTATION = f"{GROUP}/renderer"
SPEC_ANNOTATION = f"{GROUP}/spec"
"""On a RayCluster and on a reward model's Deployment: a digest of what of the spec may not change while it lives."""

TEMPLATE_ANNOTATION = f"{GROUP}/template"
"""On a reward model's Deployment: a digest of its pod template, as the operator that made it rendered it. Older ones
wrote the template itself there, which may be longer than annotations may.
"""

IMAGE_ANNOTATION = f"{GROUP}/image"
"""On a RayCluster: the image that it was made with, but for what templates say."""

GENERATION_ANNOTATION = f"{GROUP}/generation"
"""On a RayCluster: the job's generation that it was made for."""

EVICTION_ANNOTATION = f"{GROUP}/eviction"
"""On a RayCluster: what of spec.recovery its pods were made with, for they keep it, as people read it."""

MAKER_ANNOTATION = f"{GROUP}/made-for"
"""On a volume claim: the uid of the job that it was made for. Another job of the name may use it, and never owns it."""

RAY_CLUSTER_LABEL = "ray.io/cluster"
"""KubeRay's, on a RayCluster's pods: its name."""

KEY_ANNOTATION = f"{GROUP}/key"
"""On a RayCluster: the fingerprint of the operator's key, from which its tokens are derived."""

ROLES = HEAD, WORKER, REWARD_MODEL = "head", "worker", "reward-model"
HEAD_CONTAINER, WORKER_CONTAINER, AGENT_CONTAINER, SERVER_CONTAINER = "ray-head", "ray-worker", "agent", "vllm"

VOLUME_FOLDER = "/checkpoints"
JOB_FOLDER = "/etc/rljob/job"
TOKEN_FOLDER = "/etc/rljob/auth"
JOB_FILE = "job.json"
AUTH_TOKEN, AGENT_TOKEN = "auth_token", "agent_token"


def labels(job: str) -> Mapping[str, str]:
    """Of every child."""
    return {JOB_LABEL: job, "app.kubernetes.io/managed-by": MANAGER}


def ray_cluster(job: str) -> str:
    """The API server allows one object of a name, and so one cluster for a job."""
    return job


def job_config(job: str) -> str:
    return f"{job}-job"


def auth_secret(job: str, uid: str, key: str) -> str:
    """Another job of the name never meets it, nor this one with another key of the operator's: that may not read
    Secrets, so it could not tell whose it is. key: its fingerprint.
    """
    return f"{job}-auth-{uid[:8]}-{key}"


def claim(job: str) -> str:
    return f"{job}-checkpoints"


def reward_model(job: str, model: str) -> str:
    """Of its Deployment and Service. No other child has `-rm-` after the job's name."""
    return f"{job}-rm-{model}"


def submission(uid: str, attempt: int) -> str:
    """Ray refuses a second submission of the same id, and so an attempt has one driver."""
    return f"{uid}-a{attempt}"
