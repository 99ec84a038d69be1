"""Images: which of them a node gets, and what its kubelet says of one that it does not get.

ErrImagePull ──> ImagePullBackOff ──> it runs, once the image can be pulled
     ^───────────────────┘ it is tried again

Each pod is on a node that has no image yet, so it pulls when it starts, and never again: not with a container that is
started once more.
"""

from rljob_operator.kube.kinds import Manifest
from rljob_operator.observe.snapshot import role_of

IMAGE, NOWHERE = "trainer:1", "registry/nowhere:1"
"""That of all jobs that name none, and one that was never pushed."""

SILENT = 'failed to do request: Head "https://registry/v2/": dial tcp 10.0.0.9:443: i/o timeout'
DENIED = "pull access denied, repository does not exist or may require authorization: authorization failed"
_ABSENT = f"{NOWHERE}: not found"

FAILED, BACKS_OFF = "ErrImagePull", "ImagePullBackOff"


class Images:
    """out: roles whose pods get no image for now, and the registry's words, or the network's."""

    def __init__(self) -> None:
        self.out: dict[str | None, str] = {}

    def unpulled(self, pod: Manifest) -> Manifest | None:
        """What the kubelet says next of a pod that does not get its image; None where it does.

        It is what it says already where nothing is new.
        """
        image = _first(pod)[0]["image"]
        words = _ABSENT if image == NOWHERE else self.out.get(role_of(pod))
        if words is None:
            return None
        return _waiting(pod, BACKS_OFF if words in _told(pod) else FAILED, words)


def tried_again(pod: Manifest) -> Manifest | None:
    """What the kubelet says of a pod whose image it has tried to pull once more, in vain."""
    reason = next((_state(each).get("reason") for each in _statuses(pod)), None)
    words = next((words for words in (_ABSENT, SILENT, DENIED) if words in _told(pod)), None)
    return _waiting(pod, FAILED, words) if reason == BACKS_OFF and words is not None else None


def is_unpulled(pod: Manifest) -> bool:
    return any(_state(each).get("reason") in (FAILED, BACKS_OFF) for each in _statuses(pod))


def refused(pod: Manifest) -> dict[str, str]:
    """Images that a registry has said no of, and what the kubelet says of that."""
    waiting = [(each["image"], _state(each).get("message", "")) for each in _statuses(pod) if _state(each)]
    return {image: said for image, said in waiting if _ABSENT in said or DENIED in said}


def _waiting(pod: Manifest, reason: str, words: str) -> Manifest:
    """Of its containers: those that come first wait for their image, and the others for them."""
    spec, first = pod["spec"], _first(pod)
    return {
        group: [
            {"name": each["name"], "image": each["image"], "ready": False, "restartCount": 0}
            | {"state": {"waiting": _said(each["image"], reason, words) if each in first else _AFTER_OTHERS}}
            for each in spec.get(containers, ())
        ]
        for group, containers in (("initContainerStatuses", "initContainers"), ("containerStatuses", "containers"))
    }


_AFTER_OTHERS = {"reason": "PodInitializing"}


def _said(image: str, reason: str, words: str) -> Manifest:
    failed = f'failed to pull and unpack image "{image}": failed to resolve reference "{image}": {words}'
    backs_off = f'Back-off pulling image "{image}": {FAILED}: {failed}'
    return {"reason": reason, "message": failed if reason == FAILED else backs_off}


def _first(pod: Manifest) -> list[Manifest]:
    """The containers that are started first, all of which have one image."""
    return list(pod["spec"].get("initContainers") or pod["spec"]["containers"])


def _statuses(pod: Manifest) -> list[Manifest]:
    status = pod["status"]
    return [*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())]


def _state(container: Manifest) -> Manifest:
    """Why it waits, if it does."""
    waiting: Manifest = container["state"].get("waiting", {})
    return waiting


def _told(pod: Manifest) -> str:
    return " ".join(_state(each).get("message", "") for each in _statuses(pod))
