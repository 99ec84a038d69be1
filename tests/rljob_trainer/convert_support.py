"""A launch of verl, and the job that a conversion becomes."""

from typing import Any

import yaml

from rljob_trainer.convert.conversion import Conversion
from rljob_trainer.convert.document import rendered

GRPO = ("algorithm.adv_estimator=grpo", "actor_rollout_ref.rollout.n=4", "actor_rollout_ref.model.path=org/model",
        "data.train_files=train.parquet")  # fmt: skip


def spec(conversion: Conversion) -> dict[str, Any]:
    return dict(yaml.safe_load(rendered(conversion, "test"))["spec"])
