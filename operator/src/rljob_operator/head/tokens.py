"""A job's tokens and its reward models' key, derived from the operator's key, so that it need not read Secrets."""

import hmac


def fingerprint(key: bytes) -> str:
    """Identifies the key in names and annotations, which are public."""
    return derive(key, "", "fingerprint")[:8]


def derive(key: bytes, uid: str, purpose: str) -> str:
    """Hex of HMAC-SHA256 over the job's uid and the token's purpose."""
    return hmac.new(key, f"{uid}/{purpose}".encode(), "sha256").hexdigest()
