"""The API key of a reward model's server that runs already. Light: `rljob run` asks for it before it starts Ray."""

from collections.abc import Mapping

from rljob_api import reward_server
from rljob_api.v1alpha1 import RewardModel
from rljob_trainer.errors import JobError


def read_key(model: RewardModel, field: str, environment: Mapping[str, str]) -> str | None:
    """The key; None for a model without one. field: the model's field in the spec.

    Raises JobError if the environment lacks it.
    """
    if model.key is None:
        return None
    variable = reward_server.key_variable(model)
    if not (key := environment.get(variable, "").strip()):
        raise JobError(
            f"a cluster reads the key from the Secret; on this machine, set the environment variable {variable}",
            field=f"{field}.key",
        )
    return key
