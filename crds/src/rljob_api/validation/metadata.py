"""`metadata` as Kubernetes defines it: the API server rejects other fields, and labels that are not text."""

from rljob_api.schema import FREE_FORM, Schema

_TEXT: Schema = {"type": "string"}
_FREE: Schema = {FREE_FORM: True}

METADATA: Schema = {
    "type": "object",
    "description": "Name and labels.",
    "required": ["name"],
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 253, "description": "Name of the job."},
        "namespace": _TEXT,
        "labels": {"type": "object", "additionalProperties": _TEXT},
        "annotations": {"type": "object", "additionalProperties": _TEXT},
        "finalizers": {"type": "array", "items": _TEXT},
        "generateName": _TEXT,
        "uid": _TEXT,
        "resourceVersion": _TEXT,
        "selfLink": _TEXT,
        "creationTimestamp": _TEXT,
        "deletionTimestamp": _TEXT,
        "generation": {"type": "integer"},
        "deletionGracePeriodSeconds": {"type": "integer"},
        "ownerReferences": _FREE,
        "managedFields": _FREE,
    },
}
"""The schema of io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta."""
