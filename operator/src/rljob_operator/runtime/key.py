"""The operator's key: one Secret in its own namespace, created at its first start and never changed.

A chart would create another one at each synchronisation, and every running job would refuse the operator's tokens.
"""

import base64
import binascii
import secrets

from rljob_operator.kube.client import Kube
from rljob_operator.kube.errors import AlreadyExists, KubeError, NotFound
from rljob_operator.kube.kinds import SECRET, Manifest, Ref

NAME = "rljob-operator-key"
KEY_BYTES = 32
"""Of a key that the operator creates, and the fewest that it accepts: HMAC-SHA256 with a shorter key is weaker."""


async def operator_key(kube: Kube, namespace: str) -> bytes:
    """Several operators that start together agree on one. Raises KubeError if the Secret holds none of KEY_BYTES."""
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
    return _key_in(found)


def _key_in(secret: Manifest) -> bytes:
    try:
        key = base64.b64decode((secret.get("data") or {}).get("key", ""), validate=True)
    except binascii.Error:
        key = b""
    if len(key) < KEY_BYTES:
        raise KubeError(
            f"Secret {NAME} has {len(key)} bytes in data.key, and a key has at least {KEY_BYTES}. Delete the Secret:"
            " the operator creates another one, and running jobs continue in new RayClusters",
            reason="KeyTooShort",
        )
    return key
