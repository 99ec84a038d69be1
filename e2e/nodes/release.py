"""RLJob's operator in pods, from its chart and the images that were built here."""

import yaml

from e2e.cluster.helm import Helm
from e2e.nodes.images import OPERATOR, REPOSITORY, TRAINER

NAMESPACE = "rljob-system"

CHART = REPOSITORY / "charts/rljob-operator"


def install(helm: Helm, **values: object) -> None:
    """Or upgrade it, and wait until its pods are ready. values: of the chart, on top of what these images ask for."""
    repository, _, tag = OPERATOR.rpartition(":")
    given = {
        "image": {"repository": repository, "tag": tag},
        "operator": {"trainerImage": TRAINER, "pollSeconds": 1},
        **values,
    }
    options = ("--install", "--create-namespace", f"--namespace={NAMESPACE}", "--values=-", "--wait", "--timeout=3m")
    helm("upgrade", "rljob-operator", str(CHART), *options, values=yaml.safe_dump(given))
