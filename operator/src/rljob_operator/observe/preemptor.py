"""For whom Kueue took a job's quota: its messages name a workload by UIDs, and the job's status by name.

Only in the job's own namespace: the users of one need not learn the names of another's jobs.
"""

import re

from rljob_operator.kube.kinds import RLJOB, WORKLOAD, Manifest, Ref
from rljob_operator.runtime.store import Store

_MENTION = re.compile(r"a workload \(UID: ([^,)]+), JobUID: ([^)]+)\)")


def preemptor_of(workload: Manifest | None, store: Store) -> Ref | None:
    """The RLJob, or else its Workload, that a condition of this Workload mentions. None if none is known."""
    if workload is None:
        return None
    said = [each.get("message", "") for each in workload.get("status", {}).get("conditions", ())]
    uids = {uid for message in said for found in _MENTION.findall(message) for uid in found}
    here = workload["metadata"]["namespace"]
    for kind in (RLJOB, WORKLOAD) if uids else ():
        for key, each in store.all(kind).items():
            if key.namespace == here and each["metadata"]["uid"] in uids:
                return Ref(kind, *key, each["metadata"]["uid"])
    return None


def by_name(message: str, preemptor: Ref | None) -> str:
    """Kueue's message with a name in place of its UIDs, if they are the preemptor's."""
    if preemptor is None:
        return message
    return _MENTION.sub(lambda found: f"{preemptor}" if preemptor.uid in found.groups() else found[0], message)
