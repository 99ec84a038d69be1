"""What pods read: the resolved job, the tokens, and the volume."""

import base64
import json
from typing import Any

from rljob_api import RLJobSpec, resolve
from rljob_api.contract import DriverJob
from rljob_operator import names
from rljob_operator.head import tokens
from rljob_operator.kube.kinds import CONFIG_MAP, SECRET, VOLUME_CLAIM
from rljob_operator.render.reward_models import url

DEFAULT_SIZE = "100Gi"


def job_config(job: str, uid: str, generation: int, spec: RLJobSpec) -> dict[str, Any]:
    """The driver's job. Relative paths of the spec start at the volume."""
    driver_job = DriverJob(
        name=job,
        uid=uid,
        start_id=uid,
        generation=generation,
        base_dir=names.VOLUME_FOLDER,
        spec=resolve(spec),
        reward_models={model.name: url(job, model.name) for model in spec.rewards.served},
    )
    queued = {"spec": {"cluster": {"min_nodes"}}}  # of the queue alone, and news to an older trainer
    text = json.dumps(driver_job.model_dump(mode="json", by_alias=True, exclude=queued), sort_keys=True)
    return CONFIG_MAP.manifest({"name": names.job_config(job)}, data={names.JOB_FILE: text})


def auth_secret(job: str, uid: str, key: bytes) -> dict[str, Any]:
    """Ray's token, the agent's, and the key of the reward models' servers."""
    purposes = (names.AUTH_TOKEN, names.AGENT_TOKEN, names.REWARD_KEY)
    data = {purpose: base64.b64encode(tokens.derive(key, uid, purpose).encode()).decode() for purpose in purposes}
    return SECRET.manifest({"name": names.auth_secret(job, uid, tokens.fingerprint(key))}, data=data)


def checkpoint_claim(job: str, spec: RLJobSpec) -> dict[str, Any] | None:
    """None if the job brings a claim."""
    volume = spec.checkpoint.volume
    if volume.existing_claim is not None:
        return None
    claim: dict[str, Any] = {
        "accessModes": [volume.access_mode or "ReadWriteMany"],
        "resources": {"requests": {"storage": volume.size or DEFAULT_SIZE}},
    }
    if volume.storage_class_name is not None:
        claim["storageClassName"] = volume.storage_class_name
    return VOLUME_CLAIM.manifest({"name": names.claim(job)}, spec=claim)
