"""The operator's key: one Secret in its own namespace, created at its first start and never changed.

A chart would create another one at each synchronisation, and every running job would refuse the operator's tokens.
"""

import base64
import secrets

from rljob_operator.kube.client import Kube
from rljob_operator.kube.errors import AlreadyExists, NotFound
from rljob_operator.kube.kinds import SECRET, Ref

NAME = "rljob-operator-key"
KEY_BYTES = 32


async def operator_key(kube: Kube, namespace: str) -> bytes:
    """Several operators that start together agree on one."""
    ref = Ref(SECRET, namespace, NAME)
    try:
        found = await kube.get(ref)
    except NotFound:
        made = base64.b64encode(secrets.token_bytes(KEY_BYTES)).decode()
        try:
            metadata = {"name": NAME, "namespace": namespace}
            found = await kube.create(SECRET.manifest(metadata, immutable=True, data={"key": made}))
        except AlreadyExists:
            found = await kube.get(ref)
    return base64.b64decode(found["data"]["key"])
