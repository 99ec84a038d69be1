"""The API key of a server of models. Light: `rljob run` asks for it before it starts Ray."""

from collections.abc import Mapping

from rljob_api import reward_server
from rljob_api.v1alpha1 import RewardModel
from rljob_api.v1alpha1.cluster import SecretKeyRef
from rljob_api.v1alpha1.teacher import TEACHER_KEY, TeacherServer
from rljob_trainer.errors import JobError

TEACHER_FIELD = "spec.algorithm.teacher.server"


def read_key(model: RewardModel, field: str, environment: Mapping[str, str]) -> str | None:
    """The key: of a server that the job starts, the job's. None without one. field: the model's field in the spec.

    Raises JobError if the environment lacks it.
    """
    return _read(reward_server.key_variable(model), model.key, field, environment)


def read_teacher_key(server: TeacherServer, environment: Mapping[str, str]) -> str | None:
    """As read_key, of the teacher's server."""
    return _read(TEACHER_KEY, server.key, TEACHER_FIELD, environment)


def _read(variable: str, secret: SecretKeyRef | None, field: str, environment: Mapping[str, str]) -> str | None:
    if key := environment.get(variable, "").strip():
        return key
    if secret is None:
        return None
    raise JobError(
        f"a cluster reads the key from the Secret; on this machine, set the environment variable {variable}",
        field=f"{field}.key",
    )
